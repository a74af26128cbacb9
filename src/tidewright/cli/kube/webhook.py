"""``tide kube webhook``: pods that ask for gpu-mem become pods with DRA claims."""

from __future__ import annotations

from pathlib import Path

import click

from .options import CONFIG, CONTEXT

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("webhook", short_help="Turn pods that ask for gpu-mem into pods with DRA claims.")
@CONFIG
@CONTEXT
@click.option("--tls-cert", type=FILE, required=True, help="Certificate (PEM). Read again when it changes.")
@click.option("--tls-key", type=FILE, required=True, help="Its key (mode 0600).")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=9443, show_default=True, help="Port to listen on.")
@click.option("--memory-unit", type=click.Choice(["GiB", "MiB"]), default="GiB", show_default=True,
              help="What one unit of aliyun.com/gpu-mem is in this cluster.")  # fmt: skip
@click.option("--chunk", type=click.IntRange(min=1), default=None, help="MiB to a unit, with --memory-unit MiB.")
@click.option("--device-class", default="gpu.tidewright.io", show_default=True, help="DeviceClass that claims ask for.")
@click.option("--sm-percent", type=click.IntRange(1, 100), default=None,
              help="Of each GPU's multiprocessors, for pods without the annotation tidewright.io/gpu-sm-percent. "
                   "Default: the driver's.")  # fmt: skip
def command(
    kubeconfig: str, context: str, tls_cert: Path, tls_key: Path, host: str, port: int, memory_unit: str,
    chunk: int | None, device_class: str, sm_percent: int | None,
) -> None:  # fmt: skip
    """Serve a mutating admission webhook under /mutate, over HTTPS: pods that limit aliyun.com/gpu-mem get a DRA claim
    for as much, and need no change of their manifests. Also /healthz and /readyz.

    For clusters with the DRA driver gpu.tidewright.io. See docs/kubernetes-webhook.md.
    """
    from ...app.kube.cluster import ClusterTarget
    from ...app.kube.webhook import serve_webhook

    serve_webhook(
        ClusterTarget(kubeconfig, context), memory_unit, chunk or 0, device_class, sm_percent, certificate=tls_cert, key=tls_key,
        host=host, port=port,
    )  # fmt: skip
