"""Pods that use more GPU memory than they asked for: warned, then evicted; all others are left alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kube.extending import until
from tests.kube.test_plugin_pure import Nvml, assumed
from tests.kube.test_plugin_served import Plugged, plugged
from tidewright.base.errors import UsageError, WorldError
from tidewright.devices.excess import Rules, Watchdog
from tidewright.kube.allocation.units import UnitSize
from tidewright.kube.isolation.gpu_processes import foreign_units, pod_in, sight
from tidewright.kube.isolation.memory_guard import EVICTED, REASON
from tidewright.kube.node.gpus import Gpu, GpuProcess
from tidewright.kube.node.kubelet import CHECKPOINT
from tidewright.kube.node.nvidia import NvidiaGpus
from tidewright.kube.objects import names
from tidewright.kube.objects.gpu_inventory import read_gpu_inventory
from tidewright.kube.objects.usage import used_on

UID = "0b3c1f6e-8f5a-4b77-9d0e-7f2a4c9b1d10"
OTHER = "11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize(("text", "uid"), [
    (f"0::/kubepods/burstable/pod{UID}/3f2c\n", UID),
    (f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-3f.scope", UID),
    (f"0::/kubelet/kubepods/pod{OTHER}/kubelet/kubepods/pod{UID}/x", UID),
    (f"12:memory:/kubepods/pod{UID}\n1:name=systemd:/kubepods/pod{UID}\n", UID),
    ("0::/kubepods/pod0123456789abcdef0123456789abcdef/x", "0123456789abcdef0123456789abcdef"),
    ("0::/system.slice/docker-77.scope", ""), ("0::/user/podcast/x", ""), (f"0::/podx{UID}/", ""), ("", ""),
])  # fmt: skip
def test_the_pod_of_a_process(text: str, uid: str) -> None:
    assert pod_in(text) == uid


def test_uses_are_summed_by_pod_and_what_is_not_seen_is_said() -> None:
    homes = {1: "a", 2: "a", 3: "", 4: "b"}
    found = sight(
        [
            GpuProcess(0, 1, 10),
            GpuProcess(0, 2, 5),
            GpuProcess(1, 2, 7),
            GpuProcess(0, 3, 3),
            GpuProcess(1, 4, 1),
            GpuProcess(1, 99, 2),
        ],
        homes.get,
    )
    assert dict(found.pods) == {("a", 0): 15, ("a", 1): 7, ("b", 1): 1}
    assert dict(found.outside) == {0: 3, 1: 2} and not found.blind
    assert sight([GpuProcess(0, 99, 1)], homes.get).blind and not sight([], homes.get).blind


def steps(dog: Watchdog, now_s: float, mib: int) -> list[str]:
    return [step.kind for step in dog.look(now_s, {("a", 0): mib, ("b", 0): 4096}, {("a", 0): 1024, ("b", 0): 4096})]


def test_a_warning_comes_first_and_an_eviction_that_was_refused_again() -> None:
    dog = Watchdog(Rules("evict", slack_mib=100, patience_s=30, grace_s=60))
    assert steps(dog, 0, 1125) == [] and steps(dog, 29, 1125) == []
    assert steps(dog, 30, 1125) == ["warn"] and steps(dog, 89, 1125) == []
    assert steps(dog, 90, 1125) == ["evict"] and steps(dog, 149, 1125) == [] and steps(dog, 150, 1125) == ["evict"]
    assert steps(dog, 151, 1124) == ["calm"] and steps(dog, 152, 1124) == []
    assert steps(dog, 153, 1125) == [], "a new case has its own patience"
    dog = Watchdog(Rules("warn", 0, 0, 0))
    assert [steps(dog, at, 2000) for at in range(3)] == [["warn"], [], []], "told to warn only"


def test_a_pod_has_no_right_to_gpus_that_were_not_chosen_for_it() -> None:
    dog = Watchdog(Rules("evict", 0, 0, 0))
    [step] = dog.look(0.0, {("a", 1): 5, ("stranger", 1): 500}, {("a", 0): 1024})
    assert (step.uid, step.gpu, step.allowed_mib) == ("a", 1, 0), "pods that hold none of ours are not judged"


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 3000)), max_size=30),
    st.integers(0, 300), st.integers(0, 5), st.integers(0, 5),
)  # fmt: skip
def test_nobody_is_evicted_unwarned_and_bystanders_never_told(
    looks: list[dict[str, int]], slack: int, patience: int, grace: int
) -> None:
    dog, allowed = Watchdog(Rules("evict", slack, patience, grace)), {(uid, 0): 1000 for uid in "abc"}
    since: dict[str, int] = {}
    warned: dict[str, int] = {}
    for now, used in enumerate(looks):
        over = {uid for uid, mib in used.items() if mib > 1000 + slack}
        since = {uid: since.get(uid, now) for uid in over}
        for step in dog.look(now, {(uid, 0): mib for uid, mib in used.items()}, allowed):
            if step.kind == "calm":
                assert step.uid not in over and warned.pop(step.uid) is not None
                continue
            assert step.uid in over and now - since[step.uid] >= patience
            if step.kind == "evict":
                assert now - warned[step.uid] >= grace
            else:
                warned[step.uid] = now
        warned = {uid: at for uid, at in warned.items() if uid in over}


@pytest.mark.parametrize(("mib", "units"), [(0, 0), (500, 0), (773, 0), (774, 1), (1797, 1), (1798, 2), (99_999, 14)])
def test_what_is_too_little_for_a_unit_goes_to_others_first(mib: int, units: int) -> None:
    assert foreign_units(Gpu(0, "u", 15109), 14, mib, UnitSize()) == units


@pytest.mark.parametrize("wrong", [("kill", 0, 0, 0), ("warn", -1, 0, 0), ("warn", 0, -1.0, 0)])
def test_rules_that_make_no_sense(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError):
        Rules(*wrong)


def test_processes_by_nvml_each_once() -> None:
    nvml = Nvml()
    nvml.nvmlDeviceGetComputeRunningProcesses = lambda at: [SimpleNamespace(pid=7 + at, usedGpuMemory=3 << 20)]
    nvml.nvmlDeviceGetGraphicsRunningProcesses = lambda at: [SimpleNamespace(pid=7, usedGpuMemory=3 << 20)]
    gpus = NvidiaGpus(nvml)
    assert sorted(gpus.uses(), key=repr) == [GpuProcess(0, 7, 3), GpuProcess(1, 7, 3), GpuProcess(1, 8, 3)]
    nvml.lost = {1}
    gpus.faults()
    assert gpus.uses() == [GpuProcess(0, 7, 3)]
    nvml.nvmlDeviceGetGraphicsRunningProcesses = lambda at: [SimpleNamespace(pid=7, usedGpuMemory=None)]
    with pytest.raises(WorldError, match="does not tell"):
        gpus.uses()


def live(proc: Path, pid: int, uid: str) -> None:
    """A process of that pod, or of none."""
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "cgroup").write_text(f"0::/kubepods/pod{uid}/c\n" if uid else "0::/system.slice/x\n")


async def watched(found: Plugged, proc: Path, seeing: bool = True) -> None:
    """Ready, and looking at these processes. ``seeing``: from the node's pid namespace."""
    for name, home in (
        ("1", "/init.scope" if seeing else f"/kubepods/pod{UID}/us"),
        ("self", f"/kubepods/pod{UID}/us"),
    ):
        (proc / name).mkdir()
        (proc / name / "cgroup").write_text(f"0::{home}\n")
    found.plugin_service.memory_guard.proc = proc
    await found.ready()


def foreign(found: Plugged) -> list[int]:
    """By GPU, in the node's table."""
    return [card.foreign for card in read_gpu_inventory(found.node).cards]


@pytest.mark.processes
def test_the_offender_is_warned_then_evicted_and_its_neighbour_stays(tmp_path: Path) -> None:
    async def scene() -> None:
        async with plugged(rules=Rules("evict", 0, 0.1, 0.3), watch_s=0.05) as found:
            await watched(found, tmp_path)
            for uid, name in ((UID, "greedy"), (OTHER, "modest")):
                one = assumed(name, 3, at=1)
                one["metadata"]["uid"] = uid
                await found.create(one)
            live(tmp_path, 41, UID)
            live(tmp_path, 42, OTHER)
            live(tmp_path, 43, "")
            found.gpus.used = [GpuProcess(0, 41, 2000), GpuProcess(0, 42, 3072), GpuProcess(1, 43, 2000)]
            await until(lambda: foreign(found) == [0, 2])
            assert found.node["metadata"]["annotations"][names.LEVEL] == "L1 cooperative, L0 watchdog (evicts)"
            assert used_on(found.node) == {UID: {0: 2000}, OTHER: {0: 3072}}
            assert not found.warnings(), "all keep to what they asked for"
            found.gpus.used[0] = GpuProcess(0, 41, 3073)
            await until(lambda: ("pods", "default", "greedy") not in found.api.store.objects)
            await until(lambda: len(found.warnings()) == 2)
            told = [(event["involvedObject"]["name"], event["reason"]) for event in found.warnings()]
            assert sorted(told) == [("greedy", EVICTED), ("greedy", REASON)]
            warning = next(event["message"] for event in found.warnings() if event["reason"] == REASON)
            assert "3073 MiB of GPU 0 of n and asked for 3072 MiB" in warning
            await asyncio.sleep(0.5)
            assert ("pods", "default", "modest") in found.api.store.objects and len(found.warnings()) == 2

    asyncio.run(scene())


@pytest.mark.processes
def test_gpus_that_another_plugin_gave_away_are_nobody_elses() -> None:
    async def scene() -> None:
        async with plugged("3x15", rules=Rules("off"), watch_s=0.05) as found:
            await found.ready()
            for name in ("u", "v"):
                await found.create(
                    {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {"nodeName": "n"}}
                )
            found.kubelet.others = [("u", "c", ["GPU-fake-0001"]), ("v", "c", ["GPU-fake-0002::3", "GPU-strange"])]
            found.kubelet.save()
            await until(lambda: foreign(found) == [0, 15, 15])
            await found.api.change("pods", "default", "v", {"status": {"phase": "Succeeded"}}, status=True)
            await until(lambda: foreign(found) == [0, 15, 0])
            await found.api.remove("pods", "default", "u")
            await until(lambda: foreign(found) == [0, 0, 0])

    asyncio.run(scene())


@pytest.mark.processes
def test_a_watchdog_that_cannot_see_says_so(tmp_path: Path) -> None:
    async def scene() -> None:
        async with plugged(rules=Rules("evict", 0, 0, 0), watch_s=0.05) as found:
            await watched(found, tmp_path, seeing=False)
            one = assumed("a", 3, at=1)
            await found.create(one)
            found.gpus.used = [GpuProcess(0, 41, 9000)]
            await until(lambda: "hostPID" in found.node["metadata"]["annotations"][names.LEVEL])
            await asyncio.sleep(0.2)
            assert foreign(found) == [0, 0], "it may be our own pod's"
            assert not found.warnings() and any("hostPID" in line for line in found.logged)
            assert used_on(found.node) is None

    asyncio.run(scene())


@pytest.mark.processes
def test_a_look_that_fails_forgets_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with plugged(rules=Rules("warn"), watch_s=0.05) as found:
            await watched(found, tmp_path)
            live(tmp_path, 43, "")
            found.gpus.used = [GpuProcess(1, 43, 2000)]
            await until(lambda: foreign(found) == [0, 2])
            found.gpus.silent = "the driver is busy"
            found.kubelet.folder.joinpath(CHECKPOINT).write_text("{")
            await until(lambda: "busy" in found.node["metadata"]["annotations"][names.LEVEL])
            await asyncio.sleep(0.2)
            assert foreign(found) == [0, 2]

    asyncio.run(scene())
