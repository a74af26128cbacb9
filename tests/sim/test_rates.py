"""Kinds of different speed and work in phases, simulated, against a simulator of thirty lines."""

import heapq

import numpy as np
import pytest

from tidewright.base.errors import UsageError
from tidewright.base.units import HOUR, SECOND
from tidewright.engine.settings import EngineSettings
from tidewright.model.job import Phase
from tidewright.model.rate import RateSettings, Throughput
from tidewright.model.splice import OVERHEAD_MILLI
from tidewright.policy.registry import make
from tidewright.sim.clusters import load_cluster
from tidewright.sim.costs import FREE
from tidewright.sim.rate_files import load_rates
from tidewright.sim.run import Options, Simulation, simulate
from tidewright.sim.trace import make_trace
from tidewright.sim.trace_csv import parse

SPEED = {("a", "fast"): 1.0, ("a", "slow"): 0.5, ("b", "fast"): 1.0, ("b", "slow"): 0.1}
RATES = RateSettings(throughputs=tuple(Throughput(load, kind, 1, speed) for (load, kind), speed in SPEED.items()))


def options(**fields: object) -> Options:
    engine = EngineSettings(history_length=0, forecasts=False, splice_milli=OVERHEAD_MILLI, rates=RATES)
    return Options(costs=FREE, engine=engine, **fields)


def fifo_by_hand(submit: list[float], work: list[list[tuple[str, float]]], fast: int, slow: int) -> list[float]:
    """When each job of one device ends: first come first served, on a fast device if one is free."""
    free = {"fast": fast, "slow": slow}
    running: list[tuple[float, str]] = []
    ends = []
    now = 0.0
    for at, phases in zip(submit, work, strict=True):
        now = max(now, at)
        while not sum(free.values()) or (running and running[0][0] <= now):
            end, kind = heapq.heappop(running)
            now = max(now, end)
            free[kind] += 1
        kind = "fast" if free["fast"] else "slow"
        free[kind] -= 1
        ends.append(now + sum(length / SPEED[load, kind] for load, length in phases))
        heapq.heappush(running, (ends[-1], kind))
    return ends


@pytest.mark.parametrize("seed", range(4))
def test_fifo_on_two_kinds_with_phases_is_that_by_hand(seed: int) -> None:
    dice = np.random.Generator(np.random.PCG64(seed))
    count = 80
    submit = np.cumsum(dice.integers(0, 2000, count)).astype(float)
    work = [
        [(str(dice.choice(["a", "b"])), float(dice.integers(60, 9000))) for _ in range(dice.integers(1, 4))]
        for _ in range(count)
    ]
    phases = tuple(tuple(Phase(load, int(length * SECOND)) for load, length in one) for one in work)
    trace = make_trace(
        "hand", submit, np.array([sum(length for _, length in one) for one in work]), np.ones(count, np.int64),
        workloads=np.arange(count, dtype=np.int32), phases=phases,
    )  # fmt: skip
    simulation = Simulation(trace, load_cluster("1x2:fast,1x3:slow"), make("fifo"), options())
    simulation.run()
    expected = np.array(fifo_by_hand((submit - submit[0]).tolist(), work, 2, 3))
    assert np.abs(simulation.outcomes.end / SECOND - expected).max() < 1e-4


def test_the_ledger_and_the_world_agree_on_phases_through_preemptions() -> None:
    """What the engine holds a job to have done when it ends is what it had to do, however often it was moved."""
    dice = np.random.Generator(np.random.PCG64(9))
    count = 60
    submit = np.sort(dice.integers(0, 20_000, count)).astype(float)
    lengths = dice.integers(60, 9000, (count, 2)).astype(float)
    phases = tuple((Phase("a", int(first * SECOND)), Phase("b")) for first, _ in lengths)
    trace = make_trace(
        "moved", submit, lengths.sum(axis=1), dice.choice([1, 1, 2, 4], count), workloads=np.arange(count, dtype=np.int32),
        phases=phases, tier=dice.integers(0, 3, count).astype(np.int8),
    )  # fmt: skip
    ended = []
    simulation = Simulation(trace, load_cluster("2x4:fast,2x4:slow"), make("sla"), options())
    record = simulation.outcomes.record

    def note(row: int, command: object, lost: int) -> None:
        ended.append((row, command.ideal_us))  # type: ignore[attr-defined]
        record(row, command, lost)  # type: ignore[arg-type]

    simulation.outcomes.record = note  # type: ignore[method-assign,assignment]
    result = simulation.run()
    assert result.completed == count and result.preemptions > 20
    for row, ideal in ended:
        assert abs(ideal - int(trace.duration[row])) < 100, "microseconds of rounding"


def test_a_faster_kind_is_taken_first_and_a_wrong_belief_is_not_the_truth() -> None:
    trace = make_trace(
        "two",
        np.zeros(2),
        np.full(2, 3600.0),
        np.ones(2, np.int64),
        workloads=np.zeros(2, np.int32),
        phases=((Phase("a"),),),
    )
    nodes = load_cluster("1x1:slow,1x1:fast")
    assert simulate(trace, nodes, make("srtf"), options()).makespan_s == 7200
    truth = RateSettings(throughputs=(Throughput("a", "slow", 1, 1.0), Throughput("a", "fast", 1, 1.0)))
    assert simulate(trace, nodes, make("srtf"), options(true_rates=truth)).makespan_s == 3600


def test_workloads_and_phases_of_a_file() -> None:
    lines = ["submit,duration,devices,workload", "0,2h,1,a@1h|b", "5,1h,1,a", "9,1h,1,"]
    trace = parse(iter(lines), "t.csv", "t")
    assert trace.spec(0).phases == (Phase("a", HOUR), Phase("b")) and not trace.spec(0).workload
    assert trace.spec(1).workload == "a" and not trace.spec(1).phases and not trace.spec(2).workload
    with pytest.raises(UsageError, match=r"t\.csv:2: workload: .*phase 1 has no length"):
        parse(iter([lines[0], "0,2h,1,a|b"]), "t.csv", "t")


def test_rates_from_files(tmp_path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("workload,kind,devices,per_s,nodes\nm,A100,1,10,\nm,a100,8,70.5,2\n")
    assert load_rates(str(table)).throughputs == (Throughput("m", "a100", 1, 10.0), Throughput("m", "a100", 8, 70.5, 2))
    table.write_bytes(b"\xef\xbb\xbf" + table.read_bytes())
    assert len(load_rates(str(table)).throughputs) == 2
    plain = tmp_path / "t.yaml"
    plain.write_text("kinds: {h100: 2, a100: 1}\nspread: {'': 0.7}\n")
    assert load_rates(str(plain)) == RateSettings(kinds={"h100": 2.0, "a100": 1.0}, spread={"": 0.7})


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "workload,kind\n", "no column devices, per_s"),
        ("b.csv", "workload,kind,devices,per_s\nm,a,1,x\n", r"b\.csv:2"),
        ("c.csv", "workload,kind,devices,per_s\nm,a,1,1\nm,a,1,2\n", "the same as line 2"),
        ("d.csv", "workload,kind,devices,per_s\nm,a,1,nan\n", "not a throughput"),
        ("e.yaml", "kinds: {a: -1}\n", "not above 0"),
        ("f.yaml", "speeds: {a: 1}\n", "unknown field `speeds`"),
        ("g.yaml", "{", "cannot read rates"),
        ("h.yaml", "- 1\n", "cannot read rates"),
        ("i.yaml", "kinds: {a: 2024-13-45}\n", "cannot read rates"),
        ("k.csv", "workload,kind,devices,per_s\nm,a,1,1,9\n", r"k\.csv:2: 5 cells, but the header names 4 columns"),
        ("l.csv", "workload,kind,devices,per_s,nodes\nm,a,1,1,\nm,a,2,1\n", r"l\.csv:3: 4 cells, but .* 5 columns"),
        ("m.csv", "workload,kind,devices,per_s,per_s\nm,a,1,1,2\n", r"m\.csv:1: two columns are called per_s"),
        ("n.csv", 'workload,kind,devices,per_s\nm,a,1,1\n"n,a,1,2\no,a,1,3\n', r"n\.csv:3: a quote opens here"),
        ("o.csv", 'workload,kind,devices,per_s\n"m\nn",a,1,1\no,a,1\n', r"o\.csv:4: 3 cells"),
        ("j.csv", "workload,kind,devices,per_s\n" + 140_000 * "x" + ",a,1,1\n", "field larger"),
    ],
)
def test_mistakes_in_rates_are_named(tmp_path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=said):
        load_rates(str(tmp_path / name))
    with pytest.raises(UsageError, match="cannot read rates"):
        load_rates(str(tmp_path / "missing.csv"))
