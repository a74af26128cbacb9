"""The environment of a batch script's task: the variables of sbatch(1), for the nodes that the attempt got.

A job that asked for N nodes with T tasks each may run on fewer nodes. Wherever the tasks of a node come in groups of T, each
group counts as a node of Slurm's, so that a script finds the numbers it asked for; else the nodes are counted as they are.
Pure: variables in, variables out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from ...launch.inject._tidewright.slurm.hostlist import compress, counts
from ...launch.sandbox import INJECT, INSIDE
from ...model.batch import GPUS, HOSTS, NODES


@dataclass(frozen=True, slots=True)
class TaskSeat:
    """What one task of an attempt has here. ``devices`` and ``cores``: the indices of those that each rank of this node has;
    without cores of their own they have all ``cpus`` of the node. ``addresses``: of the attempt's nodes, by name."""

    job: int
    name: str
    attempt: int
    rank: int
    devices: Mapping[int, tuple[int, ...]]
    cores: Mapping[int, tuple[int, ...]]
    cpus: int
    addresses: Mapping[str, str]
    master_addr: str
    python: str
    full: bool


def node_groups(asked: int, hosts: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """(name, tasks) of each node as the script counts them; ``hosts``: of each node that there is."""
    tasks = sum(count for _, count in hosts)
    size = tasks // asked if asked and tasks % asked == 0 else 0
    if not size or any(count % size for _, count in hosts):
        return list(hosts)
    return [(name, size) for name, count in hosts for _ in range(count // size)]


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Where a task is as its script counts nodes: the index of its node among ``nodes``, its own there, and all ranks there."""

    node: int
    nodes: int
    local: int
    ranks: Sequence[int]


def task_place(given: Mapping[str, str], rank: int) -> TaskPlace:
    """``given``: as of ``task_variables``."""
    return _place(_groups(given), rank)


def _groups(given: Mapping[str, str]) -> list[tuple[str, int]]:
    hosts = [(name, int(count)) for name, _, count in (part.rpartition(":") for part in given[HOSTS].split(","))]
    return node_groups(int(given[NODES]), hosts)


def task_variables(given: Mapping[str, str], seat: TaskSeat) -> dict[str, str]:
    """What a task finds. ``given``: the job's own variables, with what the submission and the controller know."""
    groups = _groups(given)
    place = _place(groups, seat.rank)
    node = place.node
    names, sizes = [name for name, _ in groups], [size for _, size in groups]
    programs = str(PurePath(INSIDE / "lib" if seat.full else INJECT, "_tidewright", "slurm", "bin"))
    found = {
        **_ids(given, seat),
        **_shape(names, sizes),
        "SLURM_PROCID": str(seat.rank),
        "SLURM_LOCALID": str(place.local),
        "SLURM_NODEID": str(node),
        "SLURMD_NODENAME": names[node],
        "SLURM_GTIDS": ",".join(map(str, place.ranks)),
        **_cpus(given, seat, sizes, place.ranks),
        "SLURM_LAUNCH_NODE_IPADDR": seat.master_addr,
        "TIDE_SLURM_ADDRESSES": ",".join(
            f"{name}={seat.addresses.get(name, seat.master_addr)}" for name in dict.fromkeys(names)
        ),
        "TIDE_SLURM_BIN": programs,
        "TIDE_SLURM_PYTHON": seat.python,
        "PATH": f"{programs}:{given.get('PATH') or '/usr/local/bin:/usr/bin:/bin'}",
    }
    if GPUS in given:
        mine = {device for rank in place.ranks for device in seat.devices.get(rank, ())}
        found["SLURM_GPUS_ON_NODE"] = str(len(mine))
        found["SLURM_JOB_GPUS"] = ",".join(str(device) for device in sorted(mine))
    return found


def _ids(given: Mapping[str, str], seat: TaskSeat) -> dict[str, str]:
    index = given.get("SLURM_ARRAY_TASK_ID")
    return {
        "SLURM_JOB_ID": str(seat.job),
        "SLURM_JOBID": str(seat.job),
        "SLURM_JOB_NAME": seat.name if index is None else seat.name.removesuffix(f"[{index}]"),
        "SLURM_RESTART_COUNT": str(max(0, seat.attempt - 1)),
        "SLURM_CLUSTER_NAME": "tidewright",
    }


def _shape(names: Sequence[str], sizes: Sequence[int]) -> dict[str, str]:
    listed, tasks = compress(names), str(sum(sizes))
    return {
        "SLURM_JOB_NODELIST": listed,
        "SLURM_NODELIST": listed,
        "SLURM_NNODES": str(len(names)),
        "SLURM_JOB_NUM_NODES": str(len(names)),
        "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks,
        "SLURM_TASKS_PER_NODE": counts(sizes),
    }


def _cpus(given: Mapping[str, str], seat: TaskSeat, sizes: Sequence[int], tasks: Sequence[int]) -> dict[str, str]:
    """CPUs of the node: what the job asked for, else those that its tasks there may use."""
    each = int(given.get("SLURM_CPUS_PER_TASK") or 0)
    if not each:
        cores = {core for rank in tasks for core in seat.cores.get(rank, ())}
        return {"SLURM_CPUS_ON_NODE": str(len(cores) or seat.cpus)}
    return {
        "SLURM_CPUS_ON_NODE": str(each * len(tasks)),
        "SLURM_JOB_CPUS_PER_NODE": counts([each * size for size in sizes]),
    }


def _place(groups: Sequence[tuple[str, int]], rank: int) -> TaskPlace:
    first = 0
    for node, (_, size) in enumerate(groups):
        if rank < first + size:
            return TaskPlace(node, len(groups), rank - first, range(first, first + size))
        first += size
    raise ValueError(f"rank {rank} is on none of the nodes {groups}")
