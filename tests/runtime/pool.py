"""A pool of its own for tests of runtimes, driven by the command line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.command import tide


@dataclass
class Pool:
    state: Path

    def tide(self, *arguments: str, code: int = 0) -> str:
        """What ``tide`` prints, on both streams. Raises AssertionError on another exit code."""
        done = tide(self.state, *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def job(self) -> dict[str, Any]:
        """The newest ended, or the oldest live job."""
        return json.loads(self.tide("ps", "-a", "-o", "json"))["jobs"][0]  # type: ignore[no-any-return]

    def up(self) -> bool:
        """Whether a runtime answers."""
        return any(row["state"] == "up" for row in json.loads(self.tide("runtime", "ls", "-o", "json"))["runtimes"])
