"""The mutating admission webhook (``tide kube webhook``): pods that request gpushare resources get a ResourceClaim instead."""
