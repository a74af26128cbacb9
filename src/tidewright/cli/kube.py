"""``tide kube``: GPU sharing on Kubernetes."""

from __future__ import annotations

from pathlib import Path

import click

from .kube_doctor import doctor
from .kube_dra import command as dra
from .kube_options import CONFIG, CONTEXT
from .kube_plugin import command as device_plugin
from .kube_proxy import command as plugin_proxy
from .kube_webhook import command as webhook


@click.group("kube", short_help="Share the GPUs of a Kubernetes cluster by memory.", no_args_is_help=True)
def command() -> None:
    """Share the GPUs of a Kubernetes cluster by memory, with gpushare's resources and annotations.

    Needs the extra kube: pip install 'tidewright[kube]'. See docs/kubernetes.md.
    """


@command.command("extender", short_help="Serve kube-scheduler as an extender.")
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
def extender(
    kubeconfig: str, context: str, host: str, port: int, policy: str, namespace: str, leader_elect: str,
    tls_cert: Path | None, tls_key: Path | None, token_file: Path | None,
) -> None:  # fmt: skip
    """Answer kube-scheduler under /gpushare-scheduler: filter, prioritize, preempt, bind, inspect.

    Also /version, /healthz, /readyz and /metrics. Of several replicas one leads and the others stand by.
    """
    from ..app.kube import ClusterTarget, serve_extender

    serve_extender(
        ClusterTarget(kubeconfig, context), token_file, host=host, port=port, policy=policy, namespace=namespace,
        lead=leader_elect, certificate=tls_cert, key=tls_key,
    )  # fmt: skip


@command.command("inspect", short_help="Who has how much of which GPU.")
@CONFIG
@CONTEXT
@click.option("-d", "--details", is_flag=True, help="A row per pod.")
@click.option("-o", "--output", type=click.Choice(["table", "wide", "json"]), default="table", show_default=True,
              help="wide: isolation, health, memory that fits no pod, heartbeats; with -d memory in use.")  # fmt: skip
@click.argument("node", required=False)
def inspect(kubeconfig: str, context: str, details: bool, output: str, node: str | None) -> None:
    """Show how the GPUs of the cluster, or of NODE, are shared: the table of kubectl inspect gpushare."""
    from ..app.kube import ClusterTarget, inspect_cluster

    form = {"json": "json", "wide": "wide details" if details else "wide"}.get(
        output, "details" if details else "summary"
    )
    text, odd = inspect_cluster(ClusterTarget(kubeconfig, context), node or "", form)
    for line in odd:
        click.echo(f"passed over: {line}", err=True)
    click.echo(text, nl=False)


command.add_command(doctor)
command.add_command(device_plugin)
command.add_command(plugin_proxy)
command.add_command(dra)
command.add_command(webhook)
