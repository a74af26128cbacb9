"""Options that all commands of ``tide kube`` have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

FOLDER = click.Path(path_type=Path, file_okay=False)

CONFIG = click.option(
    "--kubeconfig", default="", help="Kubeconfig file. Default: KUBECONFIG, the pod's account, ~/.kube/config."
)
CONTEXT = click.option("--context", default="", help="Context of the kubeconfig. Default: its current one.")

KUBELET_DIR = click.option(
    "--kubelet-dir", type=FOLDER, default=Path("/var/lib/kubelet/device-plugins"), show_default=True,
    help="Where the kubelet's socket lies.",
)  # fmt: skip

NODE = click.option("--node", envvar="NODE_NAME", default="", help="Name of this node in the cluster (NODE_NAME).")

GUARDS = {
    "excess": {
        "excess": "action", "excess_slack": "slack_mib", "excess_patience": "patience_s", "excess_grace": "grace_s",
    },
    "isolation": {
        "isolation": "chosen", "cgroup_dir": "cgroups", "mps_dir": "mps", "mps_shm": "mps_shm", "hami_dir": "hami",
    },
}  # fmt: skip
"""Options to the fields of the watchdog's Rules and of IsolationSettings."""
_GUARDING = (
    click.option("--excess", type=click.Choice(["off", "warn", "evict"]), default="warn", show_default=True,
                 help="What happens to pods that use more GPU memory than they asked for. Needs hostPID."),
    click.option("--excess-slack", type=click.IntRange(min=0), default=512, show_default=True,
                 help="MiB that a pod may use beyond it on each GPU: CUDA takes 300 to 500 for each process."),
    click.option("--excess-patience", type=click.FloatRange(min=0), default=30.0, show_default=True,
                 help="Seconds of it before a pod is warned."),
    click.option("--excess-grace", type=click.FloatRange(min=0), default=60.0, show_default=True,
                 help="Seconds from the warning to the eviction."),
    click.option("--isolation", default="auto", show_default=True,
                 type=click.Choice(["auto", "driver", "mps", "hami", "cooperative", "off"]),
                 help="What keeps pods to their shares. auto: the strongest that works here."),
    click.option("--cgroup-dir", type=FOLDER, default=Path("/sys/fs/cgroup"), show_default=True,
                 help="The node's cgroups, for the driver's limits."),
    click.option("--mps-dir", type=FOLDER, default=Path("/run/tidewright/mps"), show_default=True,
                 help="Where an MPS control daemon of the node listens (its CUDA_MPS_PIPE_DIRECTORY)."),
    click.option("--mps-shm", type=FOLDER, default=None, help="What that daemon has as /dev/shm, if not the node's own."),
    click.option("--hami-dir", type=FOLDER, default=Path("/usr/local/vgpu"), show_default=True,
                 help="Where HAMi-core's libvgpu.so and ld.so.preload lie on the node. Not in use for claims (dra)."),
)  # fmt: skip


def guarding(command: Callable[..., Any]) -> Callable[..., Any]:
    """With what both services of a node have to keep pods to their shares."""
    for option in reversed(_GUARDING):
        command = option(command)
    return command


def guarding_of(options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Those, taken out of ``options``, as GUARDS names them."""
    return {group: {field: options.pop(option) for option, field in fields.items()} for group, fields in GUARDS.items()}
