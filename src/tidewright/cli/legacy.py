"""The commands of gpushare, under their own names: they take its flags and its environment and run ours.

Sources: gpushare-scheduler-extender c0b6141 (``PORT``, ``LOG_LEVEL``, ``THREADNESS``, ``KUBECONFIG``), gpushare-device-plugin
45fb8b8 (flags of Go's ``flag`` and of glog, ``NODE_NAME``), its kubectl plugin (``-d``, node).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

import click

from ..base.errors import UsageError
from .entry import exit_with

PLUGIN = "device-plugin"
PORT = "39999"
TAKEN = {"memory-unit": True, "fake-gpus": True}
"""Flags of the device plugin that ours has too; the value says whether a value follows."""
PASSED_OVER = {
    "mps": False, "mps-pipe": True, "health-check": False, "query-kubelet": False, "kubelet-address": True, "kubelet-port": True,
    "client-cert": True, "client-key": True, "token": True, "timeout": True,
}  # fmt: skip
"""Flags that have no effect here: their work is always done, is not needed, or never had any."""
GLOG = {
    "v": True, "logtostderr": False, "alsologtostderr": False, "stderrthreshold": True, "log_dir": True, "vmodule": True,
    "log_backtrace_at": True,
}  # fmt: skip
"""Flags about logging, which need no word."""
FLAGS = TAKEN | PASSED_OVER | GLOG


def extender() -> None:
    """``gpushare-sche-extender``."""
    exit_with(lambda: _tried(lambda: extender_arguments(os.environ)))


def device_plugin() -> None:
    """``gpushare-device-plugin-v2``."""
    exit_with(lambda: _tried(lambda: plugin_arguments(sys.argv[1:])))


def inspect() -> None:
    """``kubectl-inspect-gpushare``, which kubectl finds as ``kubectl inspect gpushare``."""
    exit_with(lambda: _tried(lambda: ["kube", "inspect", *sys.argv[1:]]))


def extender_arguments(environment: Mapping[str, str]) -> list[str]:
    """For ``tide``: every address, for the original listened on all of them. Its log level and workers have no counterpart."""
    port = environment.get("PORT") or PORT
    return ["kube", "extender", "--host", "0.0.0.0", "--port", port]


def plugin_arguments(words: list[str]) -> list[str]:
    """For ``tide``. Raises UsageError for flags that gpushare's plugin does not have, and where ours is not installed.

    Containers are matched by size: gpushare's manifest does not mount the folder where a runtime looks for CDI.
    """
    from .kube.kube import command

    found = ["kube", PLUGIN, "--binding", "match", "--respawn"]
    left = list(words)
    while left:
        name, value = _flag(left.pop(0))
        if name not in FLAGS:
            raise UsageError(f"gpushare-device-plugin-v2 has no flag {name!r}", f"it takes --{', --'.join(TAKEN)}")
        if FLAGS[name] and not value:
            if not left:
                raise UsageError(f"--{name} needs a value", f"--{name}=VALUE")
            value = left.pop(0)
        if name in TAKEN:
            found += [f"--{name}", value]
        elif name in PASSED_OVER:
            click.echo(f"--{name} has no effect here", err=True)
    if PLUGIN not in command.commands:
        remedy = "run gpushare's own plugin on the nodes; the extender works with it"
        raise UsageError(f"this version of tidewright has no tide kube {PLUGIN}", remedy)
    return found


def _flag(word: str) -> tuple[str, str]:
    """(name, value) of ``-name``, ``--name``, ``-name=value``; Go takes one dash as two."""
    if not word.startswith("-") or not word.strip("-"):
        raise UsageError(f"{word!r} is no flag", "gpushare-device-plugin-v2 takes flags only")
    name, _, value = word.lstrip("-").partition("=")
    return name, value


def _tried(arguments: Callable[[], list[str]]) -> int:
    from .shell import report, run

    _forget_missing_kubeconfig()
    try:
        words = arguments()
    except UsageError as error:
        return report(error)
    return run(words)


def _forget_missing_kubeconfig() -> None:
    """gpushare's manifests name a kubeconfig that they do not mount, and then use the pod's own account."""
    paths = os.environ.get("KUBECONFIG", "").split(os.pathsep)
    if any(paths) and not any(map(os.path.exists, paths)) and "KUBERNETES_SERVICE_HOST" in os.environ:
        del os.environ["KUBECONFIG"]
