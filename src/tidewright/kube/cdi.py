"""CDI files: what a container gets, written just before it is made, under a name that was promised earlier.

Source: Container Device Interface specification 0.5.0. The runtime reads the file when it creates the container, so what is
in it may be decided as late as that (docs/why/kube.md).
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..base.errors import WorldError

KIND = "tidewright.io/gpushare"
PREFIX = "tidewright-gpushare-"
"""Of our files; no others are ever touched."""
COMMON_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


def name_of(ids: Iterable[str]) -> str:
    """The same for the same ids in any order, on any day."""
    text = "\n".join(sorted(ids)).encode()
    return "g" + hashlib.sha256(text).hexdigest()[:32]


def qualified(name: str) -> str:
    """As the kubelet hands it to the runtime."""
    return f"{KIND}={name}"


def document(name: str, env: Mapping[str, str], nodes: Iterable[str]) -> dict[str, Any]:
    """A CDI specification of one device."""
    edits = {
        "env": [f"{key}={value}" for key, value in sorted(env.items())],
        "deviceNodes": [{"path": path} for path in nodes],
    }
    return {"cdiVersion": "0.5.0", "kind": KIND, "devices": [{"name": name, "containerEdits": edits}]}


class Shelf:
    """The folder of CDI files, ``/var/run/cdi`` as a rule."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, name: str, env: Mapping[str, str], nodes: Iterable[str]) -> None:
        """Whole or not at all, whoever reads meanwhile. Raises WorldError."""
        text = json.dumps(document(name, env, nodes))
        try:
            self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            handle, part = tempfile.mkstemp(prefix=".tidewright-", dir=self.folder)
            try:
                with os.fdopen(handle, "w") as file:
                    file.write(text)
                os.replace(part, self._path(name))
            except BaseException:
                os.unlink(part)
                raise
        except OSError as error:
            raise WorldError(f"the CDI file of {name} cannot be written: {error}") from error

    def keep_only(self, names: Iterable[str]) -> int:
        """Remove our files of other names; how many they were."""
        kept, gone = {self._path(name).name for name in names}, 0
        for path in self.folder.glob(f"{PREFIX}*.json"):
            if path.name not in kept:
                path.unlink(missing_ok=True)
                gone += 1
        return gone

    def _path(self, name: str) -> Path:
        return self.folder / f"{PREFIX}{name}.json"
