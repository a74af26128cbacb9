"""What is put around a rank so that it can be suspended: its directory, the wrapper's directory, the places where it meets.

Pure: paths and variables in, variables out. The shim makes the mounts, the wrapper reads the variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

INJECT = Path(__file__).parent / "inject"
"""What goes first on PYTHONPATH."""
INSIDE = Path("/run/tidewright")
"""Where a rank with namespaces of its own sees everything of ours: the same on every node, so that images fit anywhere."""


def on_path(given: Mapping[str, str], lib: str = str(INJECT)) -> dict[str, str]:
    """PYTHONPATH with the wrapper's directory first."""
    path = given.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{lib}:{path}" if path else lib}


@dataclass(frozen=True, slots=True)
class RankSandbox:
    """The sandbox of one rank as directories of this host. ``full``: seen at fixed paths, through mounts of its own."""

    rank: Path
    slots: Path
    full: bool

    def mounts(self) -> dict[str, str] | None:
        """What the shim mounts, by name below ``INSIDE``; None when the rank has no namespaces."""
        if not self.full:
            return None
        return {"rank": str(self.rank), "lib": str(INJECT), "slots": str(self.slots)}

    def variables(self, given: Mapping[str, str]) -> dict[str, str]:
        """What the rank's environment gets. PYTHONHASHSEED: replicas share more pages when their hashes agree."""
        rank = INSIDE / "rank" if self.full else self.rank
        return {
            "TIDE_BOX": str(rank),
            "TIDE_SLOTS": str(INSIDE / "slots" if self.full else self.slots),
            "TIDE_STEP_FILE": str(rank / "step"),
            **on_path(given, str(INSIDE / "lib") if self.full else str(INJECT)),
            "PYTHONHASHSEED": given.get("PYTHONHASHSEED", "0"),
            "USE_LIBUV": "0",  # an io_uring of TCPStore's libuv cannot be dumped
        }
