"""Full images: ranks as files, by CRIU. Dumped where they are, restored on any node by a new shim.

A rank that is to be dumped lives in pid and mount namespaces of its own, made by its shim (launch/init.py). CRIU runs
inside these, and so does not see them. docs/why/criu.md has the reasons.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
from msgspec import Struct

from ...base.errors import WorldError
from ...model.job import Level
from ..cgroup import wait_until
from ..files import file_rollback
from ..files.capture import Capture, mapped_differences, named_again
from ..files.shared import BeingWritten, Known, Others
from ..host_features import host, host_differences
from ..manifest import DamagedImage, read_manifest, read_meta, verify, write_manifest
from ..processes import PROC, alive, send, stat
from ..protocol import Gang, GangImage, RankHandle, RestorePlacement
from ..verdict import DriverVerdict
from . import nsenter
from .blockers import connected, obstacles, strays
from .clocks import clocks
from .criu_process import MOMENT_S, CriuDump, dump_arguments, no_plugins, reap, settle, tasks
from .files_img import forget_sizes
from .program import Criu, find_criu
from .tcp_repair import lift_repair
from .unanimous import Unanimous

log = logging.getLogger(__name__)

__all__ = ["Criu", "CriuDriver", "DamagedImage", "DumpReport", "RanksLost", "check_host", "find_criu"]

DUMP_LEAST_S, DUMP_BYTES_PER_S = 20.0, 50e6
"""Hard limit of a dump: a floor, and the time its memory takes on a slow disk. Measured: 1 to 2 GB/s."""
RESTORE_LEAST_S = 30.0
END_S = 10.0
WORDS = 4096
TRIES, AGAIN_S = 12, 0.02
"""A rank that cannot be saved at this moment runs on before the next try, each time for longer."""
INVENTORY = "inventory.img"
"""What CRIU writes last. It calls its script also when it has failed before (seen with 4.2.1)."""
IN_FLIGHT = "In-flight connection"
"""CRIU's words for one that waits to be accepted (criu/sk-inet.c)."""


class Arriving(WorldError):
    """A client has just connected to a rank, which has not accepted the connection yet but soon will."""


class RanksLost(WorldError):
    """Ranks have ended while they were dumped: by themselves, or a CRIU that was killed has left a trap in their code.

    Only how they ended tells which it was (docs/why/criu.md). ``ranks``: their numbers.
    """

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class RankDump(Struct, frozen=True, kw_only=True):
    """What dumping one rank took: microseconds and bytes. ``log_bytes``: what CRIU had to say."""

    rank: int
    criu_us: int
    files_us: int
    hash_us: int
    size_bytes: int
    log_bytes: int


class DumpReport(Struct, frozen=True, kw_only=True):
    """A dump of all ranks: ``took_us`` from call to return."""

    took_us: int
    size_bytes: int
    ranks: tuple[RankDump, ...]


def check_host(meta: dict[str, Any], images: Path | None = None) -> list[str]:
    """Why an image cannot be restored on this host, all differences as sentences; empty: nothing known against it.

    With ``images`` the rank's own files are compared with the copies, too.
    """
    found = host_differences(meta["host"], host()) + mapped_differences(meta["maps"])
    return found + (file_rollback.roll_back(meta, str(images), dry=True) if images is not None else [])


class DumpOrder(NamedTuple):
    """What holds for all ranks of one dump."""

    leave_running: bool
    others: Others
    together: Unanimous


class CriuDriver:
    """``node`` is where this runs. ``directory`` and ``bring`` serve ``save`` and ``restore`` only.

    ``bring`` starts a new shim for a rank with what ``restore_spec`` gives and the cores it may use, and returns the
    new handle; agents do all that themselves.
    """

    name = "criu"
    level = Level.FULL

    def __init__(
        self,
        node: str,
        criu: Criu,
        directory: Path | None = None,
        bring: Callable[[RankHandle, dict[str, Any], tuple[int, ...]], RankHandle] | None = None,
    ) -> None:
        self.node, self.criu = node, criu
        self._directory, self._bring = directory, bring
        self._restored: dict[str, tuple[RankHandle, ...]] = {}
        self._shared: set[Known] = set()

    # the parts that agents use

    def can(self, gang: Gang, kind: str) -> DriverVerdict:
        """Refused for accelerators, ranks without namespaces of their own, and what CRIU is known not to save."""
        if kind != "cpu":
            return DriverVerdict(False, f"what lies in the memory of a {kind} is no part of an image")
        for handle in gang.ranks:
            if not handle.init:
                return DriverVerdict(False, f"rank {handle.rank} was started without namespaces of its own")
            if why := obstacles(tasks(handle), handle.pid, handle.init):
                return DriverVerdict(False, f"rank {handle.rank}: {why[0]}")
        return DriverVerdict(True)

    def dump(self, handles: Sequence[RankHandle], directory: Path, *, leave_running: bool) -> DumpReport:
        """Write an image of each rank to ``directory/RANK``, side by side; blocks.

        Afterwards the ranks stand still, stopped, until ``finish`` or ``resume``; with ``leave_running`` they run.
        The images are whole but not yet on disk for good (no fsync). Raises WorldError, with all ranks running and
        nothing of the images left; RanksLost when one has ended meanwhile, and those that live run.
        """
        began = time.monotonic()
        directory.mkdir(mode=0o700, exist_ok=True)
        for handle in handles:
            settle(handle)
        if leave_running:  # the dump of an agent that died may have been done, and have left them stopped
            self.resume([handle for handle in handles if _stopped(handle)])
        known = [handle for handle in handles if alive(handle.pid, handle.start)]
        order = DumpOrder(leave_running, Others(handles, self._shared), Unanimous(len(handles)))
        with ThreadPoolExecutor(max_workers=max(1, len(handles)), thread_name_prefix="dump") as pool:
            save = functools.partial(self._try, order=order)
            results = list(pool.map(save, handles, [directory / str(handle.rank) for handle in handles]))
        errors = [result for result in results if isinstance(result, WorldError)]
        if errors:
            self.resume(handles)
            for handle in handles:
                shutil.rmtree(directory / str(handle.rank), ignore_errors=True)
            if lost := [handle.rank for handle in known if not alive(handle.pid, handle.start)]:
                raise RanksLost(f"rank {lost[0]} has ended during the dump: {errors[0]}", lost)
            raise errors[0]
        made = tuple(result for result in results if isinstance(result, RankDump))
        return DumpReport(took_us=_micros(began), size_bytes=sum(each.size_bytes for each in made), ranks=made)

    def resume(self, handles: Sequence[RankHandle]) -> None:
        """Undo a dump that ended or was killed, even one of another agent: the ranks run. No effect when they do.

        Connections first: a program that runs with one in repair mode takes it for broken.
        """
        for handle in handles:
            settle(handle)
            lift_repair(tasks(handle))
            send((pid for pid in tasks(handle) if (now := stat(pid)) and now.state == "T"), signal.SIGCONT)

    def finish(self, handles: Sequence[RankHandle]) -> None:
        """End dumped ranks; returns once nothing of them is left. Raises WorldError when something does not die."""
        for handle in handles:
            found = stat(handle.pid)
            if found is not None and found.start == handle.start and found.parent == handle.init:
                send([handle.init], signal.SIGKILL)
        for handle in handles:
            if not wait_until(functools.partial(_ended, handle), END_S):
                raise WorldError(f"rank {handle.rank} survives SIGKILL (a hung disk?)")

    def restore_spec(self, image: Path) -> dict[str, Any]:
        """The ``restore`` of a shim's spec for one rank's image, of which nothing is known yet. Raises DamagedImage."""
        limit = RESTORE_LEAST_S + read_manifest(image).size_bytes / DUMP_BYTES_PER_S
        return {"images": str(image), "criu": list(self.criu.command), "timeout_s": limit}

    def check(self, image: Path) -> None:
        """Whether an image may be restored here: its hashes, and this host. Reads all of it; blocks.

        Raises DamagedImage, and WorldError with all differences.
        """
        verify(image)
        if differences := check_host(read_meta(image), image):
            raise WorldError(f"image {image} cannot be restored on {self.node}: {'; '.join(differences)}")

    # the protocol of drivers

    def save(self, gang: Gang) -> GangImage:
        if self._directory is None:
            raise WorldError("this driver has no directory for images")
        place = self._directory / f"{gang.job}.{gang.attempt}"
        image = GangImage(driver=self.name, job=gang.job, attempt=gang.attempt, location=str(place), ranks=gang.ranks)
        if not all((place / str(handle.rank) / "manifest.json").exists() for handle in gang.ranks):
            place.mkdir(parents=True, exist_ok=True)
            self.dump(gang.ranks, place, leave_running=False)
        self.finish(gang.ranks)
        size = sum(verify(place / str(handle.rank)).size_bytes for handle in gang.ranks)
        return msgspec.structs.replace(image, size_bytes=size)

    def restore(self, image: GangImage, placement: RestorePlacement) -> None:
        if self._bring is None:
            raise WorldError("this driver starts no ranks")
        known = self._restored.get(image.location, ())
        if known and all(alive(handle.pid, handle.start) for handle in known):
            return
        place = Path(image.location)
        specs = {}
        for handle in image.ranks:
            self.check(place / str(handle.rank))
            specs[handle.rank] = self.restore_spec(place / str(handle.rank))
        self._restored[image.location] = tuple(
            self._bring(handle, specs[handle.rank], placement.cpus.get(handle.rank, ())) for handle in image.ranks
        )

    def discard(self, image: GangImage) -> None:
        self._restored.pop(image.location, None)
        shutil.rmtree(image.location, ignore_errors=True)

    # one rank

    def _try(self, handle: RankHandle, directory: Path, order: DumpOrder) -> RankDump | WorldError | None:
        """None: it could have been saved, and another rank could not."""
        why = WorldError()
        for tries in range(1, TRIES + 1):
            try:
                return self._dump(handle, directory, order)
            except (BeingWritten, Arriving) as error:
                why = WorldError(f"rank {handle.rank}: {error}")
            except WorldError as error:
                why = error
                break
            except OSError as error:
                why = WorldError(f"rank {handle.rank}: the image cannot be written: {error.strerror or error}")
                break
            except Exception as error:  # the other ranks stand still under ptrace until all have agreed or one refuses
                log.exception("rank %d: its image failed", handle.rank)
                why = WorldError(f"rank {handle.rank}: its image failed: {type(error).__name__}: {error}")
                break
            if tries < TRIES:
                time.sleep(AGAIN_S * tries)
        order.together.refuse()
        return why

    def _dump(self, handle: RankHandle, directory: Path, order: DumpOrder) -> RankDump | None:
        work = directory.with_name(f".{directory.name}.criu")
        for path in (directory, work):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(mode=0o700)
        named: list[Path] = []
        try:
            times = [time.monotonic()]
            if held := connected(tasks(handle)):
                raise WorldError(f"rank {handle.rank}: {held[0]}")
            named = named_again(tasks(handle), handle.init)
            if not self._run(handle, directory, work, order, times):
                return None
            if order.leave_running:
                self._seal(directory, times)
            took = [int((after - before) * 1e6) for before, after in itertools.pairwise(times)]
            log_bytes = (work / "dump.log").stat().st_size
            size = read_manifest(directory).size_bytes
        finally:
            for name in named:
                name.unlink(missing_ok=True)
            shutil.rmtree(work, ignore_errors=True)
        return RankDump(
            rank=handle.rank, criu_us=took[0], files_us=took[1], hash_us=took[2], size_bytes=size, log_bytes=log_bytes
        )

    def _run(self, handle: RankHandle, directory: Path, work: Path, order: DumpOrder, times: list[float]) -> bool:
        """CRIU, and what must be seen of the rank while it stands still. False: another rank cannot be saved.

        Raises WorldError; the rank may be left stopped when CRIU was killed, else it runs on.
        """
        if not handle.init:
            raise WorldError(f"rank {handle.rank} was started without namespaces of its own")
        limit = DUMP_LEAST_S + _resident(tasks(handle)) / DUMP_BYTES_PER_S
        arguments = dump_arguments(_inner(handle), directory, work, leave_running=order.leave_running)
        with (work / "said").open("w+b") as said:
            with CriuDump(handle, [*self.criu.command, *arguments], no_plugins(work), said) as criu:
                if not criu.written(limit):
                    raise self._failure(handle, criu.ended(MOMENT_S), work, said, limit)
                if not (directory / INVENTORY).exists():
                    raise self._failure(handle, criu.close(), work, said, limit)
                times.append(time.monotonic())
                if left := strays(tasks(handle), handle.pid):
                    raise WorldError(f"rank {handle.rank}: {left[0]}")
                self._note(handle, directory, order.others)
                times.append(time.monotonic())
                if not order.leave_running:
                    self._seal(directory, times)
                if not order.together.agree():
                    return False
                code = criu.keep()
            if code != 0 and not (order.leave_running and _ended(handle)):
                # No reason to try again: the others go by the agreement that all are saved. A rank that ends as soon as
                # it runs takes a CRIU in its namespace with it; only its resumption was left to do.
                raise WorldError(str(self._failure(handle, code, work, said, limit)))
        return True

    def _failure(self, handle: RankHandle, code: int | None, work: Path, said: IO[bytes], limit_s: float) -> WorldError:
        """Why a CRIU that has ended, or not ended in time, has made no image. Nothing of it is left afterwards."""
        reap(handle)
        said.seek(0)
        words = said.read(WORDS).decode(errors="replace").strip()
        if code is None:
            return WorldError(f"rank {handle.rank}: CRIU was not done after {limit_s:.0f} s and was killed")
        if code == nsenter.GONE:
            return WorldError(f"rank {handle.rank} has ended already")
        why = file_rollback.complaint(str(work / "dump.log")) or words or f"it gives no reason (exit code {code})"
        kind = Arriving if IN_FLIGHT in why else WorldError
        return kind(f"rank {handle.rank}: CRIU cannot save it: {why}")

    def _note(self, handle: RankHandle, directory: Path, others: Others) -> None:
        """What CRIU does not save of the rank, beside its image."""
        meta = self._meta(handle, directory, others)
        forget_sizes(directory, [entry["path"] for entry in meta["files"] if entry["shared"]])
        (directory / "meta.json").write_bytes(msgspec.json.encode(meta))

    @staticmethod
    def _seal(directory: Path, times: list[float]) -> None:
        """The image is whole. Ranks that run on need not stand still for that."""
        write_manifest(directory)
        times.append(time.monotonic())

    def _meta(self, handle: RankHandle, directory: Path, others: Others) -> dict[str, Any]:
        """What a restore needs to know besides CRIU's own files. The rank stands still."""
        return {
            "version": 1,
            "criu": self.criu.version,
            "pid": _inner(handle),
            "taken": time.time(),
            "clocks": clocks(handle.pid),
            "host": host(),
            **Capture(directory, others=others).take(tasks(handle), handle.init),
        }


def _stopped(handle: RankHandle) -> bool:
    """Whether the main process of a rank stands still by a signal, as a dump leaves a rank that is to end."""
    now = stat(handle.pid)
    return now is not None and now.start == handle.start and now.state == "T"


def _ended(handle: RankHandle) -> bool:
    return not alive(handle.pid, handle.start)


def _inner(handle: RankHandle) -> int:
    """The main process's pid in its own namespace. Raises WorldError when it is gone."""
    try:
        lines = (PROC / str(handle.pid) / "status").read_text().splitlines()
    except OSError as error:
        raise WorldError(f"rank {handle.rank} has ended already") from error
    return int(next(line.split()[-1] for line in lines if line.startswith("NSpid:")))


def _resident(pids: Sequence[int]) -> int:
    """Bytes of memory that these processes have in use, shared ones counted for each."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError, ValueError):
            total += int((PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


def _micros(began: float) -> int:
    return max(1, int((time.monotonic() - began) * 1e6))
