"""``tide kube extender``: the scheduler's half of GPU sharing on Kubernetes."""

from __future__ import annotations

from pathlib import Path

import click

from .options import CONFIG, CONTEXT


@click.command("extender", short_help="Serve kube-scheduler as an extender.")
@CONFIG
@CONTEXT
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=39999, show_default=True, envvar="PORT", help="Port to listen on.")
@click.option("--policy", type=click.Choice(["best-fit", "spread", "fgd"]), default="best-fit", show_default=True,
              help="Which GPU a pod gets that asks for no policy by annotation tidewright.io/gpu-policy.")  # fmt: skip
@click.option("--namespace", default="kube-system", show_default=True, help="Where the Lease lies.")
@click.option("--leader-elect", type=click.Choice(["auto", "on", "off"]), default="auto", show_default=True,
              help="Lead by a Lease. auto: where the account has the right to.")  # fmt: skip
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Certificate (PEM) to serve HTTPS with.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="Its key.")
@click.option(
    "--token-file", type=click.Path(path_type=Path), help="Answer only who sends this bearer token (mode 0600)."
)
def command(
    kubeconfig: str, context: str, host: str, port: int, policy: str, namespace: str, leader_elect: str,
    tls_cert: Path | None, tls_key: Path | None, token_file: Path | None,
) -> None:  # fmt: skip
    """Answer kube-scheduler under /gpushare-scheduler: filter, prioritize, preempt, bind, inspect.

    Also /version, /healthz, /readyz and /metrics. Of several replicas one leads and the others stand by.
    """
    from ...app.kube.cluster import ClusterTarget, serve_extender

    serve_extender(
        ClusterTarget(kubeconfig, context), token_file, host=host, port=port, policy=policy, namespace=namespace,
        lead=leader_elect, certificate=tls_cert, key=tls_key,
    )  # fmt: skip
