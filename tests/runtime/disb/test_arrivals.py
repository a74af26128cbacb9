"""Launches by DISB's rules and in the open loop."""

from __future__ import annotations

from itertools import islice, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.runtime.disb.arrivals import (
    ClosedLoop,
    DependentLoop,
    DisbLoads,
    IntendedLaunch,
    OpenLoop,
    intended_times,
    stagger,
)
from tidewright.runtime.disb.workload import DisbClient, DisbLoad, DisbTask

from ...sizes import examples

MS = 1_000_000
END = 1_000 * MS


def task(load: DisbLoad, name: str = "a_rt") -> DisbTask:
    return DisbTask(name, load, DisbClient("m"))


PERIODIC = task(DisbLoad("periodic", frequency=100))
TRACE = task(DisbLoad("trace", trace=(40, 5, 20, 30)))
loads = st.one_of(
    st.builds(DisbLoad, st.just("periodic"), frequency=st.sampled_from((20, 100, 220))),
    st.builds(DisbLoad, st.just("poisson"), frequency=st.sampled_from((20, 100, 220))),
    st.builds(DisbLoad, st.just("trace"), trace=st.lists(st.integers(0, 999), max_size=30).map(tuple)),
)


def test_a_late_client_launches_at_once_when_the_next_launch_is_not_due() -> None:
    loop = ClosedLoop(PERIODIC, END)
    assert loop.next_launch(0) == IntendedLaunch(0, 0)
    assert loop.next_launch(13 * MS) == IntendedLaunch(10 * MS, 13 * MS)
    assert loop.next_launch(14 * MS) == IntendedLaunch(20 * MS, 20 * MS)
    assert loop.dropped == 0


def test_launches_whose_successor_is_due_are_dropped() -> None:
    loop = ClosedLoop(PERIODIC, END)
    loop.next_launch(0)
    # 10 and 20 ms are given up, for 30 ms is due; 30 ms is late, and 40 ms is not due.
    assert loop.next_launch(35 * MS) == IntendedLaunch(30 * MS, 35 * MS)
    assert loop.dropped == 2
    # A successor that is due just now does not count as due (DISB compares with <).
    assert loop.next_launch(50 * MS) == IntendedLaunch(40 * MS, 50 * MS)
    assert loop.dropped == 2


def test_traces_are_sorted_and_end() -> None:
    loop = ClosedLoop(TRACE, END)
    assert loop.next_launch(0) == IntendedLaunch(5 * MS, 5 * MS)
    assert loop.next_launch(31 * MS) == IntendedLaunch(30 * MS, 31 * MS)
    assert loop.dropped == 1
    assert loop.next_launch(32 * MS) == IntendedLaunch(40 * MS, 40 * MS)
    assert loop.next_launch(41 * MS) is None


def test_a_closed_loop_launches_until_the_end() -> None:
    loop = ClosedLoop(task(DisbLoad("continuous")), END)
    assert loop.next_launch(7) == IntendedLaunch(7, 7)
    assert loop.next_launch(END - 1) is not None and loop.next_launch(END) is None


def test_the_open_loop_drops_nothing() -> None:
    loop = OpenLoop(PERIODIC, 25 * MS)
    assert [loop.next_launch(0) for _ in range(4)] == [
        IntendedLaunch(0, 0), IntendedLaunch(10 * MS, 10 * MS), IntendedLaunch(20 * MS, 20 * MS), None,
    ]  # fmt: skip
    assert OpenLoop(task(DisbLoad("continuous")), END).next_launch(5) == IntendedLaunch(5, 5)


def test_periodic_clients_of_one_frequency_are_staggered_by_their_latencies() -> None:
    tasks = [
        task(DisbLoad("periodic", frequency=20), "a"),
        task(DisbLoad("periodic", frequency=20.7), "b"),  # the same whole number
        task(DisbLoad("periodic", frequency=20, priority=1), "c"),
        task(DisbLoad("periodic", frequency=100), "d"),
        task(DisbLoad("poisson", frequency=20), "e"),
        task(DisbLoad("periodic", frequency=20), "f"),
    ]
    alone = dict(zip("abcdef", (3, 5, 7, 11, 13, 17), strict=True))
    assert stagger(tasks, alone) == {"a": 0, "b": 3, "d": 0, "f": 8}


def test_poisson_arrivals_have_their_rate_and_differ_by_seed_and_client() -> None:
    load = DisbLoad("poisson", frequency=100)
    times = list(islice(intended_times(load, 1, "a"), 4001))
    assert times[0] == 0 and all(at % 1_000 == 0 for at in times)
    assert 0.95 < times[-1] / (4000 * 10 * MS) < 1.05
    assert times == list(islice(intended_times(load, 1, "a"), 4001))
    assert times != list(islice(intended_times(load, 2, "a"), 4001))
    assert times != list(islice(intended_times(load, 1, "b"), 4001))


@settings(derandomize=True, max_examples=examples(60))
@given(loads, st.integers(0, 9), st.lists(st.integers(1, 60 * MS), min_size=1, max_size=40))
def test_a_client_has_one_request_outstanding_and_accounts_for_every_intended_launch(
    load: DisbLoad, seed: int, latencies: list[int]
) -> None:
    loop = ClosedLoop(task(load), END, seed)
    intended = [at for at in islice(intended_times(load, seed, "a_rt"), 300) if at < END]
    now, made = 0, []
    for latency in latencies:
        launch = loop.next_launch(now)
        if launch is None:
            break
        assert launch.at == max(launch.intended, now) < END + 60 * MS * len(latencies)
        made.append(launch.intended)
        now = launch.at + latency
    assert all(one <= other for one, other in pairwise(made))
    assert set(made) <= set(intended)
    # Launched or dropped, in order: what was intended up to the last launch.
    if made and launch is not None:
        assert len(made) + loop.dropped == sum(at <= made[-1] for at in intended) - intended.count(
            made[-1]
        ) + made.count(made[-1])


def test_a_dependent_client_follows_the_nth_request_of_each() -> None:
    follower = task(DisbLoad("dependent", prev_task_ids=("a", "b")), "c")
    loop = DisbLoads([follower], "closed", END).by_client["c"]
    assert isinstance(loop, DependentLoop) and loop.waits
    loop.received("a", 5)
    loop.received("a", 7)
    assert loop.next_launch(8) is None, "b has completed nothing"
    loop.received("b", 10)
    loop.received("b", 20)
    assert loop.next_launch(30) == IntendedLaunch(10, 30)
    assert loop.next_launch(31) == IntendedLaunch(20, 31), "what came while it was busy is kept"
    assert loop.next_launch(32) is None and loop.dropped == 0
    loop.received("a", END)
    loop.received("b", END)
    assert loop.next_launch(END) is None
    assert not DisbLoads([follower], "open", END).by_client["c"].waits


def test_those_that_wait_for_a_client_may_launch_when_it_is_done() -> None:
    tasks = [task(DisbLoad("continuous"), "a"), task(DisbLoad("dependent", prev_task_ids=("a",)), "b")]
    loads = DisbLoads(tasks, "closed", END)
    assert loads.completed("a", 1) == [], "b has not asked yet"
    assert loads.next_launch("b", 2) == IntendedLaunch(1, 2)
    assert loads.next_launch("b", 3) is None
    assert loads.completed("a", 4) == ["b"]
    assert loads.completed("a", 5) == [], "b was told already"
    assert loads.next_launch("b", 6) == IntendedLaunch(4, 6)
