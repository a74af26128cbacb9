"""Rounds, ticks, ties and refusals: against a plain loop written here, and worked out by hand."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tidewright.base.units import HOUR, SECOND
from tidewright.policy.registry import make, policies
from tidewright.sim.clusters import load_cluster
from tidewright.sim.costs import FREE, Costs, RecordedCost, SizedCost, TabledCost
from tidewright.sim.faults import FaultSettings
from tidewright.sim.metrics import REFUSED, UNFINISHED
from tidewright.sim.profile import PROFILES, ClusterProfile
from tidewright.sim.run import Options, Simulation
from tidewright.sim.trace import Trace, make_trace

from ..sizes import examples

IDEAL = PROFILES["ideal"]


def jobs(*rows: tuple[float, float, int], **columns: object) -> Trace:
    submit, duration, devices = (np.array(column) for column in zip(*rows, strict=True))
    return make_trace("hand", submit.astype(float), duration.astype(float), devices, **columns)


def run(trace: Trace, profile: ClusterProfile, cluster: str = "1x2", policy: str = "fifo") -> Simulation:
    simulation = Simulation(trace, load_cluster(cluster), make(policy), Options(profile=profile))
    simulation.run()
    return simulation


def starts(simulation: Simulation) -> list[float]:
    return (simulation.outcomes.start / SECOND).tolist()


def ends(simulation: Simulation) -> list[float]:
    return (simulation.outcomes.end / SECOND).tolist()


def test_jobs_start_at_multiples_of_the_round() -> None:
    rounds = replace(IDEAL, round_us=60 * SECOND)
    done = run(jobs((0, 100, 1), (10, 100, 1), (130, 30, 2)), rounds)
    assert starts(done) == [0, 60, 180]
    assert ends(done) == [100, 160, 210]


def test_utilisation_counts_until_the_last_admission_and_queues_from_submission() -> None:
    """The second job comes at 100 s and is admitted at 360 s: until then the first one holds both devices."""
    done = run(jobs((0, 400, 2), (100, 40, 2)), replace(IDEAL, round_us=360 * SECOND))
    assert starts(done) == [0, 720]
    result = done.result()
    assert (result.utilisation_arriving, result.makespan_s) == (1.0, 760)
    assert result.queue_length_mean == pytest.approx(620 / 760)
    assert result.utilisation == pytest.approx(440 / 760)


def test_jobs_that_come_at_once_have_the_utilisation_of_the_whole_run() -> None:
    result = run(jobs((0, 100, 1), (0, 50, 2)), IDEAL).result()
    assert result.utilisation_arriving == result.utilisation == pytest.approx(200 / 300)


def test_until_the_horizon_jobs_of_the_next_round_are_queued() -> None:
    options = Options(profile=replace(IDEAL, round_us=360 * SECOND), horizon_us=300 * SECOND)
    simulation = Simulation(jobs((0, 200, 2), (100, 40, 2)), load_cluster("1x2"), make("fifo"), options)
    result = simulation.run()
    assert result.queue_length_mean == pytest.approx(200 / 300)
    assert result.utilisation_arriving == result.utilisation == pytest.approx(200 / 300)


def test_no_round_passes_in_an_empty_cluster_when_idle_rounds_are_skipped() -> None:
    trace = jobs((0, 100, 1), (1000, 100, 1), (1010, 50, 1))
    assert starts(run(trace, replace(IDEAL, round_us=60 * SECOND))) == [0, 1020, 1020]
    skipped = run(trace, replace(IDEAL, round_us=60 * SECOND, round_end="idle"))
    assert starts(skipped) == [0, 1000, 1060]


@pytest.mark.parametrize("round_end", ["fixed", "idle", "last-finish"])
def test_idle_time_costs_nothing_however_long(round_end: str) -> None:
    """A year of rounds of a second, and then a job alone for more than a day."""
    profile = replace(IDEAL, round_us=SECOND, round_end=round_end)
    done = run(jobs((0, 1, 1), (3e7, 100_000, 1)), profile)
    assert done.result().completed == 2
    assert done.driver.turns < 20


def test_allocations_are_apart() -> None:
    profile = replace(IDEAL, reallocation_us=100 * SECOND)
    assert starts(run(jobs((0, 5, 2), (10, 5, 2), (20, 5, 2)), profile)) == [0, 100, 200]


def test_ticks_round_starts_and_ends_up() -> None:
    done = run(jobs((0, 1.5, 2), (0.2, 1.0, 2)), replace(IDEAL, tick_us=SECOND))
    assert (starts(done), ends(done)) == ([0, 2], [2, 3])


@pytest.mark.parametrize(("ties", "order"), [("listed", [0, 10, 20]), ("fewest", [20, 10, 0]), ("name", [20, 0, 10])])
def test_ties_at_one_instant(ties: str, order: list[float]) -> None:
    trace = jobs((0, 10, 4), (0, 10, 3), (0, 10, 2), ids=("c", "a", "b"))
    assert starts(run(trace, replace(IDEAL, ties=ties), "1x4")) == order


def test_shuffled_ties_follow_the_seed() -> None:
    trace = jobs(*[(0, 10, 1)] * 12)
    one, again, other = (starts(run(trace, replace(IDEAL, ties="shuffled", seed=s), "1x1")) for s in (1, 1, 2))
    assert one == again != other
    assert sorted(one) == [10.0 * at for at in range(12)]


def test_what_cannot_start_at_once_is_refused_one_by_one() -> None:
    """The second does not fit beside the first, the third does; the last comes when all is free again."""
    done = run(jobs((0, 10, 1), (0, 10, 2), (0, 10, 1), (20, 10, 2), (25, 1, 9)), replace(IDEAL, refuse=True))
    assert (done.outcomes.state == REFUSED).tolist() == [False, True, False, False, True]
    assert done.result().refusals == {"NeverFits": 1, "NoCapacity": 1} or len(done.result().refusals) == 2
    assert starts(done)[3] == 20


def test_placement_of_every_job() -> None:
    trace = jobs((0, 10, 1), (0, 10, 1), (0, 10, 2))
    split = replace(IDEAL, placement="any")
    packed = replace(IDEAL, placement="one-node")
    assert starts(run(trace, split, "2x2", "las"))[2] == 0
    assert run(jobs((0, 10, 3)), packed, "2x2").result().refused == 1
    assert run(jobs((0, 10, 3)), split, "2x2").result().refused == 0


def test_without_splicing_elastic_jobs_get_all_or_nothing() -> None:
    trace = jobs((0, 100, 1), (0, 100, 2), floor=np.array([0, 1], np.int32))
    assert starts(run(trace, IDEAL)) == [0, 0]
    assert starts(run(trace, replace(IDEAL, splice=False))) == [0, 100]


# -- rounds of whole steps --------------------------------------------------------------------------------------------


def gavel(rows: list[tuple[int, int, int, float]], devices: int, every: int, apart: int) -> list[int]:
    """When each (submit, duration, devices, step; microseconds) ends, first come, first served: Gavel's loop, written plainly.

    A round starts; who has come is admitted; if the last allocation is long enough ago, the queue is served; every job with
    devices does its whole steps; the next round starts at the latest of their finishes.
    """
    ends, left = [-1] * len(rows), [float(row[1]) for row in rows]
    waiting: list[int] = []
    running: list[int] = []
    coming = sorted(range(len(rows)), key=lambda at: (rows[at][0], at))
    now, last, changed_since = 0, None, False
    while coming or waiting or running:
        while coming and rows[coming[0]][0] <= now:
            waiting.append(coming.pop(0))
            changed_since = True
        if changed_since and (last is None or now >= last + apart):
            last, changed_since = now, False
            free = devices - sum(rows[at][2] for at in running)
            while waiting and rows[waiting[0]][2] <= free:
                running.append(waiting.pop(0))
                free -= rows[running[-1]][2]
        if not running:
            later = [rows[coming[0]][0]] if coming else []
            if changed_since and last is not None:
                later.append(last + apart)
            now = min(at for at in later if at > now)
            continue
        finishes = []
        for at in list(running):
            step = rows[at][3]
            work = round(max(1, int(every / step)) * step)
            work = min(work, left[at])
            left[at] -= work
            finishes.append(now + int(work))
            if left[at] <= 0:
                ends[at] = now + int(work)
                running.remove(at)
                changed_since = True
        now = max(finishes)
    return ends


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0, 1_920 * SECOND]), st.integers(1, 12))
def test_rounds_of_whole_steps_are_gavels(seed: int, apart: int, count: int) -> None:
    random = Random(seed)
    rows = sorted(
        (random.randrange(0, 20_000) * SECOND, random.randrange(1, 9_000) * SECOND, random.choice([1, 1, 2, 4]),
         random.choice([0.9, 7.3, 55.0, 130.0]) * SECOND) for _ in range(count)
    )  # fmt: skip
    rows = [(at - rows[0][0], *rest) for at, *rest in rows]
    submit, duration, devices, step = (np.array(column) for column in zip(*rows, strict=True))
    trace = make_trace("gavel", submit / SECOND, duration / SECOND, devices, step_us=step.astype(np.float64))
    done = run(trace, replace(PROFILES["gavel"], reallocation_us=apart), "1x4")
    assert done.outcomes.end.tolist() == gavel(rows, 4, 360 * SECOND, apart)


def test_a_round_ends_at_the_latest_finish_of_its_steps() -> None:
    """Steps of 50 s: 350 of 360 s are used; the second job is admitted at 350 s and runs until 700, when the first ends too."""
    trace = jobs((0, 1000, 1), (10, 350, 1), step_us=np.array([50.0, 50.0]) * SECOND)
    done = run(trace, replace(PROFILES["gavel"], reallocation_us=0))
    assert starts(done) == [0, 350]
    assert ends(done) == [1000, 700]


def test_a_round_of_whole_steps_ends_at_a_tick() -> None:
    """The last steps end at 10.5 s; the job ends, and the next one starts, at the tick after it."""
    trace = jobs((0, 10.5, 2), (1, 7, 2), step_us=np.array([3.5, 3.5]) * SECOND)
    profile = replace(PROFILES["gavel"], reallocation_us=0, tick_us=SECOND)
    done = run(trace, profile)
    assert (starts(done), ends(done)) == ([0, 11], [11, 18])
    assert done.driver.turns < 20


# -- every job is accounted for ---------------------------------------------------------------------------------------

COSTS = st.sampled_from([
    FREE, Costs(), Costs(launch_us=SizedCost(base_us=SECOND, per_device_us=SECOND // 10)),
    Costs(save_us=TabledCost(((1, 7 * SECOND), (2, 30 * SECOND))), restart_us=RecordedCost((SECOND, 90 * SECOND))),
    Costs(launch_us=RecordedCost((0, SECOND, 400 * SECOND)), stop_us=3 * SECOND, checkpoint_us=RecordedCost((1, 9))),
])  # fmt: skip
PACES = st.fixed_dictionaries({
    "round_us": st.sampled_from([0, 60 * SECOND, 360 * SECOND]), "reallocation_us": st.sampled_from([0, 500 * SECOND]),
    "placement": st.sampled_from(["trace", "consolidate", "one-node", "any"]), "refuse": st.booleans(),
    "ties": st.sampled_from(["listed", "name", "fewest", "shuffled"]), "tick_us": st.sampled_from([0, SECOND]),
    "splice": st.booleans(), "round_end": st.sampled_from(["fixed", "idle", "last-finish"]), "costs": COSTS,
})  # fmt: skip


@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(0, 2**32), PACES, st.sampled_from(policies.names()), st.booleans(),
    st.sampled_from([HOUR, 10**6 * HOUR]),
)  # fmt: skip
def test_every_job_is_finished_failed_unfinished_or_refused(
    seed: int, pace: dict[str, object], policy: str, faulty: bool, horizon_us: int
) -> None:
    random = Random(seed)
    rows = [
        (random.choice([0, 0, random.randrange(9000)]), random.randrange(1, 3000), random.choice([1, 1, 2, 3, 8, 40]))
        for _ in range(30)
    ]
    columns = {"floor": np.array([max(1, k // 2) for _, _, k in rows], np.int32)} if random.random() < 0.5 else {}
    trace = jobs(*rows, retries=2, step_us=np.array([random.choice([0, 11.5]) * SECOND for _ in rows]), **columns)
    faults = FaultSettings(seed=seed, node_mtbf_us=3 * HOUR if faulty else 0, suspend_failure=0.1 if faulty else 0.0)
    options = Options(profile=ClusterProfile(**pace), faults=faults, horizon_us=horizon_us)  # type: ignore[arg-type]
    simulation = Simulation(trace, load_cluster("4x4"), make(policy), options)
    result = simulation.run()
    assert result.completed + result.failed + result.unfinished + result.refused == len(trace) == 30
    assert 0 <= result.utilisation <= 1 and 0 <= result.utilisation_arriving <= 1
    assert simulation.meter.queued >= 0 and (result.unfinished or not simulation.meter.queued)
    assert sum(result.refusals.values()) == result.refused >= sum(k > 16 for _, _, k in rows) * (horizon_us > 3 * HOUR)
    assert sorted(simulation.why_unfinished()) == np.flatnonzero(simulation.outcomes.state == UNFINISHED).tolist()
    if horizon_us > HOUR:
        assert not result.unfinished
