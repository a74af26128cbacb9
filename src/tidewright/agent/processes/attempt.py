"""One attempt of a job on this node, as it is on disk and in processes. What is done to it is decided in ``machine``."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from ...base.atomic import write_atomically
from ...base.errors import WorldError
from ...checkpoint.protocol import Gang, RankHandle
from ...wire.agent import LaunchArgs
from ..layout import AgentLayout
from ..machine.attempt import AttemptState
from ..machine.outcomes import RankOutcome
from ..machine.record import AttemptRecord
from .accounts import hand_over
from .rank import Rank, Spec

IDENTITY = "identity"
"""In a rank directory: job and attempt, for a program that comes back from the image of another job, with its environment."""


class Attempt:
    """Directory, record and ranks of one (job, attempt)."""

    def __init__(self, directory: Path, layout: AgentLayout, args: LaunchArgs, record: AttemptRecord) -> None:
        self.directory, self.args, self.record = directory, args, record
        self._layout = layout
        self._find_state: Callable[[], AttemptState | None] = lambda: None
        self.ranks: list[Rank] = []
        self.find_ranks()

    def bind(self, find_state: Callable[[], AttemptState | None]) -> None:
        """``find_state`` says what the machine knows of it."""
        self._find_state = find_state

    def find_ranks(self) -> None:
        """Read the ranks of the present generation from disk."""
        job, attempt, generation = self.args.job, self.args.attempt, self.record.generation
        self.ranks = [
            Rank(
                self._layout.rank(job, attempt, seat.rank, generation),
                seat.rank,
                self._layout.mark(job, attempt, seat.rank, generation),
                generation,
            )
            for seat in self.args.ranks
        ]

    def rank(self, number: int) -> Rank:
        """The rank of that number here."""
        return next(rank for rank in self.ranks if rank.number == number)

    @property
    def key(self) -> tuple[int, int]:
        return self.args.job, self.args.attempt

    @property
    def over(self) -> bool:
        return self.record.phase in ("exited", "failed")

    @property
    def busy(self) -> bool:
        """Whether something is being done to it."""
        state = self._find_state()
        return state is None or state.script_queue.busy

    @property
    def departing(self) -> bool:
        """Whether it lives on other nodes, and what is left of it here is being removed."""
        state = self._find_state()
        if state is None:  # it is only being found
            return self.record.ending == "stop" and self.record.phase != "stopping"
        return state.departing

    @property
    def outcomes(self) -> dict[int, RankOutcome]:
        """How its ranks ended, as far as they have."""
        state = self._find_state()
        return state.outcomes if state is not None else {}

    @staticmethod
    def create(layout: AgentLayout, args: LaunchArgs, specs: dict[int, Spec], record: AttemptRecord) -> Attempt:
        """Put the attempt on disk, whole and once. Raises OSError; then nothing is there."""
        directory = layout.attempt(args.job, args.attempt)
        draft = directory.with_name(f".{directory.name}.new")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        try:
            write_atomically(draft / "args.json", msgspec.json.encode(args))
            write_atomically(draft / "memo.json", msgspec.json.encode(record))
            make_ranks(draft, specs)
            draft.rename(directory)
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        return Attempt(directory, layout, args, record)

    def make_generation(self, generation: int, specs: dict[int, Spec], rank_dirs: dict[int, dict[str, bytes]]) -> None:
        """Make the ranks' directories of ``generation``. Raises OSError; a half-made one is never looked at."""
        make_ranks(self.directory, specs, f".{generation}")
        for rank, files in rank_dirs.items():
            rank_dir = self.directory / f"{rank}.{generation}" / "box"
            fill(rank_dir, files)
            hand_over(specs[rank].account, *(path for path in rank_dir.rglob("*")))
        self.intend(self.args)

    def enter_generation(self) -> None:
        """The record names another generation: its ranks are those of the attempt from now on."""
        for old in self.ranks:
            old.tidy()
            old.close()
        self.find_ranks()

    def intend(self, args: LaunchArgs) -> None:
        """Note what its ranks are to be. Raises OSError."""
        write_atomically(self.directory / "args.json", msgspec.json.encode(args))
        self.args = args

    @staticmethod
    def load(layout: AgentLayout, directory: Path) -> Attempt:
        """The attempt that an earlier agent left. Raises WorldError when its records are unreadable."""
        try:
            args = msgspec.json.decode((directory / "args.json").read_bytes(), type=LaunchArgs)
            record = msgspec.json.decode((directory / "memo.json").read_bytes(), type=AttemptRecord)
        except (OSError, msgspec.MsgspecError) as error:
            raise WorldError(f"unreadable attempt {directory.name}: {error}") from error
        attempt = Attempt(directory, layout, args, record)
        for rank in attempt.ranks:
            rank.look()
        return attempt

    def save(self) -> None:
        """Put the memo on disk. Raises OSError (a full disk)."""
        write_atomically(self.directory / "memo.json", msgspec.json.encode(self.record))

    def pace(self) -> None:
        """Ranks for idle CPU time run like others until they have started, and while they are to save their state or to end:
        beside busy work they would hardly get on, and be killed after their grace."""
        record = self.record
        urgent = record.phase in ("suspending", "stopping") or record.checkpointing
        if urgent or record.phase == "running":
            for rank in self.ranks:
                rank.set_idle(not urgent)

    def gang(self) -> Gang:
        """The ranks that still live, for a checkpoint driver."""
        return Gang(
            job=self.args.job,
            attempt=self.args.attempt,
            world_size=self.args.world_size,
            ranks=self.handles(),
            grace_us=self.record.grace_us,
            bounded=self.record.bounded or self.record.quiesced,
        )

    def rank_dirs(self) -> dict[int, Path]:
        """The rank directories of this attempt here, by rank."""
        return {rank.number: rank.directory / "box" for rank in self.ranks}

    def logs(self) -> tuple[tuple[int, str], ...]:
        """(rank, path of its log)."""
        return tuple((seat.rank, self._layout.rank_log(self.args, seat.rank)[0]) for seat in self.args.ranks)

    def cappable_logs(self) -> list[str]:
        """The logs of its ranks here that may be cut now: not those that a user chose the place of, and none while the ranks
        come from images, which need them to be as long as they were."""
        if self.record.phase in ("starting", "resuming"):
            return []
        return [rank.spec.log for rank in self.ranks if rank.spec is not None and not rank.spec.own_log]

    def handles(self) -> tuple[RankHandle, ...]:
        """The ranks that still live."""
        return tuple(rank.handle for rank in self.living())

    def worlds(self) -> bool:
        """Whether any rank has joined others through the wrapper, and can be quiesced by it."""
        return any(True for rank_dir in self.rank_dirs().values() for _ in (rank_dir / "ctl").glob("*"))

    def living(self) -> list[Rank]:
        """Ranks of which something may be left."""
        return [rank for rank in self.ranks if rank.number not in self.outcomes]

    def log_of(self, rank: Rank) -> str:
        """Where a rank writes."""
        return self._layout.rank_log(self.args, rank.number)[0]

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
        identity = {name: spec.env.get(name, "") for name in ("TIDE_JOB_ID", "TIDE_ATTEMPT")}
        (place / "box" / IDENTITY).write_bytes(msgspec.json.encode(identity))
        hand_over(spec.account, place / "box", place / "box" / "ctl", place / "box" / IDENTITY)
        write_atomically(place / "spec.json", msgspec.json.encode(spec))


def fill(rank_dir: Path, files: dict[str, bytes]) -> None:
    """Put back what lay in a box when its image was taken."""
    for name, content in files.items():
        (rank_dir / name).parent.mkdir(mode=0o700, exist_ok=True)
        (rank_dir / name).write_bytes(content)


def clear_partial(ranks: Path) -> None:
    """Remove what an agent that was killed left of attempts it was making or dropping."""
    for directory in ranks.iterdir():
        if directory.name.startswith(".") and directory.suffix in (".new", ".gone"):
            shutil.rmtree(directory, ignore_errors=True)
