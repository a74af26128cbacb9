"""A rank's output, read from the files that the rank itself wrote, attempt after attempt."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from ...base.paths import matching, modified_ns
from ...model.job import JobSpec
from ...wire.own_file import open_regular

CHUNK = 64 * 1024
LONGEST_LINE = 16 * 1024
"""Bytes after which a line counts as another one for ``tail``: progress bars write megabytes without a line feed."""
_LINE_FEED = 10
LOOK_EVERY_S = 0.25
"""How often a follower looks whether its file has grown (one fstat)."""


def expand(pattern: str, job: int, spec: JobSpec, attempt: int) -> str:
    """``%j``, ``%x``, ``%a``, ``%A`` and ``%%`` of an output path, as sbatch(1); ``%a``: the array index, else the attempt;
    ``%A``: the array's id, else the job's."""
    array = spec.array.job if spec.array else 0
    index = spec.array.index if spec.array else attempt
    values = {"j": str(job), "x": spec.name.replace("/", "_"), "a": str(index), "A": str(array or job), "%": "%"}
    out, at = "", 0
    while at < len(pattern):
        if pattern[at] == "%" and pattern[at + 1 : at + 2] in values:
            out += values[pattern[at + 1]]
            at += 2
        else:
            out += pattern[at]
            at += 1
    return out


def log_path(state: Path, job: int, spec: JobSpec, attempt: int, rank: int) -> Path:
    """Where a rank of an attempt writes (rank 0 to ``output`` when that is given)."""
    if spec.output and rank == 0:
        return Path(spec.workdir or spec.env.get("HOME", "") or "/") / expand(spec.output, job, spec, attempt)
    below = Path("logs", str(job), f"rank{rank}.{attempt}.log")
    # Where an attempt has moved from host to host, its whole log is where it was last.
    hosts = sorted(matching(state, f"hosts/*/{below}"), key=modified_ns)
    return hosts[-1] if hosts else state / below


class RankPaths:
    """The files that one rank's attempts have written, oldest first: where they were reported, else where they are by rule.

    ``attempts``: the job's spec and how many there were so far, None for a job that is not known; ``reported``: the path of an
    attempt, if an agent has said it; ``only``: one attempt, 0 for all. The file of an attempt that is over is searched once.
    """

    def __init__(
        self, state: Path, job: int, rank: int, attempts: Callable[[], tuple[JobSpec, int] | None],
        reported: Callable[[int], str | None], only: int = 0,
    ) -> None:  # fmt: skip
        self._state, self._job, self._rank, self._only = state, job, rank, only
        self._attempts, self._reported = attempts, reported
        self._settled: dict[int, Path] = {}

    async def __call__(self) -> list[Path]:
        found = self._attempts()
        if found is None:
            return []
        spec, attempts = found
        paths = []
        for attempt in (self._only,) if self._only else range(1, attempts + 1):
            reported = self._reported(attempt)
            if reported is not None:
                path = Path(reported)
            elif attempt in self._settled:
                path = self._settled[attempt]
            else:
                path, there = await asyncio.to_thread(self._search, spec, attempt)
                if there and attempt < attempts:
                    self._settled[attempt] = path
            paths.append(path)
        return paths

    def _search(self, spec: JobSpec, attempt: int) -> tuple[Path, bool]:
        path = log_path(self._state, self._job, spec, attempt, self._rank)
        return path, path.exists()


class Tail:
    """Reads a growing list of files as one stream. ``paths`` gives them, oldest first.

    ``owner``: the user that ranks run as, where that is another than ours; no other user's files are read.
    """

    def __init__(
        self,
        paths: Callable[[], Awaitable[list[Path]]],
        over: Callable[[], bool],
        tail: int | None,
        owner: int | None = None,
    ) -> None:
        self._paths, self._over, self._tail, self._owner = paths, over, tail, owner

    async def read(self, follow: bool) -> AsyncIterator[bytes]:
        """Everything there is; with ``follow``, what comes too, until the job is over."""
        files = await self._unique()
        index, offset = await asyncio.to_thread(self._start, files)
        while True:
            over = self._over()
            files = await self._unique()
            while index < len(files):
                async for at, chunk in _read(files[index], offset, self._owner):
                    offset = at + len(chunk)
                    yield chunk
                if index + 1 >= len(files):
                    break
                index, offset = index + 1, 0
            if over or not follow:
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _unique(self) -> list[Path]:
        """Attempts may share one output file."""
        return list(dict.fromkeys(await self._paths()))

    def _start(self, files: list[Path]) -> tuple[int, int]:
        """(file, offset) where the last ``tail`` lines begin: in the newest file that has something."""
        if self._tail is None:
            return 0, 0
        for index in range(len(files) - 1, -1, -1):
            size = _size(files[index])
            if size:
                return index, _line_start(files[index], size, self._tail, self._owner)
        return max(0, len(files) - 1), 0


class RankLines:
    """A rank's output as lines that say whose they are: ``[rank 2] step 17``.

    Of a line that was written over (carriage returns of a progress bar) the last form is shown. One longer than LONGEST_LINE is
    several, so that a rank that writes no line feed is held in little memory.
    """

    def __init__(self, rank: int) -> None:
        self._prefix = b"[rank %d] " % rank
        self._left = b""

    def take(self, chunk: bytes) -> bytes:
        """The lines that are whole with this piece of output."""
        *whole, self._left = (self._left + chunk).split(b"\n")
        if len(self._left) > LONGEST_LINE:
            self._left = _last_form(self._left)
        if len(self._left) > LONGEST_LINE:
            whole.append(self._left)
            self._left = b""
        return b"".join(self._prefix + _last_form(line) + b"\n" for line in whole)

    def rest(self) -> bytes:
        """A last line without a line feed, if there is one."""
        return self.take(b"\n") if self._left else b""


def _last_form(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]


async def all_ranks(readers: Mapping[int, AsyncIterator[bytes]], follow: bool) -> AsyncIterator[bytes]:
    """The output of several ranks as one stream of lines: rank after rank, with ``follow`` as they come."""
    if not follow:
        for rank, reader in readers.items():
            async for lines in _lines(rank, reader):
                yield lines
        return
    ready: asyncio.Queue[bytes] = asyncio.Queue(maxsize=len(readers))

    async def bring(rank: int, reader: AsyncIterator[bytes]) -> None:
        async for lines in _lines(rank, reader):
            await ready.put(lines)
        await ready.put(b"")

    tasks = [asyncio.create_task(bring(rank, reader)) for rank, reader in readers.items()]
    try:
        left = len(tasks)
        while left:
            lines = await ready.get()
            left -= not lines
            yield lines
    finally:
        for task in tasks:
            task.cancel()


async def _lines(rank: int, reader: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pieces that are not empty."""
    lines = RankLines(rank)
    async for chunk in reader:
        if whole := lines.take(chunk):
            yield whole
    if rest := lines.rest():
        yield rest


async def _read(path: Path, offset: int, owner: int | None) -> AsyncIterator[tuple[int, bytes]]:
    """What there is from ``offset`` on, each piece with its offset; holes, where lines were removed, are left out."""
    try:
        with os.fdopen(open_regular(path, owner), "rb") as file:
            while piece := await asyncio.to_thread(_piece, file, offset):
                at, chunk = piece
                yield at, chunk
                offset = at + len(chunk)
    except OSError:
        return


def _piece(file: BinaryIO, offset: int) -> tuple[int, bytes] | None:
    """The next bytes that are there: (offset, bytes); None at the end."""
    handle = file.fileno()
    try:
        at = os.lseek(handle, offset, os.SEEK_DATA)
        end = os.lseek(handle, at, os.SEEK_HOLE)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None  # nothing but a hole, or nothing at all
        at, end = offset, offset + CHUNK
    chunk = os.pread(handle, min(CHUNK, end - at), at)
    return (at, chunk) if chunk else None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _line_start(path: Path, size: int, lines: int, owner: int | None) -> int:
    """Offset of the ``lines``-th line from the end, reading backwards. A line longer than LONGEST_LINE is several."""
    if lines <= 0:
        return size
    try:
        handle = open_regular(path, owner)
    except OSError:
        return 0  # it is not shown
    with os.fdopen(handle, "rb") as file:
        low, block = _before(file, size)
        end = size - block.endswith(b"\n")
        while True:
            first = max(0, end - LONGEST_LINE)
            if max(0, first - 1) < low:
                low, block = _before(file, end)
            found = block.rfind(b"\n", first - low, end - low)
            if found < 0 and first < end and not block[first - low : end - low].strip(b"\0"):
                return end  # lines before this were removed
            begin = low + found + 1 if found >= 0 else first
            lines -= 1
            if not lines or not begin:
                return begin
            end = begin - 1 if found >= 0 or block[begin - 1 - low] == _LINE_FEED else begin


def _before(file: BinaryIO, end: int) -> tuple[int, bytes]:
    """(offset, bytes) of the part of a file that ends at ``end``."""
    low = max(0, end - CHUNK)
    return low, os.pread(file.fileno(), end - low, low)
