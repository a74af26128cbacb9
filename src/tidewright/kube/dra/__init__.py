"""The driver for Dynamic Resource Allocation (``tide kube dra``): ResourceSlices published, ResourceClaims prepared."""
