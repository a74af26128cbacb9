"""How far each process may go, so that all ranks of a gang stand still between the same operations.

A rank announces each operation (a collective of a group, a message) in its control page before it issues it. While all are held,
the highest count of each operation is its cut. No rank issues more, except where one must so that an operation that was issued
already can complete: then the cut is *raised* to include it. That ends, because only what an issued operation itself waits for
is ever included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .pages import ANY, GROUP, HELD, PAIRED, RECV, RUNNING, SEND, STATES, PageEntry, PageState

LONGEST_STEP_US, UNHURRIED_STEP_US = 1_000_000, 5_000_000
"""Ranks whose steps are no longer may go on until all stand where one begins, which makes their images alike. The first limit
applies where another job wants the devices; where none does, some seconds more are no loss, but one may come."""
GRACE = 20
"""Looks for which a rank may seem to wait for a message that its counterpart has issued already. Then its tag must be
another one, and the counterpart may go on."""


Key = tuple[int, int, str]
"""A page: party, job rank, name."""
Name = tuple[int, int]
"""What is counted: identity and kind of an entry."""


class CutVerdict(NamedTuple):
    """What a look at all pages comes to: how far each may go, and what the cut still waits for."""

    orders: dict[Key, dict[int, int]]
    ready: bool
    why: list[str]


class Cutter:
    """Decides how far each process may go. Pure: pages in, verdicts out; remembers the cut, which only ever rises."""

    def __init__(self, longest_step_us: int = LONGEST_STEP_US) -> None:
        self.cuts: dict[Name, int] = {}
        self._longest_step_us = longest_step_us
        self.raises = 0
        self._looks: dict[tuple[Key, int, int], int] = {}

    def look(self, pages: Mapping[Key, PageState]) -> CutVerdict:
        """The next verdict."""
        late = [f"{process_name(page)} is still {STATES[page.state]}" for page in pages.values() if _unsettled(page)]
        if late:
            return CutVerdict({}, False, late)
        for page in pages.values():
            for entry in page.entries:
                self._raise(entry, entry.issued)
        scene = _Scene(pages, self.cuts)
        needed = self._needed(scene)
        while self._raise_for(pages, needed):
            needed = self._needed(scene)
        why = [*scene.missing(), *(self._explain(scene, key) for key in needed)]
        orders = {
            key: {e.index: self.cuts[_name(e)] for e in page.entries if not e.gone} for key, page in pages.items()
        }
        even = all(_even(page, orders[key]) for key, page in pages.items())
        return CutVerdict(orders, even and not why, why)

    def between_steps(self, pages: Mapping[Key, PageState]) -> bool:
        """Whether all that train stand where a step begins. The cut rises by the operations at which others were stopped."""
        late = [page for page in pages.values() if self.trains(page) and not page.standing]
        for page in late:
            for entry in page.entries:
                self._raise(entry, entry.want)
        return not late

    def trains(self, page: PageState) -> bool:
        """Whether it comes to where a step begins soon enough to be waited for."""
        return bool(page.world) and not page.finished and 0 < page.step_us <= self._longest_step_us

    def _raise(self, entry: PageEntry, number: int) -> bool:
        if entry.gone or number <= self.cuts.get(_name(entry), -1):
            return False
        self.cuts[_name(entry)] = number
        return True

    def _raise_for(self, pages: Mapping[Key, PageState], needed: Iterable[Key]) -> bool:
        """Include what processes that are needed were stopped at. True when the cut rose."""
        rose = [self._raise(entry, entry.want) for key in needed for entry in pages[key].entries if entry.want]
        self.raises += sum(rose)
        return any(rose)

    def _needed(self, scene: _Scene) -> list[Key]:
        """Processes that must go on so that what was issued can complete; then those for which these wait, and so on."""
        found = [key for key in scene.pages if scene.behind(key)]
        seen = set(found)
        for key in found:
            for other in self._waited_for(scene, key):
                if other not in seen and not scene.pages[other].finished:
                    seen.add(other)
                    found.append(other)
        return found

    def _waited_for(self, scene: _Scene, key: Key) -> list[Key]:
        """By message or through the store. Collectives need no look: a rank that has not issued one is behind."""
        page = scene.pages[key]
        found: list[Key] = []
        for entry in page.entries:
            if entry.waiting and entry.what in (SEND, RECV) and not entry.kind & PAIRED:
                if scene.issued_opposite(page, entry) < entry.waiting or self._patience_ends(key, entry):
                    found += scene.at(page.world, (entry.peer,))
            elif entry.waiting and entry.what == ANY and self._patience_ends(key, entry):
                found += scene.at(page.world, entry.members or range(page.size))
        if page.store_wait and self._patience_ends(key, None):
            found += scene.at(page.world, range(page.size))
        return found

    def _patience_ends(self, key: Key, entry: PageEntry | None) -> bool:
        """What it waits for may be on its way already. Once it has waited for GRACE looks, it is not."""
        mark = (key, entry.index if entry else -1, entry.waiting if entry else 0)
        self._looks[mark] = self._looks.get(mark, 0) + 1
        return self._looks[mark] > GRACE

    def _explain(self, scene: _Scene, key: Key) -> str:
        page = scene.pages[key]
        stopped = [entry for entry in page.entries if entry.want]
        doing = "stopped at an operation" if stopped else "not at any operation"
        waits = [entry for entry in page.entries if entry.waiting]
        if waits:
            doing = f"waiting in operation {waits[0].waiting} of {_label(waits[0])}"
        elif page.store_wait:
            doing = "waiting for a key of the store"
        lacks = scene.lacks(key)
        if not lacks:
            return f"{process_name(page)} is {doing}, and others wait for it"
        what, has, cut = lacks[0]
        return (
            f"{process_name(page)} has issued {has} of {cut} operations of {what}, which others are in, and is {doing}"
        )


class _Scene:
    """All pages of one look, and what follows from them together."""

    def __init__(self, pages: Mapping[Key, PageState], cuts: Mapping[Name, int]) -> None:
        self.pages, self._cuts = pages, cuts
        self._places = {(page.world, page.rank): key for key, page in pages.items() if page.world and not page.dead}
        self._duties: dict[tuple[int, int], dict[Name, str]] = defaultdict(dict)
        """What each rank of each world takes part in."""
        self._entries = {(key, _name(entry)): entry for key, page in pages.items() for entry in page.entries}
        for page in pages.values():
            for entry in page.entries:
                self._add_duties(page, entry)

    def _add_duties(self, page: PageState, entry: PageEntry) -> None:
        if entry.gone or not page.world:
            return
        if entry.what == GROUP:
            for rank in entry.members or range(page.size):
                self._duties[page.world, rank].setdefault(_name(entry), _label(entry))
        elif entry.kind & PAIRED and entry.what != ANY:
            for rank in (page.rank, entry.peer):
                self._duties[page.world, rank].setdefault(_name(entry), _label(entry))

    def at(self, world: int, ranks: Iterable[int]) -> list[Key]:
        """The pages of these ranks, as far as there are any."""
        return [self._places[world, rank] for rank in ranks if (world, rank) in self._places]

    def lacks(self, key: Key) -> list[tuple[str, int, int]]:
        """What a process must still issue: of what, how much it has, how much the cut includes."""
        page = self.pages[key]
        if page.finished:
            return []
        found = []
        for name, label in self._duties.get((page.world, page.rank), {}).items():
            entry = self._entries.get((key, name))
            issued = entry.issued if entry else 0
            if issued < self._cuts[name] and not (entry and entry.gone):
                found.append((label, issued, self._cuts[name]))
        return found

    def behind(self, key: Key) -> bool:
        """Whether others have issued what this process has not."""
        return bool(self.lacks(key))

    def issued_opposite(self, page: PageState, entry: PageEntry) -> int:
        """How many messages the other end of a channel has issued."""
        other = RECV if entry.what == SEND else SEND
        for key in self.at(page.world, (entry.peer,)):
            found = self._entries.get((key, (entry.ident, other)))
            return found.issued if found else 0
        return 0

    def missing(self) -> list[str]:
        """Ranks of a world that have not come yet, and neither left nor died."""
        known = {(page.world, page.rank) for page in self.pages.values()}
        known |= {page.left for page in self.pages.values()}
        worlds = {page.world: page.size for page in self.pages.values() if page.world and not page.finished}
        return [
            f"rank {rank} of a process group of {size} has not joined it yet"
            for world, size in worlds.items()
            for rank in range(size)
            if (world, rank) not in known
        ]


def _name(entry: PageEntry) -> Name:
    """What an entry counts; the two ends of a paired channel count one thing together."""
    return entry.ident, PAIRED if entry.kind & PAIRED else entry.what


def _even(page: PageState, orders: Mapping[int, int]) -> bool:
    """Whether a process has issued all that it may; one that has just been allowed more may not have woken yet."""
    return page.finished or all(
        entry.issued == orders[entry.index] and not 0 < entry.want <= orders[entry.index]
        for entry in page.entries
        if not entry.gone
    )


def _unsettled(page: PageState) -> bool:
    """Still coming back from the last hold: its page may be half written."""
    return not page.closed and page.state not in (RUNNING, HELD)


def _label(entry: PageEntry) -> str:
    if entry.what == GROUP:
        return f"a process group of {entry.peer}"
    return {SEND: f"messages to rank {entry.peer}", RECV: f"messages from rank {entry.peer}"}.get(
        entry.what, "messages from any rank"
    )


def process_name(page: PageState) -> str:
    """A process, as an operator knows it."""
    return f"rank {page.rank if page.world else page.job_rank} (pid {page.pid} of job rank {page.job_rank})"
