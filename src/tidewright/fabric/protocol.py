"""The five verbs of every fabric. JSON in and out; "unknown" is a legal answer to a timeout.

Calls take under a second (long work is started by one call and reported by a push) and are idempotent by ``op_id``,
so delivering one at least once is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from ..base.errors import UsageError, WorldError
from ..model.node import NodeSpec
from ..wire.agent import Health, JobReport


class FabricNode(Struct, frozen=True, kw_only=True):
    """A node as the fabric sees it. ``name`` is ours and stable; ``incarnation`` is new after a reboot."""

    name: str
    incarnation: str
    address: str
    alive: bool
    spec: NodeSpec
    why: str = ""
    """Why it is not alive."""


class Unknown(WorldError):
    """No answer came: the call may or may not have been carried out. Repeat it with the same ``op_id``."""


class Fenced(WorldError):
    """The agent obeys a newer controller; the caller must stop acting as one."""


class Refused(UsageError):
    """The agent understood the call and will never accept it as written."""


class TooLarge(Refused):
    """The call cannot be sent to any agent: it is longer than a message may be."""


News = JobReport | Health
"""What agents send unasked."""
OnNode = Callable[[FabricNode], None]
OnReport = Callable[[str, News], None]


class Fabric(Protocol):
    """Transport and membership; the journal stays the only truth about jobs."""

    def nodes(self) -> list[FabricNode]:
        """Every node heard of so far, by name."""
        ...

    def watch(self, on_node: OnNode, on_report: OnReport) -> None:
        """Call ``on_node`` for nodes that connect, are lost or were rebooted, and ``on_report`` for what agents push.

        A node that (re)connects is announced before any of its reports; reports sent while no controller was connected are
        not repeated: call ``inventory``.
        """
        ...

    async def call(
        self, node: str, method: str, args: dict[str, Any], *, op_id: str, epoch: int, timeout: float
    ) -> dict[str, Any]:
        """Call an agent; ``timeout`` in seconds. Raises Unknown, Fenced, Refused or WorldError (it failed over there)."""
        ...

    async def copy(self, src_node: str, src: Path, dst_node: str, dst: Path, *, digest: str) -> None:
        """Copy a file whose SHA-256 is ``digest``; ``dst`` appears whole or not at all. Raises WorldError."""
        ...

    async def close(self) -> None:
        """Close every connection. Agents and their ranks run on."""
        ...
