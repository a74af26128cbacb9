"""Device backends: the kit, the arithmetic of CPU slots, and NVIDIA against a driver made of paper."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewright.base.errors import UsageError, WorldError
from tidewright.devices import cpu, fake, nvidia
from tidewright.devices.registry import backends, open_backend
from tidewright.testing.devices import check_backend


class PaperDriver:
    """The part of pynvml that is used, over invented devices."""

    class NVMLError(Exception):
        pass

    nvmlEventTypeXidCriticalError = 8  # noqa: N815

    def __init__(self, *names: str, driver: bool = True) -> None:
        self.names, self.driver, self.xids, self.dead = names, driver, [], set()

    def nvmlInit(self):  # noqa: N802
        if not self.driver:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlShutdown(self):  # noqa: N802
        self.driver = False

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return self.names[handle].encode()

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return f"GPU-{handle:04d}"

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        if handle in self.dead:
            raise self.NVMLError("GPU is lost")
        return SimpleNamespace(total=80 * 2**30, used=2**30)

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        return SimpleNamespace(gpu=42)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):  # noqa: N802
        return [SimpleNamespace(pid=7, usedGpuMemory=2**29), SimpleNamespace(pid=3, usedGpuMemory=None)]

    def nvmlEventSetCreate(self):  # noqa: N802
        return object()

    def nvmlDeviceRegisterEvents(self, handle, kinds, events):  # noqa: N802
        pass

    def nvmlEventSetWait_v2(self, events, timeout):  # noqa: N802
        assert timeout == 0
        if not self.xids:
            raise self.NVMLError("Timeout")
        device, xid = self.xids.pop(0)
        return SimpleNamespace(device=device, eventData=xid)


H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    "factory",
    [
        lambda: cpu.open_backend("n1"),
        lambda: cpu.open_backend("n1", 64),
        lambda: fake.open_backend("n1"),
        lambda: nvidia.open_backend("n1", nvml=PaperDriver(H100, H100)),
        lambda: open_backend("auto", "n1", 2),
    ],
)
def test_the_kit_passes(factory):
    check_backend(factory)


def test_the_kit_notices():
    liar = fake.FakeBackend("n1")
    liar.load[3] = 180.0
    with pytest.raises(AssertionError, match="out of range"):
        check_backend(lambda: liar)


@given(cores=st.integers(1, 128), slots=st.integers(1, 64))
def test_slots_cover_the_cores(cores, slots):
    backend = cpu.CpuBackend("n1", tuple(range(100, 100 + cores)), slots, 2**34)
    parts = [backend.cores_of(slot) for slot in range(slots)]
    assert all(parts) and {core for part in parts for core in part} == set(range(100, 100 + cores))
    if slots <= cores:
        assert sum(map(len, parts)) == cores, "no core is shared while there are enough"
    spec = backend.discover()
    assert spec.device_memory * slots <= spec.memory and bool(spec.note) == (slots > cores)


@given(cores=st.integers(1, 64), slots=st.integers(1, 64), count=st.integers(1, 8), data=st.data())
def test_thread_limits_do_not_depend_on_the_place(cores, slots, count, data):
    backend = cpu.CpuBackend("n1", tuple(range(cores)), slots, 2**34)
    pick = st.lists(st.integers(0, slots - 1), min_size=min(count, slots), max_size=min(count, slots), unique=True)
    one, other = (backend.environment(tuple(data.draw(pick))).env for _ in range(2))
    assert one == other and int(one["OMP_NUM_THREADS"]) >= 1


@pytest.mark.parametrize("slots", [-1, 5000])
def test_absurd_slots_are_refused(slots):
    with pytest.raises(UsageError):
        cpu.open_backend("n1", slots)


@pytest.mark.parametrize(
    ("product", "kind"),
    [
        (H100, "h100"), ("NVIDIA A100-SXM4-80GB", "a100"), ("NVIDIA H200", "h200"), ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"), ("NVIDIA L40S", "l40s"), ("Tesla T4", "t4"), ("NVIDIA GB200", "gb200"),
        ("NVIDIA B200", "b200"), ("NVIDIA GH200 480GB", "gh200"), ("NVIDIA RTX A6000", "rtxa6000"),
        ("NVIDIA GeForce RTX 3080 Ti", "rtx3080ti"), ("Quadro P4000", "p4000"), ("???", "gpu"),
    ],
)  # fmt: skip
def test_kinds(product, kind):
    assert nvidia.kind_of(product) == kind


def test_no_driver_is_a_normal_state():
    with pytest.raises(WorldError, match="no NVIDIA driver"):
        nvidia.open_backend("n1", nvml=PaperDriver(H100, driver=False))
    with pytest.raises(WorldError, match="no usable"):
        nvidia.open_backend("n1", nvml=PaperDriver())


def test_auto_falls_back_with_a_line(monkeypatch):
    monkeypatch.setattr(nvidia, "import_module", lambda name: PaperDriver(driver=False))
    node = open_backend("auto", "n1", 3).discover()
    assert (node.kind, node.devices) == ("cpu", 3)
    assert "CPU slots stand in" in node.note and "Driver Not Loaded" in node.note


def test_nvidia_shows_devices_by_uuid_and_keeps_one_kind():
    backend = nvidia.open_backend("n1", nvml=PaperDriver(H100, "Tesla T4", H100))
    node = backend.discover()
    assert (node.kind, node.devices, node.uuids) == ("h100", 2, ("GPU-0000", "GPU-0002"))
    assert "t4" in node.note
    assert backend.environment((1,)).env["CUDA_VISIBLE_DEVICES"] == "GPU-0002"
    assert backend.environment((1,)).alone and not backend.environment((0, 1)).alone
    counted = backend.environment((1,), counted=(1, 0))
    assert counted.env["CUDA_VISIBLE_DEVICES"] == "GPU-0002,GPU-0000" and not counted.alone
    assert backend.usage()[0].processes == (3, 7)
    assert backend.usage()[0].held == {7: 2**29}, "what the driver does not tell is not made up"


def test_nvidia_health():
    driver = PaperDriver(H100, H100, H100)
    backend = nvidia.open_backend("n1", nvml=driver)
    driver.xids = [(1, 31), (1, 79)]  # 31 is the program's fault, 79 "fallen off the bus"
    driver.dead = {2}
    first, second, third = backend.health()
    assert first.ok
    assert not second.ok and "XID 79" in second.note
    assert not third.ok and "lost" in third.note
    driver.dead = set()
    assert not backend.health()[1].ok, "a fault stays until the device is reset"


def test_fakes_misbehave_on_request():
    backend = fake.FakeBackend("n1", 2)
    backend.sick[1] = "too hot"
    assert [each.ok for each in backend.health()] == [True, False]
    backend.silent = True
    with pytest.raises(WorldError):
        backend.usage()


def test_unknown_backends_are_named():
    assert {"cpu", "fake", "nvidia"} <= set(backends.names())
    with pytest.raises(UsageError, match="did you mean 'nvidia'"):
        open_backend("nvida", "n1")


def test_more_slots_than_a_node_may_have_are_refused_and_big_machines_get_as_many_as_fit(monkeypatch) -> None:
    with pytest.raises(UsageError, match="65 CPU slots"):
        cpu.CpuBackend("n1", (0,), 65, 2**34)
    monkeypatch.setattr(cpu.os, "sched_getaffinity", lambda pid: set(range(192)))
    assert cpu.open_backend("n1").discover().devices == 64
