"""What is relied on of an API server and of a kubelet. The fakes keep it; so must real ones, where there are any.

``KUBE_TEST_SERVER``: a kubeconfig of a cluster that may be written to (nodes, pods and leases of ours, removed afterwards).
``KUBE_TEST_NODE``: the name there of this machine, whose kubelet is asked; run as root, with ``KUBE_TEST_IMAGE``, an image with a
shell that the node has or can pull.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.kube.extending import Extending, extending, until
from tests.kube.objects import KINDS
from tidewright.kube.client.api import NODES, STRATEGIC, ApiError, KubeClient
from tidewright.kube.client.credentials import Cluster, find_cluster
from tidewright.kube.client.reflector import Reflector
from tidewright.kube.objects import names
from tidewright.kube.objects.heartbeat import read
from tidewright.kube.objects.pod_request import read_gpu_assignment
from tidewright.testing.kube_api import FakeApi

pytestmark = pytest.mark.processes

SERVER, NODE, IMAGE = (os.environ.get(f"KUBE_TEST_{name}", "") for name in ("SERVER", "NODE", "IMAGE"))
NO_SERVER = "KUBE_TEST_SERVER is not set: the same against a real API server"
WHERE = [
    "fake",
    pytest.param("real", marks=[pytest.mark.skipif(not SERVER, reason=NO_SERVER), pytest.mark.timeout(300)]),
]
PODS = "/api/v1/namespaces/default/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
PATIENCE_S = 90.0


@dataclass
class Ground:
    """A cluster to try things in. ``made``: paths of what must go again."""

    cluster: Cluster
    api: KubeClient
    made: list[str] = field(default_factory=list)

    @staticmethod
    def name() -> str:
        return f"tidewright-test-{uuid.uuid4().hex[:8]}"

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        made = await self.api.post(path, body)
        self.made.append(f"{path}/{made['metadata']['name']}")
        return made

    async def node(self, mem: int = 30, kind: str = "match") -> str:
        """One without a kubelet, with 2 GPUs."""
        name, amounts = self.name(), {names.MEM: str(mem), names.COUNT: "2"}
        notes = KINDS[kind](name, mem, 2)["metadata"]["annotations"]
        await self.post(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": notes}})
        body = {"status": {"capacity": amounts, "allocatable": amounts}}
        await self.api.patch(f"{NODES}/{name}/status", body, STRATEGIC)
        return name

    async def pod(self, mem: int = 4, **more: Any) -> dict[str, Any]:
        """That no scheduler of the cluster takes; it tells its environment by its last message."""
        limits = {names.MEM: str(mem)}
        container = {
            "name": "c", "image": IMAGE or "none", "command": ["sh", "-c", "env | grep GPU > /dev/termination-log"],
            "resources": {"limits": limits, "requests": limits},
        }  # fmt: skip
        spec = {"schedulerName": "tidewright-test", "terminationGracePeriodSeconds": 0, "restartPolicy": "Never"}
        body = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": self.name()},
            "spec": spec | {"containers": [container]} | more,
        }  # fmt: skip
        return await self.post(PODS, body)

    async def read(self, pod: dict[str, Any]) -> dict[str, Any]:
        return await self.api.get(f"{PODS}/{pod['metadata']['name']}")

    async def bind(self, pod: dict[str, Any], node: str, **meta: Any) -> None:
        body = {
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"], **meta},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }  # fmt: skip
        await self.api.post(f"{PODS}/{pod['metadata']['name']}/binding", body)


@asynccontextmanager
async def ground(where: str) -> AsyncIterator[Ground]:
    if where == "fake":
        async with FakeApi().served() as fake, KubeClient(Cluster(fake.url)) as api:
            yield Ground(Cluster(fake.url), api)
        return
    cluster = find_cluster(SERVER)
    async with KubeClient(cluster) as api:
        found = Ground(cluster, api)
        try:
            yield found
        finally:
            for path in reversed(found.made):
                with suppress(ApiError):
                    await api.delete(path, {"gracePeriodSeconds": 0})


async def refused(asked: Awaitable[object]) -> int:
    with pytest.raises(ApiError) as error:
        await asked
    return error.value.status


def on(where: str, scene: Callable[[Ground], Awaitable[None]]) -> None:
    async def main() -> None:
        async with ground(where) as found:
            await scene(found)

    asyncio.run(main())


@pytest.mark.parametrize("where", WHERE)
def test_a_change_of_what_was_read_long_ago_is_refused(where: str) -> None:
    async def scene(found: Ground) -> None:
        pod = await found.pod()
        path, old = f"{PODS}/{pod['metadata']['name']}", pod["metadata"]["resourceVersion"]
        changed = await found.api.patch(path, {"metadata": {"uid": pod["metadata"]["uid"], "annotations": {"a": "1"}}})
        assert changed["metadata"]["resourceVersion"] != old
        stale = {"metadata": {"resourceVersion": old, "annotations": {"a": "2"}}}
        assert await refused(found.api.patch(path, stale)) == 409
        stranger = {"metadata": {"uid": str(uuid.uuid4()), "annotations": {"a": "3"}}}
        assert await refused(found.api.patch(path, stranger, STRATEGIC)) == 422
        assert 400 <= await refused(found.api.patch(path, {"metadata": {"annotations": {"a": 4}}})) < 500
        assert (await found.read(pod))["metadata"]["annotations"]["a"] == "1"
        gone = await found.api.patch(path, {"metadata": {"annotations": {"a": None}}}, STRATEGIC)
        assert "a" not in (gone["metadata"].get("annotations") or {})
        assert await refused(found.api.get(f"{PODS}/{found.name()}")) == 404

    on(where, scene)


@pytest.mark.parametrize("where", WHERE)
def test_a_binding_holds_to_its_conditions_and_happens_once(where: str) -> None:
    async def scene(found: Ground) -> None:
        node, pod = await found.node(), await found.pod()
        old, uid = pod["metadata"]["resourceVersion"], pod["metadata"]["uid"]
        path = f"{PODS}/{pod['metadata']['name']}"
        now = await found.api.patch(path, {"metadata": {"annotations": {"a": "1"}}})
        assert await refused(found.bind(pod, node, uid=str(uuid.uuid4()))) == 409
        assert await refused(found.bind(pod, node, uid=uid, resourceVersion=old)) == 409
        assert "nodeName" not in (await found.read(pod))["spec"]
        await found.bind(pod, node, uid=uid, resourceVersion=now["metadata"]["resourceVersion"])
        assert (await found.read(pod))["spec"]["nodeName"] == node
        assert await refused(found.bind(pod, node, uid=uid)) == 409

    on(where, scene)


@pytest.mark.parametrize("where", WHERE)
def test_the_annotations_of_a_binding_come_with_the_node_or_not_at_all(where: str) -> None:
    async def scene(found: Ground) -> None:
        node, pod = await found.node(), await found.pod()
        old, path = pod["metadata"]["resourceVersion"], f"{PODS}/{pod['metadata']['name']}"
        await found.api.patch(path, {"metadata": {"annotations": {"a": "1", "b": "1"}}})
        assert await refused(found.bind(pod, node, resourceVersion=old, annotations={"b": "2"})) == 409
        assert (await found.read(pod))["metadata"]["annotations"] == {"a": "1", "b": "1"}
        version = (await found.read(pod))["metadata"]["resourceVersion"]
        await found.bind(pod, node, resourceVersion=version, annotations={"b": "2", "c": "2"})
        async for event in found.api.watch(PODS, version, for_s=5):
            now = event["object"]
            if now["metadata"].get("name") == pod["metadata"]["name"]:
                assert (now["spec"]["nodeName"], now["metadata"]["annotations"]) == (
                    node,
                    {"a": "1", "b": "2", "c": "2"},
                )
                break
        else:
            pytest.fail("no event tells of the binding")

    on(where, scene)


@pytest.mark.parametrize("where", WHERE)
def test_a_pod_with_gates_is_bound_nowhere(where: str) -> None:
    async def scene(found: Ground) -> None:
        node, pod = await found.node(), await found.pod(schedulingGates=[{"name": "example.com/not-yet"}])
        assert await refused(found.bind(pod, node)) == 409

    on(where, scene)


@pytest.mark.parametrize("where", WHERE)
def test_status_and_the_rest_are_written_apart(where: str) -> None:
    async def scene(found: Ground) -> None:
        node = await found.node(mem=30)
        await found.api.patch(f"{NODES}/{node}", {"status": {"capacity": {names.MEM: "99"}}}, STRATEGIC)
        amounts = (await found.api.get(f"{NODES}/{node}"))["status"]["capacity"]
        assert amounts[names.MEM] == "30" and amounts[names.COUNT] == "2"
        notes = {"metadata": {"annotations": {names.LEVEL: "L3 MPS"}}}
        await found.api.patch(f"{NODES}/{node}/status", notes, STRATEGIC)
        now = await found.api.get(f"{NODES}/{node}")
        assert now["metadata"]["annotations"][names.LEVEL] == "L3 MPS", "but metadata goes both ways"

    on(where, scene)


@pytest.mark.parametrize("where", WHERE)
def test_a_lease_is_made_once_and_replaced_by_who_read_it_last(where: str) -> None:
    async def scene(found: Ground) -> None:
        body = {
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": found.name()},
            "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15},
        }  # fmt: skip
        made = await found.post(LEASES, body)
        assert await refused(found.api.post(LEASES, body)) == 409
        path = f"{LEASES}/{made['metadata']['name']}"
        taken = made | {"spec": made["spec"] | {"holderIdentity": "b"}}
        await found.api.put(path, taken)
        assert await refused(found.api.put(path, taken)) == 409
        assert (await found.api.get(path))["spec"]["holderIdentity"] == "b"

    on(where, scene)


@pytest.mark.parametrize("where", WHERE)
def test_a_list_comes_in_pages_and_a_watch_goes_on_from_it(where: str) -> None:
    async def scene(found: Ground) -> None:
        first, second = await found.pod(), await found.pod()
        pages = [page async for page in found.api.pages(PODS, size=1)]
        listed = {item["metadata"]["name"] for page in pages for item in page["items"]}
        assert len(pages) >= 2 and {first["metadata"]["name"], second["metadata"]["name"]} <= listed
        version = pages[-1]["metadata"]["resourceVersion"]
        await found.api.patch(f"{PODS}/{first['metadata']['name']}", {"metadata": {"annotations": {"a": "1"}}})
        await found.api.delete(f"{PODS}/{first['metadata']['name']}", {"gracePeriodSeconds": 0})
        seen = []
        async for event in found.api.watch(PODS, version, for_s=5):
            if event["object"]["metadata"].get("name") == first["metadata"]["name"]:
                seen.append(event["type"])
            if seen[-1:] == ["DELETED"]:
                break
        assert seen[0] == "MODIFIED" and seen[-1] == "DELETED"

    on(where, scene)


@pytest.mark.parametrize("where", WHERE)
def test_the_reflector_keeps_up(where: str) -> None:
    async def scene(found: Ground) -> None:
        reflector = Reflector(found.api, PODS, lambda what, item: None)
        running = asyncio.create_task(reflector.run())
        try:
            await reflector.synced.wait()
            pod = await found.pod()
            uid = pod["metadata"]["uid"]
            await until(lambda: uid in reflector.objects)
            await found.api.delete(f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
            await until(lambda: uid not in reflector.objects)
        finally:
            running.cancel()

    on(where, scene)


@pytest.mark.parametrize("where", WHERE)
def test_evictions_and_events_are_taken(where: str) -> None:
    async def scene(found: Ground) -> None:
        pod = await found.pod()
        meta = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
        event = {
            "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": "Test", "message": "a test",
            "metadata": {"name": found.name(), "namespace": "default"},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", **meta}, "source": {"component": "tidewright-test"},
        }  # fmt: skip
        await found.post("/api/v1/namespaces/default/events", event)
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": meta["name"], "namespace": "default"},
        }
        await found.api.post(f"{PODS}/{meta['name']}/eviction", body)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(ApiError, match="not found"):
                while True:
                    await found.read(pod)
                    await asyncio.sleep(0.1)

    on(where, scene)


def leading(found: Ground, **settings: Any) -> AbstractAsyncContextManager[Extending]:
    """An extender that leads there by a lease of the test's own namespace."""
    lease = f"{LEASES}/tidewright-extender"
    if lease not in found.made:
        found.made.append(lease)
    return extending(found.cluster, namespace="default", **settings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", WHERE)
def test_the_extender_gives_gpus_away_and_knows_them_again(where: str, kind: str) -> None:
    async def scene(found: Ground) -> None:
        node = await found.node(kind=kind)
        pods = [await found.pod(mem=8) for _ in range(4)]
        async with leading(found) as extender:
            await until(lambda: node in extender.pool.row)
            for pod in pods[:3]:
                answer = await extender.filter(pod, [node])
                if pod is pods[2]:
                    assert answer["NodeNames"] == [], "two GPUs of 15 hold one pod of 8 each"
                    continue
                assert answer["NodeNames"] == [node]
                assert await extender.bind(pod, node) == ""
        held = [read_gpu_assignment(await found.read(pod)) for pod in pods]
        assert sorted(gpu for one in held if one for gpu in one.units) == [0, 1]
        async with leading(found) as extender:
            assert extender.pool.free_of(node) == {0: 7, 1: 7}

    on(where, scene)


async def heartbeat(found: Ground) -> str:
    """As it stands on the node; of an earlier run, maybe."""
    notes = (await found.api.get(f"{NODES}/{NODE}"))["metadata"].get("annotations") or {}
    return str(notes.get(names.PLUGIN, ""))


async def registered(found: Ground, extender: Extending, before: str) -> None:
    """Until the kubelet has the devices, by a heartbeat after ``before``, and the extender knows: what earlier plugins left
    in the node's status looks like a node of gpushare's."""
    async with asyncio.timeout(PATIENCE_S):
        while (now := await heartbeat(found)) == before or not (last := read(now)) or not last.registered:
            await asyncio.sleep(0.2)
        while not (inventory := extender.pool.inventories.get(NODE)) or not (inventory.published and inventory.ready):
            await asyncio.sleep(0.2)


async def environment(found: Ground, pod: dict[str, Any]) -> str:
    """What a pod's container told of it. Fails when the kubelet did not admit the pod."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            status = (await found.read(pod)).get("status") or {}
            assert status.get("reason") != "UnexpectedAdmissionError", status
            [state] = [one["state"] for one in status.get("containerStatuses") or ()] or [{}]
            if "terminated" in state:
                return str(state["terminated"].get("message", ""))
            await asyncio.sleep(0.2)


@pytest.mark.skipif(
    not (SERVER and NODE and IMAGE), reason="KUBE_TEST_NODE is not set: a pod on this machine's kubelet"
)
@pytest.mark.timeout(600)
def test_a_real_kubelet_starts_a_container_with_the_gpu_that_was_chosen(tmp_path: Path) -> None:
    """Plugin and extender of ours, GPUs that are not there: what the container's environment says is what was chosen."""

    async def main() -> None:
        tide = str(Path(sys.executable).with_name("tide"))
        command = [tide, "kube", "device-plugin", "--kubeconfig", SERVER, "--node", NODE, "--fake-gpus", "2x15"]
        log = (tmp_path / "plugin.log").open("w")
        plugin = subprocess.Popen(command, stderr=log)
        try:
            async with ground("real") as found, leading(found) as extender:
                async with asyncio.timeout(PATIENCE_S):
                    # The node may still show the heartbeat of a plugin that was killed here before.
                    while "registered with" not in (tmp_path / "plugin.log").read_text():
                        await asyncio.sleep(0.2)
                await until(lambda: extender.pool.free_of(NODE))
                for _ in range(2):
                    pod = await found.pod(mem=8)
                    assert await extender.bind(pod, NODE) == ""
                    told = await environment(found, pod)
                    gpu = int((await found.read(pod))["metadata"]["annotations"][names.IDX])
                    assert f"{names.IDX}={gpu}" in told and f"GPU-fake-{gpu:04d}" in told
        finally:
            plugin.terminate()
            plugin.wait(20)
            log.close()

    asyncio.run(main())
