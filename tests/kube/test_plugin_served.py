"""The device plugin against a kubelet that speaks the real protocol over real sockets, and an API server beside it."""

from __future__ import annotations

import asyncio
import json
import random
import stat
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.kube.extending import extending, until
from tests.kube.objects import pod
from tests.kube.test_plugin_pure import RECORDED, assumed
from tidewright.base.errors import UsageError
from tidewright.kube.allocation.units import UnitSize, gpu_of
from tidewright.kube.client.api import KubeClient, NoAnswer
from tidewright.kube.client.credentials import Cluster
from tidewright.kube.isolation.isolation_levels import IsolationSettings
from tidewright.kube.node.cdi import PREFIX
from tidewright.kube.node.gpus import FakeGpus
from tidewright.kube.node.kubelet import OURS, SOCKET
from tidewright.kube.node.node_api import NodeApi
from tidewright.kube.node.node_pods import NodePods
from tidewright.kube.objects import names
from tidewright.kube.objects.gpu_inventory import read_gpu_inventory
from tidewright.kube.objects.heartbeat import read
from tidewright.kube.plugin import registration
from tidewright.kube.plugin.service import PluginService, PluginSettings
from tidewright.testing.kube_api import FakeApi
from tidewright.testing.kubelet import FakeKubelet, kubelet_in

pytestmark = pytest.mark.processes

NODE = {"kubeletVersion": "v1.36.2", "containerRuntimeVersion": "containerd://2.1.9"}


@dataclass
class Plugged:
    """A running plugin service on node n. ``logged``: its log lines."""

    api: FakeApi
    kubelet: FakeKubelet
    plugin_service: PluginService
    gpus: FakeGpus
    logged: list[str]

    @property
    def folder(self) -> Path:
        return self.plugin_service.settings.folder

    @property
    def node(self) -> dict[str, Any]:
        return self.api.store.objects["nodes", "", "n"]

    def registered(self) -> bool:
        """By the heartbeat, as the extender sees it."""
        found = read(self.node["metadata"]["annotations"].get(names.PLUGIN, ""))
        return found is not None and found.registered

    async def ready(self) -> None:
        await self.kubelet.start()
        await until(lambda: self.kubelet.health and self.registered())

    async def create(self, one: dict[str, Any]) -> dict[str, Any]:
        """Bound to this node, and known to the plugin."""
        made = await self.api.create("pods", one)
        await until(lambda: made["metadata"]["uid"] in self.plugin_service.plugin.pods.reflector.objects)
        return made

    def env(self, cdi: str) -> dict[str, str]:
        """What the runtime finds under a CDI name."""
        path = self.plugin_service.settings.cdi / f"{PREFIX}{cdi.partition('=')[2]}.json"
        edits = json.loads(path.read_text())["devices"][0]["containerEdits"]
        return dict(one.split("=", 1) for one in edits["env"])

    def notes(self, name: str) -> dict[str, str]:
        found: dict[str, str] = self.api.store.objects["pods", "default", name]["metadata"]["annotations"]
        return found

    def events(self) -> list[dict[str, Any]]:
        return [item for (kind, *_), item in self.api.store.objects.items() if kind == "events"]

    def warnings(self) -> list[dict[str, Any]]:
        return [event for event in self.events() if event["type"] == "Warning"]


@asynccontextmanager
async def plugged(
    spec: str = "2x15",
    info: dict[str, str] = NODE,
    labels: dict[str, str] | None = None,
    down: bool = False,
    **settings: Any,
) -> AsyncIterator[Plugged]:
    """The kubelet is there but not started."""
    logged: list[str] = []
    # Not pytest's folder: a socket's path has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="tide-") as name:
        folder, gpus = Path(name), FakeGpus(spec)
        async with FakeApi().served() as api, kubelet_in(folder) as kubelet:
            status = {"capacity": {}, "allocatable": {}, "nodeInfo": info}
            await api.create(
                "nodes", {"metadata": {"name": "n", "annotations": {}, "labels": labels or {}}, "status": status}
            )
            api.mischief.down = down
            kubelet.cgroups = folder / "cgroup"
            isolation = IsolationSettings(cgroups=kubelet.cgroups)
            chosen = PluginSettings(
                "n", folder=folder, cdi=folder / "cdi", poll_s=0.05, health_s=0.05, settle_s=0.05, end_s=0.05,
                **{"beat_s": 5.0, "isolation": isolation, **settings},
            )  # fmt: skip
            plugin_service = PluginService(Cluster(api.url), chosen, gpus, logged.append)
            running = asyncio.create_task(plugin_service.run())
            try:
                yield Plugged(api, kubelet, plugin_service, gpus, logged)
            finally:
                plugin_service.stop()
                await running


def run(scene: Callable[[], Any]) -> None:
    asyncio.run(scene())


def recorded_calls() -> list[str]:
    """What the real kubelet asked from registration to the last start, in its order."""
    lines = (RECORDED / "cdi-late.jsonl").read_text().splitlines()
    return [json.loads(line)["rpc"] for line in lines]


def test_the_recorded_order_of_calls() -> None:
    """As a real kubelet's: single pod, then init container and two containers, then every start."""

    async def scene() -> None:
        async with plugged(isolation=IsolationSettings("off")) as found:
            await found.ready()
            assert len(found.kubelet.health) == 30
            single, several = assumed("single", 3, at=1), assumed("several", 1, 2, at=2, init=(4,), gpu=1)
            for one in (single, several):
                await found.create(one)
                await found.kubelet.admit(one)
            for one, name in ((single, "c0"), (several, "i0"), (several, "c0"), (several, "c1")):
                await found.kubelet.start_container(one["metadata"]["uid"], name)
            assert [name for name, _ in found.kubelet.calls] == recorded_calls()
            made = {(one.uid, one.container): found.env(one.cdi[0]) for one in found.kubelet.made}
            assert made["uid-single", "c0"] == {
                names.VISIBLE: "GPU-fake-0000", names.IDX: "0", names.POD: "3", names.CONTAINER: "3", names.DEV: "15",
            }  # fmt: skip
            own = [made["uid-several", name] for name in ("i0", "c0", "c1")]
            assert [(env[names.VISIBLE], env[names.CONTAINER]) for env in own] == [
                ("GPU-fake-0001", "4"), ("GPU-fake-0001", "1"), ("GPU-fake-0001", "2"),
            ]  # fmt: skip
            gpus = {one.uid: {gpu_of(each) for each in one.ids} for one in found.kubelet.made}
            assert gpus == {"uid-single": {0}, "uid-several": {1}}, "the ids agree with the GPU that was chosen"
            for name, at in (("single", 1), ("several", 2)):
                assert found.notes(name)[names.ASSIGNED] == "true"
                assert int(found.notes(name)[names.ASSUME_TIME]) > at

    run(scene)


def test_pods_of_one_size_get_their_own_gpu_whatever_the_order() -> None:
    """Late binding needs no order: the kubelet may admit pods as it likes."""

    async def scene() -> None:
        async with plugged("4x15") as found:
            await found.ready()
            pods = [assumed(f"p{at}", 2, at=100 - at, gpu=at) for at in range(4)]
            for one in pods:
                await found.create(one)
            for one in pods:
                await found.kubelet.admit(one)
            assert all(not made.env for made in found.kubelet.made[:3]), "who it is cannot be told yet"
            for one in reversed(pods):
                made = await found.kubelet.start_container(one["metadata"]["uid"], "c0")
                index = one["metadata"]["annotations"][names.IDX]
                assert found.env(made.cdi[0])[names.VISIBLE] == f"GPU-fake-000{index}"
            lone = assumed("lone", 5, at=1, gpu=2)
            await found.create(lone)
            await found.kubelet.admit(lone)
            hints = found.kubelet.made[-1].env
            assert hints[names.IDX] == "2" and names.VISIBLE not in hints

    run(scene)


def test_a_restarted_container_gets_the_same_and_stale_files_go() -> None:
    async def scene() -> None:
        async with plugged() as found:
            await found.ready()
            one, two = assumed("a", 2, at=1), assumed("b", 3, at=2, gpu=1)
            for each in (one, two):
                await found.create(each)
                await found.kubelet.admit(each)
                await found.kubelet.start_container(each["metadata"]["uid"], "c0")
            before = sorted(path.name for path in found.plugin_service.settings.cdi.glob("*.json"))
            assert len(before) == 2
            served = found.notes("b")[names.ASSUME_TIME]
            found.kubelet.end("uid-a")
            await found.api.remove("pods", "default", "a")
            made = await found.kubelet.start_container("uid-b", "c0")
            assert found.env(made.cdi[0])[names.VISIBLE] == "GPU-fake-0001"
            assert len(list(found.plugin_service.settings.cdi.glob("*.json"))) == 1
            assert found.notes("b")[names.ASSUME_TIME] == served, "marked once"

    run(scene)


def test_a_pod_past_the_extender_is_refused_with_a_reason_and_an_event() -> None:
    async def scene() -> None:
        async with plugged() as found:
            await found.ready()
            bare = pod("bare", 2, node="n")
            await found.create(bare)
            await found.kubelet.admit(bare)
            for _ in range(2):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await found.kubelet.start_container("uid-bare", "c")
                assert "set the extender up" in str(caught.value.details())
            events = found.warnings()
            assert [event["involvedObject"]["name"] for event in events] == ["bare"], "told once, not at every try"
            assert "did not ask the extender" in events[0]["message"]
            assert not list(found.plugin_service.settings.cdi.glob("*.json")), (
                "no environment at all rather than a wrong one"
            )

    run(scene)


@pytest.mark.parametrize("change", [{names.IDX: "7"}, {names.IDX: "x"}, {names.POD: "-3"}, {names.ALLOCATION: "[1]"}])
def test_marks_that_make_no_sense_open_no_gpu(change: dict[str, str]) -> None:
    async def scene() -> None:
        async with plugged() as found:
            await found.ready()
            odd = assumed("odd", 2, at=1)
            odd["metadata"]["annotations"] |= change
            await found.create(odd)
            await found.kubelet.admit(odd)
            with pytest.raises(grpc.aio.AioRpcError):
                await found.kubelet.start_container("uid-odd", "c0")
            assert not list(found.plugin_service.settings.cdi.glob("*.json"))
            assert len(found.warnings()) == 1

    run(scene)


def test_runs_before_the_kubelet_and_comes_back_after_its_restarts() -> None:
    async def scene() -> None:
        async with plugged() as found:
            await until(lambda: any("waits for the kubelet" in line for line in found.logged))
            assert not found.registered()
            for times in (1, 2, 3):
                await found.kubelet.start()
                await until(lambda times=times: found.kubelet.registrations == times and found.registered())
                mode = stat.S_IMODE((found.folder / OURS).stat().st_mode)
                assert mode == 0o600
                await found.kubelet.crash()
                await until(lambda: not found.registered())
            assert found.kubelet.options.get_preferred_allocation_available

    run(scene)


def test_its_own_socket_removed_by_somebody_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "UNHEARD_S", 0.2)

    async def scene() -> None:
        async with plugged() as found:
            await found.ready()
            (found.folder / OURS).unlink()
            await until(lambda: found.kubelet.registrations == 2 and len(found.kubelet.health) == 30)
            await until(found.registered)

    run(scene)


def test_a_kubelet_that_refuses_is_asked_again_later() -> None:
    async def scene() -> None:
        async with plugged() as found:
            found.kubelet.refuse = "not today"
            await found.kubelet.start()
            await until(lambda: any("not today" in line for line in found.logged))
            assert not found.registered()
            found.kubelet.refuse = ""
            await until(found.registered)
            assert sum("not today" in line for line in found.logged) == 1

    run(scene)


def test_what_has_not_changed_is_not_written_with_every_heartbeat() -> None:
    async def scene() -> None:
        async with FakeApi().served() as api, KubeClient(Cluster(api.url)) as client:
            await api.create("nodes", {"metadata": {"name": "n"}, "status": {}})
            node_api = NodeApi(client, "n", lambda text: None)
            path = "/api/v1/nodes/n/status"

            def writes() -> int:
                return sum(asked == ("PATCH", path) for asked in ((method, where) for method, where, _ in api.requests))

            assert await node_api.count(2) and await node_api.count(2) and writes() == 1
            api.mischief.decide = lambda method, where: "after" if where == path else ""
            assert not await node_api.count(3), "done, and nobody knows"
            api.mischief.decide = lambda method, where: ""
            assert await node_api.count(2) and writes() == 3
            assert api.store.objects["nodes", "", "n"]["status"]["capacity"][names.COUNT] == "2"

    asyncio.run(scene())


def test_the_node_shows_every_gpu_the_count_and_says_farewell() -> None:
    async def scene() -> None:
        async with plugged("1x24+1x16") as found:
            await found.ready()
            assert len(found.kubelet.health) == 40
            await until(lambda: names.COUNT in found.node["status"]["capacity"])
            assert found.node["status"]["allocatable"][names.COUNT] == "2"
            found.node["status"]["allocatable"][names.MEM] = "40"
            inventory = read_gpu_inventory(found.node)
            assert inventory.published and [card.units for card in inventory.cards] == [24, 16]
            assert [card.uuid for card in inventory.cards] == ["GPU-fake-0000", "GPU-fake-0001"]
            found.plugin_service.stop()
            await until(lambda: not found.registered())
            api = found.api
        heartbeat = read(api.store.objects["nodes", "", "n"]["metadata"]["annotations"][names.PLUGIN])
        assert heartbeat is not None and not heartbeat.registered

    run(scene)


def test_a_sick_gpu_is_told_to_kubelet_extender_and_inspect_and_taken_back() -> None:
    def listed(found: Plugged) -> str:
        item = found.api.store.objects.get(("configmaps", "kube-system", "unhealthy-gpu-n"))
        return str(item["data"]["gpus"]) if item else "(none)"

    async def scene() -> None:
        async with plugged() as found:
            await found.ready()
            found.gpus.sick = {1: "XID 79"}
            await until(lambda: listed(found) == "1")
            await until(lambda: sum(health == "Unhealthy" for health in found.kubelet.health.values()) == 15)
            assert {gpu_of(one) for one, health in found.kubelet.health.items() if health == "Unhealthy"} == {1}
            assert [card.ok for card in read_gpu_inventory(found.node).cards] == [True, False]
            await found.api.change("configmaps", "kube-system", "unhealthy-gpu-n", {"data": {"gpus": "0,1"}})
            found.gpus.sick = {}
            await until(lambda: listed(found) == "0")
            await until(lambda: set(found.kubelet.health.values()) == {"Healthy"})
            assert any("GPU 1: well again" in line for line in found.logged)

    run(scene)


def test_what_an_earlier_run_listed_is_cleared_and_what_an_administrator_listed_stays() -> None:
    async def scene() -> None:
        async with plugged() as found:
            meta = {"name": "unhealthy-gpu-n", "namespace": "kube-system", "annotations": {names.OURS: "1"}}
            await found.api.create("configmaps", {"metadata": meta, "data": {"gpus": "0,1"}})
            await found.ready()
            key = ("configmaps", "kube-system", "unhealthy-gpu-n")
            await until(lambda: found.api.store.objects[key]["data"]["gpus"] == "0")

    run(scene)


def test_an_api_server_that_is_away_keeps_no_kubelet_waiting() -> None:
    async def scene() -> None:
        async with plugged() as found:
            found.api.mischief.down = True
            await found.kubelet.start()
            await until(lambda: len(found.kubelet.health) == 30)
            one = assumed("p", 2, at=1)
            await found.api.create("pods", one)
            await found.kubelet.admit(one)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await found.kubelet.start_container("uid-p", "c0")
            assert "is not known" in str(caught.value.details())
            found.api.mischief.down = False
            made = await found.kubelet.start_container("uid-p", "c0")
            assert found.env(made.cdi[0])[names.VISIBLE] == "GPU-fake-0000"

    run(scene)


def test_a_node_that_shows_its_runtime_late_is_bound_as_it_needs_from_then_on() -> None:
    async def scene() -> None:
        async with plugged(info=OLD, beat_s=0.05) as found:
            await until(lambda: any("by size" in line for line in found.logged))
        async with plugged(info=OLD, beat_s=0.05, down=True) as found:
            await found.kubelet.start()
            await until(lambda: found.kubelet.options is not None and found.kubelet.options.pre_start_required)
            found.api.mischief.down = False
            await until(lambda: not found.kubelet.options.pre_start_required and found.registered())
            assert [line for line in found.logged if "binds containers" in line] == [
                "binds containers by CDI, late (the node does not say what it runs)",
                "binds containers by size (kubelet v1.24.0 with docker://20.10.7 does not resolve CDI names)",
            ]

    run(scene)


OLD = {"kubeletVersion": "v1.24.0", "containerRuntimeVersion": "docker://20.10.7"}


def test_without_cdi_containers_are_matched_in_the_order_of_binds() -> None:
    async def scene() -> None:
        async with plugged("4x15", info=OLD) as found:
            await found.ready()
            assert not found.kubelet.options.pre_start_required
            dying = assumed("dying", 2, at=1, gpu=3, deletionTimestamp="2026-01-01T00:00:00Z")
            pods = [assumed("late", 2, 1, at=30, gpu=1), assumed("early", 2, 1, at=20, gpu=2)]
            for one in (dying, *reversed(pods)):
                await found.create(one)
            for one in reversed(pods):
                await found.kubelet.admit(one)
            env = {(made.uid, made.container): made.env for made in found.kubelet.made}
            assert [env["uid-early", name][names.VISIBLE] for name in ("c0", "c1")] == ["GPU-fake-0002"] * 2
            assert [env["uid-late", name][names.CONTAINER] for name in ("c0", "c1")] == ["2", "1"]
            assert env["uid-late", "c0"][names.IDX] == "1" and env["uid-late", "c0"][names.POD] == "3"
            assert all(not made.cdi for made in found.kubelet.made)
            await until(lambda: all(found.notes(name)[names.ASSIGNED] == "true" for name in ("early", "late")))
            assert found.notes("dying")[names.ASSIGNED] == "false"

    run(scene)


def test_a_pod_that_was_matched_is_not_matched_again_though_its_mark_failed() -> None:
    async def scene() -> None:
        async with plugged(binding="match") as found:
            await found.ready()
            one, two = assumed("a", 2, at=1), assumed("b", 2, at=2, gpu=1)
            for each in (one, two):
                await found.create(each)
            found.api.mischief.decide = lambda method, path: "before" if "/pods/" in path else ""
            await found.kubelet.admit(one)
            await found.kubelet.admit(two)
            assert [made.env[names.IDX] for made in found.kubelet.made] == ["0", "1"]
            assert found.notes("a")[names.ASSIGNED] == "false"

    run(scene)


def test_a_request_that_fits_no_pod_fails_with_words_and_an_event_on_the_pod_it_may_be() -> None:
    async def scene() -> None:
        async with plugged("1x15", binding="match") as found:
            await found.ready()
            bare = pod("bare", 2, node="n")
            await found.create(bare)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await found.kubelet.admit(bare)
            assert "no pod on this node waits for 2 units" in str(caught.value.details())
            assert [event["involvedObject"]["name"] for event in found.warnings()] == ["bare"]
            assert not found.kubelet.made

    run(scene)


def test_a_pod_on_two_gpus_sees_both() -> None:
    async def scene() -> None:
        async with plugged() as found:
            await found.ready()
            wide = assumed("wide", 8, at=1)
            wide["metadata"]["annotations"][names.ALLOCATION] = json.dumps({"0": {"0": 4, "1": 4}})
            wide["spec"]["containers"][0]["resources"]["limits"][names.COUNT] = "2"
            await found.create(wide)
            await found.kubelet.admit(wide)
            made = await found.kubelet.start_container("uid-wide", "c0")
            assert found.env(made.cdi[0])[names.VISIBLE] == "GPU-fake-0000,GPU-fake-0001"
            assert names.CGPU_OFF not in found.env(made.cdi[0])
            assert sorted(gpu_of(one) for one in made.ids) == [0] * 4 + [1] * 4

    run(scene)


def test_extender_and_plugin_together_from_the_filter_to_the_container() -> None:
    """GPUs of 24 and 16 units; a pod of 20 fits the first only, one of 10 goes to the fuller that has room."""

    async def scene() -> None:
        async with plugged("1x24+1x16") as found, extending(found.api) as extender:
            big = await found.api.create("pods", pod("big", 20))
            await found.ready()
            amounts = {key: {names.MEM: str(len(found.kubelet.health))} for key in ("capacity", "allocatable")}
            await found.api.change("nodes", "", "n", {"status": amounts}, status=True)
            await until(lambda: extender.pool.inventories.get("n") and extender.pool.inventories["n"].ready)
            assert (await extender.filter(big, ["n"]))["NodeNames"] == ["n"]
            small = await found.api.create("pods", pod("small", 10))
            for one in (big, small):
                assert await extender.bind(one, "n") == ""
            for one, gpu in ((small, 1), (big, 0)):
                bound = found.api.store.objects["pods", "default", one["metadata"]["name"]]
                await found.kubelet.admit(bound)
                made = await found.kubelet.start_container(one["metadata"]["uid"], "c")
                assert found.env(made.cdi[0])[names.VISIBLE] == f"GPU-fake-000{gpu}"
                assert {gpu_of(each) for each in made.ids} == {gpu}
            await until(lambda: all(held.assigned for held in extender.pool.on("n")))
            third = await found.api.create("pods", pod("third", 4))
            await found.kubelet.crash()
            await until(lambda: not extender.pool.inventories["n"].ready)
            assert "not registered" in await extender.bind(third, "n")
            await found.kubelet.start()
            await until(lambda: extender.pool.inventories["n"].ready)
            assert await extender.bind(third, "n") == ""

    run(scene)


def test_the_label_of_cgpu_reaches_the_container() -> None:
    async def scene() -> None:
        async with plugged(labels={names.CGPU_LABEL: "true"}) as found:
            await found.ready()
            one = assumed("p", 1, at=1)
            await found.create(one)
            await found.kubelet.admit(one)
            made = await found.kubelet.start_container("uid-p", "c0")
            assert found.env(made.cdi[0])[names.CGPU_OFF] == "true"

    run(scene)


def test_only_pods_of_this_node_are_asked_for() -> None:
    async def scene() -> None:
        lines: list[str] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            lines.append((await reader.readline()).decode())
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server, KubeClient(Cluster(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")) as api:
            with pytest.raises(NoAnswer):
                await NodePods(api, "n1.example").listed()
        assert "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1.example&limit=500 " in lines[0]

    run(scene)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.full) for seed in (2, 3))])
def test_whatever_comes_and_goes_no_container_gets_anothers_gpu(seed: int) -> None:
    """Pods of few sizes, admitted in any order, restarted, ended; kubelet, watches and API server break off meanwhile."""

    async def scene() -> None:
        rng = random.Random(seed)
        async with plugged("4x15") as found:
            await found.ready()
            alive: dict[str, dict[str, Any]] = {}
            started: set[tuple[str, str]] = set()
            for step in range(40):
                free = {gpu: 15 - sum(_units(one) for one in alive.values() if _gpu(one) == gpu) for gpu in range(4)}
                sizes = [rng.choice([1, 1, 2, 3]) for _ in range(rng.choice([1, 1, 2]))]
                gpu = rng.randrange(4)
                if free[gpu] >= sum(sizes):
                    made = assumed(f"p{step}", *sizes, at=rng.randrange(10), gpu=gpu)
                    alive[f"uid-p{step}"] = made
                    await found.api.create("pods", made)
                    await found.kubelet.admit(made)
                if rng.random() < 0.3:
                    gone = rng.choice(sorted(alive))
                    await found.api.remove("pods", "default", alive.pop(gone)["metadata"]["name"])
                    found.kubelet.end(gone)
                if step % 10 == 5:
                    await found.api.cut_watches()
                if step == 20:
                    await found.kubelet.crash()
                    await found.kubelet.start()
                    await until(lambda: len(found.kubelet.health) == 60)
                for made in rng.sample(found.kubelet.made, min(2, len(found.kubelet.made))):
                    again = await found.kubelet.start_container(made.uid, made.container)
                    env = found.env(again.cdi[0])
                    assert env[names.IDX] == str(_gpu(alive[made.uid])), f"seed {seed}, step {step}"
                    assert env[names.CONTAINER] == str(len(made.ids))
                    started.add((made.uid, made.container))
            assert len(started) > 15
            assert len(list(found.plugin_service.settings.cdi.glob("*.json"))) <= len(found.kubelet.made)

    run(scene)


def _gpu(one: dict[str, Any]) -> int:
    return int(one["metadata"]["annotations"][names.IDX])


def _units(one: dict[str, Any]) -> int:
    return int(one["metadata"]["annotations"][names.POD])


def test_eight_h200_in_chunks_pass_a_kubelets_limit() -> None:
    async def scene() -> None:
        async with plugged("8x140", split=UnitSize.of("MiB", 8)) as found:
            await found.ready()
            assert len(found.kubelet.health) == 8 * 140 * 128

    run(scene)


def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for wrong in ({"node": ""}, {"node": "n", "binding": "never"}):
        with pytest.raises(UsageError):
            PluginSettings(**wrong)
    deep = PluginSettings("n", folder=tmp_path / ("x" * 120))
    with pytest.raises(UsageError, match="too long"):
        PluginService(Cluster("http://127.0.0.1:1"), deep, FakeGpus("1x1"), print)
    assert SOCKET != OURS


def test_a_heartbeat_that_could_not_be_written_is_tried_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the node would show the last one, which says the contrary, until the next is due."""
    monkeypatch.setattr("tidewright.kube.plugin.service.RETELL_S", (0.01, 0.02))

    async def scene() -> None:
        async with plugged(beat_s=3600.0) as found:
            await found.ready()
            left = ["before", "before"]
            found.api.mischief.decide = lambda method, path: left.pop() if left and path.endswith("/n/status") else ""
            await found.kubelet.crash()
            await until(lambda: not found.registered())
            assert not left

    asyncio.run(scene())


def test_matching_without_cgroups_of_pods_is_logged_once() -> None:
    """As in the overlay ``compatible``, which mounts none."""

    async def scene(cgroups: bool) -> list[str]:
        async with plugged(binding="match", beat_s=0.05) as found:
            if not cgroups:
                found.kubelet.cgroups = None
            await found.ready()
            first = found.node["metadata"]["annotations"][names.PLUGIN]
            await until(lambda: found.node["metadata"]["annotations"][names.PLUGIN] != first)
            return [line for line in found.logged if "no cgroups of pods below" in line]

    [line] = asyncio.run(scene(cgroups=False))
    assert "a deleted pod counts as exited at once" in line
    assert asyncio.run(scene(cgroups=True)) == []
