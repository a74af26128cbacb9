"""The states of a rank's process: the table is whole, and what an operation may do follows from it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.launch.gang import INJECT
from tidewright.checkpoint.cut import machine as cut_machine
from tidewright.launch.inject._tidewright import page as pg
from tidewright.launch.inject._tidewright.control import states as cs


def test_every_state_knows_what_to_do_with_everything_asked() -> None:
    looking = [state for state in cs.STATES if state != cs.CONNECTING]
    assert set(cs.TRANSITIONS) == {(state, asked) for state in looking for asked in cs.ASKED}
    doing = {
        (action, state)
        for action, state in cs.TRANSITIONS.values()
        if action in (cs.COMPLETE, cs.DISCONNECT, cs.CONNECT)
    }
    assert doing == set(cs.COMPLETED) and set(cs.PAGE_STATE) == set(cs.STATES)


def drained() -> cs.ControlMachine:
    machine = cs.ControlMachine()
    for hold in (pg.STOP, pg.DRAIN):
        action = machine.look(hold, 0)
    assert (machine.state, action) == (cs.HELD, cs.COMPLETE)
    machine.done(cs.COMPLETE)
    return machine


def test_a_rank_goes_to_a_cut_and_back() -> None:
    machine = drained()
    assert machine.look(pg.DROP, 0) == cs.PART
    machine.agreed(cs.PART, 0)
    assert machine.look(pg.FREE, 1) == cs.DISCONNECT, "what was agreed is done, whatever the page says by then"
    machine.done(cs.DISCONNECT)
    assert machine.look(pg.STOP, 0) == cs.NOTHING and machine.page_state == pg.PARKED
    assert machine.look(pg.STOP, 1) == cs.CONNECT, "released, and held again before it could look"
    machine.done(cs.CONNECT, 1)
    assert machine.look(pg.STOP, 1) == cs.NOTHING and machine.state == cs.HELD


def test_a_rank_that_is_released_does_as_the_first_who_asked() -> None:
    machine = drained()
    assert machine.look(pg.FREE, 0) == cs.STAY and not machine.may_issue(pg.FREE, 0, lambda: True)
    machine.agreed(cs.PART, 0)
    assert machine.disconnected
    other = drained()
    assert other.look(pg.FREE, 1) == cs.PART
    other.agreed(cs.STAY, 1)
    assert other.look(pg.FREE, 1) == cs.NOTHING and other.may_issue(pg.FREE, 1, lambda: False)


def test_operations_beyond_the_cut_wait() -> None:
    machine = cs.ControlMachine()
    for hold, included, may in (
        (pg.STOP, True, True),
        (pg.STOP, False, False),
        (pg.DRAIN, True, True),
        (pg.DROP, True, False),
    ):
        assert machine.may_issue(hold, 0, lambda included=included: included) is may  # type: ignore[misc]
    assert not machine.may_issue(pg.FREE, 1, lambda: True), "connections that were dropped at their other end"


def test_a_step_that_the_table_lacks_is_refused() -> None:
    with pytest.raises(cs.IllegalTransition):
        cs.ControlMachine().done(cs.DISCONNECT)
    with pytest.raises(cs.IllegalTransition):
        cs.ControlMachine().agreed(cs.STAY, 0)


def test_a_program_that_ends_waits_for_its_release() -> None:
    machine = drained()
    assert not machine.exit(pg.FREE, 0)
    machine.agreed(cs.STAY, 0)
    assert not machine.exit(pg.STOP, 0) and machine.exit(pg.FREE, 0) and machine.finished
    assert machine.look(pg.DROP, 0) == cs.NOTHING and machine.page_state == pg.PARKED


def test_the_states_of_a_cut_lead_to_its_end() -> None:
    ends = [state for state, to in cut_machine.TRANSITIONS.items() if not to]
    assert ends == [cut_machine.CUT, cut_machine.FAILED]
    for state, to in cut_machine.TRANSITIONS.items():
        assert state in (*ends, cut_machine.START) or cut_machine.FAILING in to or state == cut_machine.FAILING


OLD_NAMES = """
import sys
sys.path.insert(0, sys.argv[1])
from _tidewright.reach import box, read, say
from _tidewright.settling import settle
import _tidewright.process_control
print(sys.modules["_tidewright.here"].here.end())
"""

OLD_CLIENT = """
import sys, types
sys.path.insert(0, sys.argv[1])
import _tidewright
old = sys.modules["_tidewright.meet"] = types.ModuleType("_tidewright.meet")
old.link, old.Late = types.SimpleNamespace(waiting=0), KeyError
splice = sys.modules["_tidewright.splice"] = types.ModuleType("_tidewright.splice")
splice.take, splice.give_up, splice.park = "acquire", "release", "quiesce"
from _tidewright import world
from _tidewright.process_control import control
print(world.link is old.link is control.link, splice.acquire, splice.release, splice.quiesce)
"""


def test_ranks_of_older_images_find_what_they_import_by_name() -> None:
    """Their own code is in their memory; what they load later is not."""
    found = subprocess.run([sys.executable, "-c", OLD_NAMES, str(INJECT)], capture_output=True, text=True, timeout=60)
    assert found.stdout == "None\n", found.stderr


def test_what_a_process_of_an_older_image_loads_later_uses_the_modules_that_it_has() -> None:
    """Connections of a second client of the rendezvous store would outlast a cut."""
    found = subprocess.run([sys.executable, "-c", OLD_CLIENT, str(INJECT)], capture_output=True, text=True, timeout=60)
    assert found.stdout == "True acquire release quiesce\n", found.stderr
