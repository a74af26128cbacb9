"""CDI files: what a container gets, written just before it is made, under a name that was promised earlier.

Source: Container Device Interface specification 0.5.0. The runtime reads the file when it creates the container, so what is
in it may be decided as late as that (docs/why/kube.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...base.errors import WorldError
from .atomic_files import remove_drafts, write_whole

KIND = "tidewright.io/gpushare"
PREFIX = "tidewright-gpushare-"
COMMON_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the node in a container."""

    host: str
    inside: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Edits:
    """What a container gets beside what its pod says: variables, device files and mounts."""

    env: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()

    def plus(self, other: Edits) -> Edits:
        """Both; where both set a variable, ``other``'s."""
        nodes = tuple(dict.fromkeys((*self.nodes, *other.nodes)))
        return Edits({**self.env, **other.env}, nodes, (*self.mounts, *other.mounts))


def name_of(ids: Iterable[str]) -> str:
    """The same for the same ids in any order, on any day."""
    text = "\n".join(sorted(ids)).encode()
    return "g" + hashlib.sha256(text).hexdigest()[:32]


def qualified(name: str) -> str:
    """As the kubelet hands it to the runtime."""
    return f"{KIND}={name}"


def document(kind: str, devices: Mapping[str, Edits]) -> dict[str, Any]:
    """A CDI specification of devices by name."""
    listed = [{"name": name, "containerEdits": _written(edits)} for name, edits in devices.items()]
    return {"cdiVersion": "0.5.0", "kind": kind, "devices": listed}


def _written(edits: Edits) -> dict[str, Any]:
    found: dict[str, Any] = {
        "env": [f"{key}={value}" for key, value in sorted(edits.env.items())],
        "deviceNodes": [{"path": path} for path in edits.nodes],
    }
    if edits.mounts:
        found["mounts"] = [
            {"hostPath": one.host, "containerPath": one.inside, "options": ["rw" if one.writable else "ro", "bind"]}
            for one in edits.mounts
        ]
    return found


class CdiFiles:
    """Our CDI files in a folder, ``/var/run/cdi`` as a rule. ``prefix``: of their names; no others are ever touched."""

    def __init__(self, folder: Path, kind: str = KIND, prefix: str = PREFIX) -> None:
        self.folder, self.kind, self.prefix = folder, kind, prefix

    def put(self, name: str, devices: Mapping[str, Edits]) -> None:
        """The file ``name`` with these devices. Written atomically. Raises WorldError."""
        text = json.dumps(document(self.kind, devices))
        try:
            write_whole(self._path(name), text, f".{self.prefix}")
        except OSError as error:
            raise WorldError(f"the CDI file of {name} cannot be written: {error}") from error

    def keep_only(self, names: Iterable[str]) -> int:
        """Remove our files of other names; how many they were."""
        kept, gone = {self._path(name).name for name in names}, 0
        for path in self.folder.glob(f"{self.prefix}*.json"):
            if path.name not in kept:
                path.unlink(missing_ok=True)
                gone += 1
        return gone

    def sweep(self) -> None:
        """Remove what a run that was killed left half written. Raises WorldError."""
        try:
            remove_drafts(self.folder, f".{self.prefix}")
        except OSError as error:
            raise WorldError(f"{self.folder} cannot be cleaned up: {error}") from error

    def _path(self, name: str) -> Path:
        return self.folder / f"{self.prefix}{name}.json"
