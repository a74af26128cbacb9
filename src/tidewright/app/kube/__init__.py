"""app.kube: put together what runs in or beside a Kubernetes cluster: extender, device plugin, its proxy, DRA driver, webhook."""
