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

ISOLATION = (
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


def isolating(command: Callable[..., Any]) -> Callable[..., Any]:
    """With the options of ISOLATION."""
    for option in reversed(ISOLATION):
        command = option(command)
    return command


def isolation_of(options: dict[str, Any]) -> dict[str, Any]:
    """Those options, taken out of ``options``, under the names of IsolationSettings."""
    words = {"isolation": "chosen", "cgroup_dir": "cgroups", "mps_dir": "mps", "mps_shm": "mps_shm", "hami_dir": "hami"}
    return {field: options.pop(option) for option, field in words.items()}
