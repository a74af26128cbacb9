"""The scheduler extender (``tide kube extender``): its HTTP server, cluster cache, bindings and leader election."""
