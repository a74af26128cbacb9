"""One attempt of a job on this node: its ranks, what was asked of it, and the report that sums it up.

The record on disk (``memo.json``) is written before each deed, so that an agent killed at any moment finishes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from ..base.atomic import write_atomically
from ..base.errors import WorldError
from ..checkpoint.cooperative import EXIT_REQUEUE
from ..checkpoint.protocol import Gang, Image, RankHandle
from ..model.failure import RankFailure
from ..model.job import Level
from ..wire.agent import Fault, ImageReport, JobReport, LaunchArgs, Peer, Phase, Verb
from .accounts import hand_over
from .endings import describe
from .layout import Layout
from .rank import Outcome, Rank, Spec

OPS_KEPT = 32
"""Recent op_ids per attempt; a late duplicate of an older one would have to overtake this many calls."""
SIGTERM_CODE, SIGKILL_CODE = 143, 137


class Memo(Struct, kw_only=True, omit_defaults=True):
    """What must outlive the agent. ``ending``: "stop" or "cooperative" once the ranks were told to end, at ``ending_at``
    (wall-clock seconds)."""

    phase: Phase = "starting"
    verb: Verb = "launch"
    ending: Literal["", "stop", "cooperative"] = ""
    ending_at: float = 0.0
    why: str = ""
    error: str = ""
    took_us: int = 0
    grace_us: int = 0
    level: int = 0
    bounded: bool = False
    hold_until: float = 0.0
    """CLOCK_BOOTTIME seconds at which a bounded hold ends."""
    devices: dict[int, tuple[int, ...]] = {}
    cpus: dict[int, tuple[int, ...]] = {}
    image: Image | None = None
    quiet: bool = False
    """The ranks stand still at a cut, without connections, and must be let go when they run again."""
    serial: int = 0
    """Number of the full image that it is suspended in, or comes back from."""
    previous: int = 0
    """Number of the last image that was whole on all nodes when the latest one was ordered; 0: not known."""
    generation: int = 0
    """How often its ranks have come back from images here; each time they get new directories."""
    checkpointing: bool = False
    """Ranks may stand still for an image that an agent did not live to finish."""
    peers: tuple[Peer, ...] = ()
    sitting: str = ""
    """The request by which its ranks started or came back, the same on all its nodes: whoever meets, meets for it."""
    shot: ImageReport | None = None
    cap: int = -1
    """Highest level that works for these ranks, once something lowered it; ``cap_why`` says what."""
    cap_why: str = ""
    needs: dict[int, int] = {}
    """Device memory by rank, bytes: the most that was seen; nothing for a rank that was never measured."""
    first_failure: RankFailure | None = None
    ops: list[str] = []
    memory_limit: str = ""
    notice: str = ""
    no_room: bool = False
    """The last suspension failed for want of room on the disk."""
    evicted: bool = False
    """It was ended for what it did; ``why`` says what."""


def image_ordered(op: str) -> int | None:
    """The number of the image that a request orders; None for any other request."""
    order, _, serial = op.rpartition(".")
    return int(serial) if order.endswith(".checkpoint") and serial.isdecimal() else None


class Attempt:
    """Ranks of one (job, attempt). Long deeds run one at a time under ``busy``."""

    def __init__(self, directory: Path, layout: Layout, args: LaunchArgs, memo: Memo) -> None:
        self.directory = directory
        self.args = args
        self.memo = memo
        self.busy = asyncio.Lock()
        self.leaving = False
        """It lives elsewhere, and what is left of it here is being ended."""
        self.next: Callable[[], None] | None = None
        """What was asked of it since, to be done once it has left."""
        self.kill_timer: asyncio.TimerHandle | None = None
        self.kill_at = 0.0
        self._layout = layout
        self.ranks: list[Rank] = []
        self.ended_in_dump: set[int] = set()
        """Ranks of which a dump has seen the end: CRIU may have caused it. Until the agent ends."""
        self.find_ranks()

    def find_ranks(self) -> None:
        """Read the ranks of the present generation from disk."""
        job, attempt, generation = self.args.job, self.args.attempt, self.memo.generation
        self.ended_in_dump.clear()
        self.ranks = [
            Rank(
                self._layout.rank(job, attempt, seat.rank, generation),
                seat.rank,
                self._layout.mark(job, attempt, seat.rank, generation),
            )
            for seat in self.args.ranks
        ]

    @property
    def key(self) -> tuple[int, int]:
        return self.args.job, self.args.attempt

    @property
    def over(self) -> bool:
        return self.memo.phase in ("exited", "failed")

    @staticmethod
    def create(layout: Layout, args: LaunchArgs, specs: dict[int, Spec], sitting: str = "") -> Attempt:
        """Put the attempt on disk, whole and once. Raises OSError; then nothing is there."""
        directory = layout.attempt(args.job, args.attempt)
        draft = directory.with_name(f".{directory.name}.new")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        memo = Memo(
            grace_us=args.grace_us,
            devices={seat.rank: seat.devices for seat in args.ranks},
            cpus={rank: spec.cpus for rank, spec in specs.items()},
            serial=args.image,
            peers=args.peers,
            sitting=sitting,
        )
        try:
            write_atomically(draft / "args.json", msgspec.json.encode(args))
            write_atomically(draft / "memo.json", msgspec.json.encode(memo))
            make_ranks(draft, specs)
            draft.rename(directory)
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        return Attempt(directory, layout, args, memo)

    def renew(self, args: LaunchArgs, specs: dict[int, Spec], boxes: dict[int, dict[str, bytes]]) -> None:
        """Give the ranks directories of the next generation. Raises OSError; a half-made one is never looked at."""
        generation = self.memo.generation + 1
        make_ranks(self.directory, specs, f".{generation}")
        for rank, files in boxes.items():
            box = self.directory / f"{rank}.{generation}" / "box"
            fill(box, files)
            hand_over(specs[rank].account, *(path for path in box.rglob("*")))
        self.intend(args)
        self.memo.generation = generation
        self.memo.devices = {seat.rank: seat.devices for seat in args.ranks}
        self.memo.cpus = {rank: spec.cpus for rank, spec in specs.items()}
        self.memo.peers = args.peers
        self.save()
        for old in self.ranks:
            old.tidy()
            old.close()
        self.find_ranks()

    def intend(self, args: LaunchArgs) -> None:
        """Note what its ranks are to be. Raises OSError."""
        write_atomically(self.directory / "args.json", msgspec.json.encode(args))
        self.args = args

    @staticmethod
    def load(layout: Layout, directory: Path) -> Attempt:
        """The attempt that an earlier agent left. Raises WorldError when its records are unreadable."""
        try:
            args = msgspec.json.decode((directory / "args.json").read_bytes(), type=LaunchArgs)
            memo = msgspec.json.decode((directory / "memo.json").read_bytes(), type=Memo)
        except (OSError, msgspec.MsgspecError) as error:
            raise WorldError(f"unreadable attempt {directory.name}: {error}") from error
        attempt = Attempt(directory, layout, args, memo)
        for rank in attempt.ranks:
            rank.look()
        return attempt

    def save(self) -> None:
        """Put the memo on disk. Raises OSError (a full disk)."""
        write_atomically(self.directory / "memo.json", msgspec.json.encode(self.memo))

    def seen(self, op_id: str) -> bool:
        """Whether this call was made before; remembers it."""
        if not op_id:
            return False
        if op_id in self.memo.ops:
            return True
        self.memo.ops = [*self.memo.ops[-OPS_KEPT + 1 :], op_id]
        return False

    def forget_unmade(self) -> None:
        """Forget orders of images that were not made: the controller, without a report of them, repeats these orders."""
        made = self.memo.shot.serial if self.memo.shot is not None else 0
        self.memo.ops = [op for op in self.memo.ops if (serial := image_ordered(op)) is None or serial <= made]

    def gang(self) -> Gang:
        """The ranks that still live, for a checkpoint driver."""
        return Gang(
            job=self.args.job,
            attempt=self.args.attempt,
            world_size=self.args.world_size,
            ranks=self.handles(),
            grace_us=self.memo.grace_us,
            bounded=self.memo.bounded or self.memo.quiet,
        )

    def boxes(self) -> dict[int, Path]:
        """The boxes of the ranks here."""
        return {rank.number: rank.directory / "box" for rank in self.ranks}

    def cappable_logs(self) -> list[str]:
        """The logs of its ranks here that may be cut now: not those that a user chose the place of, and none while the ranks
        come from images, which need them to be as long as they were."""
        if self.memo.phase in ("starting", "resuming"):
            return []
        return [rank.spec.log for rank in self.ranks if rank.spec is not None and not rank.spec.own_log]

    def handles(self) -> tuple[RankHandle, ...]:
        """The ranks that still live."""
        return tuple(rank.handle for rank in self.living())

    def worlds(self) -> bool:
        """Whether any rank has joined others through the wrapper, and can be brought to a standstill by it."""
        return any(True for box in self.boxes().values() for _ in (box / "ctl").glob("*"))

    @property
    def imaged(self) -> bool:
        """Whether full images stand for the ranks: their processes are dead or about to be."""
        return self.memo.image is not None and self.memo.level == Level.FULL

    def living(self) -> list[Rank]:
        """Ranks of which something may be left."""
        return [rank for rank in self.ranks if rank.outcome is None]

    def may_be_trapped(self, rank: Rank) -> bool:
        """Whether a CRIU that was killed may have left a trap in its code (docs/why/criu.md)."""
        return self.memo.checkpointing or self.memo.phase == "suspending" or rank.number in self.ended_in_dump

    def end_by(self, ending: Literal["stop", "cooperative"]) -> None:
        """The ranks are told to end: whatever becomes of them later is not their own doing."""
        self.memo.ending, self.memo.ending_at = ending, self.memo.ending_at or time.time()

    def failed_first(self, outcome: Outcome) -> bool:
        """Whether this end of a rank is what the attempt's end is to be put down to, by all that is known so far. Ends are
        not heard of in the order in which they came."""
        memo, known = self.memo, self.memo.first_failure
        if not (outcome.code or outcome.lost):
            return False
        if memo.ending and not 0 < outcome.ended < memo.ending_at:
            return False
        return known is None or 0 < outcome.ended < known.ended

    def note_failure(self, rank: Rank, outcome: Outcome, lines: tuple[str, ...] = ()) -> None:
        """Remember the first rank that failed of itself."""
        if self.failed_first(outcome):
            lost = outcome.cause or "its shim was killed"
            why = outcome.error or (lost if outcome.lost else describe(outcome.code, outcome.note))
            self.memo.first_failure = RankFailure(rank.number, outcome.code, why, ended=outcome.ended, lines=lines)

    def log_of(self, rank: Rank) -> str:
        """Where a rank writes."""
        return self._layout.rank_log(self.args, rank.number)[0]

    def conclude(self) -> None:
        """All ranks are gone: set the last phase."""
        never_ran = [rank.outcome for rank in self.ranks if rank.outcome and rank.outcome.error]
        self.memo.phase = "failed" if never_ran and not self.memo.ending else "exited"
        if never_ran and not self.memo.error:
            self.memo.error = min(never_ran, key=lambda outcome: outcome.fault != "user").error

    def code(self) -> int:
        """The attempt's exit code from its ranks'; a rank's own failure outranks what a later stop did to others."""
        codes = [rank.outcome.code for rank in self.ranks if rank.outcome]
        if self.memo.evicted:
            return SIGKILL_CODE
        if self.memo.ending and self.memo.first_failure:
            return self.memo.first_failure.code
        if self.memo.ending == "cooperative" and EXIT_REQUEUE in codes:
            others = [code for code in codes if code not in (0, EXIT_REQUEUE, SIGTERM_CODE)]
            return max(others, default=EXIT_REQUEUE)
        return max(codes, default=0)

    def report(self) -> JobReport:
        """How the attempt stands."""
        memo, outcomes = self.memo, [rank.outcome or Outcome() for rank in self.ranks]
        faults = [outcome.fault for outcome in outcomes if outcome.fault]
        return JobReport(
            job=self.args.job,
            attempt=self.args.attempt,
            state=memo.phase,
            verb=memo.verb,
            code=self.code() if self.over else 0,
            lost=any(outcome.lost for outcome in outcomes) if self.over else False,
            fault=self._fault(faults),
            error=memo.error,
            took_us=memo.took_us,
            why=self._why() or memo.why,
            first_failure=memo.first_failure,
            logs=tuple((seat.rank, self._layout.rank_log(self.args, seat.rank)[0]) for seat in self.args.ranks),
            image=memo.shot,
            level=memo.cap,
            level_why=memo.cap_why,
            memory_limit=memo.memory_limit,
            notice=memo.notice,
            no_room=memo.no_room,
        )

    def _fault(self, faults: list[str]) -> Fault:
        if self.memo.phase == "failed":
            return "user" if "user" in faults else "world"
        return "user" if self.over and self.memo.evicted else ""

    def _why(self) -> str:
        if self.over and self.memo.first_failure:
            failure = self.memo.first_failure
            return f"rank {failure.rank}: {failure.why}" if self.args.world_size > 1 else failure.why
        return ""

    def remove(self) -> None:
        """Drop the records; logs stay. Gone at once: an agent killed meanwhile leaves no half of an attempt."""
        for rank in self.ranks:
            rank.tidy()
            rank.close()
        gone = self.directory.with_name(f".{self.directory.name}.gone")
        with contextlib.suppress(FileNotFoundError):
            self.directory.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def make_ranks(directory: Path, specs: dict[int, Spec], suffix: str = "") -> None:
    """One directory per rank, with its spec and an empty box."""
    for rank, spec in specs.items():
        place = directory / f"{rank}{suffix}"
        shutil.rmtree(place, ignore_errors=True)
        (place / "box" / "ctl").mkdir(mode=0o700, parents=True)
        hand_over(spec.account, place / "box", place / "box" / "ctl")
        write_atomically(place / "spec.json", msgspec.json.encode(spec))


def fill(box: Path, files: dict[str, bytes]) -> None:
    """Put back what lay in a box when its image was taken."""
    for name, content in files.items():
        (box / name).parent.mkdir(mode=0o700, exist_ok=True)
        (box / name).write_bytes(content)


def clear_halves(ranks: Path) -> None:
    """Remove what an agent that was killed left of attempts it was making or dropping."""
    for directory in ranks.iterdir():
        if directory.name.startswith(".") and directory.suffix in (".new", ".gone"):
            shutil.rmtree(directory, ignore_errors=True)
