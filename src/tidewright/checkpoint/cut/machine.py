"""The leader of a cut as a machine without I/O: what was read and the time come in, what to do comes out, one action at a time.

    START --begin--> HOLDING --done--> LOOKING --pages--> LEVELLING --ready--> DRAINING --drained--> DROPPING --parked--> CUT
                       |                  |                                        ^                     |
                       ^                  | dropped by an earlier leader
                       '--- UNDOING <-----'
    any of them --deadline passed, or a node failed--> FAILING --done--> FAILED

HOLDING: all pages are being stopped. LOOKING: did a leader that has died leave ranks without connections? UNDOING: then they
connect again first. LEVELLING: ranks go on until every member of every group has issued the same. DRAINING: what was
issued is completed. DROPPING: connections are closed. FAILING: all ranks are released.

After each action the shell (``barrier.cut``) says with ``ActionDone``, what it has ``PagesRead``, or that it ``Broke``. Times are
whole microseconds of any clock that does not go back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from .cutter import Cutter, Key, process_name
from .pages import ANY, DRAIN, DRAINED, DROP, PARKED, RECV, SEND, STOP, Cuts, PageState

POLL_US = 500
"""Between two looks at the pages."""
STEPS_WAITED, LEAST_WAIT_US = 2, 50_000
"""Training steps for which a rank is waited for that is to come to where one begins."""

START, HOLDING, LOOKING, UNDOING, LEVELLING, DRAINING, DROPPING, CUT, FAILING, FAILED = (
    "start", "holding", "looking", "undoing", "levelling", "draining", "dropping", "cut", "failing", "failed",
)  # fmt: skip
TRANSITIONS: dict[str, tuple[str, ...]] = {
    START: (HOLDING,),
    HOLDING: (LOOKING, FAILING),
    LOOKING: (UNDOING, LEVELLING, FAILING),
    UNDOING: (HOLDING, FAILING),
    LEVELLING: (DRAINING, FAILING),
    DRAINING: (DROPPING, FAILING),
    DROPPING: (CUT, DRAINING, FAILING),
    FAILING: (FAILED,),
    CUT: (),
    FAILED: (),
}
"""From each state, where it may go."""
REACHED = {DRAINING: ((DRAINED, PARKED), "complete what it has issued"), DROPPING: ((PARKED,), "close its connections")}
"""States that every process must be in before the next phase, and what one that is not does not do."""


class CutReport(msgspec.Struct, frozen=True):
    """A cut that holds. ``hold_us``: from the hold until all stood still; ``ranks``: processes that stand still."""

    hold_us: int
    worlds: int
    ranks: int
    raises: int = 0


class HoldPages(NamedTuple):
    """Stop the processes of all nodes."""


class Read(NamedTuple):
    """Read the pages of all nodes, ``after_us`` from now."""

    after_us: int = 0


class PublishLevel(NamedTuple):
    """Publish to each node its part of the orders, and the phase."""

    cuts: Cuts
    orders: Mapping[Key, Mapping[int, int]]


class ReleasePages(NamedTuple):
    """Release the processes of all nodes."""


class Finished(NamedTuple):
    """The cut holds."""

    report: CutReport


class CutFailed(NamedTuple):
    """It does not, and all were released."""

    why: str


class ActionDone(NamedTuple):
    """The action was carried out on all nodes."""


class PagesRead(NamedTuple):
    """What all pages say."""

    pages: Mapping[Key, PageState]


class Broke(NamedTuple):
    """A node could not carry out the action."""

    why: str


Action = HoldPages | Read | PublishLevel | ReleasePages | Finished | CutFailed
Event = ActionDone | PagesRead | Broke


class CutMachine:
    """One cut. ``ticket``: a number that no other cut has. It fails when it takes longer than ``timeout_us`` from the moment
    at which all nodes hold."""

    def __init__(self, ticket: int, timeout_us: int, longest_step_us: int) -> None:
        self.state = START
        self._ticket, self._timeout_us = ticket, timeout_us
        self._cutter = Cutter(longest_step_us)
        self._began_us = self._until_us = 0
        self._published: dict[Key, dict[int, int]] = {}
        self._ready = False
        self._kinds: set[int] = set()
        self._informed: set[Key] = set()
        self._waits_for = ""
        self._why = ""

    def begin(self, now_us: int) -> Action:
        """The first action."""
        self._began_us = now_us
        self._enter(HOLDING)
        return HoldPages()

    def handle(self, event: Event, now_us: int) -> Action:
        """The next action."""
        if isinstance(event, Broke):
            return self._fail(event.why)
        if isinstance(event, PagesRead):
            return self._read(event.pages, now_us)
        return self._done(now_us)

    def _enter(self, state: str) -> None:
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"a cut that is {self.state} cannot be {state}")
        self.state = state

    def _done(self, now_us: int) -> Action:
        if self.state == HOLDING:
            self._enter(LOOKING)
            return Read()
        if self.state == UNDOING:
            self._enter(HOLDING)
            return HoldPages()
        if self.state == FAILING:
            self._enter(FAILED)
            return CutFailed(self._why)
        if self.state == LEVELLING and self._ready:
            return self._drain()
        # Never failed before a look: a leader that a busy host kept waiting may be late itself, with all ranks in place.
        return Read(POLL_US)

    def _read(self, pages: Mapping[Key, PageState], now_us: int) -> Action:
        if self.state == LOOKING:
            if any(page.phase == DROP for page in pages.values() if not page.closed):
                self._enter(UNDOING)  # they stand still since an earlier cut, whose leader has died
                return ReleasePages()
            self._enter(LEVELLING)
            self._until_us = now_us + self._timeout_us  # a node may have had something to finish before
        if self.state == LEVELLING:
            return self._level(pages, now_us)
        return self._reach(pages, now_us)

    def _level(self, pages: Mapping[Key, PageState], now_us: int) -> Action:
        verdict = self._cutter.look(pages)
        self._ready = verdict.ready and (self._waited_enough(pages, now_us) or self._cutter.between_steps(pages))
        self._waits_for = "; ".join(verdict.why[:3]) or "a rank that may go on does not"
        self._informed = set(pages)
        self._kinds = {entry.kind for page in pages.values() for entry in page.entries}
        if not self._ready and now_us > self._until_us:
            return self._overdue()
        if verdict.orders != self._published:
            self._published = verdict.orders
            return PublishLevel(Cuts(STOP, self._ticket), verdict.orders)
        return self._drain() if self._ready else Read(POLL_US)

    def _waited_enough(self, pages: Mapping[Key, PageState], now_us: int) -> bool:
        """A rank that has not come to a new step within two, in an evaluation perhaps, will not come soon."""
        step_us = max((page.step_us for page in pages.values() if self._cutter.trains(page)), default=0)
        return not step_us or now_us - self._began_us > max(LEAST_WAIT_US, STEPS_WAITED * step_us)

    def _drain(self) -> Action:
        self._enter(DRAINING)
        return self._publish_phase()

    def _publish_phase(self) -> Action:
        if self.state == DROPPING:
            return PublishLevel(Cuts(DROP, self._ticket), {})
        messages, anybody = bool(self._kinds & {SEND, RECV, ANY}), ANY in self._kinds
        return PublishLevel(Cuts(DRAIN, self._ticket, p2p=messages, anybody=anybody), {})

    def _reach(self, pages: Mapping[Key, PageState], now_us: int) -> Action:
        """The phase is published to a process that has just appeared, too."""
        if fresh := sorted(set(pages) - self._informed):
            self._informed.update(fresh)
            self._waits_for = f"{process_name(pages[fresh[0]])} has just appeared"
            return self._overdue() if now_us > self._until_us else self._publish_phase()
        states, what = REACHED[self.state]
        late = [page for page in pages.values() if not page.dead and page.state not in states]
        if late:
            self._waits_for = f"{process_name(late[0])} does not {what}"
            if now_us > self._until_us:
                return self._overdue()
            if self.state == DROPPING and any(page.state not in REACHED[DRAINING][0] for page in late):
                self._enter(DRAINING)  # a process that has just appeared
                return self._publish_phase()
            return Read(POLL_US)
        if self.state == DRAINING:
            self._enter(DROPPING)
            return self._publish_phase()
        self._enter(CUT)
        alive = [page for page in pages.values() if not page.dead]
        worlds = {page.world for page in alive if page.world}
        return Finished(CutReport(now_us - self._began_us, len(worlds), len(alive), self._cutter.raises))

    def _overdue(self) -> Action:
        return self._fail(f"the ranks could not be brought to a standstill: {self._waits_for}")

    def _fail(self, why: str) -> Action:
        if self.state == FAILING:  # the release failed, too: the first reason says more
            self._enter(FAILED)
            return CutFailed(self._why)
        self._why = why
        self._enter(FAILING)
        return ReleasePages()
