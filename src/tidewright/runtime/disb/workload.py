"""DISB's workloads: which client asks for which model, and when. Reads the published JSON; refuses to know devices."""

from __future__ import annotations

from importlib.resources import files
from typing import Literal

import msgspec

from ...base.errors import UsageError

NAMES = ("A", "B", "C", "D", "E", "REAL", "B-220")
"""The six of the repository, and B as the artifact of REEF's paper has it."""


class DisbLoad(msgspec.Struct, frozen=True):
    """When a client asks. ``frequency`` per second, ``trace`` in milliseconds; ``priority`` above 0 is not staggered."""

    type: Literal["continuous", "periodic", "poisson", "trace"]
    priority: int = 0
    frequency: float = 0.0
    trace: tuple[int, ...] = ()


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
    if name not in NAMES:
        raise UsageError(f"no DISB workload {name!r}", f"there are {', '.join(NAMES)}")
    return parse_workload(files(__package__).joinpath(f"workloads/{name}.json").read_bytes(), name)


def parse_workload(data: bytes, name: str) -> DisbWorkload:
    """A workload in DISB's form. Raises UsageError when it is not, or asks for a load that is not supported."""
    try:
        read = msgspec.json.decode(data, type=DisbWorkload)
    except msgspec.MsgspecError as error:
        raise UsageError(
            f"workload {name} is not in DISB's form: {error}", "loads of type dependent are not supported"
        ) from error
    for task in read.tasks:
        if task.load.type in ("periodic", "poisson") and task.load.frequency <= 0:
            raise UsageError(
                f"client {task.id} of workload {name} has no frequency", "give requests per second above 0"
            )
    return msgspec.structs.replace(read, name=name)


def _artifact_b() -> DisbWorkload:
    """reef-artifacts runs B with 220 requests a second on both sides, where DISB has closed loops."""
    load = DisbLoad("periodic", frequency=220)
    tasks = (
        DisbTask("vgg19_rt", load, DisbClient("vgg19-imagenet")),
        DisbTask("resnet152_be", load, DisbClient("resnet152-imagenet")),
    )
    return DisbWorkload(60, tasks, "B-220")
