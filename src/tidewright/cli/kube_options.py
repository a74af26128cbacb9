"""Options that all commands of ``tide kube`` have."""

from __future__ import annotations

import click

CONFIG = click.option(
    "--kubeconfig", default="", help="Kubeconfig file. Default: KUBECONFIG, the pod's account, ~/.kube/config."
)
CONTEXT = click.option("--context", default="", help="Context of the kubeconfig. Default: its current one.")
