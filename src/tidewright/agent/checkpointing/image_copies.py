"""Images at other nodes: their stores as something to pull from, and when to give up."""

from __future__ import annotations

from collections.abc import Iterable

from ...base.errors import WorldError
from ...checkpoint.files.space import FileSystemFull
from ...checkpoint.manifest import DamagedImage
from ...checkpoint.store import ImageDamaged, StoreFull
from ...wire.agent import Peer
from ..peer_rpc import PeerClient, PeerSilent


def hopeless(why: Iterable[Exception]) -> bool:
    """Whether copies of an image were found to be damaged, and no place was left that may yet have a good one."""
    reasons = list(why)
    damaged = any(isinstance(each, ImageDamaged | DamagedImage) for each in reasons)
    unsure = any(
        isinstance(each, PeerSilent | StoreFull | FileSystemFull) or isinstance(each.__cause__ or each, OSError)
        for each in reasons
    )
    return damaged and not unsure


class PeerRemote:
    """Another agent's store as somewhere to pull from; nothing can be written there."""

    def __init__(self, peer: Peer, token: str) -> None:
        self._client = PeerClient(peer, token)

    def has(self, keys: Iterable[str]) -> set[str]:
        """Which of these objects it holds."""
        return set(self._client.ask("store_has", {"keys": list(keys)}))

    def list(self, prefix: str) -> list[str]:
        """Keys that begin so."""
        return [str(key) for key in self._client.ask("store_list", {"prefix": prefix})]

    def read(self, key: str) -> bytes:
        """One object's bytes."""
        return b"".join(self._client.read("store_read", {"key": key}))

    def write(self, key: str, data: bytes) -> None:
        raise WorldError("images are fetched from other nodes, never put there")
