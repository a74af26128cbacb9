"""The isolation ladder: the strongest rung that works is used, what it needs reaches the container, and nobody gets more."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kube.extending import until
from tests.kube.test_plugin_pure import Nvml, Refusal, assumed
from tests.kube.test_plugin_served import plugged
from tidewright.base.errors import UsageError, WorldError
from tidewright.kube.isolation.isolation_levels import Cooperative, DriverLimits, Hami, IsolationSettings, Mps, ladder
from tidewright.kube.isolation.ladder import Grant, IsolationLadder, Tenant, percent_of, tenant_of
from tidewright.kube.node.gpus import UNLIMITED, FakeGpus, Gpu
from tidewright.kube.node.nvidia import MIG_MINORS, NvidiaGpus
from tidewright.kube.objects import names
from tidewright.kube.objects.gpu_inventory import GpuInfo, publish, read_gpu_inventory

UID = "0b3c1f6e-8f5a-4b77-9d0e-7f2a4c9b1d10"
WHERE = "no MPS control daemon"


def kubepods(root: Path, form: str, uid: str = UID) -> Path:
    """The cgroups of a node with one pod."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "cgroup.controllers").write_text("cpu dmem memory\n")
    folder = root / form.format(uid=uid, under=uid.replace("-", "_"))
    folder.mkdir(parents=True)
    return folder


def settings(tmp_path: Path, chosen: str = "auto") -> IsolationSettings:
    return IsolationSettings(chosen, tmp_path / "cgroup", tmp_path / "mps", None, tmp_path / "hami")


def climbed(gpus: FakeGpus, where: IsolationSettings) -> IsolationLadder:
    found = ladder(gpus, where, lambda text: None)
    found.select()
    return found


def listening(folder: Path, kind: int = socket.SOCK_SEQPACKET) -> socket.socket:
    """An MPS control daemon, as far as it is looked at; that of driver 580 has a socket of this type."""
    folder.mkdir()
    found = socket.socket(socket.AF_UNIX, kind)
    found.bind(str(folder / "control"))
    found.listen()
    return found


def library(folder: Path) -> None:
    folder.mkdir()
    (folder / "libvgpu.so").write_text("")
    (folder / "ld.so.preload").write_text("/usr/local/vgpu/libvgpu.so\n")


def test_the_strongest_rung_that_works_is_in_force_and_the_others_say_why_not(tmp_path: Path) -> None:
    gpus, where = FakeGpus("2x15"), settings(tmp_path)
    found = climbed(gpus, where)
    assert found.level() == "L1 cooperative" and found.compute is None
    assert found.refused["mps"].startswith(WHERE) and "libvgpu.so" in found.refused["hami"]
    assert "no cgroup v2" in found.refused["driver"]
    library(tmp_path / "hami")
    assert found.select() and found.level() == "L2 HAMi-core"
    with listening(tmp_path / "mps"):
        assert found.select() and found.level() == "L3 MPS" and not found.select()
        kubepods(tmp_path / "cgroup", "kubepods/pod{uid}")
        gpus.no_limits = "driver 580"
        assert not found.select() and found.refused["driver"] == "driver 580"
        gpus.no_limits = ""
        assert found.select() and found.level() == "L4 driver limits, L3 MPS for compute"
    assert found.select() and found.level() == "L4 driver limits, L2 HAMi-core for compute", "the daemon is gone"


def test_what_was_asked_for_by_name_must_be_had_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"isolation mps cannot be used here: {WHERE}"):
        climbed(FakeGpus("1x15"), settings(tmp_path, "mps"))
    with pytest.raises(UsageError, match="does not exist"):
        climbed(FakeGpus("1x15"), settings(tmp_path, "tight"))
    with listening(tmp_path / "mps"):
        found = climbed(FakeGpus("1x15"), settings(tmp_path, "mps"))
        assert found.level() == "L3 MPS"
    assert found.select() and found.level() == "", "later it is said, and what runs goes on"
    assert not found.select() and found.refused["mps"].startswith(WHERE)
    with pytest.raises(WorldError, match="is unavailable"):
        found.edits(Tenant(UID, "c", (Grant(found.gpus[0], 1024),)))
    assert climbed(FakeGpus("1x15"), settings(tmp_path, "off")).level() == ""


def test_instances_isolate_by_themselves(tmp_path: Path) -> None:
    found = climbed(FakeGpus("2x10mig"), settings(tmp_path))
    [instance, _] = found.gpus
    assert found.level() == "L5 MIG" and found.memory is None
    assert found.edits(Tenant(UID, "c", (Grant(instance, 5 * 1024),))).env == {}
    mixed = climbed(FakeGpus("1x24+1x10mig"), settings(tmp_path))
    gpu, instance = mixed.gpus
    assert mixed.level() == "L5 MIG, L1 cooperative"
    assert mixed.level([Grant(gpu, 1)]) == "L1 cooperative" and mixed.level([Grant(instance, 1)]) == "L5 MIG"


def test_a_named_pipe_that_nobody_reads_is_no_daemon(tmp_path: Path) -> None:
    (tmp_path / "mps").mkdir()
    os.mkfifo(tmp_path / "mps" / "control")
    assert Mps(tmp_path / "mps").why_not().startswith(WHERE)
    reader = os.open(tmp_path / "mps" / "control", os.O_RDONLY | os.O_NONBLOCK)
    assert Mps(tmp_path / "mps").why_not() == ""
    os.close(reader)
    for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
        with listening(tmp_path / str(kind), kind):
            assert Mps(tmp_path / str(kind)).why_not() == ""
        assert Mps(tmp_path / str(kind)).why_not().startswith(WHERE), "a socket left behind"


GPU, SMALL, PART = Gpu(0, "a", 24_000), Gpu(3, "b", 8_000), Gpu(9, "c", 10_000, whole=True)


def test_what_each_rung_gives_a_container(tmp_path: Path) -> None:
    tenant = Tenant(UID, "c", (Grant(GPU, 6_000), Grant(PART, 10_000), Grant(SMALL, 4_000)), percent=30)
    mps = Mps(tmp_path / "mps", tmp_path / "shm").edits(tenant)
    assert mps.env == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/tidewright/mps", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=6000M,2=4000M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
    }  # fmt: skip
    assert [(one.host, one.inside, one.writable) for one in mps.mounts] == [
        (str(tmp_path / "mps"), "/run/tidewright/mps", True), (str(tmp_path / "shm"), "/dev/shm", True),
    ]  # fmt: skip
    library(tmp_path / "hami")
    level = Hami(tmp_path / "hami")
    hami = level.edits(tenant)
    assert hami.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "6000m" and hami.env["CUDA_DEVICE_MEMORY_LIMIT_2"] == "4000m"
    assert hami.env["CUDA_DEVICE_SM_LIMIT"] == "30" and "CUDA_DEVICE_MEMORY_LIMIT_1" not in hami.env
    own = tmp_path / "hami" / "containers" / f"{UID}_c"
    assert own.is_dir() and hami.mounts[0].host == str(own) and own.stat().st_mode & 0o1777 == 0o1777
    level.keep_only([UID])
    assert own.is_dir()
    level.keep_only([])
    assert not own.exists(), "with the pod its table goes"
    assert Cooperative().edits(tenant).env["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.25", "the least of its shares"
    assert "PYTORCH_ALLOC_CONF" not in Cooperative().edits(tenant).env
    listens = Tenant(UID, "c", tenant.grants, cooperates=frozenset({"torch"}))
    assert Cooperative().edits(listens).env["PYTORCH_ALLOC_CONF"] == "per_process_memory_fraction:0.25"
    whole = Tenant(UID, "c", (Grant(GPU, 24_000),))
    assert Cooperative().edits(whole).env == {}, "all of a GPU is no limit"


@given(st.lists(st.tuples(st.integers(1, 200_000), st.integers(1, 200_000)), min_size=1, max_size=8))
def test_a_fraction_is_never_more_than_was_given(sizes: list[tuple[int, int]]) -> None:
    grants = tuple(Grant(Gpu(at, "u", max(size)), min(size)) for at, size in enumerate(sizes))
    env = Cooperative().edits(Tenant(UID, "c", grants)).env
    if env:
        share = float(env["XLA_PYTHON_CLIENT_MEM_FRACTION"])
        assert 0 < share < 1 and all(share * grant.gpu.memory_mib <= grant.mib for grant in grants)


@pytest.mark.parametrize("form", [
    "kubepods/pod{uid}", "kubepods/burstable/pod{uid}", "kubepods.slice/kubepods-pod{under}.slice",
    "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{under}.slice", "kubelet/kubepods/besteffort/pod{uid}",
    "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{under}.slice",
])  # fmt: skip
def test_the_drivers_limit_is_on_the_cgroup_of_the_pod(tmp_path: Path, form: str) -> None:
    folder, gpus = kubepods(tmp_path, form), FakeGpus("2x15")
    gpus.no_limits = ""
    level = DriverLimits(gpus, tmp_path)
    assert level.why_not() == "" and gpus.limit_of(0, folder) == UNLIMITED
    level.hold(UID, {0: 3072, 1: 1024})
    assert gpus.limits == {(0, folder): 3072, (1, folder): 1024}
    with pytest.raises(WorldError, match="no cgroup of pod 1111"):
        level.hold("11111111-2222-3333-4444-555555555555", {0: 1})


def test_a_pod_that_moves_among_the_cgroups_is_found_again(tmp_path: Path) -> None:
    folder, gpus = kubepods(tmp_path, "kubepods/pod{uid}"), FakeGpus("2x15")
    level = DriverLimits(gpus, tmp_path)
    level.hold(UID, {0: 1})
    folder.rmdir()
    moved = kubepods(tmp_path, "kubepods/burstable/pod{uid}")
    level.hold(UID, {0: 2})
    assert gpus.limits[0, moved] == 2
    moved.rmdir()
    with pytest.raises(WorldError, match="no cgroup of pod"):
        level.hold(UID, {0: 3})


def test_a_gpu_that_cannot_be_limited_keeps_no_other_from_it(tmp_path: Path) -> None:
    class Lost(FakeGpus):
        def limit_of(self, gpu: int, cgroup: Path) -> int:
            if gpu == 0:
                raise WorldError("GPU 0 is lost")
            return super().limit_of(gpu, cgroup)

    folder, gpus = kubepods(tmp_path, "kubepods/pod{uid}"), Lost("2x15")
    with pytest.raises(WorldError, match="lost"):
        DriverLimits(gpus, tmp_path).hold(UID, {0: 1, 1: 2})
    assert gpus.limits == {(1, folder): 2}


def test_cgroups_that_go_while_one_looks_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = kubepods(tmp_path, "kubepods/pod{uid}")
    kubepods(tmp_path, "kubepods/burstable/pod{uid}", "other")
    real = os.scandir

    def vanishing(path: Any) -> Any:
        if str(path).endswith("burstable"):
            raise FileNotFoundError(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    gpus = FakeGpus("1x15")
    DriverLimits(gpus, tmp_path).hold(UID, {0: 1})
    assert gpus.limits == {(0, folder): 1}


def test_without_the_nodes_cgroups_the_driver_cannot_limit(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("")
    assert "mount the node's there" in DriverLimits(FakeGpus("1x15"), tmp_path).why_not()


def test_pods_that_cannot_be_limited_are_said_once_and_tried_again(tmp_path: Path) -> None:
    gpus, said = FakeGpus("1x15+1x10mig"), list[str]()
    gpus.no_limits = ""
    kubepods(tmp_path / "cgroup", "kubepods/pod{uid}")
    found = ladder(gpus, settings(tmp_path), said.append)
    found.select()
    pods = {UID: {0: 1024}, "late": {0: 2048}, "instance": {1: 10240}}
    found.hold(pods)
    found.hold(pods)
    assert len(said) == 1 and "pod late is not limited yet" in said[0]
    late = kubepods(tmp_path / "cgroup", "kubepods/pod{uid}", "late")
    found.hold(pods)
    assert gpus.limits[0, late] == 2048 and len(said) == 1 and all(gpu == 0 for gpu, _ in gpus.limits)
    with pytest.raises(WorldError):
        found.hold_one("other", {0: 5})
    found.hold_one("instance", {1: 10240})


def test_what_a_pod_wishes() -> None:
    one = assumed("a", 3, at=1)
    one["spec"]["containers"][0]["env"] = [{"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/mine"}]
    one["metadata"]["annotations"] |= {names.SM_PERCENT: "40", names.COOPERATES: "torch, jax"}
    container = one["spec"]["containers"][0]["name"]
    found = tenant_of(one, container, [])
    assert found.percent == 40 and found.cooperates == {"torch", "jax"} and found.own == {"CUDA_MPS_PIPE_DIRECTORY"}
    for wrong in ("0", "101", "half", "-1"):
        one["metadata"]["annotations"][names.SM_PERCENT] = wrong
        with pytest.raises(UsageError):
            percent_of(one)


def test_a_container_may_set_what_asks_and_not_what_limits(tmp_path: Path) -> None:
    own = frozenset({"CUDA_MPS_PIPE_DIRECTORY", "XLA_PYTHON_CLIENT_MEM_FRACTION"})
    found = climbed(FakeGpus("1x15"), settings(tmp_path))
    tenant = Tenant(UID, "c", (Grant(found.gpus[0], 1024),), own=own)
    assert sorted(found.edits(tenant).env) == ["TF_FORCE_GPU_ALLOW_GROWTH", "TIDEWRIGHT_GPU_MEMORY_FRACTION"]
    with listening(tmp_path / "mps"):
        found.select()
        assert found.edits(tenant).env["CUDA_MPS_PIPE_DIRECTORY"] == "/run/tidewright/mps"


class MigNvml(Nvml):
    """GPU 0 as in ``Nvml``, GPU 1 in MIG mode with instances 2 and 5."""

    def __init__(self) -> None:
        super().__init__()
        self.instances = {0: 2, 3: 5}
        self.limits: dict[bytes, int] = {}
        self.nvmlDeviceGetMigMode = lambda at: [at == 1, at == 1]
        self.nvmlDeviceGetMaxMigDeviceCount = lambda at: 7
        self.nvmlDeviceGetMigDeviceHandleByIndex = self.instance
        self.nvmlDeviceGetGpuInstanceId = lambda part: part - 100
        self.nvmlDeviceGetComputeInstanceId = lambda part: 0
        self.nvmlDeviceGetMemoryInfo = lambda at: SimpleNamespace(
            total=(10 << 30) if at >= 100 else self.memory(at).total
        )
        self.nvmlDeviceGetComputeRunningProcesses = lambda at: [SimpleNamespace(pid=7, usedGpuMemory=1 << 20)]
        self.nvmlDeviceGetGraphicsRunningProcesses = lambda at: []

    def instance(self, at: int, place: int) -> int:
        if place not in self.instances:
            raise Refusal
        return 100 + self.instances[place]


def test_the_instances_of_a_gpu_take_its_place(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-caps/nvidia-cap21", "nvidia-caps/nvidia-cap22"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    proc = tmp_path / "proc"
    (proc / MIG_MINORS).parent.mkdir(parents=True)
    (proc / MIG_MINORS).write_text("config 1\ngpu0/gi2/access 21\ngpu0/gi2/ci0/access 22\ngpu0/gi5/access 99\n")
    nvml = MigNvml()
    gpus = NvidiaGpus(nvml, tmp_path, proc)
    found = gpus.found()
    assert [(gpu.index, gpu.uuid, gpu.memory_mib, gpu.whole, gpu.physical) for gpu in found] == [
        (0, "GPU-0", 24 * 1024, False, 0), (2, "GPU-102", 10 * 1024, True, 1), (3, "GPU-105", 10 * 1024, True, 1),
    ]  # fmt: skip
    own = ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22", "/dev/nvidiactl")
    assert found[1].nodes == own
    nvml.events.append(SimpleNamespace(device=1, eventData=79))
    assert sorted(gpus.faults()) == [2, 3], "what hits the GPU hits its instances"
    assert [use.gpu for use in gpus.uses()] == [0]
    nvml.instances = {}
    nvml.nvmlDeviceGetMigMode = lambda at: [1, 1]
    with pytest.raises(WorldError, match="none has instances"):
        NvidiaGpus(nvml, tmp_path, proc)


def test_an_instance_keeps_its_number_and_leaves_it_to_none(tmp_path: Path) -> None:
    numbers, nvml = tmp_path / "cdi" / "numbers", MigNvml()

    def indices() -> dict[str, int]:
        return {gpu.uuid: gpu.index for gpu in NvidiaGpus(nvml, numbers=numbers).found() if gpu.whole}

    assert indices() == {"GPU-102": 2, "GPU-105": 3}
    nvml.instances = {3: 5}
    assert indices() == {"GPU-105": 3}
    nvml.instances = {0: 7, 3: 5}
    assert indices() == {"GPU-107": 4, "GPU-105": 3}, "2 was another's, and some pod may say so still"
    numbers.write_text("[")
    assert indices() == {"GPU-107": 2, "GPU-105": 3}


def test_clients_of_mps_are_seen_too() -> None:
    nvml = MigNvml()
    nvml.nvmlDeviceGetMPSComputeRunningProcesses = lambda at: [SimpleNamespace(pid=8, usedGpuMemory=2 << 20)]
    assert sorted((use.pid, use.mib) for use in NvidiaGpus(nvml).uses()) == [(7, 1), (8, 2)]


def test_the_drivers_limits_by_nvml() -> None:
    nvml, folder = MigNvml(), Path("/sys/fs/cgroup/kubepods/pod1")
    gpus = NvidiaGpus(nvml)
    assert "older than 13.615" in gpus.why_no_limits(folder)
    nvml.c_nvmlGetMemoryLimits_v1_t = lambda: SimpleNamespace(hardLimit=2**64 - 1)
    nvml.c_nvmlSetMemoryLimits_v1_t = SimpleNamespace
    kept: dict[tuple[int, bytes], int] = {}

    def read(handle: int, limits: Any) -> None:
        limits.hardLimit = kept.get((handle, limits.nameSpace), limits.hardLimit)

    def write(handle: int, limits: Any) -> None:
        assert limits.softLimit == limits.hardLimit
        kept[handle, limits.nameSpace] = limits.hardLimit

    nvml.nvmlDeviceGetMemoryLimits_v1, nvml.nvmlDeviceSetMemoryLimits_v1 = read, write
    assert gpus.why_no_limits(folder) == "" and gpus.limit_of(0, folder) == UNLIMITED
    gpus.limit(0, folder, 3072)
    assert kept == {(0, str(folder).encode()): 3072 << 20} and gpus.limit_of(0, folder) == 3072

    def refuse(handle: int, limits: Any) -> None:
        raise Refusal

    nvml.nvmlDeviceGetMemoryLimits_v1 = refuse
    assert "it can from 615 on" in gpus.why_no_limits(folder)
    nvml.nvmlDeviceGetMigMode = lambda at: [0, 0]
    both = NvidiaGpus(nvml)
    nvml.nvmlDeviceGetMemoryLimits_v1 = lambda handle, limits: refuse(handle, limits) if handle == 0 else None
    nvml.lost = {0}
    both.faults()
    assert both.why_no_limits(folder) == "", "of a lost GPU nothing is asked"


def test_an_instance_goes_to_one_pod_and_is_published_so() -> None:
    notes = {names.TABLE: publish((GpuInfo(0, 10), GpuInfo(1, 10, whole=True)))}
    node = {"metadata": {"name": "n", "annotations": notes}, "status": {"allocatable": {names.MEM: "20"}}}
    assert [card.whole for card in read_gpu_inventory(node).cards] == [False, True]


@pytest.mark.processes
def test_a_container_gets_its_limits_and_pod_and_node_say_how_it_is_isolated(tmp_path: Path) -> None:
    async def scene() -> None:
        group = kubepods(tmp_path / "cgroup", "kubepods/pod{uid}")
        with listening(tmp_path / "mps"):
            async with plugged(isolation=settings(tmp_path), watch_s=0.05) as found:
                found.gpus.no_limits = ""
                await found.ready()
                one = assumed("a", 3, at=1)
                one["metadata"]["uid"] = UID
                one["metadata"]["annotations"][names.SM_PERCENT] = "25"
                await until(lambda: "L4" in found.node["metadata"]["annotations"].get(names.LEVEL, ""))
                await found.create(one)
                await found.kubelet.admit(one)
                made = await found.kubelet.start_container(UID, one["spec"]["containers"][0]["name"])
                env = found.env(made.cdi[0])
                assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=3072M"
                assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25" and "NVIDIA_VISIBLE_DEVICES" in env
                assert [mib for (_, folder), mib in found.gpus.limits.items() if folder == group] == [3072]
                level = "L4 driver limits, L3 MPS for compute"
                await until(lambda: found.notes("a").get(names.LEVEL) == level)
                told = [event for event in found.events() if event["involvedObject"]["kind"] == "Node"]
                assert any(level in event["message"] for event in told)
                found.gpus.limits.clear()
                await until(lambda: list(found.gpus.limits.values()) == [3072])

    asyncio.run(scene())


@pytest.mark.processes
def test_a_container_waits_until_its_limit_is_in_force(tmp_path: Path) -> None:
    async def scene() -> None:
        (tmp_path / "cgroup" / "kubepods").mkdir(parents=True)
        (tmp_path / "cgroup" / "cgroup.controllers").write_text("")
        async with plugged(isolation=settings(tmp_path), watch_s=0.05) as found:
            found.gpus.no_limits = ""
            await found.ready()
            await until(lambda: "L4" in found.node["metadata"]["annotations"].get(names.LEVEL, ""))
            one = assumed("a", 3, at=1)
            await found.create(one)
            await found.kubelet.admit(one)
            with pytest.raises(Exception, match="there is no cgroup of pod"):
                await found.kubelet.start_container(one["metadata"]["uid"], one["spec"]["containers"][0]["name"])
            kubepods(tmp_path / "cgroup", "kubepods/pod{uid}", one["metadata"]["uid"])
            await found.kubelet.start_container(one["metadata"]["uid"], one["spec"]["containers"][0]["name"])

    asyncio.run(scene())


@pytest.mark.processes
def test_by_matching_mounts_and_variables_come_with_the_allocation(tmp_path: Path) -> None:
    async def scene() -> None:
        library(tmp_path / "hami")
        async with plugged(binding="match", isolation=settings(tmp_path)) as found:
            await found.ready()
            one = assumed("a", 3, at=1)
            await found.create(one)
            await found.kubelet.admit(one)
            [made] = found.kubelet.made
            assert made.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3072m"
            assert str(tmp_path / "hami" / "libvgpu.so") in made.mounts

    asyncio.run(scene())


@pytest.mark.processes
def test_before_it_is_known_which_pods_are_here_nothing_is_taken_from_them(tmp_path: Path) -> None:
    async def scene() -> None:
        library(tmp_path / "hami")
        mine, gone = (tmp_path / "hami" / "containers" / f"{uid}_c" for uid in (UID, "gone"))
        mine.mkdir(parents=True)
        gone.mkdir()
        async with plugged(isolation=settings(tmp_path), watch_s=0.02, down=True) as found:
            await asyncio.sleep(0.3)
            assert mine.is_dir() and gone.is_dir()
            one = assumed("a", 3, at=1)
            one["metadata"]["uid"] = UID
            await found.api.create("pods", one)
            found.api.mischief.down = False
            await until(lambda: not gone.exists())
            assert mine.is_dir()

    asyncio.run(scene())
