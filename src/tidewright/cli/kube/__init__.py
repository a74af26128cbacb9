"""cli.kube: the commands of ``tide kube``, and the options that they share."""
