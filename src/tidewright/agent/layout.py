"""The agent's part of the state directory: where everything lies, and how files are written whole."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from ..base.atomic import write_atomically
from ..wire.agent import LaunchArgs
from ..wire.holder import AGENT_LOCK
from ..wire.state_files import make_private
from .directory_id import EPOCH, DirectoryId, draw_id, read_id

log = logging.getLogger(__name__)


class AgentLayout:
    """Paths below one state directory. Everything is readable by its owner only: environments hold secrets."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()  # links stay in it: one that is led elsewhere ends the agent with its controller
        self.lock = self.root / AGENT_LOCK
        self.pid = self.root / "agent.pid"
        self.socket = self.root / "agent.sock"
        self.log = self.root / "agent.log"
        self.health = self.root / "health.json"
        self.epoch = self.root / EPOCH
        self.ranks = self.root / "ranks"
        self.logs = self.root / "logs"
        self.slots = self.root / "slots"
        self.images = self.root / "images"
        self.depot_port = self.root / "agent.depot"
        self._id: DirectoryId | None = None

    @property
    def tag(self) -> str:
        """Tells this agent's groups and processes from those of another state directory."""
        return self.tags[0]

    @property
    def tags(self) -> tuple[str, ...]:
        """``tag``, and those of groups and processes that were made here by another."""
        return (self._id or read_id(self.root)).tags

    def take_id(self) -> None:
        """Draw the directory's id if it has none; for the agent that holds its lock."""
        self._id = draw_id(self.root)

    def prepare(self) -> None:
        """Make the directories. Raises UsageError when others could tamper with them."""
        make_private(self.root)
        for path in (self.ranks, self.logs, self.slots, self.images):
            path.mkdir(mode=0o700, exist_ok=True)

    def attempt(self, job: int, attempt: int) -> Path:
        """Directory of one attempt."""
        return self.ranks / f"{job}.{attempt}"

    def rank(self, job: int, attempt: int, rank: int, generation: int = 0) -> Path:
        """Directory of one rank; each time it comes back from an image it gets another."""
        return self.attempt(job, attempt) / (f"{rank}.{generation}" if generation else str(rank))

    def mark(self, job: int, attempt: int, rank: int, generation: int = 0) -> str:
        """A name no other rank on this machine has."""
        return f"tidewright-{self.tag}-{job}.{attempt}.{rank}" + (f".{generation}" if generation else "")

    def rank_log(self, args: LaunchArgs, rank: int) -> tuple[str, bool]:
        """The path a rank's output goes to, and whether the user chose it."""
        if rank or not args.output:
            return str(self.logs / str(args.job) / f"rank{rank}.{args.attempt}.log"), False
        return os.path.join(workdir(args), expand(args.output, args)), True


def workdir(args: LaunchArgs) -> str:
    """Where the ranks run: as asked, else the user's home."""
    return args.workdir or args.env.get("HOME", "") or "/"


def expand(pattern: str, args: LaunchArgs) -> str:
    """``%j`` job, ``%x`` name, ``%a`` array index or attempt, ``%A`` array or job, ``%%`` one % (sbatch(1), "filename
    pattern")."""
    number = args.array_index if args.array_index >= 0 else args.attempt
    known = {
        "j": str(args.job),
        "x": args.name.replace("/", "_"),
        "a": str(number),
        "A": str(args.array or args.job),
        "%": "%",
    }
    first, *rest = pattern.replace("%%", "%\0").split("%")
    parts = [first]
    for part in rest:
        letter = "%" if part[:1] == "\0" else part[:1]
        parts.append(known[letter] + part[1:] if letter in known else "%" + part)
    return "".join(parts)


def write_if_room(path: Path, content: bytes) -> None:
    """Replace a file that says where something is, unless it says so already; on a full disk do without."""
    with contextlib.suppress(OSError):
        if path.read_bytes() == content:
            return
    try:
        write_atomically(path, content)
    except OSError as error:
        log.warning("%s is not up to date: %s", path, error.strerror)
