"""The sub-packages of kube: the direction of imports between them, and which of them are pure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .bans import banned
from .house import Source, sources
from .imports import imports, outside

ROOM = "tidewright.kube"
MAY_IMPORT = {
    "objects": "",
    "allocation": "objects",
    "client": "objects",
    "node": "objects allocation client",
    "isolation": "objects allocation client node",
    "plugin": "objects allocation client node isolation",
    "dra": "objects allocation client node isolation",
    "extender": "objects allocation client",
    "webhook": "objects allocation client isolation dra extender",
    "doctor": "objects client extender",
}
"""Sub-package to the ones that it may import; every one stands below those that import it."""
PURE = ("objects", "allocation")
LIBRARIES = frozenset({"numpy", "msgspec"})
"""Libraries without I/O that the pure sub-packages use."""


def files(*packages: str) -> list[Source]:
    kube = [source for source in sources() if source.room == "kube"]
    return [source for source in kube if package_of(source.path) in packages] if packages else kube


def package_of(path: str) -> str:
    parts = path.split("/")
    return parts[1] if len(parts) > 2 else ""


def against_the_order(source: Source) -> Iterator[str]:
    own = package_of(source.path)
    for found in imports(source):
        other = found.module.removeprefix(f"{ROOM}.").split(".")[0] if found.module.startswith(f"{ROOM}.") else ""
        if other in MAY_IMPORT and other != own and other not in MAY_IMPORT[own].split():
            yield f"{source.path}:{found.line} {other}"


def test_every_file_lies_in_a_sub_package() -> None:
    assert [source.path for source in files() if not package_of(source.path)] == ["kube/__init__.py"]
    assert {package_of(source.path) for source in files()} - {""} == set(MAY_IMPORT)


def test_sub_packages_are_in_order() -> None:
    done: set[str] = set()
    for package, may in MAY_IMPORT.items():
        assert set(may.split()) <= done
        done.add(package)


def test_no_import_against_the_order() -> None:
    bad = [line for source in files() for line in against_the_order(source)]
    assert not bad, "\n".join(bad)


def test_pure_sub_packages_do_no_io() -> None:
    bad = [line for source in files(*PURE) for line in banned(source)]
    bad += [
        line for source in files(*PURE) for line in outside(source) if line.split()[1].split(".")[0] not in LIBRARIES
    ]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(
    "text", ["import asyncio", "import socket", "import time\ntime.monotonic()", "open('x')", "import subprocess"]
)
def test_planted_io_is_caught(text: str) -> None:
    assert banned(Source("kube/allocation/planted.py", text))


@pytest.mark.parametrize("text", ["from ..client import api", "def f():\n    from ..client.api import Api"])
def test_a_planted_import_against_the_order_is_caught(text: str) -> None:
    assert list(against_the_order(Source("kube/allocation/planted.py", text)))
    assert not list(against_the_order(Source("kube/plugin/planted.py", text)))
