"""The thin shell around the states of a rank's process (``control.states``): its control page, and the thread that obeys what the
agent writes there.

Threads of the program pass ``stop`` on their way to an operation beyond the cut. All else that a cut needs is done by a
thread of our own, so that a rank which computes for minutes between two collectives need not be waited for.
No torch here: what must be completed, dropped and built again is asked of the ``groups``.
"""

from __future__ import annotations

import array
import os
import secrets
import sys
import threading
import time

from . import agent_endpoint, connections, event_loop_fds, memory, splice
from . import page as pg
from .control import futex
from .control import states as cs
from .control.page_entries import PageEntries
from .rendezvous.client import link

NAP_S = 0.0005
"""Between two looks at work that is being completed."""
CLOSING_S = 5.0
"""Longest wait for sockets to close: one that another thread of the program opened meanwhile may be among them. Also the longest
wait for operations whose other end has been dropped."""

REFUSED_S = 0.05
"""Pause of a rank that was ordered to drop its connections when others have agreed to keep them: that cut will fail."""

STAND_S = 1.5
"""Longest stand between two steps before all ranks stand still somewhere."""


class ProcessControl:
    """One per process. ``words`` are the page's; before ``attach`` they are not shared with any agent."""

    def __init__(self):
        self.words = array.array("Q", bytes(pg.SIZE))
        self.page = None
        self.link = link
        self.machine = cs.ControlMachine()
        self.groups = []
        self.wakes = []
        """What to call before connections are dropped, so that threads of other ranks wake."""
        self.cond = threading.Condition()
        self.closing = set()
        """Sockets of groups that were destroyed."""
        self._address = 0
        self._entries = PageEntries()
        self._ticket = 0
        """Of the cut for which operations were completed."""
        self._begun = 0.0
        """When the training step under way began."""
        self._loops = []
        """Of backends, whose descriptors a forked child inherits."""
        self._forks = threading.RLock()
        """Held while connections come and go and it is not known which there are: no thread forks then."""

    @property
    def finished(self):
        """Whether connections are closed for good."""
        return self.machine.finished

    @property
    def failure(self):
        """Why there are no connections."""
        return self.machine.failure

    @property
    def disconnect_count(self):
        """How often connections were dropped."""
        return self.machine.disconnect_count

    def attach(self):
        """Make the page, and start to obey it. Nothing happens outside a rank directory, or a second time."""
        if self.page is not None or not agent_endpoint.rank_dir():
            return
        with self.cond:
            if self.page is not None:
                return
            page = self._create_page()
            self._publish(page)
            while self.words[pg.HOLD] == pg.FREE and self._hold_begun():  # the agent will see the page, and write HOLD
                time.sleep(NAP_S)
            self.page = page
        threading.Thread(target=self.watch, name="tidewright", daemon=True).start()

    def _create_page(self):
        directory = os.path.join(agent_endpoint.rank_dir(), "ctl")
        os.makedirs(directory, mode=0o700, exist_ok=True)
        page = pg.Page(os.path.join(directory, f"{os.getpid()}-{secrets.token_hex(4)}.page"), create=True)
        self._address = futex.address_of(page.map, pg.VERSION * 8)
        return page

    def _hold_begun(self):
        return os.path.exists(os.path.join(agent_endpoint.rank_dir(), "ctl", pg.HOLD_FILE))

    def _publish(self, page):
        self.words = page.words
        self._introduce()
        self.words[pg.STATE] = self.machine.page_state
        self.words[pg.MAGIC_AT] = pg.MAGIC

    def _introduce(self):
        self.words[pg.PID] = os.getpid()
        try:
            self.words[pg.NAMESPACE] = os.stat("/proc/self/ns/pid").st_ino
        except OSError:
            self.words[pg.NAMESPACE] = 0
        self.words[pg.FENCED] = futex.register()

    def join(self, world, rank, size):
        """This process is a member of a world from now on."""
        self.attach()
        self._entries.join(self.page, world, rank, size)

    def register_op_stream(self, owner, ident, kind, peer, members=()):
        """A new entry of the page; returns the index of its first word. ``owner.number`` is what it counts."""
        with self.cond:
            return self._entries.add(self.page, owner, ident, kind, peer, members)

    def unregister(self, at):
        """An entry whose group is destroyed."""
        with self.cond:
            self._entries.remove(self.page, at)

    def watch_device(self, make):
        """Call ``make``, which makes the device of a backend: that, and the event loop it came with."""
        with self._forks:
            made, loop = event_loop_fds.watch(make)
            self._loops = [*(each for each in self._loops if each.descriptors()), loop]
        return made, loop

    # What threads of the program ask.

    def stop(self, wants):
        """Do not issue ``wants``, pairs of an entry and the number of its next operation, before the cut includes them.

        They were counted as issued already; that is taken back meanwhile. The count is written before HOLD is read,
        here as on the way without a hold: either the agent sees the count or we see its hold. It may see the count
        just before it is taken back; then the cut includes the operation, which is why they pass while draining too.
        """
        words = self.words
        if self.finished:
            raise RuntimeError("this process is ending: its process groups are gone")
        splice.release()
        with self.cond:
            self._entries.stopped.update(wants)
            while True:
                for at, number in wants:
                    words[at + pg.WANT] = number
                    words[at + pg.ISSUED] = number - 1
                while not self._may_issue(wants):
                    self.cond.wait()
                for at, number in wants:
                    words[at + pg.ISSUED] = number
                    words[at + pg.WANT] = 0
                if self._may_issue(wants):
                    break
            self._entries.stopped.difference_update(wants)
        splice.acquire()

    def _may_issue(self, wants):
        words = self.words
        hold, build = words[pg.HOLD], words[pg.BUILD]
        return self.machine.may_issue(hold, build, lambda: all(number <= words[at + pg.CUT] for at, number in wants))

    def between_steps(self):
        """A training step begins: all ranks hold the same weights, and no gradients of their own. The best place to stand still
        at during a hold; but not where others wait for what this rank would issue next."""
        words, now = self.words, time.monotonic()
        if self._begun:
            words[pg.STEP_US] = int((now - self._begun) * 1e6)
        self._begun = now
        if words[pg.HOLD] == pg.FREE or self.finished:
            return
        splice.release()
        until, words[pg.STANDING] = now + STAND_S, 1
        try:
            with self.cond:
                while self._stays(until):
                    # No timer once all stand still: this may last without limit, even in an image.
                    left = max(NAP_S, until - time.monotonic())
                    self.cond.wait(left if words[pg.HOLD] & 15 == pg.STOP else None)
        finally:  # a signal's handler may raise
            words[pg.STANDING] = 0
        splice.acquire()
        self._begun = time.monotonic()

    def _stays(self, until):
        words = self.words
        hold, build, late = words[pg.HOLD], words[pg.BUILD], time.monotonic() >= until
        return self.machine.stays_between_steps(hold, build, self.page.behind(), late)

    def await_connected(self):
        """Stand still while connections are dropped."""
        with self.cond:
            while self.machine.disconnecting(self.words[pg.HOLD], self.words[pg.BUILD], self.disconnect_count):
                self.cond.wait()

    def disconnecting(self, disconnect_count):
        """Whether connections are being dropped, or were since ``disconnect_count``: then a broken one is no failure."""
        return self.machine.disconnecting(self.words[pg.HOLD], self.words[pg.BUILD], disconnect_count)

    def end(self):
        """The process ends and issues nothing more. While the agent holds, it stands still here as elsewhere.

        Its connections are closed at once: what follows may take the interpreter seconds, in which no thread of ours
        would obey, and a cut need not wait for it.
        """
        if self.page is None or self.words[pg.EXITING]:
            return
        self.words[pg.EXITING] = pg.EXIT_BEGUN
        with self.cond:
            while not self.machine.exit(self.words[pg.HOLD], self.words[pg.BUILD]):
                self.cond.wait()
        for group in self.groups[:1]:
            group.world.ended()
        for group in self.groups:
            group.drop()
        self.link.end()
        self.words[pg.STATE] = self.machine.page_state
        self.words[pg.EXITING] = pg.EXIT_DONE

    # The thread that obeys.

    def watch(self):
        """Obey the page until the process ends."""
        while True:
            version = self.words[pg.VERSION] & 0xFFFFFFFF
            with self.cond:
                self.cond.notify_all()
            try:
                self.obey()
            except Exception as error:  # the program must hear of it, wherever it is
                self._fail(error)
            if self.words[pg.VERSION] & 0xFFFFFFFF == version:
                self._await_version(version)

    def _await_version(self, version):
        futex.wait(self._address, version)

    def obey(self):
        """Do what the page asks for, until it asks for nothing."""
        while True:
            hold, build = self.words[pg.HOLD], self.words[pg.BUILD]
            with self.cond:
                action = self.machine.look(hold, build)
                self._show()
            if action == cs.NOTHING or not self._do(action, hold, build):
                return

    def _do(self, action, hold, build):
        """Whether it is done. False: the page has changed meanwhile, and is read again."""
        connected = None
        if action in (cs.STAY, cs.PART):
            self._agree(action, build)
            return True
        if action == cs.COMPLETE:
            if not self._complete(hold, build):
                self._resume()
                return self.words[pg.HOLD] != hold or self.words[pg.BUILD] != build
        elif action == cs.DISCONNECT:
            self._disconnect()
        else:
            connected = self._reconnect()
        with self.cond:
            self.machine.done(action, connected)
            self._show()
            self.cond.notify_all()
        return True

    def _show(self):
        """Unless the process ends: then ``end``, which closes its connections, sets the final state."""
        if not self.finished:
            self.words[pg.STATE] = self.machine.page_state

    def _complete(self, hold, build):
        """Complete what was issued. False when the agent has changed its order."""
        groups, words = list(self.groups), self.words
        stale = build != self.machine.built and hold & 15 < pg.DRAIN
        until = time.monotonic() + CLOSING_S
        self.wakes, self._ticket = [], words[pg.TICKET] if hold & 15 >= pg.DRAIN else 0

        def wanted():
            return words[pg.HOLD] == hold and words[pg.BUILD] == build and not self.finished

        while wanted():
            if self._settled(groups):
                break
            if stale and time.monotonic() >= until:  # the other end is gone
                break
            time.sleep(NAP_S)
        if hold & pg.P2P and wanted() and groups:
            from . import p2p_drain

            self.wakes = p2p_drain.settle(groups, words[pg.TICKET], bool(hold & pg.ANYBODY), wanted)
        return wanted()

    def _agree(self, asked_for, build):
        """A node that has lost the leader releases its ranks, while others may be ordered to drop. All ranks do the same."""
        made, word = [group for group in self.groups if group.made], asked_for
        if made and self._ticket and _alone:
            word = made[0].world.agree(f"cut/{self._ticket}", asked_for.encode()).decode()
        if word == cs.STAY:
            self._resume()
        with self.cond:
            self.machine.agreed(word, build)
            self._show()
            self.cond.notify_all()
        if word == cs.STAY != asked_for:
            time.sleep(REFUSED_S)

    def _resume(self):
        self.wakes = []
        with self.cond:
            for group in self.groups:
                group.channels.resume()
            self.cond.notify_all()

    def _settled(self, groups):
        """Three looks: between the first two a thread may come to ``stop``, between the last two it may leave it."""
        if not all(group.settled() for group in groups) or self._about_to_pass():
            return False
        return all(group.settled() for group in groups)

    def _about_to_pass(self):
        with self.cond:
            return self._entries.stopped_before_the_cut(self.words)

    def _disconnect(self):
        """No connection is left afterwards, and nothing that waits with a timer."""
        splice.quiesce()
        with self._forks:
            self._close()
        memory.trim()
        self.words[pg.PARKS] += 1

    def _close(self):
        for wake in self.wakes:
            wake()
        self.wakes = []
        for group in self.groups:
            group.drop()
        self.link.drop()
        connections.await_closed(self.groups, self.closing, CLOSING_S)
        self.closing, self._loops = set(), []

    def _reconnect(self):
        """The word BUILD of these connections."""
        splice.reset()
        self._introduce()
        with self.cond:
            self._entries.rewrite(self.page)
        self.link.reopen()
        with self._forks:
            return connections.rebuild(self.groups, self.words)

    def _fail(self, error):
        """Connections could not be restored: operations that need them raise this."""
        with self.cond:
            self.machine.failed(error, self.words[pg.BUILD])
            self._show()
            self.cond.notify_all()

    # A fork.

    def before_fork(self):
        """A thread that forks waits here while our own thread connects or disconnects."""
        self._forks.acquire()
        self.link.before_fork()

    def after_fork(self):
        """In the parent."""
        self.link.after_fork()
        self._forks.release()

    def forked(self):
        """In a forked child: page, thread and connections are the parent's. The child is no rank, but may become one."""
        self.link.forked()
        self._forks = threading.RLock()
        if self.page is None:
            return
        groups = self.groups
        event_loop_fds.close_in_child(self._loops)
        self.__init__()
        for group in groups:
            group.forked()


control = ProcessControl()
os.register_at_fork(before=control.before_fork, after_in_parent=control.after_fork, after_in_child=control.forked)

here = control
_alone = sys.modules.setdefault(f"{__package__}.here", sys.modules[__name__]) is sys.modules[__name__]
"""False in a process of an older image that has an older control as well, which closes the link to the store by itself."""
