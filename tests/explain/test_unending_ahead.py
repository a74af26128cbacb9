"""Forecasts of pools with jobs that do not end by themselves, or are on their way out."""

from __future__ import annotations

import pytest

from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.engine.nodes.outages import Cordon
from tidewright.engine.settings import live_settings
from tidewright.explain.forecast import forecast
from tidewright.model.cause import Code
from tidewright.model.job import Dependency, JobSpec, State
from tidewright.model.service import ServiceSpec
from tidewright.plan.explain import Forecast, Interval
from tidewright.policy.registry import make
from tidewright.testing.worldlet import Idle, Worldlet

LATER_THAN_LOOKED_AT = Interval(-1, -1, -1)


def pool(devices: int = 4, policy: str = "fifo") -> Worldlet:
    return Worldlet(1, devices, make(policy))


def ask(busy: Worldlet, *jobs: int, looks: int = 1 << 60) -> tuple[Forecast, ...]:
    """``looks``: how often it may ask whether it is to end."""
    asked = iter(range(looks))
    return forecast(busy.engine.snapshot(), busy.planner, jobs, lambda: next(asked, -1) < 0, samples=8)


def test_a_device_runtime_runs_on() -> None:
    busy = pool()
    runtime = busy.submit(2, kind="runtime", name="shared")
    waits = busy.submit(4, expected_us=MINUTE)
    busy.later(SECOND)
    ends, starts = ask(busy, runtime, waits)
    assert ends.end == LATER_THAN_LOOKED_AT
    assert starts.start == LATER_THAN_LOOKED_AT


def stopping(busy: Worldlet, event: ev.Event) -> None:
    """Tell it to stop a job that ignores SIGTERM."""
    busy.answers[co.StopRanks] = lambda command: None
    busy.tell(event)


def test_a_job_that_is_stopped_ends_at_once_or_when_its_grace_is_over() -> None:
    busy = pool()
    stubborn = busy.submit(1, grace_us=30 * SECOND)
    after = busy.submit(1, after=(Dependency("afterany", stubborn),))
    stopping(busy, ev.Cancel(stubborn))
    (found,) = ask(busy, after)
    assert found.start is not None
    assert found.start.low - busy.now < 5 * SECOND < 30 * SECOND <= found.start.high - busy.now < 35 * SECOND
    busy.later(25 * SECOND)
    (found,) = ask(busy, after)
    assert found.start is not None and 5 * SECOND <= found.start.high - busy.now < 10 * SECOND


def test_a_requeued_job_starts_again() -> None:
    busy = pool()
    again = busy.submit(1, expected_us=MINUTE)
    stopping(busy, ev.Requeue(again, "r"))
    assert busy.state(again) is State.STOPPING
    (found,) = ask(busy, again)
    assert found.why is None
    assert found.start is not None and 0 < found.start.low - busy.now <= found.start.high - busy.now < MINUTE
    assert found.end is not None and found.end.low > found.start.low


def test_a_job_that_is_suspended_for_another_starts_again_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidewright.explain.forecast._END_TURNS", 0)
    busy = pool(policy="sla")
    yields = busy.submit(4, tier="basic", expected_us=3 * HOUR, placement="any")
    busy.later(10 * MINUTE)
    busy.answers[co.SuspendRanks] = lambda command: None
    busy.submit(4, tier="premium", expected_us=HOUR, placement="any")
    assert busy.state(yields) is State.SUSPENDING
    (found,) = ask(busy, yields)
    assert found.start is not None and found.start.middle - busy.now > 10 * MINUTE
    busy.tell(ev.Hold(yields, "h"))
    (found,) = ask(busy, yields)
    assert found.why == Code.HELD_BY_USER()


def test_a_job_that_no_node_can_hold_is_not_foreseen_whatever_comes() -> None:
    busy = pool()
    for _ in range(12):
        job = busy.submit(1, expected_us=MINUTE)
        busy.later(MINUTE, ev.Exited(job, 1, 0))
    busy.tell(ev.NodeDrain("n0", True, op_id="d"))
    waits = busy.submit(1, expected_us=MINUTE)
    for looks in (0, 50, 1 << 60):
        (found,) = ask(busy, waits, looks=looks)
        assert (found.start, found.end, found.why) == (LATER_THAN_LOOKED_AT,) * 2 + (Code.NO_ROOM_ON_NODES(),)
    busy.tell(ev.NodeDrain("n0", False, op_id="u"))
    (found,) = ask(busy, waits)
    assert found.why is None


@pytest.mark.parametrize(("devices", "fits"), [(2, True), (3, False)])
@pytest.mark.parametrize("kind", ["runtime", "service"])
def test_a_job_that_does_not_fit_beside_what_runs_on_is_not_foreseen(kind: str, devices: int, fits: bool) -> None:
    busy = Worldlet(1, 4, make("fifo"), live_settings(check_every=1), full=True)
    if kind == "service":
        replica = JobSpec(command=("serve",), tier="premium", preempt="none", devices=2, ranks=2)
        service = ServiceSpec(name="vision", replica=replica, min_replicas=1, max_replicas=1)
        assert busy.reply(ev.DeployService(service, "d"), "d").error is None
    else:
        busy.submit(2, kind="runtime", name="shared", preempt="none")
    (stays,) = busy.engine.book.allocations
    busy.submit(2, expected_us=HOUR)
    waits = busy.submit(devices, expected_us=HOUR)
    (found,) = ask(busy, waits, looks=3)
    assert found.why == (None if fits else Code.NO_ROOM_BESIDE((stays,)))
    assert found.start is not None and (found.start.middle > 0) is fits


def test_no_device_is_made_up_where_none_takes_work() -> None:
    """A client of a runtime that waits for a node: what is ahead of it is not served by any device."""
    busy = pool()
    busy.tell(ev.NodeDrain("n0", True, op_id="d"))
    busy.submit(2, kind="runtime", name="shared")
    client = busy.submit(0, ranks=1, runtime="shared", expected_us=MINUTE)
    (found,) = ask(busy, client, looks=0)
    assert (found.start, found.end) == (LATER_THAN_LOOKED_AT,) * 2


def reckoned(busy: Worldlet) -> float:
    """In how many hours a job of four devices starts, by the work before it."""
    busy.submit(4, expected_us=HOUR)
    (found,) = ask(busy, busy.submit(4, expected_us=HOUR), looks=0)
    assert found.method == "work-ahead" and found.start is not None
    return (found.start.middle - busy.now) / HOUR


def exact(nodes: int) -> Worldlet:
    """A pool of nodes of four devices whose users are known to estimate run times exactly."""
    busy = Worldlet(nodes, 4, make("fifo"))
    for _ in range(8):
        job = busy.submit(1, expected_us=SECOND)
        busy.later(SECOND, ev.Exited(job, 1, 0))
    return busy


def test_what_runs_on_elsewhere_leaves_other_nodes_as_they_are() -> None:
    alone, beside = exact(1), exact(2)
    beside.submit(4, kind="runtime", name="shared")
    ((part,),) = beside.engine.book.allocations.values()
    beside.tell(ev.NodeDrain(f"n{part.node}", True, op_id="d"))
    hours = reckoned(alone)
    assert 0.9 < hours < 1.3 and reckoned(beside) == pytest.approx(hours, rel=0.05)


def test_a_node_that_is_cordoned_for_a_while_counts_as_one() -> None:
    busy = exact(1)
    busy.submit(4, expected_us=HOUR)
    busy.engine.book.outages.cordoned[0] = Cordon(Code.NO_ROOM_ON_NODES(), busy.now + HOUR)
    busy.engine.book.board.set_up(0, False)
    assert 2 < reckoned(busy) < 2.6


def test_a_future_that_is_cut_says_before_when_a_job_does_not_start() -> None:
    busy = pool()
    for _ in range(12):
        job = busy.submit(1, expected_us=MINUTE)
        busy.later(MINUTE, ev.Exited(job, 1, 0))
    busy.planner = Idle()
    waits = busy.submit(1, expected_us=MINUTE)
    (found,) = ask(busy, waits, looks=200)
    assert found.start is not None and found.method == "simulated"
    assert found.start.low > busy.now + MINUTE and found.start.middle == found.start.high == -1


def test_a_job_does_not_start_as_long_as_one_that_it_waits_for_is_held() -> None:
    busy = pool()
    first = busy.submit(4, expected_us=MINUTE)
    stays = busy.submit(1)
    busy.tell(ev.Hold(stays, "h"))
    chain = busy.submit(1, after=(Dependency("afterok", first), Dependency("afterany", stays)))
    last = busy.submit(1, after=(Dependency("afterok", chain),))
    for found in ask(busy, chain, last):
        assert (found.why, found.start, found.end) == (Code.WAITS_FOR_HELD(stays), None, None)
    busy.tell(ev.Hold(last, "l"))
    assert ask(busy, last)[0].why == Code.ALSO_HELD(Code.WAITS_FOR_HELD(stays), Code.HELD_BY_USER())
    busy.tell(ev.Release(last, "m"))
    busy.tell(ev.Release(stays, "r"))
    for found in ask(busy, chain, last):
        assert found.why is None and found.start is not None and found.start.middle > 0
