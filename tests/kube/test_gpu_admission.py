"""Admission of pods to GPUs: the file of allocations, exit by API server and cgroup, who waits for whom."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kube.extending import until
from tests.kube.test_plugin_pure import assumed
from tests.kube.test_plugin_served import Plugged, plugged
from tidewright.base.errors import WorldError
from tidewright.kube.node.cgroups import ABSENT, BUSY, IDLE, UNKNOWN, Cgroups
from tidewright.kube.objects import names
from tidewright.kube.plugin import gpu_admission
from tidewright.kube.plugin.allocation_file import NAME, AllocationFile, AllocationRecord, PodAllocation
from tidewright.kube.plugin.gpu_admission import GpuAdmission, GpuCapacity, blockers
from tidewright.kube.plugin.service import PluginService

from ..sizes import examples

UID = "0b3c1f6e-8f5a-4b77-9d0e-7f2a4c9b1d10"
FORMS = [
    "kubepods/pod{uid}", "kubepods/burstable/pod{uid}", "kubepods.slice/kubepods-pod{under}.slice",
    "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{under}.slice",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tree", ["", "memory/", "unified/"])
def test_a_pods_cgroup_says_whether_anything_of_it_runs(tmp_path: Path, form: str, tree: str) -> None:
    cgroups = Cgroups(tmp_path)
    assert cgroups.state(UID) == UNKNOWN
    pod = tmp_path / (tree + form.format(uid=UID, under=UID.replace("-", "_")))
    other = pod.parent / pod.name.replace("0b3c", "1111")
    other.mkdir(parents=True)
    (other / "cgroup.procs").write_text("1\n")
    assert cgroups.state(UID) == ABSENT
    (pod / "container").mkdir(parents=True)
    assert cgroups.state(UID) == IDLE
    (pod / "cgroup.procs").write_text("")
    (pod / "container" / "cgroup.procs").write_text("41\n")
    assert cgroups.state(UID) == BUSY
    (pod / "container" / "cgroup.procs").write_text("")
    assert cgroups.state(UID) == IDLE


def test_under_version_2_the_kernel_says_it_for_all_below(tmp_path: Path) -> None:
    pod = tmp_path / "kubepods.slice" / f"kubepods-pod{UID.replace('-', '_')}.slice"
    pod.mkdir(parents=True)
    for populated, state in (("1", BUSY), ("0", IDLE)):
        (pod / "cgroup.events").write_text(f"populated {populated}\nfrozen 0\n")
        assert Cgroups(tmp_path).state(UID) == state


def test_one_busy_tree_of_several_is_enough(tmp_path: Path) -> None:
    for controller in ("cpu", "memory", "unified"):
        (tmp_path / controller / "kubepods" / f"pod{UID}").mkdir(parents=True)
    (tmp_path / "memory" / "kubepods" / f"pod{UID}" / "cgroup.procs").write_text("7\n")
    assert Cgroups(tmp_path).state(UID) == BUSY


UNITS = st.dictionaries(st.integers(0, 3), st.integers(1, 15), min_size=1, max_size=4)


@settings(deadline=None)
@given(st.lists(st.tuples(UNITS, st.booleans()), max_size=20), st.sets(st.integers(0, 3)))
def test_whoever_is_let_in_in_whatever_order_no_gpu_has_more_than_it_holds(
    pods: list[tuple[dict[int, int], bool]], whole: set[int]
) -> None:
    """Pods come, some leave; each is admitted unless it is blocked, and blocked only where it does not fit."""
    sizes = {gpu: GpuCapacity(15, gpu in whole) for gpu in range(4)}
    inside: list[PodAllocation] = []
    for at, (units, leaves) in enumerate(pods):
        one = PodAllocation(f"u{at}", f"p{at}", units)
        blocked = blockers(one, inside, sizes)
        used = Counter[int]()
        for each in inside:
            used.update(each.units)
        full = {gpu for gpu, n in units.items() if used[gpu] + n > 15 or (gpu in whole and used[gpu])}
        assert blocked.keys() == full
        assert all({each.uid for each in there} == {each.uid for each in inside if gpu in each.units}
                   for gpu, there in blocked.items())  # fmt: skip
        if not blocked:
            inside.append(one)
            assert not blockers(one, inside, sizes), "no pod blocks itself"
        if leaves and inside:
            inside.pop(0)


def test_a_gpu_that_is_not_there_has_room_for_nobody() -> None:
    assert blockers(PodAllocation("u", "p", {7: 1}), (), {0: GpuCapacity(15)}) == {7: []}


PODS = st.dictionaries(st.text(min_size=1, max_size=8), UNITS, max_size=5)


@settings(deadline=None, max_examples=examples(30))
@given(PODS, PODS)
def test_the_file_brings_back_what_was_allocated(
    tmp_path_factory: pytest.TempPathFactory, pods: Any, candidates: Any
) -> None:
    file = AllocationFile(tmp_path_factory.mktemp("cdi") / "cdi" / NAME)
    record = AllocationRecord(*(
        {uid: PodAllocation(uid, f"default/{uid}", units) for uid, units in some.items()} for some in (pods, candidates)
    ))  # fmt: skip
    assert file.load() == AllocationRecord()
    file.save(record.allocated.values(), record.candidates.values())
    assert file.load() == record and file.path.exists() == bool(pods or candidates)
    if pods or candidates:
        assert file.path.stat().st_mode & 0o777 == 0o600 and [one.name for one in file.path.parent.iterdir()] == [NAME]
    file.save(())
    assert not file.path.exists()


@pytest.mark.parametrize(
    ("was_mib", "units", "now_mib", "counts"), [(1024, 4, 1, 4096), (1, 4097, 1024, 5), (256, 8, 1024, 2), (1024, 3, 1024, 3)]
)  # fmt: skip
def test_what_was_allocated_stays_the_same_memory_when_a_unit_is_another(
    tmp_path: Path, was_mib: int, units: int, now_mib: int, counts: int
) -> None:
    one = [PodAllocation("u", "p", {0: units})]
    AllocationFile(tmp_path / NAME, was_mib).save(one, one)
    record = AllocationFile(tmp_path / NAME, now_mib).load()
    assert record.allocated["u"].units == record.candidates["u"].units == {0: counts}


def test_a_file_without_its_unit_has_the_present_one(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"format":1,"pods":{"u":{"name":"p","units":{"1":7}}}}')
    assert AllocationFile(tmp_path / NAME, 256).load().allocated["u"].units == {1: 7}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format":2,"pods":{}}', '{"format":1,"pods":[]}', "\x00", "[" * 99999,
             '{"format":1,"unit_mib":-1,"pods":{"u":{"name":"p","units":{"1":1}}}}', '{"format":1,"unit_mib":0,"pods":{}}',
             '{"format":1,"pods":{"u":{"name":"p","units":{"x":1}}}}', '{"format":1,"pods":{"u":{"name":"p","units":3}}}',
             '{"format":1,"pods":{},"orphan_candidates":[]}'],
)  # fmt: skip
def test_an_unreadable_file_is_an_error_and_not_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(WorldError, match="cannot be read"):
        AllocationFile(tmp_path / NAME).load()


def quick(monkeypatch: pytest.MonkeyPatch, wait_s: float = 0.2) -> None:
    monkeypatch.setattr(gpu_admission, "WAIT_S", wait_s)
    monkeypatch.setattr(gpu_admission, "POLL_S", 0.01)


def run(scene: Callable[[], Any]) -> None:
    asyncio.run(scene())


async def started(found: Plugged, name: str, units: int, gpu: int = 0, **more: Any) -> dict[str, Any]:
    """A pod with one container, which got its GPU."""
    one = assumed(name, units, at=1, gpu=gpu, **more)
    await found.create(one)
    await found.kubelet.admit(one)
    await found.kubelet.start_container(f"uid-{name}", "c0")
    return one


async def force_deleted(found: Plugged, name: str) -> None:
    """Gone from the API server, its devices free, its processes there."""
    await found.api.remove("pods", "default", name)
    found.kubelet.forget(f"uid-{name}")
    await until(lambda: f"uid-{name}" not in found.plugin_service.plugin.pods.reflector.objects)


async def refused(found: Plugged, name: str) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await found.kubelet.start_container(f"uid-{name}", "c0")
    return str(caught.value.details())


pod_processes = pytest.mark.processes


@pod_processes
def test_a_container_waits_until_the_processes_of_a_force_deleted_pod_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch, 15)

    async def scene() -> None:
        async with plugged() as found:
            await found.ready()
            await started(found, "old", 15)
            await force_deleted(found, "old")
            new = assumed("new", 15, at=2)
            await found.create(new)
            await found.kubelet.admit(new)
            waiting = asyncio.create_task(found.kubelet.start_container("uid-new", "c0"))
            beside = await started(found, "beside", 15, gpu=1)
            assert beside and not waiting.done(), "who needs another GPU does not wait"
            cdi = found.kubelet.made[0].cdi[0]
            assert not found.warnings()
            found.kubelet.end("uid-old")
            made = await waiting
            assert made.cdi[0] == cdi and found.env(cdi)[names.POD] == "15"

    run(scene)


@pod_processes
def test_more_pods_than_a_gpu_holds_never_run_whoever_bound_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod that waits names the others and starts when it fits; restarted containers do not wait."""
    quick(monkeypatch)

    async def scene() -> None:
        async with plugged() as found:
            await found.ready()
            await started(found, "first", 10)
            late = assumed("late", 10, at=2)
            await found.create(late)
            await found.kubelet.admit(late)
            why = await refused(found, "late")
            assert "GPU 0 does not fit 10 units: 10 of 15 are allocated to default/first" in why
            assert why in [event["message"] for event in found.warnings()]
            assert [event["involvedObject"]["name"] for event in found.warnings()] == ["late"]
            assert len(list(found.plugin_service.settings.cdi.glob("*.json"))) == 1, "nothing was written for it"
            await found.kubelet.start_container("uid-first", "c0")
            await started(found, "small", 5)
            await found.api.change("pods", "default", "first", {"status": {"phase": "Succeeded"}}, status=True)
            await until(lambda: "uid-first" in found.plugin_service.plugin.pods.ended())
            await found.kubelet.start_container("uid-late", "c0")

    run(scene)


@pod_processes
def test_two_that_ask_at_once_do_not_both_get_the_room_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)

    async def scene() -> None:
        async with plugged() as found:
            await found.ready()
            for at, name in enumerate("abc"):
                one = assumed(name, 8, at=at)
                await found.create(one)
                await found.kubelet.admit(one)
            asked = [found.kubelet.start_container(f"uid-{name}", "c0") for name in "abc"]
            ends = await asyncio.gather(*asked, return_exceptions=True)
            assert sum(not isinstance(end, Exception) for end in ends) == 1

    run(scene)


@pod_processes
def test_containers_of_one_pod_and_its_init_containers_do_not_wait_for_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick(monkeypatch, 0)

    async def scene() -> None:
        async with plugged() as found:
            await found.ready()
            one = assumed("several", 5, 5, at=1, init=(15,))
            await found.create(one)
            await found.kubelet.admit(one)
            for name in ("i0", "i0", "c0", "c1", "c0"):
                await found.kubelet.start_container("uid-several", name)
            small = assumed("small", 1, at=2)
            await found.create(small)
            await found.kubelet.admit(small)
            assert "15 of 15" in await refused(found, "small"), "its whole holding counts"

    run(scene)


async def again(found: Plugged, change: Callable[[Path], None] = lambda path: None) -> Any:
    """As the next run of the plugin has it, on the same node, after a kill -9."""
    plugin_service = found.plugin_service
    change(plugin_service.admission.file.path)
    made = GpuAdmission(
        plugin_service.plugin.node_gpus.gpus,
        plugin_service.plugin.node_gpus.units,
        plugin_service.plugin.pods,
        plugin_service.folder,
        plugin_service.admission.file,
        plugin_service.admission.cgroups,
        found.logged.append,
    )
    await made.refresh()
    return made


@pod_processes
def test_what_was_given_outlives_the_plugin_and_a_lost_file(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)

    async def scene() -> None:
        async with plugged() as found:
            await found.ready()
            await started(found, "orphan", 15, gpu=1)
            await started(found, "begun", 4)
            await started(found, "runs", 3)
            await found.api.change("pods", "default", "runs", {"status": {"phase": "Running"}}, status=True)
            await found.api.remove("pods", "default", "orphan")
            objects = found.plugin_service.plugin.pods.reflector.objects
            await until(lambda: "uid-orphan" not in objects and objects["uid-runs"]["status"]["phase"] == "Running")
            kept = await again(found)
            assert {uid: dict(one.units) for uid, one in kept.allocated.items()} == {
                "uid-orphan": {1: 15}, "uid-begun": {0: 4}, "uid-runs": {0: 3},
            }  # fmt: skip
            assert kept.orphans.keys() == {"uid-orphan"}
            for damage in (Path.unlink, lambda path: path.write_text("{")):
                lost = await again(found, damage)
                assert {uid: dict(one.units) for uid, one in lost.allocated.items()} == {
                    "uid-orphan": {1: 15},
                    "uid-runs": {0: 3},
                }
                assert {one.uid for one in lost._others()} == {"uid-orphan", "uid-runs", "uid-begun"}, "by its mark"
            assert any("cannot be read" in line for line in found.logged)
            assert any("pod uid-orphan is deleted and its processes still run" in line for line in found.logged)
            found.kubelet.end("uid-orphan")
            assert "uid-orphan" not in (await again(found)).allocated

    run(scene)


@pod_processes
def test_what_a_killed_plugin_left_half_written_is_removed_at_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of others: the DRA driver writes into the same folder."""
    quick(monkeypatch)
    put = os.replace

    async def scene() -> None:
        async with plugged() as found:
            cdi = found.plugin_service.settings.cdi
            await found.ready()
            await started(found, "runs", 2)
            before = {path.name for path in cdi.iterdir()}
            monkeypatch.setattr(os, "replace", lambda old, new: None)  # as killed just before
            found.plugin_service.plugin.cdi_files.put("gx", {})
            found.plugin_service.admission.file.save([PodAllocation("u", "p", {0: 1})])
            monkeypatch.setattr(os, "replace", put)
            other = cdi / ".tidewright-dra-x"
            other.write_text("{")
            assert len(list(cdi.iterdir())) == len(before) + 3
            PluginService(
                found.plugin_service.api.cluster,
                found.plugin_service.settings,
                found.plugin_service.gpus,
                found.logged.append,
            )
            assert {path.name for path in cdi.iterdir()} == before | {other.name}

    run(scene)


@pod_processes
def test_where_no_cgroups_can_be_seen_the_api_server_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)

    async def scene() -> None:
        async with plugged() as found:
            found.kubelet.cgroups = None
            await found.ready()
            await started(found, "old", 15)
            await force_deleted(found, "old")
            await started(found, "new", 15)
            await force_deleted(found, "new")
            await started(found, "newer", 15)
            assert sum("no cgroups of pods" in line for line in found.logged) == 1

    run(scene)


@pod_processes
def test_an_orphaned_pod_is_not_warned_or_evicted_and_its_share_is_not_free() -> None:
    async def scene() -> None:
        async with plugged(watch_s=0.05) as found:
            await found.ready()
            await started(found, "orphan", 6)
            await force_deleted(found, "orphan")
            memory_guard, inventory = (
                found.plugin_service.memory_guard,
                lambda: json.loads(found.node["metadata"]["annotations"][names.TABLE]),
            )
            await until(lambda: dict(memory_guard.foreign) == {0: 6})
            assert memory_guard.holdings() == {("uid-orphan", 0): 6 * 1024}
            await until(lambda: "6" in json.dumps(inventory()))
            assert not found.warnings()
            found.kubelet.end("uid-orphan")
            await until(lambda: dict(memory_guard.foreign) == {})
            assert memory_guard.holdings() == {}

    run(scene)


@pod_processes
def test_a_plugin_that_ends_takes_its_cdi_files_along_and_the_file_when_nobody_is_left() -> None:
    async def scene() -> None:
        async with plugged() as found:
            await found.ready()
            await started(found, "stays", 6)
            strange = found.plugin_service.settings.cdi / "nvidia.yaml"
            strange.write_text("cdiVersion: 0.5.0\n")
            found.plugin_service.stop()
            await until(lambda: any("removed 1 CDI files" in line for line in found.logged))
            await until(lambda: any("stays: 1 pods have GPUs" in line for line in found.logged))
            left = {path.name for path in found.plugin_service.settings.cdi.iterdir()}
            assert left == {NAME, strange.name}
            found.kubelet.end("uid-stays")
            await found.api.remove("pods", "default", "stays")
        async with plugged() as found:
            await found.ready()
            await started(found, "goes", 6)
            await found.api.remove("pods", "default", "goes")
            found.kubelet.end("uid-goes")
            await until(lambda: not found.plugin_service.plugin.pods.known())
            found.plugin_service.stop()
            await until(lambda: any("removed 1 CDI files" in line for line in found.logged))
            await until(lambda: not list(found.plugin_service.settings.cdi.iterdir()))

    run(scene)
