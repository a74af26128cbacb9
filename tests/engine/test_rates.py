"""The ledger on kinds of different speed, and work in phases."""

import msgspec
import numpy as np

from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.engine import events as ev
from tidewright.engine.engine import Engine
from tidewright.engine.settings import EngineSettings
from tidewright.model.job import JobSpec, Phase, State
from tidewright.model.node import NodeSpec, Part
from tidewright.model.rate import FULL_RATE, MOST_RATE, RateSettings, Throughput
from tidewright.plan.moves import Migrate, Start
from tidewright.testing.worldlet import Worldlet

NODES = (NodeSpec(name="h", kind="h100", devices=8), NodeSpec(name="a", kind="a100", devices=8))
TABLE = RateSettings(
    kinds={"h100": 2.0},
    throughputs=(
        Throughput("small", "h100", 1, 10.0), Throughput("small", "a100", 1, 9.0),
        Throughput("large", "h100", 1, 10.0), Throughput("large", "a100", 1, 2.5),
        Throughput("huge", "h100", 1, 1.0), Throughput("huge", "a100", 1, 0.0),
    ),
)  # fmt: skip


def world(rates: RateSettings = TABLE) -> Worldlet:
    pool = Worldlet(0, settings=EngineSettings(rates=rates, check_every=1))
    pool.tell(*(ev.NodeUp(node, "1") for node in NODES))
    return pool


def fraction(pool: Worldlet, job: int) -> float:
    jobs = pool.engine.view().jobs
    return float(jobs.delivered[jobs.row[job]])


def test_an_hour_on_the_slower_kind_is_half_an_hour_of_work() -> None:
    pool = world()
    fast, slow = pool.submit(1), pool.submit(1)
    pool.plan(Start(fast, (Part(0, 1),), "x"), Start(slow, (Part(1, 1),), "x"))
    pool.later(HOUR)
    assert fraction(pool, fast) == 1.0 and fraction(pool, slow) == 0.5
    pool.plan(Migrate(slow, (Part(0, 2),), "x"))
    pool.later(HOUR)
    assert fraction(pool, slow) == 0.75


def test_full_speed_is_that_of_the_fastest_kind_it_accepts() -> None:
    pool = world()
    job = pool.submit(1, device_types=("a100",))
    pool.plan(Start(job, (Part(1, 1),), "x"))
    pool.later(HOUR)
    assert fraction(pool, job) == 1.0 and pool.engine.book.jobs[job].reference == "a100"


def test_a_workload_that_cannot_run_on_a_kind_is_kept_off_it() -> None:
    pool = world()
    job = pool.submit(1, workload="huge")
    table = pool.engine.book.table
    assert table.kinds[table.row[job]] == 1
    pool.plan(Start(job, (Part(1, 1),), "x"))
    assert pool.state(job) is State.QUEUED, "the plan is refused"
    spec = JobSpec(command=("x",), workload="huge", device_types=("a100",))
    reply = pool.reply(ev.Submit(spec, "never"), "never")
    assert reply.error


def test_a_workload_without_rates_is_warned_of() -> None:
    pool = world()
    spec = msgspec.structs.replace(pool.engine.book.specs[pool.submit(1)], workload="unknown")
    reply = pool.reply(ev.Submit(spec, "w"), "w")
    assert "NoRates" in str(reply.warning) and "unknown" in str(reply.warning)
    known = msgspec.structs.replace(spec, workload="small")
    assert pool.reply(ev.Submit(known, "k"), "k").warning is None


def test_phases_have_rates_of_their_own() -> None:
    """An hour of small work at nine tenths, then large work at a quarter."""
    pool = world()
    job = pool.submit(1, phases=(Phase("small", HOUR), Phase("large")))
    pool.plan(Start(job, (Part(1, 1),), "x"))
    table = pool.engine.book.table
    assert table.rate[table.row[job]] == FULL_RATE * 9 // 10
    pool.later(HOUR)
    assert fraction(pool, job) == 0.9
    pool.later(-(-HOUR * 10 // 9) - HOUR + SECOND)
    assert table.rate[table.row[job]] == FULL_RATE // 4
    pool.later(2 * HOUR)
    ideal = pool.engine.view().jobs.ideal_now[table.row[job]]
    assert abs(int(ideal) - (HOUR + (2 * HOUR + SECOND) // 4)) <= 2
    again = Engine.restore(pool.engine.snapshot())
    assert again.view().jobs.ideal_now[again.book.table.row[job]] == ideal


def test_other_rates_hold_from_when_they_are_set() -> None:
    pool = world(RateSettings())
    job = pool.submit(1)
    pool.plan(Start(job, (Part(1, 1),), "x"))
    pool.later(HOUR)
    assert fraction(pool, job) == 1.0, "nothing declared: kinds are alike"
    pool.engine.enforce(msgspec.structs.replace(pool.engine.settings, rates=TABLE))
    assert pool.engine.book.jobs[job].reference == "h100"
    pool.later(HOUR)
    assert fraction(pool, job) == 0.75


def test_a_snapshot_in_thousandths_is_read_in_millionths() -> None:
    pool = world()
    job = pool.submit(1)
    pool.plan(Start(job, (Part(1, 1),), "x"))
    pool.later(10 * MINUTE)
    plain = msgspec.msgpack.decode(pool.engine.snapshot())
    plain["format"] = 3
    plain["columns"]["rate"] = (np.frombuffer(plain["columns"]["rate"], "i4") // 1000).astype("i4").tobytes()
    del plain["columns"]["reference"]
    book = Engine.restore(msgspec.msgpack.encode(plain)).book
    assert book.table.rate[book.table.row[job]] == FULL_RATE // 2


def test_a_job_submitted_before_any_node_is_there_is_measured_by_what_comes() -> None:
    pool = Worldlet(0, settings=EngineSettings(rates=TABLE, check_every=1))
    job = pool.submit(1)
    pool.tell(*(ev.NodeUp(node, "1") for node in reversed(NODES)))
    assert pool.engine.book.jobs[job].reference == "h100"
    a100 = pool.engine.book.nodes["a"]
    pool.plan(Start(job, (Part(a100, 1),), "x"))
    pool.later(HOUR)
    assert fraction(pool, job) == 0.5


def test_faster_kinds_that_join_later_leave_what_was_counted() -> None:
    """Above full speed, for weeks on end, and in the columns as in the ledger."""
    pool = Worldlet(0, settings=EngineSettings(rates=RateSettings(kinds={"k80": 1.0, "b200": 5000.0}), check_every=1))
    pool.tell(ev.NodeUp(NodeSpec(name="k", kind="k80", devices=1), "1"))
    job = pool.submit(1)
    pool.plan(Start(job, (Part(0, 1),), "x"))
    pool.later(HOUR)
    pool.tell(ev.NodeUp(NodeSpec(name="b", kind="b200", devices=1), "1"))
    assert pool.engine.book.jobs[job].reference == "k80"
    pool.plan(Migrate(job, (Part(1, 1),), "x"))
    row = pool.engine.book.table.row[job]
    assert pool.engine.book.table.rate[row] == MOST_RATE
    pool.later(400 * 24 * HOUR)
    assert int(pool.engine.view().jobs.ideal_now[row]) == HOUR + 400 * 24 * HOUR * 1000


def test_an_elastic_job_is_kept_off_a_kind_where_it_may_not_fit() -> None:
    rows = (Throughput("m", "h100", 8, 80.0), Throughput("m", "a100", 8, 70.0), Throughput("m", "a100", 2, 0.0))
    pool = world(RateSettings(throughputs=rows))
    table = pool.engine.book.table
    whole, elastic = pool.submit(8, workload="m"), pool.submit(8, workload="m", min_devices=2)
    assert table.kinds[table.row[whole]] == 3 and table.kinds[table.row[elastic]] == 1
