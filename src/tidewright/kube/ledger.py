"""Which pods were given their GPUs, in a file: the API server forgets a pod that is deleted with no grace at once, while its
containers go on. Beside the CDI files, under a name that no runtime reads; like them it does not outlive the node's boot."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.errors import UsageError, WorldError
from .quantity import whole

NAME = ".tidewright-given"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Given:
    """A pod and its units by GPU, as they were when its first container got them."""

    uid: str
    name: str
    """With its namespace."""
    units: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Ledger:
    """``path``: of the file, which is not there while nobody was given anything."""

    path: Path

    def load(self) -> dict[str, Given]:
        """By uid. Raises WorldError when there is something that cannot be read."""
        try:
            return _read(json.loads(self.path.read_text()))
        except FileNotFoundError:
            return {}
        except (OSError, UsageError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise WorldError(f"{self.path} cannot be read: {type(error).__name__} {error}") from error

    def save(self, given: Iterable[Given]) -> None:
        """Whole or not at all, and durable against a kill -9; without anybody the file goes. Raises WorldError."""
        pods = {one.uid: {"name": one.name, "units": {str(gpu): n for gpu, n in one.units.items()}} for one in given}
        try:
            if pods:
                self._write(json.dumps({"format": FORMAT, "pods": pods}))
            else:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            raise WorldError(f"{self.path} cannot be written: {error}") from error

    def _write(self, text: str) -> None:
        self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=f"{NAME}-", dir=self.path.parent)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
            os.replace(part, self.path)
        except BaseException:
            os.unlink(part)
            raise


def _read(found: Any) -> dict[str, Given]:
    if found["format"] != FORMAT:
        raise ValueError(f"format {found['format']!r} is not known")
    return {
        str(uid): Given(
            str(uid), str(one["name"]),
            {whole(gpu, "GPU index"): whole(units, "units") for gpu, units in one["units"].items()},
        )
        for uid, one in found["pods"].items()
    }  # fmt: skip
