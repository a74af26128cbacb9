"""The control pages of the ranks on this node, as the cut sees them.

Keeps no state between calls: a file beside the pages, and the pages, record whether the ranks are held.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...checkpoint.cut.pages import Cuts, PageEntry, PageState
from ...launch.inject._tidewright import page as pg
from ...launch.inject._tidewright.control import futex
from ..processes.rank_files import listed_inside, open_inside

PROC = Path("/proc")


class LocalPages:
    """``rank_dirs``: the directory of each rank by its number in the job; one without control pages is allowed."""

    def __init__(self, rank_dirs: Mapping[int, Path]) -> None:
        self._rank_dirs = dict(rank_dirs)
        self._open: dict[Path, pg.Page] = {}

    def hold(self) -> None:
        """Stop all. What is read after this is final, except for entries that ``publish`` permits."""
        for number in self._rank_dirs:
            self._mark_held(number)
        pages = [page for _, page in self._pages()]
        for page in pages:
            _clear_cuts(page)
        _fence(pages)
        for page in pages:
            _stop(page)
        _fence(pages)

    def read(self) -> list[PageState]:
        """All pages; those that were made since the hold are stopped first."""
        pages = list(self._pages())
        if any(self._held(number) for number in self._rank_dirs):
            fresh = [page for number, page in pages if page.words[pg.HOLD] == pg.FREE and self._held(number)]
            for page in fresh:
                _stop(page)
            if fresh:
                _fence(fresh)
        return [_state(number, page) for number, page in pages]

    def publish(self, cuts: Cuts) -> None:
        """Set how far entries may go; move pages that are held on to the phase; to DROP only those that have drained."""
        pages = {(number, page.path.name): page for number, page in self._pages()}
        for order in cuts.orders:
            page = pages.get((order.job_rank, order.name))
            if page is not None:
                page.words[_at(order.index) + pg.CUT] = order.number
        phase = cuts.phase | (pg.P2P if cuts.p2p else 0) | (pg.ANYBODY if cuts.anybody else 0)
        for page in pages.values():
            if page.words[pg.HOLD] and (cuts.phase != pg.DROP or _drained(page)):
                page.words[pg.TICKET] = cuts.ticket or page.words[pg.TICKET]
                page.words[pg.HOLD] = phase
            _ring(page)

    def release(self) -> None:
        """Release all ranks. Those whose hold reached DROP rebuild their connections, whether they have dropped them or not yet.

        Others must not rebuild: they would leave their peers in the middle of an operation.
        """
        for number in self._rank_dirs:
            self._unmark_held(number)
        pages = [page for _, page in self._pages()]
        for page in pages:
            _clear_cuts(page)
            if page.words[pg.HOLD] == pg.DROP and _drained(page) and page.words[pg.EXITING] != pg.EXIT_DONE:
                page.words[pg.BUILD] += 1
        _fence(pages)  # a process that reads HOLD as free reads the new BUILD next
        for page in pages:
            page.words[pg.HOLD] = pg.FREE
            _ring(page)

    def _held(self, number: int) -> bool:
        return (self._rank_dirs[number] / "ctl" / pg.HOLD_FILE).exists()

    def _mark_held(self, number: int) -> None:
        rank_dir = self._rank_dirs[number]
        (rank_dir / "ctl").mkdir(mode=0o700, exist_ok=True)
        os.close(open_inside(rank_dir, f"ctl/{pg.HOLD_FILE}", os.O_WRONLY | os.O_CREAT))

    def _unmark_held(self, number: int) -> None:
        (self._rank_dirs[number] / "ctl" / pg.HOLD_FILE).unlink(missing_ok=True)

    def _pages(self) -> Iterator[tuple[int, pg.Page]]:
        for number, rank_dir in self._rank_dirs.items():
            for name in listed_inside(rank_dir, "ctl", ".page"):
                path = rank_dir / "ctl" / name
                with contextlib.suppress(OSError, ValueError):  # not whole yet: its process begins held, if it must
                    page = self._open.get(path) or pg.Page(path, opened=open_inside(rank_dir, f"ctl/{name}", os.O_RDWR))
                    self._open[path] = page
                    if page.words[pg.MAGIC_AT] == pg.MAGIC:
                        yield number, page


def _at(index: int) -> int:
    return pg.HEADER_WORDS + index * pg.ENTRY_WORDS


def _stop(page: pg.Page) -> None:
    if page.words[pg.HOLD] == pg.FREE:
        page.words[pg.HOLD] = pg.STOP
        _ring(page)


def _ring(page: pg.Page) -> None:
    page.words[pg.VERSION] = (page.words[pg.VERSION] + 1) & 0xFFFFFFFF
    futex.wake(futex.address_of(page.map, pg.VERSION * 8))


def _drained(page: pg.Page) -> bool:
    """Whether the process may drop its connections, or has: nothing of it is on its way."""
    return page.words[pg.HOLD] & 15 >= pg.DRAIN and page.words[pg.STATE] in (pg.DRAINED, pg.PARKED)


def _clear_cuts(page: pg.Page) -> None:
    for index in range(page.words[pg.COUNT]):
        page.words[_at(index) + pg.CUT] = 0


def _fence(pages: list[pg.Page]) -> None:
    """Quick where all processes have registered for it; they do again when they were restored."""
    if pages and not (all(page.words[pg.FENCED] for page in pages) and futex.fence(quick=True)):
        futex.fence(quick=False)


def _state(number: int, page: pg.Page) -> PageState:
    """The page as it was while its process was in one world: entries of another one would be taken for that world's."""
    while True:
        found = _read(number, page)
        if page.words[pg.WORLD] == found.world:
            return found


def _read(number: int, page: pg.Page) -> PageState:
    words = page.words
    return PageState(
        job_rank=number,
        name=page.path.name,
        pid=words[pg.PID],
        world=words[pg.WORLD],
        rank=words[pg.RANK],
        size=words[pg.WORLD_SIZE],
        state=words[pg.STATE],
        phase=words[pg.HOLD] & 15,
        parks=words[pg.PARKS],
        store_wait=bool(words[pg.STORE_WAIT]),
        exiting=bool(words[pg.EXITING]),
        dead=_dead(page),
        left=(words[pg.LEFT_WORLD], words[pg.LEFT_RANK]),
        entries=tuple(_entry(page, index) for index in range(words[pg.COUNT])),
        step_us=words[pg.STEP_US],
        standing=bool(words[pg.STANDING]),
        ended=words[pg.EXITING] == pg.EXIT_DONE,
    )


def _entry(page: pg.Page, index: int) -> PageEntry:
    at = _at(index)
    words = page.words
    return PageEntry(
        index,
        words[at + pg.ID],
        words[at + pg.KIND],
        words[at + pg.PEER],
        words[at + pg.ISSUED],
        words[at + pg.WANT],
        words[at + pg.WAITING],
        page.members(at),
    )


def _dead(page: pg.Page) -> bool:
    """Whether the process that made the page is gone. Its number on this host is remembered in the page."""
    words = page.words
    if not words[pg.HOST_PID] or not _is(words[pg.HOST_PID], page):
        words[pg.HOST_PID] = _find(page)
    return not words[pg.HOST_PID]


def _is(pid: int, page: pg.Page) -> bool:
    """Whether host process ``pid`` is the one of the page: number and namespace as it wrote them itself.

    A zombie is none. One that we may not look into counts as alive.
    """
    try:
        status = (PROC / str(pid) / "status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if fields["State"].split()[0] in "ZX" or int(fields["NSpid"].split()[-1]) != page.words[pg.PID]:
            return False
        space = os.stat(PROC / str(pid) / "ns" / "pid").st_ino
    except (FileNotFoundError, ProcessLookupError, KeyError):
        return False
    except PermissionError:
        return True
    return not page.words[pg.NAMESPACE] or space == page.words[pg.NAMESPACE]


def _find(page: pg.Page) -> int:
    candidates = [page.words[pg.PID], *(int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())]
    return next((pid for pid in candidates if _is(pid, page)), 0)
