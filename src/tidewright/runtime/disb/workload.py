"""DISB's workloads: which client asks for which model, and when. Reads the published JSON; refuses to know devices."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from importlib.resources import files
from typing import Literal

import msgspec

from ...base.errors import UsageError

NAMES = ("A", "B", "C", "D", "E", "REAL", "B-220", "E-1s")
"""The six of the repository, and B and E as the artifact of REEF's paper has them."""


class DisbLoad(msgspec.Struct, frozen=True):
    """When a client asks. ``frequency`` per second, ``trace`` in milliseconds; ``priority`` above 0 is not staggered; with
    ``prev_task_ids`` when the n-th request of each of these clients is complete, for the n-th time."""

    type: Literal["continuous", "periodic", "poisson", "trace", "dependent"]
    priority: int = 0
    frequency: float = 0.0
    trace: tuple[int, ...] = ()
    prev_task_ids: tuple[str, ...] = ()


class DisbClient(msgspec.Struct, frozen=True):
    """The model that is asked for. Addresses of servers in the file are not read."""

    model_name: str
    batch_size: int = 1


class DisbTask(msgspec.Struct, frozen=True):
    """One client. Whether it is real-time is in its name, as in DISB."""

    id: str
    load: DisbLoad
    client: DisbClient

    @property
    def realtime(self) -> bool:
        return self.id.endswith("_rt")


class DisbWorkload(msgspec.Struct, frozen=True):
    """``time``: seconds that the benchmark takes."""

    time: int
    tasks: tuple[DisbTask, ...]
    name: str = ""


def load_workload(name: str) -> DisbWorkload:
    """One of ``NAMES``. Raises UsageError for another name."""
    if name == "B-220":
        return _artifact_b()
    if name == "E-1s":
        return _artifact_e()
    if name not in NAMES:
        raise UsageError(f"no DISB workload {name!r}", f"there are {', '.join(NAMES)}")
    return parse_workload(files(__package__).joinpath(f"workloads/{name}.json").read_bytes(), name)


def parse_workload(data: bytes, name: str) -> DisbWorkload:
    """A workload in DISB's form. Raises UsageError when it is not, or asks for a load that is not supported."""
    try:
        read = msgspec.json.decode(data, type=DisbWorkload)
    except msgspec.MsgspecError as error:
        raise UsageError(f"workload {name} is not in DISB's form: {error}", "see DISB's README for it") from error
    for task in read.tasks:
        if task.load.type in ("periodic", "poisson") and task.load.frequency <= 0:
            raise UsageError(
                f"client {task.id} of workload {name} has no frequency", "give requests per second above 0"
            )
    _check_dependent(read, name)
    return msgspec.structs.replace(read, name=name)


def _check_dependent(workload: DisbWorkload, name: str) -> None:
    """Raises UsageError for clients that would never ask."""
    before = {task.id: task.load.prev_task_ids for task in workload.tasks}
    independent = {task.id for task in workload.tasks if task.load.type != "dependent"}
    for task in workload.tasks:
        missing = [other for other in task.load.prev_task_ids if other not in before]
        if missing or (task.load.type == "dependent") is not bool(task.load.prev_task_ids):
            raise UsageError(
                f"client {task.id} of workload {name} depends on {missing or 'no client'}",
                "name clients of the workload",
            )
    try:
        TopologicalSorter({one: before[one] for one in before if one not in independent}).prepare()
    except CycleError as error:
        raise UsageError(
            f"clients of workload {name} wait for each other: {', '.join(error.args[1])}",
            "let one of them ask by itself",
        ) from None


def _artifact_b() -> DisbWorkload:
    """reef-artifacts runs B with 220 requests a second on both sides, where DISB has closed loops."""
    load = DisbLoad("periodic", frequency=220)
    tasks = (
        DisbTask("vgg19_rt", load, DisbClient("vgg19-imagenet")),
        DisbTask("resnet152_be", load, DisbClient("resnet152-imagenet")),
    )
    return DisbWorkload(60, tasks, "B-220")


def _artifact_e() -> DisbWorkload:
    """reef-artifacts runs E with one second of arrivals, 17 to 26 of each model, again and again, and 100 requests a second of
    each best-effort model (evaluation/fig10/E.json)."""
    pattern = msgspec.json.decode(files(__package__).joinpath("workloads/E-1s.json").read_bytes())
    seconds: int = pattern["time"]
    traces: dict[str, list[int]] = pattern["first_second_ms"]
    real_time = [
        DisbTask(
            f"{model}_rt",
            DisbLoad("trace", trace=tuple(1000 * second + at for second in range(seconds) for at in arrivals)),
            DisbClient(pattern["models"][model]),
        )
        for model, arrivals in traces.items()
    ]
    load = DisbLoad("periodic", priority=1, frequency=pattern["be_per_s"])
    best_effort = [DisbTask(f"{model}_be", load, DisbClient(pattern["models"][model])) for model in traces]
    return DisbWorkload(seconds, (*real_time, *best_effort), "E-1s")
