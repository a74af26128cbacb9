"""``tide kube device-plugin``: the node's half of GPU sharing on Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import CONFIG, CONTEXT, FOLDER, KUBELET_DIR, NODE, guarding, guarding_of

WITHOUT_EFFECT = {
    "mps": "gpushare's plugin passes it over, too",
    "health_check": "GPUs are always watched",
    "query_kubelet": "the kubelet's checkpoint on this node is read instead",
    "kubelet_address": "the kubelet's checkpoint on this node is read instead",
    "kubelet_port": "the kubelet's checkpoint on this node is read instead",
    "client_cert": "the kubelet's checkpoint on this node is read instead",
    "client_key": "the kubelet's checkpoint on this node is read instead",
    "token": "the kubelet's checkpoint on this node is read instead",
    "timeout": "the kubelet's checkpoint on this node is read instead",
}
"""Flags of gpushare's plugin that are taken and change nothing, and why."""


def _taken(flag: str) -> click.Option:
    """With a value or without one, as Go's flags."""
    return click.Option([flag], is_flag=False, flag_value="true", default=None, hidden=True)


@click.command("device-plugin", short_help="Offer this node's GPUs to its kubelet, by memory.")
@CONFIG
@CONTEXT
@NODE
@click.option("--memory-unit", type=click.Choice(["GiB", "MiB"]), default="GiB", show_default=True,
              help="What one unit of aliyun.com/gpu-mem is, on every node of the cluster.")  # fmt: skip
@click.option("--chunk", type=click.IntRange(min=1), default=None,
              help="MiB to a unit, with --memory-unit MiB: pods then ask for so many chunks.")  # fmt: skip
@click.option("--binding", type=click.Choice(["auto", "late", "match"]), default="auto", show_default=True,
              help="How a container finds its GPU: late, by CDI; match, by its size, for runtimes without CDI.")  # fmt: skip
@click.option("--heartbeat", type=click.FloatRange(1, 3600), default=60.0, show_default=True,
              help="Seconds between heartbeats on the node.")  # fmt: skip
@guarding
@click.option("--fake-gpus", envvar="TIDEWRIGHT_FAKE_GPUS", show_envvar=True, default="",
              help='Offer GPUs that are not there, such as "2x15" or "1x24+3x10mig" (GiB; mig: as an instance).')  # fmt: skip
@click.option("--behind-proxy", is_flag=True,
              help="Leave the kubelet to a tide kube plugin-proxy on this node; it notices no restart then.")  # fmt: skip
@click.option("--respawn", is_flag=True,
              help="Start again at once when killed or crashed, from a parent process that does nothing else.")  # fmt: skip
@KUBELET_DIR
@click.option("--cdi-dir", type=FOLDER, default=Path("/var/run/cdi"), show_default=True,
              help="Where the container runtime reads CDI files.")  # fmt: skip
def command(
    kubeconfig: str, context: str, node: str, memory_unit: str, chunk: int | None, binding: str, heartbeat: float,
    fake_gpus: str, behind_proxy: bool, respawn: bool, kubelet_dir: Path, cdi_dir: Path, **others: Any,
) -> None:  # fmt: skip
    """Offer this node's GPUs to its kubelet as units of aliyun.com/gpu-mem, and give containers the GPU that was chosen.

    Runs as root on every node that has GPUs to share, before and after its kubelet. The flags of gpushare's device plugin
    are taken; those without effect say so. See docs/kubernetes-plugin.md.
    """
    from ...app.kube.cluster import ClusterTarget
    from ...app.kube.device_plugin import serve_plugin

    guards = guarding_of(others)
    for flag, value in others.items():
        if value is not None:
            click.echo(f"--{flag.replace('_', '-')} has no effect: {WITHOUT_EFFECT[flag]}", err=True)
    serve_plugin(
        ClusterTarget(kubeconfig, context), fake_gpus, memory_unit, chunk or 0, node=node, binding=binding, beat_s=heartbeat,
        respawn=respawn, behind_proxy=behind_proxy, folder=kubelet_dir, cdi=cdi_dir, **guards,
    )  # fmt: skip


for _name in WITHOUT_EFFECT:
    command.params.append(_taken(f"--{_name.replace('_', '-')}"))
