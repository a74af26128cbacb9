"""This process as its agent sees it: its control page, and the thread that obeys what the agent writes there.

Threads of the program pass ``stop`` on their way to an operation beyond the cut. All else that a cut needs is done by a
thread of our own, so that a rank which computes for minutes between two collectives need not be waited for.
No torch here: what must be completed, dropped and built again is asked of the ``crews``.
"""

from __future__ import annotations

import array
import os
import secrets
import threading
import time

from . import futex, loops, memory, reach, splice
from . import page as pg
from .meet import link

NAP_S = 0.0005
"""Between two looks at work that is being completed."""

CLOSING_S = 5.0
"""Longest wait for them: a socket that another thread of the program opened meanwhile may be among them."""


STAND_S = 1.5
"""Longest stand between two steps before all ranks stand still somewhere."""


class Here:
    """One per process. ``words`` are the page's; before ``appear`` they are nobody's."""

    def __init__(self):
        self.words = array.array("Q", bytes(pg.SIZE))
        self.page = None
        self.groups = []
        self.down = False
        """Connections are dropped and not built again yet."""
        self.downs = 0
        """How often they were."""
        self.over = False
        """Whether connections are closed for good."""
        self.wakes = []
        """What to call before connections are dropped, so that threads of other ranks wake."""
        self.cond = threading.Condition()
        self.failed = None
        self._address = 0
        self._built = 0
        self._place = (0, 0, 0)
        self._entries = []
        self._stopped = set()
        self._begun = 0.0
        """When the training step under way began."""
        self.closing = set()
        """Sockets of groups that were destroyed."""
        self._loops = []
        """Of backends, whose descriptors a forked child inherits."""
        self._forks = threading.RLock()
        """Held while connections come and go and it is not known which there are: nobody forks then."""

    def appear(self):
        """Make the page, and start to obey it. Nothing happens outside a box, or a second time."""
        if self.page is not None or not reach.box():
            return
        with self.cond:
            if self.page is not None:
                return
            directory = os.path.join(reach.box(), "ctl")
            os.makedirs(directory, mode=0o700, exist_ok=True)
            page = pg.Page(os.path.join(directory, f"{os.getpid()}-{secrets.token_hex(4)}.page"), create=True)
            self.words = page.words
            self._introduce()
            self.words[pg.STATE] = pg.RUNNING
            self._address = futex.address_of(page.map, pg.VERSION * 8)
            self.words[pg.MAGIC_AT] = pg.MAGIC
            if os.path.exists(os.path.join(directory, pg.HOLD_FILE)):
                self.words[pg.HOLD] = pg.STOP
            self.page = page
        threading.Thread(target=self._watch, name="tidewright", daemon=True).start()

    def _introduce(self):
        self.words[pg.PID] = os.getpid()
        try:
            self.words[pg.NAMESPACE] = os.stat("/proc/self/ns/pid").st_ino
        except OSError:
            self.words[pg.NAMESPACE] = 0
        self.words[pg.FENCED] = futex.register()

    def join(self, world, rank, size):
        """This process is a member of a world from now on."""
        self.appear()
        words = self.words
        if words[pg.WORLD]:
            words[pg.LEFT_WORLD], words[pg.LEFT_RANK] = words[pg.WORLD], words[pg.RANK]
        words[pg.WORLD] = 0
        self.page.clear()
        self._entries = []
        words[pg.RANK], words[pg.WORLD_SIZE], words[pg.WORLD] = self._place = (rank, size, world)

    def enlist(self, owner, ident, kind, peer, members=()):
        """A new entry of the page; returns the index of its first word. ``owner.number`` is what it counts."""
        with self.cond:
            at = self.page.add(ident, kind, peer, members)
            self._entries.append((at, ident, kind, peer, members, owner))
            return at

    def retire(self, at):
        """An entry whose group is destroyed."""
        with self.cond:
            self.words[at + pg.KIND] |= pg.GONE
            self._entries = [
                (place, ident, kind | pg.GONE if place == at else kind, *rest)
                for place, ident, kind, *rest in self._entries
            ]

    def watch(self, make):
        """Call ``make``, which makes the device of a backend: that, and the event loop it came with."""
        with self._forks:
            made, loop = loops.watch(make)
            self._loops = [*(each for each in self._loops if each.descriptors()), loop]
        return made, loop

    def stop(self, wants):
        """Do not issue ``wants``, pairs of an entry and the number of its next operation, before the cut includes them.

        They were counted as issued already; that is taken back meanwhile. The count is written before HOLD is read,
        here as on the way without a hold: either the agent sees the count or we see its hold. It may see the count
        just before it is taken back; then the cut includes the operation, which is why they pass while draining too.
        """
        words = self.words
        if self.over:
            raise RuntimeError("this process is ending: its process groups are gone")
        splice.give_up()
        with self.cond:
            self._stopped.update(wants)
            while True:
                for at, number in wants:
                    words[at + pg.WANT] = number
                    words[at + pg.ISSUED] = number - 1
                while not self._may(wants):
                    self.cond.wait()
                for at, number in wants:
                    words[at + pg.ISSUED] = number
                    words[at + pg.WANT] = 0
                if self._may(wants):
                    break
            self._stopped.difference_update(wants)
        splice.take()

    def between_steps(self):
        """A training step begins: all ranks hold the same weights, and no gradients of their own. The best place to stand still
        at during a hold; but not where others wait for what this rank would issue next."""
        words, now = self.words, time.monotonic()
        if self._begun:
            words[pg.STEP_US] = int((now - self._begun) * 1e6)
        self._begun = now
        if words[pg.HOLD] == pg.FREE or self.over:
            return
        splice.give_up()
        until, words[pg.STANDING] = now + STAND_S, 1
        try:
            with self.cond:
                while self._stands(until):
                    # No timer once all stand still: this may last for ever, in an image even.
                    self.cond.wait(until - time.monotonic() if words[pg.HOLD] & 15 == pg.STOP else None)
        finally:  # a signal's handler may raise
            words[pg.STANDING] = 0
        splice.take()
        self._begun = time.monotonic()

    def _stands(self, until):
        phase = self.words[pg.HOLD] & 15
        if phase != pg.STOP:
            return phase != pg.FREE and not self.over
        # The agent tells neither of messages nor of keys that others wait for: hence the limit.
        return not self.over and time.monotonic() < until and not self.page.behind()

    def _may(self, wants):
        words = self.words
        hold = words[pg.HOLD]
        if self.down or hold == pg.FREE:
            return not self.down
        return hold & 15 in (pg.STOP, pg.DRAIN) and all(number <= words[at + pg.CUT] for at, number in wants)

    def await_up(self):
        """Stand still while connections are dropped."""
        with self.cond:
            while self.down or self.words[pg.HOLD] & 15 >= pg.DRAIN:
                self.cond.wait()

    def falling(self, downs):
        """Whether connections are being dropped, or were since ``downs``: then a broken one is no failure."""
        return self.down or self.downs != downs or self.words[pg.HOLD] & 15 >= pg.DRAIN

    def _watch(self):
        while True:
            version = self.words[pg.VERSION] & 0xFFFFFFFF
            with self.cond:
                self.cond.notify_all()
            try:
                self._obey()
            except Exception as error:  # the program must hear of it, wherever it is
                self._fail(error)
            if self.words[pg.VERSION] & 0xFFFFFFFF == version:
                futex.wait(self._address, version)

    def _obey(self):
        words = self.words
        hold = words[pg.HOLD]
        phase = hold & 15
        if self.over:
            return
        if phase == pg.FREE:
            self._go_on()
        elif phase == pg.STOP:
            if self.down and words[pg.BUILD] != self._built:  # let go, and held again before we could see it
                self._rebuild()
            if not self.down:
                self._be(pg.HELD)
        elif phase == pg.DRAIN:
            if not self.down and self._drain(hold):
                self._be(pg.DRAINED)
        elif not self.down and (words[pg.STATE] == pg.DRAINED or self._drain(hold)):
            self._drop()

    def _go_on(self):
        words = self.words
        if words[pg.BUILD] != self._built and not self.down:
            self._drop()
        if self.down:
            self._rebuild()
        self.wakes = []
        self._be(pg.RUNNING)
        with self.cond:
            self.cond.notify_all()

    def _drain(self, hold):
        """Complete what was issued. False when the agent has thought better of it."""
        groups = list(self.groups)

        def wanted():
            return self.words[pg.HOLD] == hold

        while wanted():
            if not self._about_to_pass() and all(group.settled() for group in groups):
                break
            time.sleep(NAP_S)
        if hold & pg.P2P and wanted() and groups:
            from . import settling

            self.wakes = settling.settle(groups, bool(hold & pg.ANYBODY), wanted)
        return wanted()

    def _about_to_pass(self):
        """Whether a thread was stopped at an operation that the cut includes, and has not woken yet."""
        with self.cond:
            return any(number <= self.words[at + pg.CUT] for at, number in self._stopped)

    def _drop(self):
        """No connection is left afterwards, and nothing that waits with a timer."""
        self._be(pg.DRAINED)
        with self.cond:
            self.down = True
            self.downs += 1
        splice.park()
        with self._forks:
            self._close()
        memory.trim()
        self.words[pg.PARKS] += 1
        self._be(pg.PARKED)

    def _close(self):
        for wake in self.wakes:
            wake()
        for group in self.groups:
            group.drop()
        link.drop()
        self._await_closed()
        self.closing, self._loops = set(), []

    def _await_closed(self):
        """A backend closes its sockets a little later than we let go of it, as do threads that we woke out of a wait."""
        if not self.groups and not self.closing:
            return
        ours = self.closing.union(*(group.sockets for group in self.groups))
        until = time.monotonic() + CLOSING_S
        while ours & _sockets() and time.monotonic() < until:
            time.sleep(NAP_S)

    def _rebuild(self):
        self._be(pg.REBUILDING)
        splice.reset()
        self._introduce()
        self._rewrite()
        link.reopen()
        with self._forks:
            self._built = self._connect()
        with self.cond:
            self.failed = None
            self.down = False
            self.cond.notify_all()

    def _connect(self):
        """A rank that has ended is not waited for: groups it was in stay unconnected, and only who uses one minds.

        All that remain agree on who has ended: a rank ends only after it was connected to those that gathered with it,
        which each of them is after looking.
        """
        made, build = [group for group in self.groups if group.made], self.words[pg.BUILD]
        if made:  # as on every rank of the world, whose default group was the first
            world = made[0].world
            number = world.gather()
            build = self.words[pg.BUILD]  # whoever came last may have been let go once more than we were before
            gone = world.gone()
            for group in sorted(made, key=lambda group: group.key):
                group.without = sorted(gone.intersection(group.ranks))
                if not group.without:
                    group.build(number)
        return build

    def _rewrite(self):
        """The page says what we know: the file under it may be another one, or have gone on without us."""
        words = self.words
        with self.cond:
            words[pg.MAGIC_AT] = pg.MAGIC
            words[pg.RANK], words[pg.WORLD_SIZE], words[pg.WORLD] = self._place
            self.page.clear()
            for at, ident, kind, peer, members, owner in self._entries:
                assert self.page.add(ident, kind, peer, members) == at
                words[at + pg.ISSUED] = owner.number
            for at, number in self._stopped:
                words[at + pg.WANT], words[at + pg.ISSUED] = number, number - 1

    def _fail(self, error):
        """Connections could not be had again: whoever needs them raises this."""
        self.failed = error
        self._be(pg.RUNNING)
        with self.cond:
            self.down = self.over
            self.cond.notify_all()

    def _be(self, state):
        """Say it, unless the process ends: then whoever closes its connections has the last word."""
        with self.cond:
            if not self.over:
                self.words[pg.STATE] = state

    def end(self):
        """The process ends and issues nothing more. While the agent holds, it stands still here as elsewhere.

        Its connections are closed at once: what follows may take the interpreter seconds, in which no thread of ours
        would obey, and a cut need not wait for it.
        """
        if self.page is None or self.words[pg.EXITING]:
            return
        self.words[pg.EXITING] = 1
        with self.cond:
            while self.down or self.words[pg.HOLD] != pg.FREE:
                self.cond.wait()
            self.down = self.over = True
        for group in self.groups[:1]:
            group.world.ended()
        for group in self.groups:
            group.drop()
        link.end()
        self.words[pg.STATE] = pg.PARKED

    def before_fork(self):
        """Whoever forks waits here while the thread of our own connects or disconnects."""
        self._forks.acquire()
        link.before_fork()

    def after_fork(self):
        """In the parent."""
        link.after_fork()
        self._forks.release()

    def forked(self):
        """In a forked child: page, thread and connections are the parent's. The child is no rank, but may become one."""
        link.forked()
        self._forks = threading.RLock()
        if self.page is None:
            return
        groups = self.groups
        loops.let_go(self._loops)
        self.__init__()
        for group in groups:
            group.forked()


def _sockets():
    from .inner import sockets

    return sockets()


here = Here()
os.register_at_fork(before=here.before_fork, after_in_parent=here.after_fork, after_in_child=here.forked)
