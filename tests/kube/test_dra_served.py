"""The DRA driver against a kubelet's half and an API server, over real sockets: from publishing to giving back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.kube.driving import (
    NODE,
    POD,
    claim,
    driving,
    isolation,
    pod,
    result,
    seen_from_the_node,
    settings_in,
    started,
)
from tests.kube.extending import PATIENCE_S, until
from tests.kube.test_command import TIDE, kubeconfig
from tests.kube.test_dra_slices import DRA
from tidewright.base.errors import UsageError
from tidewright.devices.excess import Rules
from tidewright.kube.client.api import KubeClient
from tidewright.kube.client.credentials import Cluster
from tidewright.kube.dra.protocol import DRIVER, messages
from tidewright.kube.dra.service import DraService
from tidewright.kube.dra.slice_publisher import SlicePublisher
from tidewright.kube.dra.slices import TAINT
from tidewright.kube.isolation.memory_guard import EVICTED
from tidewright.kube.node.gpus import GpuProcess
from tidewright.kube.node.partitions import FakePartitions, MigPlacement
from tidewright.kube.objects import names
from tidewright.testing.kube_api import FakeApi
from tidewright.testing.kubelet_dra import FakeDraKubelet

pytestmark = pytest.mark.processes
OTHER = "409bf36d-9424-41fd-99cc-d01aa4c57259"


def scene(what: Any) -> None:
    asyncio.run(what())


def recorded() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Claims and calls of a real cluster, under our driver's name."""
    text = (DRA / "claims.json").read_text().replace("gpu.lab.local", DRIVER)
    calls = (DRA / "python-driver-rpcs.jsonl").read_text().splitlines()
    return json.loads(text)["items"], [json.loads(line) for line in calls]


def test_the_recorded_calls_of_a_real_kubelet() -> None:
    async def main() -> None:
        claims, calls = recorded()
        async with driving() as found:
            for one in claims:
                await found.api.create("resourceclaims", one)
            await found.ready()
            for call in calls[2:]:
                asked = [(one["namespace"], one["name"], one["uid"]) for one in call["request"]["claims"]]
                if call["rpc"] == "NodeUnprepareResources":
                    assert await found.kubelet.unprepare(*asked) == {asked[0][2]: ""}
                    continue
                for uid, answer in (await found.kubelet.prepare(*asked)).items():
                    [want], [device] = call["response"]["claims"][uid]["devices"], answer.devices
                    assert not answer.error
                    told = [list(device.request_names), device.pool_name, device.device_name, device.share_id]
                    assert told == [want[name] for name in ("requestNames", "poolName", "deviceName", "shareId")]
                    env = found.env(device.cdi_device_ids[0])
                    assert env[names.VISIBLE] == f"GPU-fake-000{device.device_name[-1]}"
                    assert env["TIDEWRIGHT_GPU_MEMORY_FRACTION"] == "0.466"
            assert [name for name, _ in found.kubelet.calls] == [call["rpc"] for call in calls]
            assert not list((found.root / "cdi").iterdir()) and not found.driver.preparer.records.load()

    scene(main)


def test_what_the_node_says_of_itself() -> None:
    async def main() -> None:
        async with driving("1x24+1x16+1x10mig") as found:
            await found.ready()
            [parts], devices = found.gpus.parents(), found.devices()
            assert set(devices) > {"gpu-0", "gpu-1"} and parts.index == 2
            assert devices["gpu-1"]["allowMultipleAllocations"] is True
            info = found.kubelet.calls[0]
            assert info[0] == "GetInfo" and found.driver.sockets.registered
            for path in (found.driver.places.found, found.driver.places.asked):
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
            await until(lambda: found.driver.level() != "none")
            await until(lambda: names.LEVEL in found.api.store.objects["nodes", "", NODE]["metadata"]["annotations"])
            log = found.api.store.objects["nodes", "", NODE]["metadata"]["annotations"][names.LEVEL]
            assert log == "L5 MIG, L1 cooperative, L0 watchdog (warns)"
            await until(lambda: any(kind == "events" for kind, *_ in found.api.store.objects))

    scene(main)


def test_a_sick_gpu_is_tainted_and_comes_back() -> None:
    async def main() -> None:
        async with driving() as found:
            await found.ready()
            found.gpus.sick[1] = "XID 79"
            await until(lambda: found.devices().get("gpu-1", {}).get("taints"))
            [taint] = found.devices()["gpu-1"]["taints"]
            assert TAINT.items() <= taint.items() and "taints" not in found.devices()["gpu-0"]
            assert found.slices()[0]["spec"]["pool"]["generation"] == 2
            found.gpus.sick.clear()
            await until(lambda: "taints" not in found.devices().get("gpu-1", {"taints": 1}))
            assert len(found.slices()) == 1 and found.slices()[0]["spec"]["pool"]["generation"] == 3

    scene(main)


def test_slices_that_others_delete_change_or_left_behind() -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory(prefix="tide-") as name:
            async with FakeApi().served() as api:
                await api.create("nodes", {"metadata": {"name": NODE, "annotations": {}}, "status": {}})
                about = {"name": NODE, "generation": 41, "resourceSliceCount": 2}
                old = {"driver": DRIVER, "nodeName": NODE, "pool": about, "devices": [{"name": "gpu-9"}]}
                for stem in ("old-a", "old-b"):
                    await api.create("resourceslices", {"metadata": {"name": stem}, "spec": old})
                for stem, spec in (("theirs", {**old, "driver": "gpu.other"}), ("away", {**old, "nodeName": "other"})):
                    await api.create("resourceslices", {"metadata": {"name": stem}, "spec": spec})
                conflicts = iter(range(2))
                api.mischief.decide = lambda method, path: "after" if next(conflicts, None) is not None else ""
                async with started(api, Path(name), FakePartitions("2x15")) as found:
                    mine = f"{NODE}-{DRIVER}-devices-0"
                    await until(lambda: sorted(one["metadata"]["name"] for one in found.slices()) == sorted(
                        ["away", "theirs", mine]))  # fmt: skip
                    seen = found.api.store.objects["resourceslices", "", mine]["spec"]["pool"]["generation"]
                    assert seen > 41
                    await api.remove("resourceslices", "", mine)
                    await until(lambda: ("resourceslices", "", mine) in api.store.objects)
                    await api.change("resourceslices", "", mine, {"spec": {"devices": None, "sharedCounters": None}})
                    spec = ("resourceslices", "", mine)
                    await until(lambda: len(api.store.objects[spec]["spec"].get("devices") or ()) == 2)
                    last = api.store.objects[spec]["spec"]["pool"]["generation"]
                    assert last > seen + 1
                    for stem in ("theirs", "away"):
                        assert api.store.objects["resourceslices", "", stem]["spec"]["pool"]["generation"] == 41
                writes = [one for one in api.requests if "resourceslices" in one[1]]
                async with started(api, Path(name), FakePartitions("2x15")) as again:
                    await until(again.driver.slices.synced.is_set)
                    await asyncio.sleep(0.2)
                assert [one for one in api.requests if "resourceslices" in one[1]] == writes, (
                    "nothing to say, nothing said"
                )

    scene(main)


def test_a_conflict_is_tried_again_at_once_with_what_is_there_then() -> None:
    async def main() -> None:
        async with FakeApi().served() as api, KubeClient(Cluster(api.url)) as client:
            await api.create("nodes", {"metadata": {"name": NODE}})
            publisher, devices = SlicePublisher(client, NODE, lambda text: None), [{"name": "gpu-0"}]
            assert await publisher.sync(lambda taints: [{"devices": devices}])
            [key] = [key for key in api.store.objects if key[0] == "resourceslices"]

            def first(method: str, path: str) -> str:
                """Somebody else writes between our look and our write, with a higher generation."""
                api.mischief.decide = lambda method, path: ""
                other = api.store.objects[key]
                about = {**other["spec"]["pool"], "generation": 7}
                api.store.put("resourceslices", {**other, "spec": {**other["spec"], "pool": about}}, "MODIFIED")
                return ""

            api.mischief.decide = first
            devices = [{"name": "gpu-0"}, {"name": "gpu-1"}]
            assert await publisher.sync(lambda taints: [{"devices": devices}])
            spec = api.store.objects[key]["spec"]
            assert (spec["pool"]["generation"], spec["devices"]) == (8, devices)
            assert not await publisher.sync(lambda taints: [{"devices": devices}]), "nothing to say"

    scene(main)


def test_the_kubelet_is_served_while_the_api_server_is_away() -> None:
    async def main() -> None:
        async with driving() as found:
            await found.ready()
            one = await found.claim("a", result("gpu-0", "7Gi", "40"))
            before = await found.kubelet.prepare(one)
            found.api.mischief.down = True
            assert await found.kubelet.prepare(one) == before, "what was given is written down"
            unknown = await found.kubelet.prepare(("default", "b", "uid-b"))
            assert "503" in unknown["uid-b"].error
            assert await found.kubelet.unprepare(one) == {one[2]: ""}
            found.gpus.sick[0] = "lost"
            await until(lambda: any("not published" in line for line in found.logged))
            found.api.mischief.down = False
            await until(lambda: found.devices().get("gpu-0", {}).get("taints"))

    scene(main)


@pytest.mark.parametrize(("release", "off", "match"), [
    ("v1.33.9", (), "has no resource.k8s.io/v1"), ("", (), "has no resource"),
    ("v1.34.2", ("DRAConsumableCapacity",), "DRAConsumableCapacity is off"),
    ("v1.35.0", ("DRAPartitionableDevices",), "DRAPartitionableDevices is off"),
])  # fmt: skip
def test_clusters_that_cannot_do_it(release: str, off: tuple[str, ...], match: str) -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory(prefix="tide-") as name:
            async with FakeApi().served() as api:
                api.release, api.gates_off = release, set(off)
                await api.create("nodes", {"metadata": {"name": NODE}})
                gpus, said = FakePartitions("1x15+1x80mig"), []
                chosen = settings_in(Path(name))
                with pytest.raises(UsageError, match=match) as refused:
                    async with asyncio.timeout(PATIENCE_S):
                        await DraService(Cluster(api.url), chosen, gpus, gpus, said.append).run()
                assert refused.value.remedy
                assert not [key for key in api.store.objects if key[0] == "resourceslices"], "no half promises stay"

    scene(main)


def test_an_api_server_without_taints_is_not_told_of_sick_gpus() -> None:
    async def main() -> None:
        async with driving() as found:
            found.api.gates_off = {"DRADeviceTaints"}
            found.api.release = "v1.35.1"
            await found.ready()
            assert any("DRAConsumableCapacity must be on" in line for line in found.logged)
            found.gpus.sick[0] = "XID 79"
            await until(lambda: list(found.devices()) == ["gpu-1"])
            found.gpus.sick.clear()
            await until(lambda: len(found.devices()) == 2)

    scene(main)


def test_sockets_that_vanish_and_kubelets_that_refuse() -> None:
    async def main() -> None:
        async with driving() as found:
            await found.ready()
            sockets = (found.driver.places.found, found.driver.places.asked)
            for path in sockets:
                path.unlink()
                await until(lambda: all(one.exists() for one in sockets))  # both are made anew, one after the other
                assert await found.kubelet.look()
            found.kubelet.refuse = "not today"
            assert not await found.kubelet.look()
            await until(lambda: any("NOT registered: not today" in line for line in found.logged))

    scene(main)


def test_a_restart_of_the_driver_in_the_middle_of_it() -> None:
    """Dynamic instances, too: nothing is made twice, and what was made before goes when it is given back."""

    async def main() -> None:
        there: set[MigPlacement] = set()
        with tempfile.TemporaryDirectory(prefix="tide-") as name:
            async with FakeApi().served() as api:
                await api.create("nodes", {"metadata": {"name": NODE, "annotations": {}}, "status": {}})
                for stem, one in (("share", result("gpu-0", "7Gi")), ("part", result("gpu-1-mig-9-4-4"))):
                    await api.create("resourceclaims", claim(stem, one, uid=f"uid-{stem}"))
                asked = [("default", stem, f"uid-{stem}") for stem in ("share", "part")]
                async with started(api, Path(name), FakePartitions("1x15+1x80mig", there)) as found:
                    await found.ready()
                    before = await found.kubelet.prepare(*asked)
                    assert not any(one.error for one in before.values())
                    assert [one.name for one in there] == ["gpu-1-mig-9-4-4"]
                    [device] = before["uid-part"].devices
                    assert found.env(device.cdi_device_ids[0]) == {names.VISIBLE: "MIG-fake-gpu-1-mig-9-4-4"}
                    assert not device.HasField("share_id")
                for path in (Path(name) / "cdi").iterdir():
                    path.unlink()  # the node was restarted: /var/run is empty
                async with started(api, Path(name), FakePartitions("1x15+1x80mig", there)) as found:
                    await found.ready()
                    assert await found.kubelet.prepare(*asked) == before and len(there) == 1
                    assert found.env(device.cdi_device_ids[0])
                async with started(api, Path(name), FakePartitions("1x15+1x80mig", there)) as found:
                    await found.ready()
                    assert await found.kubelet.unprepare(*asked) == {uid: "" for *_, uid in asked}
                    assert not there and not list((Path(name) / "cdi").iterdir())
                    assert await found.kubelet.unprepare(*asked) == {uid: "" for *_, uid in asked}

    scene(main)


def test_pods_that_share_a_claim_or_have_several_are_watched_by_what_they_were_given(tmp_path: Path) -> None:
    async def main() -> None:
        rules = Rules("evict", 0, 0.05, 0.05)
        async with driving(rules=rules, watch_s=0.05) as found:
            found.driver.memory_guard.proc = seen_from_the_node(tmp_path)
            await found.ready()
            first = await found.claim("first", result("gpu-0", "2Gi"))
            second = await found.claim("second", result("gpu-0", "1Gi"), result("gpu-1", "1Gi", request="b"))
            for one in (pod("both", POD, "first", "second"), pod("late", OTHER, "second")):
                await found.api.create("pods", one)
            assert not any(one.error for one in (await found.kubelet.prepare(first, second)).values())
            await until(lambda: len(found.driver.pods.known()) == 2)
            assert found.driver.memory_guard.holdings() == {
                (POD, 0): 3072, (POD, 1): 1024, (OTHER, 0): 1024, (OTHER, 1): 1024,
            }  # fmt: skip
            for pid, uid in ((41, POD), (42, OTHER)):
                (tmp_path / str(pid)).mkdir()
                (tmp_path / str(pid) / "cgroup").write_text(f"0::/kubepods/pod{uid}/c\n")
            found.gpus.used = [GpuProcess(0, 41, 3072), GpuProcess(0, 42, 1025)]
            await until(lambda: ("pods", "default", "late") not in found.api.store.objects)
            await until(lambda: any(
                item["reason"] == EVICTED for (kind, *_), item in found.api.store.objects.items() if kind == "events"
            ))  # fmt: skip
            assert ("pods", "default", "both") in found.api.store.objects
            await found.kubelet.unprepare(first)
            assert found.driver.memory_guard.holdings()[POD, 0] == 1024

    scene(main)


def test_limits_by_cgroup_are_set_before_the_pod_starts_and_cover_all_its_claims() -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory(prefix="tide-") as name:
            root, gpus = Path(name), FakePartitions("2x15")
            gpus.no_limits = ""
            (root / "cgroup" / "kubepods").mkdir(parents=True)
            (root / "cgroup" / "cgroup.controllers").write_text("")
            async with FakeApi().served() as api:
                await api.create("nodes", {"metadata": {"name": NODE, "annotations": {}}, "status": {}})
                async with started(api, root, gpus, isolation=isolation(root, "driver")) as found:
                    await found.ready()
                    one = await found.claim("one", result("gpu-0", "2Gi"))
                    two = await found.claim("two", result("gpu-0", "1Gi"), pods=(POD, OTHER))
                    answer = await found.kubelet.prepare(one)
                    assert "no cgroup of pod" in answer[one[2]].error
                    folder = root / "cgroup" / "kubepods" / f"pod{POD}"
                    folder.mkdir()
                    answer = await found.kubelet.prepare(one, two)
                    assert not any(each.error for each in answer.values()), "the second pod of two is not here yet"
                    assert gpus.limits == {(0, folder): 3072}

    scene(main)


def test_a_driver_that_is_killed_between_writing_and_answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every step of preparing: the next driver ends it, or takes it back, and another claim can have the part."""

    class Killed(BaseException):
        pass

    async def main(step: str, back: bool) -> None:
        there: set[MigPlacement] = set()
        with tempfile.TemporaryDirectory(prefix="tide-") as name:
            async with FakeApi().served() as api:
                await api.create("nodes", {"metadata": {"name": NODE, "annotations": {}}, "status": {}})
                gpus = FakePartitions("1x80mig", there)
                asked = ("default", "part", "uid-part")
                await api.create("resourceclaims", claim("part", result("gpu-0-mig-9-0-4"), uid="uid-part"))
                async with started(api, Path(name), gpus) as found:
                    await found.ready()
                    preparer = found.driver.preparer
                    targets = {
                        "note": preparer.records,
                        "make": gpus,
                        "file": preparer.cdi_files,
                        "limit": preparer.ladder,
                    }
                    calls = {"note": "put", "make": "make", "file": "put", "limit": "hold_one"}
                    real = getattr(targets[step], calls[step])

                    def die(*given: Any) -> None:
                        real(*given)
                        raise Killed

                    with monkeypatch.context() as patch:
                        patch.setattr(type(targets[step]), calls[step], lambda self, *given: die(*given))
                        with pytest.raises(Killed):
                            kind = messages()[1].Claim
                            given = await preparer._read(kind(namespace=asked[0], name=asked[1], uid=asked[2]))
                            await preparer._prepare(given)
                async with started(api, Path(name), FakePartitions("1x80mig", there)) as found:
                    await found.ready()
                    if back:
                        assert await found.kubelet.unprepare(asked) == {"uid-part": ""}
                        assert not there
                        asked = await found.claim("next", result("gpu-0-mig-5-0-4"))
                    answer = (await found.kubelet.prepare(asked))[asked[2]]
                    assert not answer.error and found.env(answer.devices[0].cdi_device_ids[0])
                    assert len(there) == 1

    for step, back in (("note", False), ("make", True), ("limit", False), ("file", False)):
        asyncio.run(main(step, back))


def test_the_command_killed_and_started_again() -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory(prefix="tide-") as name:
            root = Path(name)
            (root / "registry").mkdir()
            async with FakeApi().served() as api:
                await api.create("nodes", {"metadata": {"name": NODE, "annotations": {}}, "status": {}})
                await api.create("resourceclaims", claim("a", result("gpu-0", "7Gi", "40"), uid="uid-a"))
                options = [
                    "--kubeconfig",
                    str(kubeconfig(root / "config", api.url)),
                    "--node",
                    NODE,
                    "--fake-gpus",
                    "1x15",
                ]
                for option, folder in (
                    ("cdi", "cdi"),
                    ("plugins", "plugins"),
                    ("registry", "registry"),
                    ("cgroup", "none"),
                ):
                    options += [f"--{option}-dir", str(root / folder)]
                kubelet, answers = FakeDraKubelet(root / "registry"), []
                for number in (signal.SIGKILL, signal.SIGTERM):
                    running = await asyncio.create_subprocess_exec(
                        TIDE, "kube", "dra", *options, stderr=asyncio.subprocess.PIPE
                    )
                    try:
                        assert running.stderr is not None
                        while line := await running.stderr.readline():
                            if b"listens on" in line:
                                break
                        assert await kubelet.look()
                        answers.append(await kubelet.prepare(("default", "a", "uid-a")))
                        running.send_signal(number)
                        assert await running.wait() == (0 if number == signal.SIGTERM else -number)
                    finally:
                        if running.returncode is None:
                            running.kill()
                            await running.wait()
                assert answers[0] == answers[1] and not answers[0]["uid-a"].error

    scene(main)


def test_a_path_too_long_for_a_socket_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        root = tmp_path / ("x" * 100)
        os.mkdir(root)
        async with FakeApi().served() as api:
            with pytest.raises(UsageError, match="too long"):
                async with started(api, root, FakePartitions("1x15")):
                    pass

    scene(main)
