"""The workloads that ship with the package, and what is refused."""

from __future__ import annotations

import json

import pytest

from tests.runtime.reef_data import DATA
from tidewright.base.errors import UsageError
from tidewright.runtime.disb.workload import NAMES, load_workload, parse_workload

DISB = DATA / "disb" / "workloads"
FIVE = ["resnet152", "densenet201", "vgg19", "inceptionv3", "distilbert"]


def test_the_published_workloads() -> None:
    """Section 2 of DISB's benchmarks, client by client."""
    loads = {name: [(t.id, t.load.type, t.load.frequency) for t in load_workload(name).tasks] for name in NAMES}
    closed = [(f"{name}_be", "continuous", 0.0) for name in FIVE]
    assert loads["A"] == [("vgg19_rt", "periodic", 100.0), closed[0]]
    assert loads["B"] == [("vgg19_rt", "continuous", 0.0), closed[0]]
    assert loads["C"] == [("vgg19_rt", "periodic", 100.0), *closed]
    assert loads["D"] == [*((f"{name}_rt", "periodic", 20.0) for name in FIVE), *closed]
    assert loads["E"] == [*((f"{name}_rt", "poisson", 20.0) for name in FIVE), *closed]
    assert loads["REAL"] == [*((f"{name}_rt", "trace", 0.0) for name in FIVE), *closed]
    assert loads["B-220"] == [("vgg19_rt", "periodic", 220.0), ("resnet152_be", "periodic", 220.0)]
    assert [load_workload(name).time for name in NAMES] == [60, 60, 60, 60, 60, 38, 60, 60]


def test_the_artifact_repeats_one_second_of_e() -> None:
    tasks = {task.id: task for task in load_workload("E-1s").tasks}
    assert {name: len(task.load.trace) for name, task in tasks.items() if task.realtime} == {
        "vgg_rt": 1020, "densenet_rt": 1260, "resnet152_rt": 1140, "inception_rt": 1260, "bert_rt": 1560,
    }  # fmt: skip
    trace = tasks["vgg_rt"].load.trace
    assert trace[17:34] == tuple(1000 + at for at in trace[:17]) and trace[-1] == 59_915
    assert {(task.load.type, task.load.frequency) for task in tasks.values() if not task.realtime} == {
        ("periodic", 100)
    }


def test_the_trace_of_real() -> None:
    traces = {task.id: task.load.trace for task in load_workload("REAL").tasks if task.realtime}
    assert {name: len(trace) for name, trace in traces.items()} == {
        "resnet152_rt": 375, "densenet201_rt": 202, "vgg19_rt": 560, "inceptionv3_rt": 374, "distilbert_rt": 173,
    }  # fmt: skip
    assert max(max(trace) for trace in traces.values()) == 38_885


@pytest.mark.skipif(not DISB.is_dir(), reason=f"no workloads of DISB in {DISB}; set TIDEWRIGHT_DATA")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("B-220", "E-1s")])
def test_what_ships_is_what_was_published(name: str) -> None:
    assert parse_workload((DISB / f"{name}.json").read_bytes(), name) == load_workload(name)


@pytest.mark.parametrize(
    "load",
    [
        '{"type": "dependent", "prev_task_ids": ["a"]}',
        '{"type": "periodic"}',
        '{"type": "poisson", "frequency": 0}',
        "{}",
    ],
)
def test_other_loads_are_refused(load: str) -> None:
    data = f'{{"time": 1, "tasks": [{{"id": "a", "load": {load}, "client": {{"model_name": "m"}}}}]}}'
    with pytest.raises(UsageError):
        parse_workload(data.encode(), "mine")


def clients(**before: list[str]) -> bytes:
    loads = {
        name: {"type": "dependent", "prev_task_ids": others} if others else {"type": "continuous"}
        for name, others in before.items()
    }
    tasks = [{"id": name, "load": load, "client": {"model_name": "m"}} for name, load in loads.items()]
    return json.dumps({"time": 1, "tasks": tasks}).encode()


def test_clients_may_follow_others() -> None:
    found = parse_workload(clients(a=[], b=[], c=["a", "b"], d=["c"]), "graph")
    assert [task.load.prev_task_ids for task in found.tasks] == [(), (), ("a", "b"), ("c",)]


@pytest.mark.parametrize(
    "before", [{"a": ["b"]}, {"a": ["a"]}, {"a": [], "b": ["c", "a"], "c": ["b"]}], ids=["missing", "itself", "circle"]
)
def test_clients_that_would_never_ask_are_refused(before: dict[str, list[str]]) -> None:
    with pytest.raises(UsageError, match=r"depends on|wait for each other"):
        parse_workload(clients(**before), "graph")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError):
        load_workload("../A")
