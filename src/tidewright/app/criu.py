"""CRIU for this machine, for the command line: whether there is one, and getting one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Found(NamedTuple):
    """``where`` it is and its ``version``; both empty when there is none, and ``why``."""

    where: str = ""
    version: str = ""
    why: str = ""


def find(prefix: Path | None = None) -> Found:
    """The CRIU that an agent started now would use."""
    from ..checkpoint.criu.program import find_criu

    criu = find_criu(prefix)
    return Found(why=criu) if isinstance(criu, str) else Found(criu.command[-1], criu.version)


def install(prefix: Path | None, report: Callable[[str], None]) -> Path:
    """Unpack one into a private prefix; where. Raises UsageError and WorldError."""
    from ..checkpoint.criu.install import install

    return install(prefix, report)
