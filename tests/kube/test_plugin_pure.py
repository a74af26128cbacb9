"""What the device plugin computes without a kubelet: units, ids, whose container it is, CDI files, runtimes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kube.objects import pod
from tidewright.base.errors import UsageError, WorldError
from tidewright.kube.allocation.container_lookup import (
    CheckpointEntry,
    claim_of,
    entries,
    gpus_of,
    guess,
    only,
    owner,
    waiting,
)
from tidewright.kube.allocation.pool import Pool
from tidewright.kube.allocation.slots import Capacity
from tidewright.kube.allocation.units import (
    MESSAGE_LIMIT,
    UnitSize,
    check_message,
    gpu_of,
    id_of,
    ids,
    message_bytes,
    occupied_units,
    prefer,
)
from tidewright.kube.node.cdi import KIND, PREFIX, CdiFiles, Edits, Mount, document, name_of, qualified
from tidewright.kube.node.gpus import FakeGpus
from tidewright.kube.node.nvidia import RECOVERY_ACTION, NvidiaGpus
from tidewright.kube.node.v1beta1 import UNHEALTHY, messages
from tidewright.kube.objects import names
from tidewright.kube.objects.gpu_inventory import GpuInfo, GpuInventory
from tidewright.kube.objects.metadata import annotations_of
from tidewright.kube.plugin.gpu_admission import GpuCapacity
from tidewright.kube.plugin.service import late_binding

RECORDED = Path(__file__).parent / "recorded" / "kubelet"
H200_MIB = 143_771
SIZES = st.dictionaries(st.integers(0, 127), st.integers(1, 40), min_size=1, max_size=6)


@settings(deadline=None)
@given(SIZES)
def test_every_unit_has_one_short_id_that_names_its_gpu(units: dict[int, int]) -> None:
    found = ids(units)
    assert len(set(found)) == len(found) == sum(units.values())
    assert {gpu: sum(gpu_of(one) == gpu for one in found) for gpu in units} == units
    assert message_bytes(units) == _message(found).ByteSize()


def _message(found: tuple[str, ...]) -> Any:
    kinds = messages()
    return kinds.ListAndWatchResponse(devices=[kinds.Device(ID=one, health=UNHEALTHY) for one in found])


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "a-1", "GPU-00000001-1111-_-3", "٣-1"])
def test_ids_of_others_have_no_gpu(text: str) -> None:
    assert gpu_of(text) == -1


def test_eight_h200_work_in_gib_and_in_chunks_and_are_refused_in_single_mib() -> None:
    node = dict.fromkeys(range(8), H200_MIB)
    assert sum(check_message(node, UnitSize.of("GiB")).values()) == 8 * 140
    with pytest.raises(UsageError) as caught:
        check_message(node, UnitSize.of("MiB"))
    assert "--memory-unit GiB" in str(caught.value.remedy) and "--chunk 8 " in str(caught.value.remedy)
    units = check_message(node, UnitSize.of("MiB", 8))
    assert len(_message(ids(units)).SerializeToString()) <= MESSAGE_LIMIT


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 127), st.integers(1024, 200_000), min_size=1, max_size=16))
def test_the_chunk_that_is_named_fits(node: dict[int, int]) -> None:
    try:
        assert message_bytes(check_message(node, UnitSize.of("MiB"))) <= MESSAGE_LIMIT
    except UsageError as error:
        chunk = int(str(error.remedy).split("--chunk ")[1].split()[0])
        assert message_bytes(check_message(node, UnitSize.of("MiB", chunk))) <= MESSAGE_LIMIT


def test_gpus_of_different_sizes_have_their_own_units() -> None:
    assert check_message({0: 24 * 1024, 1: 16 * 1024 - 1}, UnitSize.of("GiB")) == {0: 24, 1: 15}
    with pytest.raises(UsageError, match="smaller than one unit"):
        check_message({0: 1000}, UnitSize.of("GiB"))


@pytest.mark.parametrize(("unit", "chunk"), [("GiB", 4), ("TiB", 0), ("MiB", -1)])
def test_units_that_make_no_sense_are_refused(unit: str, chunk: int) -> None:
    with pytest.raises(UsageError):
        UnitSize.of(unit, chunk)


@settings(deadline=None)
@given(SIZES, st.randoms(use_true_random=False), st.data())
def test_preferred_ids_are_allowed_enough_and_on_the_chosen_gpus(units: dict[int, int], rng: Any, data: Any) -> None:
    available = list(ids(units))
    rng.shuffle(available)
    size = data.draw(st.integers(1, len(available)))
    must = available[: data.draw(st.integers(0, size))]
    gpu = data.draw(st.sampled_from(sorted(units)))
    found = prefer(available, must, size, {gpu: size})
    assert len(found) == len(set(found)) == size
    assert set(must) <= set(found) <= set(available)
    on_it = sum(gpu_of(one) == gpu for one in found)
    forced = sum(gpu_of(one) != gpu for one in must)
    assert on_it == min(units[gpu], size - forced)


def test_without_a_choice_one_gpu_is_preferred_the_fullest_that_has_room() -> None:
    available = [id_of(0, 0), *(id_of(1, unit) for unit in range(5)), *(id_of(2, unit) for unit in range(3))]
    assert {gpu_of(one) for one in prefer(available, (), 3, {})} == {2}
    assert {gpu_of(one) for one in prefer(available, (), 4, {})} == {1}


def chosen(total: int, at: int, gpu: int) -> dict[str, str]:
    """What the extender writes on a pod that it gives ``total`` of ``gpu`` of node n at nanosecond ``at``."""
    return {
        names.IDX: str(gpu), names.POD: str(total), names.DEV: "15", names.ASSIGNED: "false",
        names.ASSUME_TIME: str(at), names.NODE: "n",
    }  # fmt: skip


def assumed(name: str, *sizes: int, at: int, gpu: int = 0, init: tuple[int, ...] = (), **more: Any) -> dict[str, Any]:
    """A pod with a container per size that the extender gave ``gpu`` of node n at nanosecond ``at``."""
    made = pod(name, 1, node="n", notes=chosen(max([sum(sizes), *init]), at, gpu), **more)
    made["spec"]["containers"] = [_container(f"c{index}", size) for index, size in enumerate(sizes)]
    made["spec"]["initContainers"] = [_container(f"i{index}", size) for index, size in enumerate(init)]
    return made


def _container(name: str, size: int) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": {names.MEM: str(size)} if size else {}}}


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=1, max_size=5), st.randoms())
def test_pods_admitted_in_the_order_of_their_binds_are_told_apart(shapes: list[list[int]], rng: Any) -> None:
    """Whatever the sizes, and whatever order the pods are listed in: container by container, none of the pod's total."""
    pods = [assumed(f"p{at}", *sizes, at=10**18 + at) for at, sizes in enumerate(shapes)]
    listed = list(pods)
    rng.shuffle(listed)
    done: set[tuple[str, str]] = set()
    for one, sizes in zip(pods, shapes, strict=True):
        for at, size in enumerate(sizes):
            claim = guess(listed, size, done)
            assert claim is not None
            assert (claim.assignment.name, claim.part.name) == (one["metadata"]["name"], f"c{at}")
            done.add((claim.assignment.uid, claim.part.name))
    assert not waiting(listed, done)


def test_times_that_differ_by_a_nanosecond_are_told_apart() -> None:
    first, second = assumed("z", 2, at=1795220794120540602), assumed("a", 2, at=1795220794120540603)
    assert guess([second, first], 2, ()).assignment.name == "z"  # type: ignore[union-attr]


def test_init_containers_come_first_and_containers_without_memory_are_passed_over() -> None:
    one = assumed("p", 1, 0, 2, at=1, init=(4,))
    done: set[tuple[str, str]] = set()
    for name, size in (("i0", 4), ("c0", 1), ("c2", 2)):
        claim = guess([one], size, done)
        assert claim is not None and claim.part.name == name
        done.add((claim.assignment.uid, name))


@pytest.mark.parametrize("change", [
    {"deletionTimestamp": "2026-01-01T00:00:00Z"}, {"phase": "Failed"}, {"assigned": "true"}, {"unmarked": True},
])  # fmt: skip
def test_pods_on_their_way_out_served_or_never_chosen_are_left_out(change: dict[str, Any]) -> None:
    more = {key: value for key, value in change.items() if key in ("deletionTimestamp", "phase")}
    one = assumed("p", 2, at=1, **more)
    if "assigned" in change:
        one["metadata"]["annotations"][names.ASSIGNED] = "true"
    if "unmarked" in change:
        one["metadata"]["annotations"] = {}
    assert guess([one], 2, ()) is None


def test_only_knows_when_two_pods_are_meant() -> None:
    one, two = assumed("a", 2, at=1), assumed("b", 2, at=2, gpu=1)
    assert only([one, two], 2, ()) is None
    assert only([one, two], 2, {("uid-a", "c0")}).assignment.name == "b"  # type: ignore[union-attr]


def test_a_recorded_checkpoint_names_the_owner_of_every_prestart() -> None:
    """The real kubelet's: with every PreStartContainer the entry was there already, and just one pod had the ids."""
    told: dict[str, list[str]] = {}
    for file in ("basic", "cdi-late", "burst-order"):
        for line in (RECORDED / f"{file}.jsonl").read_text().splitlines():
            call = json.loads(line)
            if call["rpc"] == "PreStartContainer":
                text = json.dumps({"Data": {"PodDeviceEntries": call["checkpoint"]}})
                found = owner(entries(text), call["request"]["devicesIds"])
                assert found is not None
                told.setdefault(file, []).append(found.container)
    assert told == {"basic": ["c", "init", "a", "b"], "cdi-late": ["c", "init", "a", "b"], "burst-order": ["c"] * 5}


def test_the_recorded_checkpoint_file_can_be_read() -> None:
    found = entries((RECORDED / "kubelet_internal_checkpoint.json").read_text())
    assert [entry.container for entry in found] == ["c", "init", "a", "b"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"Data": {"PodDeviceEntries": [{}]}}', '{"Data": 1}', "[" * 100_000])
def test_a_checkpoint_that_cannot_be_read_says_so(text: str) -> None:
    with pytest.raises(WorldError, match="checkpoint"):
        entries(text)


def test_two_pods_with_the_same_ids_are_an_error_unless_one_ended() -> None:
    both = [CheckpointEntry("a", "c", frozenset({"0-0"})), CheckpointEntry("b", "c", frozenset({"0-0"}))]
    with pytest.raises(WorldError, match="two pods"):
        owner(both, ["0-0"])
    assert owner(both, ["0-0"], gone={"a"}) == both[1]
    assert owner(both, ["0-0", "0-1"]) is None


def test_a_claim_of_a_pod_on_several_gpus_has_the_containers_own() -> None:
    one = assumed("p", 2, 2, at=1)
    shares = {"0": {"0": 2}, "1": {"3": 2}}
    one["metadata"]["annotations"][names.ALLOCATION] = json.dumps(shares)
    assert [gpus_of(claim_of(one, name)) for name in ("c0", "c1")] == [{0: 2}, {3: 2}]
    assert gpus_of(claim_of(assumed("q", 2, 3, at=1, gpu=1), "c1")) == {1: 3}


def test_a_pod_past_the_extender_is_told_what_to_do() -> None:
    bare = assumed("p", 2, at=1)
    annotations_of(bare).clear()  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="did not ask the extender") as caught:
        claim_of(bare, "c0")
    assert "scheduler's configuration" in str(caught.value.remedy)


@settings(deadline=None)
@given(st.lists(st.sampled_from(ids({0: 9, 1: 9})), min_size=1, unique=True), st.randoms())
def test_a_cdi_name_depends_on_the_ids_alone(some: list[str], rng: Any) -> None:
    other = list(some)
    rng.shuffle(other)
    assert name_of(some) == name_of(other)
    assert name_of(some) != name_of([*some, "2-0"])
    assert qualified(name_of(some)).startswith("tidewright.io/gpushare=g")


def test_cdi_files_are_whole_and_only_ours_are_removed(tmp_path: Path) -> None:
    cdi_files = CdiFiles(tmp_path / "cdi")
    edits = Edits({"A": "1"}, ("/dev/nvidia0",), (Mount("/host/x", "/x"), Mount("/host/y", "/y", writable=True)))
    cdi_files.put("ga", {"ga": edits})
    cdi_files.put("gb", {"gb": Edits({"B": "x=y"})})
    (cdi_files.folder / "nvidia.json").write_text("{}")
    found = json.loads((cdi_files.folder / f"{PREFIX}ga.json").read_text())
    assert found == document(KIND, {"ga": edits})
    assert found["devices"][0]["containerEdits"] == {
        "env": ["A=1"], "deviceNodes": [{"path": "/dev/nvidia0"}],
        "mounts": [
            {"hostPath": "/host/x", "containerPath": "/x", "options": ["ro", "bind"]},
            {"hostPath": "/host/y", "containerPath": "/y", "options": ["rw", "bind"]},
        ],
    }  # fmt: skip
    assert cdi_files.keep_only(["gb"]) == 1
    assert sorted(path.name for path in cdi_files.folder.iterdir()) == ["nvidia.json", f"{PREFIX}gb.json"]
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(WorldError, match="cannot be written"):
        CdiFiles(blocked).put("ga", {})


def test_fake_gpus_are_as_written() -> None:
    assert [gpu.memory_mib // 1024 for gpu in FakeGpus("1x24 + 2x16").found()] == [24, 16, 16]
    assert [gpu.whole for gpu in FakeGpus("1x24+2x10mig").found()] == [False, True, True]
    for wrong in ("", "2", "0x15", "2x0", "2x15+", "999x1", "ax1", "2x-1", "2x15gig", "2xmig"):
        with pytest.raises(UsageError):
            FakeGpus(wrong)


@pytest.mark.parametrize(("kubelet", "runtime", "late"), [
    ("v1.36.2", "containerd://2.1.9", True), ("v1.29.0", "cri-o://1.29.1", True), ("v1.36.2", "containerd://1.7.22", False),
    ("v1.28.9", "containerd://2.0.0", False), ("v1.20.4", "docker://20.10.7", False), ("", "", True),
])  # fmt: skip
def test_which_runtimes_resolve_cdi_names(kubelet: str, runtime: str, late: bool) -> None:
    info = {"kubeletVersion": kubelet, "containerRuntimeVersion": runtime}
    assert late_binding({"status": {"nodeInfo": info}})[0] is late


class Refusal(Exception):
    """NVMLError."""


class Nvml(SimpleNamespace):
    """Two GPUs of different kinds whose order is not that of their device files. ``action``: recovery, None: not told."""

    def __init__(self) -> None:
        super().__init__(
            NVMLError=Refusal, nvmlEventTypeXidCriticalError=8, nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 2,
            nvmlDeviceGetHandleByIndex=lambda at: at, nvmlDeviceGetMinorNumber=lambda at: 1 - at,
            nvmlDeviceGetUUID=lambda at: f"GPU-{at}", nvmlDeviceGetName=lambda at: b"NVIDIA H200",
            nvmlEventSetCreate=object, nvmlDeviceRegisterEvents=lambda *_: None, nvmlDeviceGetMemoryInfo=self.memory,
            nvmlEventSetWait_v2=self.event, nvmlDeviceGetFieldValues=self.fields,
        )  # fmt: skip
        self.events: list[SimpleNamespace] = []
        self.lost: set[int] = set()
        self.action: int | None = None

    def memory(self, at: int) -> SimpleNamespace:
        if at in self.lost:
            raise Refusal
        return SimpleNamespace(total=(24 - 8 * at) << 30)

    def event(self, *_: Any) -> SimpleNamespace:
        if not self.events:
            raise Refusal
        return self.events.pop(0)

    def fields(self, at: int, fields: list[int]) -> list[SimpleNamespace]:
        assert fields == [RECOVERY_ACTION]
        if self.action is None:
            raise Refusal
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=self.action))]


def test_gpus_by_nvml_each_with_its_own_memory_and_device_file(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).write_text("")
    found = NvidiaGpus(Nvml(), tmp_path).found()
    assert [(gpu.index, gpu.memory_mib, gpu.nodes[0]) for gpu in found] == [
        (0, 24 * 1024, "/dev/nvidia1"), (1, 16 * 1024, "/dev/nvidia0"),
    ]  # fmt: skip
    assert found[0].nodes[1:] == ("/dev/nvidiactl",)


def test_critical_xids_make_a_gpu_sick_until_the_driver_is_content_and_programs_errors_do_not() -> None:
    nvml = Nvml()
    gpus = NvidiaGpus(nvml)
    nvml.events.append(SimpleNamespace(device=0, eventData=31))
    assert gpus.faults() == {}
    nvml.events.append(SimpleNamespace(device=1, eventData=79))
    assert list(gpus.faults()) == [1] and "XID 79" in gpus.faults()[1]
    nvml.action = 2
    assert list(gpus.faults()) == [1]
    nvml.action = 0
    assert gpus.faults() == {}
    nvml.lost = {0}
    assert list(gpus.faults()) == [0]
    nvml.lost = set()
    assert gpus.faults() == {}


@given(units=st.integers(0, 20), exclusive=st.booleans())
def test_extender_admission_and_matching_agree_on_what_a_pod_leaves_to_others(units: int, exclusive: bool) -> None:
    size = 15
    expected = 0 if not units else max(units, size) if exclusive else units
    assert occupied_units(units, size if exclusive else 0) == expected
    assert GpuCapacity(size, exclusive).occupied(units) == expected
    assert Capacity({0: size}, frozenset({0} if exclusive else ())).weighed({0: units}) == {0: expected}
    pool = Pool()
    pool.set_node(GpuInventory("n", (GpuInfo(0, size, whole=exclusive),)))
    assert pool.weight("n", 0, units) == expected
