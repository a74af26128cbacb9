"""What device plugin and DRA driver share on a node: its GPUs, cgroups, CDI files, kubelet sockets and API objects."""
