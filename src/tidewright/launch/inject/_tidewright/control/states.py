"""The states of a rank's process on its way to a cut and back: one table, without I/O.

    state       what it means                                       what its page shows
    RUNNING     connected; issues what it likes                     RUNNING
    HELD        connected; issues nothing beyond the cut            HELD
    DRAINED     connected; all that it has issued is complete       DRAINED
    DROPPING    its connections are being closed                    DRAINED
    PARKED      not connected, no timer runs: may be an image       PARKED
    CONNECTING  meets the others again                              REBUILDING
    ENDED       the program is over; connections closed for good    PARKED

                    STOP                DRAIN, DROP               DROP
        RUNNING ------------> HELD ---- (complete) ----> DRAINED ------- (part) -------> DROPPING -- (disconnect) --> PARKED
         ^  ^                  ^ |                          |                                                             |
         |  '------ RUN -------+-'        RUN, STOP: (stay) |                                                             |
         |                     '----------------------------'                                                             |
         '---------------------- (connect) --------------------- CONNECTING <--------- RUN, RECONNECT --------------------'

        RUNNING -- exit, once the agent asks for RUN --> ENDED

In parentheses: what the process does on the way; it looks at its page again when it is done with that. What the agent asks for
follows from two words of the page, HOLD and BUILD (``asked``). RECONNECT: connections that are there were dropped at their other
end, and are made anew; a process that has not drained completes what it has issued first.

A rank that has drained does not know whether others have been ordered to drop their connections, and its node may release it
alone, having lost the leader of the cut. So it asks before it goes on (*stay*) or drops its own (*part*), in the store that
all ranks share: the first to ask decides for all. A rank that wants to stay and learns that others part does as they do, and
the other way round.

One thread obeys; the threads of the program only ask whether they may issue an operation. Standard library only.
"""

from __future__ import annotations

from .. import page as pg

RUNNING, HELD, DRAINED, DROPPING, PARKED, CONNECTING, ENDED = (
    "running", "held", "drained", "dropping", "parked", "connecting", "ended",
)  # fmt: skip
STATES = (RUNNING, HELD, DRAINED, DROPPING, PARKED, CONNECTING, ENDED)
PAGE_STATE = {
    RUNNING: pg.RUNNING, HELD: pg.HELD, DRAINED: pg.DRAINED, DROPPING: pg.DRAINED, PARKED: pg.PARKED,
    CONNECTING: pg.REBUILDING, ENDED: pg.PARKED,
}  # fmt: skip
"""What the page shows of each; these numbers are part of the page's layout."""

RUN, STOP, DRAIN, DROP, RECONNECT = "run", "stop", "drain", "drop", "reconnect"
ASKED = (RUN, STOP, DRAIN, DROP, RECONNECT)
"""What the agent may ask for."""

NOTHING, COMPLETE, STAY, PART, DISCONNECT, CONNECT = "nothing", "complete", "stay", "part", "disconnect", "connect"
"""What the process does in answer. COMPLETE: wait until all that was issued is complete, or the page changes. STAY, PART:
agree with the other ranks of this cut whether connections are kept (a rank asks for STAY) or dropped (PART); the first to
ask decides."""

TRANSITIONS = {
    (RUNNING, RUN): (NOTHING, RUNNING),
    (RUNNING, STOP): (NOTHING, HELD),
    (RUNNING, DRAIN): (COMPLETE, RUNNING),
    (RUNNING, DROP): (COMPLETE, RUNNING),
    (RUNNING, RECONNECT): (COMPLETE, RUNNING),
    (HELD, RUN): (NOTHING, RUNNING),
    (HELD, STOP): (NOTHING, HELD),
    (HELD, DRAIN): (COMPLETE, HELD),
    (HELD, DROP): (COMPLETE, HELD),
    (HELD, RECONNECT): (COMPLETE, HELD),
    (DRAINED, RUN): (STAY, DRAINED),
    (DRAINED, STOP): (STAY, DRAINED),
    (DRAINED, DRAIN): (NOTHING, DRAINED),
    (DRAINED, DROP): (PART, DRAINED),
    (DRAINED, RECONNECT): (PART, DRAINED),
    (PARKED, RUN): (CONNECT, CONNECTING),
    (PARKED, STOP): (NOTHING, PARKED),
    (PARKED, DRAIN): (NOTHING, PARKED),
    (PARKED, DROP): (NOTHING, PARKED),
    (PARKED, RECONNECT): (CONNECT, CONNECTING),
    **{(DROPPING, asked): (DISCONNECT, DROPPING) for asked in ASKED},
    **{(ENDED, asked): (NOTHING, ENDED) for asked in ASKED},
}
"""By state and what the agent asks for: what to do, and the state meanwhile. While CONNECTING it looks at nothing."""

COMPLETED = {
    (COMPLETE, RUNNING): DRAINED,
    (COMPLETE, HELD): DRAINED,
    (DISCONNECT, DROPPING): PARKED,
    (CONNECT, CONNECTING): RUNNING,
}
"""By what was done, and the state meanwhile: the state afterwards."""
AGREED = {STAY: HELD, PART: DROPPING}
"""By what was agreed, whatever each rank asked for: the state afterwards."""


class IllegalTransition(RuntimeError):
    """The table has no such entry: a mistake of the wrapper."""


def asked(hold, build, built):
    """What the agent asks for by the words HOLD and BUILD; ``built``: BUILD as of the connections that are in use.

    HOLD must be read before BUILD: the agent writes BUILD first.
    """
    phase = hold & 15
    if phase == pg.DRAIN:
        return DRAIN
    if phase == pg.DROP:
        return DROP
    if build != built:
        return RECONNECT
    return STOP if phase == pg.STOP else RUN


class ControlMachine:
    """One per process. ``blocked`` and ``built`` are read by every operation, so they are plain attributes."""

    def __init__(self):
        self.state = RUNNING
        self.built = 0
        self.blocked = False
        """Whether no operation may be issued, whatever the page says."""
        self.disconnected = False
        """Whether there are no connections that may be used."""
        self.disconnect_count = 0
        self.failure = None
        """Why connections could not be restored."""

    @property
    def finished(self):
        """Whether connections are closed for good."""
        return self.state == ENDED

    @property
    def page_state(self):
        """What the page is to show."""
        return PAGE_STATE[self.state]

    def look(self, hold, build):
        """The page's words were read: what to do now."""
        key = self.state, asked(hold, build, self.built)
        if key not in TRANSITIONS:
            raise IllegalTransition(f"a process that is {key[0]} was asked to {key[1]}")
        action, state = TRANSITIONS[key]
        self._enter(state)
        return action

    def done(self, action, build=None):
        """What ``look`` has asked for is done; ``build``: the word BUILD when connections were complete (CONNECT only)."""
        if self.finished:
            return
        if (action, self.state) not in COMPLETED:
            raise IllegalTransition(f"{action} was done while {self.state}")
        self._enter(COMPLETED[action, self.state])
        if action == CONNECT:
            self.built, self.failure = build, None

    def agreed(self, word, build):
        """What all ranks of the cut have agreed on, STAY or PART; ``build``: the word BUILD when this one asked."""
        if self.finished:
            return
        if self.state != DRAINED:
            raise IllegalTransition(f"{word} was agreed on while {self.state}")
        self._enter(AGREED[word])
        if word == STAY:
            self.built = build

    def failed(self, error, build):
        """It could not be done: operations that need connections raise ``error``; ``build`` is not tried again."""
        if not self.finished:
            self.failure, self.built = error, build
            self._enter(RUNNING)

    def exit(self, hold, build):
        """The program issues nothing more. Whether it may end now; while the agent holds, it waits as operations do."""
        if self.state == ENDED:
            return True
        if self.blocked or asked(hold, build, self.built) != RUN:
            return False
        self._enter(ENDED)
        return True

    def may_issue(self, hold, build, included):
        """Whether an operation may be issued; ``included``: whether the cut includes it, called when that matters."""
        if self.blocked:
            return False
        what = asked(hold, build, self.built)
        return what == RUN or (what in (STOP, DRAIN) and included())

    def disconnecting(self, hold, build, disconnect_count):
        """Whether connections break or broke since ``disconnect_count`` for a cut: then that is no failure."""
        if self.blocked or self.disconnect_count != disconnect_count:
            return True
        return asked(hold, build, self.built) not in (RUN, STOP)

    def stays_between_steps(self, hold, build, behind, late):
        """Whether a thread stands where a step begins; ``behind``: others wait for what it would issue; ``late``: stood long."""
        if self.finished:
            return False
        what = asked(hold, build, self.built)
        if what == STOP and not self.blocked:
            # The agent tells neither of messages nor of keys that others wait for: hence the limit.
            return not late and not behind
        return what != RUN

    def _enter(self, state):
        disconnected = state in (DROPPING, PARKED, CONNECTING, ENDED)
        self.disconnect_count += disconnected and not self.disconnected
        self.state, self.disconnected, self.blocked = state, disconnected, disconnected or state == DRAINED
