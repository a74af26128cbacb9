"""The device plugin (``tide kube device-plugin``) and the proxy that keeps it registered (``tide kube plugin-proxy``)."""
