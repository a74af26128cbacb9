"""``tide kube plugin-proxy``: between the kubelet and the device plugin."""

from __future__ import annotations

from pathlib import Path

import click

from .options import KUBELET_DIR


@click.command("plugin-proxy", short_help="Keep the kubelet's connection while the device plugin restarts.")
@KUBELET_DIR
def command(kubelet_dir: Path) -> None:
    """Register with the kubelet for a device plugin that runs with --behind-proxy, and pass its calls on.

    When the plugin ends, the kubelet notices nothing: pods are admitted, and their containers start when the plugin is back.
    Runs as root beside the plugin and asks nothing of the API server. See docs/kubernetes-plugin.md.
    """
    from ...app.kube.plugin_proxy import serve_proxy

    serve_proxy(kubelet_dir)
