"""``tide kube``: GPU sharing on Kubernetes, a group with one file per command."""

from __future__ import annotations

import click

from .device_plugin import command as device_plugin
from .doctor import command as doctor
from .dra import command as dra
from .extender import command as extender
from .inspect import command as inspect
from .plugin_proxy import command as plugin_proxy
from .webhook import command as webhook


@click.group("kube", short_help="Share the GPUs of a Kubernetes cluster by memory.", no_args_is_help=True)
def command() -> None:
    """Share the GPUs of a Kubernetes cluster by memory, with gpushare's resources and annotations.

    Needs the extra kube: pip install 'tidewright[kube]'. See docs/kubernetes.md.
    """


for _command in (extender, inspect, doctor, device_plugin, plugin_proxy, dra, webhook):
    command.add_command(_command)
