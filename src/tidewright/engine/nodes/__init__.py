"""Nodes of the pool: registration, loss, outages of devices, refused launches, failure rate."""
