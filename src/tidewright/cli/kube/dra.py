"""``tide kube dra``: this node's GPUs for claims (Dynamic Resource Allocation)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import CONFIG, CONTEXT, FOLDER, NODE, guarding, guarding_of

KUBELET = Path("/var/lib/kubelet")


@click.command("dra", short_help="Offer this node's GPUs to claims, by memory and multiprocessors (DRA).")
@CONFIG
@CONTEXT
@NODE
@click.option("--mig", type=click.Choice(["static", "dynamic"]), default="static", show_default=True,
              help="MIG instances: static, as they are; dynamic, made for each claim on GPUs in MIG mode.")  # fmt: skip
@guarding
@click.option("--fake-gpus", envvar="TIDEWRIGHT_FAKE_GPUS", show_envvar=True, default="",
              help='Offer GPUs that are not there, such as "2x15" or "1x24+1x80mig" (GiB; mig: an instance, '
              "or with --mig dynamic a GPU in MIG mode).")  # fmt: skip
@click.option("--plugins-dir", type=FOLDER, default=KUBELET / "plugins", show_default=True,
              help="Where our own folder for the kubelet lies.")  # fmt: skip
@click.option("--registry-dir", type=FOLDER, default=KUBELET / "plugins_registry", show_default=True,
              help="Where the kubelet looks for plugins.")  # fmt: skip
@click.option("--cdi-dir", type=FOLDER, default=Path("/var/run/cdi"), show_default=True,
              help="Where the container runtime reads CDI files.")  # fmt: skip
def command(
    kubeconfig: str, context: str, node: str, mig: str, fake_gpus: str, plugins_dir: Path, registry_dir: Path,
    cdi_dir: Path, **others: Any,
) -> None:  # fmt: skip
    """Publish this node's GPUs as ResourceSlices of driver gpu.tidewright.io, and prepare claims for the kubelet.

    Kubernetes 1.36 or later, or 1.34 with the feature gate DRAConsumableCapacity. Runs as root on every node that has GPUs
    to share, in place of the device plugin. See docs/kubernetes-dra.md.
    """
    from ...app.kube.cluster import ClusterTarget
    from ...app.kube.dra import serve_dra

    serve_dra(
        ClusterTarget(kubeconfig, context), fake_gpus, mig, node=node, plugins=plugins_dir, registry=registry_dir, cdi=cdi_dir,
        **guarding_of(others),
    )  # fmt: skip
