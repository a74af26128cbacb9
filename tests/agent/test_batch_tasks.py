"""Slurm's variables of a task, for the nodes that its attempt got."""

from __future__ import annotations

from pathlib import Path

from tidewright.agent.layout import AgentLayout
from tidewright.agent.processes.batch_tasks import TaskSeat, node_groups, task_variables
from tidewright.agent.processes.rank_spec import NodeContext, specs
from tidewright.checkpoint.cgroup import Signals
from tidewright.devices.fake import FakeBackend
from tidewright.wire.agent import LaunchArgs, RankSeat


def variables(hosts: str, rank: int, nodes: str = "2", **more: object) -> dict[str, str]:
    given = {"TIDE_SLURM_NODES": nodes, "TIDE_SLURM_HOSTS": hosts, "TIDE_SLURM_GPUS": "1", "PATH": "/bin"}
    seat = {
        "job": 12, "name": "t", "attempt": 2, "rank": rank, "devices": {}, "cores": {}, "cpus": 64,
        "addresses": {"n1": "10.0.0.1", "n2": "10.0.0.2"}, "master_addr": "10.0.0.1", "python": "/python", "full": True,
    }  # fmt: skip
    env = {name: str(value) for name, value in more.items() if name.isupper()}
    seat |= {name: value for name, value in more.items() if not name.isupper()}
    return task_variables({**given, **env}, TaskSeat(**seat))  # type: ignore[arg-type]


def test_a_task_finds_its_place() -> None:
    found = variables("n1:2,n2:2", 3, SLURM_CPUS_PER_TASK="4", devices={2: (0, 1), 3: (2, 3)})
    wanted = {
        "SLURM_JOB_ID": "12", "SLURM_JOBID": "12", "SLURM_JOB_NAME": "t", "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_NODELIST": "n[1-2]", "SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4",
        "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
        "SLURMD_NODENAME": "n2", "SLURM_GTIDS": "2,3", "SLURM_GPUS_ON_NODE": "4", "SLURM_JOB_GPUS": "0,1,2,3",
        "SLURM_CPUS_ON_NODE": "8", "SLURM_JOB_CPUS_PER_NODE": "8(x2)", "SLURM_RESTART_COUNT": "1",
        "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1", "TIDE_SLURM_ADDRESSES": "n1=10.0.0.1,n2=10.0.0.2",
        "PATH": "/run/tidewright/lib/_tidewright/slurm/bin:/bin",
    }  # fmt: skip
    assert {name: found.get(name) for name in wanted} == wanted


def test_groups_of_tasks_on_one_host_count_as_the_nodes_that_were_asked_for() -> None:
    found = variables("n1:4", 2, devices={rank: (rank,) for rank in range(4)})
    assert (found["SLURM_NNODES"], found["SLURM_NODEID"], found["SLURM_LOCALID"]) == ("2", "1", "0")
    assert found["SLURM_TASKS_PER_NODE"] == "2(x2)" and found["SLURM_JOB_NODELIST"] == "n[1,1]"
    assert found["SLURM_GPUS_ON_NODE"] == "2" and found["SLURM_JOB_GPUS"] == "2,3"


def seats(*devices: tuple[int, ...]) -> tuple[RankSeat, ...]:
    return tuple(RankSeat(rank, rank, each) for rank, each in enumerate(devices))


def found(tmp_path: Path, ranks: tuple[RankSeat, ...], kind: str = "h100", **env: str) -> list[tuple[str, str, str]]:
    """What each rank of four devices sees of them, its local rank and how many there are."""
    layout = AgentLayout(tmp_path)
    layout.prepare()
    context = NodeContext(layout, FakeBackend("n1", 4, kind=kind), Signals())
    args = LaunchArgs(job=1, attempt=1, command=("x",), env=env, ranks=ranks, world_size=len(ranks))
    made = [specs(args, context)[seat.rank].env for seat in ranks]
    return [
        (one["FAKE_VISIBLE_DEVICES"].replace("FAKE-000", ""), one["LOCAL_RANK"], one["LOCAL_WORLD_SIZE"])
        for one in made
    ]


BATCH = {"TIDE_SLURM_NODES": "2", "TIDE_SLURM_HOSTS": "n1:4"}
ONE_EACH = seats((2,), (0,), (3,), (1,))


def test_device_local_rank_is_a_ranks_own_as_under_torchrun(tmp_path: Path) -> None:
    """torch.cuda.set_device(LOCAL_RANK) of programs that torchrun was to start; NCCL finds the others' devices beside it."""
    assert found(tmp_path, ONE_EACH) == [("2,0,3,1", str(rank), "4") for rank in range(4)]


def test_ranks_that_share_a_device_count_it_as_the_only_one(tmp_path: Path) -> None:
    assert found(tmp_path, seats((0,), (0,), (1,), (1,))) == [(device, "0", "1") for device in "0011"]
    assert [local for _, local, _ in found(tmp_path, seats((0,), (0,)), "cpu")] == ["0", "1"]


def test_ranks_with_several_devices_count_their_own(tmp_path: Path) -> None:
    assert found(tmp_path, seats((0, 1), (2, 3))) == [("0,1", "0", "2"), ("2,3", "1", "2")]


def test_tasks_count_the_devices_of_the_node_that_their_script_knows(tmp_path: Path) -> None:
    """cuda:$SLURM_LOCALID is the task's own, unless it asks for so many of each task's own."""
    both = [("2,0", "0", "2"), ("2,0", "1", "2"), ("3,1", "0", "2"), ("3,1", "1", "2")]
    assert found(tmp_path, ONE_EACH, **BATCH) == both
    own = [(device, "0", "1") for device in "2031"]
    assert found(tmp_path, ONE_EACH, **BATCH, SLURM_GPUS_PER_TASK="1") == own


def test_uneven_hosts_are_counted_as_they_are() -> None:
    assert node_groups(2, [("n1", 3), ("n2", 1)]) == [("n1", 3), ("n2", 1)]
    assert node_groups(0, [("n1", 3), ("n2", 1)]) == [("n1", 3), ("n2", 1)]
    assert node_groups(3, [("n1", 4)]) == [("n1", 4)]
    assert variables("n1:3,n2:1", 3)["SLURM_NODEID"] == "1"


def test_a_member_of_an_array_has_the_arrays_name_and_cpus_are_those_it_may_use() -> None:
    found = variables("n1:1", 0, "1", name="t[7]", SLURM_ARRAY_TASK_ID="7", cores={0: (4, 5)})
    assert found["SLURM_JOB_NAME"] == "t" and found["SLURM_CPUS_ON_NODE"] == "2"
    assert variables("n1:1", 0, "1")["SLURM_CPUS_ON_NODE"] == "64"
