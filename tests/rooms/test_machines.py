"""Machines of the agent have no I/O: events in, actions out. They import no module that could do any, nor one that does."""

from __future__ import annotations

from functools import cache

import pytest

from .bans import banned
from .house import Source, sources
from .imports import imports

PACKAGES = ("agent/machine/",)
"""Folders whose modules are all without I/O."""
MODULES = tuple(
    f"agent/rendezvous/{name}.py"
    for name in ("store", "waiting", "framing", "journal_format", "messages", "machine", "generations", "polling")
)
EFFECTS = frozenset(
    {
        "asyncio", "concurrent", "ctypes", "fcntl", "http", "io", "logging", "mmap", "multiprocessing", "os", "pathlib", "queue",
        "random", "resource", "secrets", "select", "selectors", "shutil", "signal", "socket", "ssl", "subprocess", "tempfile",
        "threading", "time", "urllib", "uuid",
    }
)  # fmt: skip
"""Modules that ask the time, wait, draw random numbers, or touch files, processes and sockets."""
HARMLESS = frozenset({"base/ids.py", "base/signals.py", "wire/agent.py"})
"""Modules of words that machines use and whose import of one of these does nothing: an id is drawn by who calls, a path is
spelled, a signal has a number."""


def is_machine(path: str) -> bool:
    """Whether a file is one, by its path in the package."""
    return path in MODULES or path.startswith(PACKAGES)


@cache
def _sources() -> dict[str, Source]:
    """By module, without ``tidewright.``."""
    return {one.path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): one for one in sources()}


def effects(source: Source) -> list[str]:
    """What a machine may not import, as ``path:line module``; in the modules that it imports, too."""
    found, seen, todo = [], {source.path}, [source]
    while todo:
        here = todo.pop()
        for one in imports(here):
            room, _, name = one.module.partition(".")
            if room != "tidewright":
                found += [f"{here.path}:{one.line} {one.module}"] * (room in EFFECTS and here.path not in HARMLESS)
            elif name in _sources() and _sources()[name].path not in seen:
                seen.add(_sources()[name].path)
                todo.append(_sources()[name])
    return found


MACHINES = [source for source in sources() if is_machine(source.path)]


def test_the_list_names_files_that_are_there() -> None:
    paths = {source.path for source in MACHINES}
    assert not set(MODULES) - paths
    assert all(any(path.startswith(package) for path in paths) for package in PACKAGES)


@pytest.mark.parametrize("source", MACHINES, ids=lambda source: source.path)
def test_a_machine_has_no_effects(source: Source) -> None:
    assert not [*effects(source), *banned(source)]


@pytest.mark.parametrize(
    "line",
    ["import asyncio", "from os import path", "import socket as s", "from time import monotonic", "import threading",
     "def f():\n    import subprocess", "from pathlib import Path", "from ..peer_rpc import PeerServer",
     "from .server import log",
     "from ...live.reconcile.agent_pool import AgentPool"],
)  # fmt: skip
def test_a_planted_import_is_caught(line: str) -> None:
    assert effects(Source("agent/rendezvous/planted.py", line))


@pytest.mark.parametrize(
    "line", ["import hmac", "from .store import Condition", "from ...base.errors import WorldError"]
)
def test_an_ordinary_import_passes(line: str) -> None:
    assert not effects(Source("agent/rendezvous/planted.py", line))
