"""Several agents of one machine, each behind a socket of its own, as one fabric.

Agents may live in other network and mount namespaces: all that is shared with them is the directory of their socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..base.errors import NotFound
from .heartbeat import MOST_S
from .local import LocalFabric, copy_verified
from .protocol import FabricNode, News, OnNode, OnReport

log = logging.getLogger(__name__)


class SeveralFabric:
    """One link per socket. A node belongs to the link that announced it first, until that link has lost it."""

    def __init__(self, sockets: Iterable[Path], silence_s: float = MOST_S) -> None:
        self._links = [LocalFabric(socket, silence_s) for socket in dict.fromkeys(sockets)]
        self._owners: dict[str, LocalFabric] = {}

    def nodes(self) -> list[FabricNode]:
        found = {name: link.nodes() for name, link in self._owners.items()}
        return [node for name, nodes in sorted(found.items()) for node in nodes if node.name == name]

    def watch(self, on_node: OnNode, on_report: OnReport) -> None:
        for link in self._links:
            self._listen(link, on_node, on_report)

    def _listen(self, link: LocalFabric, on_node: OnNode, on_report: OnReport) -> None:
        def node_changed(node: FabricNode) -> None:
            if self._owns(link, node):
                on_node(node)

        def reported(node: str, report: News) -> None:
            if self._owners.get(node) is link:
                on_report(node, report)

        link.watch(node_changed, reported)

    def _owns(self, link: LocalFabric, node: FabricNode) -> bool:
        """Whether the node belongs to this link from now on. A second agent of the same name is logged and ignored."""
        owner = self._owners.get(node.name, link)
        if owner is not link and any(known.alive and known.name == node.name for known in owner.nodes()):
            if node.alive:
                log.error("a second agent at %s calls itself %s; give it another --name", node.address, node.name)
            return False
        if owner is not link and not node.alive:
            return False
        self._owners[node.name] = link
        return True

    async def call(
        self, node: str, method: str, args: dict[str, Any], *, op_id: str, epoch: int, timeout: float
    ) -> dict[str, Any]:
        owner = self._owners.get(node)
        if owner is None:
            raise NotFound(f"no node called {node!r}", "see tide nodes")
        return await owner.call(node, method, args, op_id=op_id, epoch=epoch, timeout=timeout)

    async def copy(self, src_node: str, src: Path, dst_node: str, dst: Path, *, digest: str) -> None:
        """Both paths are on this machine."""
        await asyncio.to_thread(copy_verified, src, dst, digest)

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in self._links))
