"""What a real kubelet (v1.36.2) asked a device plugin, asked again of ours: every message, with the pods of that run."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.protobuf import json_format

from tests.kube.extending import extending, until
from tests.kube.objects import node
from tests.kube.test_extender import RECORDED as QUESTIONS
from tests.kube.test_plugin_pure import RECORDED, assumed, chosen
from tests.kube.test_plugin_served import Plugged, plugged, run
from tidewright.kube.allocation.units import gpu_of, id_of
from tidewright.kube.isolation.isolation_levels import IsolationSettings
from tidewright.kube.node.kubelet import CHECKPOINT
from tidewright.kube.node.v1beta1 import messages
from tidewright.kube.objects import names
from tidewright.kube.objects.pod_request import read_gpu_assignment
from tidewright.testing.kube_api import FakeApi

pytestmark = pytest.mark.processes

ALL = {id_of(gpu, unit) for gpu in range(2) for unit in range(15)}
_ID = re.compile(r"GPU-0000000(\d)-1111-2222-3333-444444444444-_-(\d+)")
REJECTED = ("allocate-error-pod", "pod-admitted-before-plugin-reregistered")


def lines(name: str) -> list[dict[str, Any]]:
    """A recording, with our ids for those of the plugin that was recorded."""
    text = (RECORDED / f"{name}.jsonl").read_text()
    return [json.loads(line) for line in _ID.sub(lambda found: id_of(int(found[1]), int(found[2])), text).splitlines()]


def assigned(made: dict[str, Any], gpu: int, at: int) -> dict[str, Any]:
    """A pod as the extender leaves it."""
    sizes = [
        sum(int(one["resources"]["limits"][names.MEM]) for one in made["spec"]["containers"]),
        *(int(one["resources"]["limits"][names.MEM]) for one in made["spec"].get("initContainers", ())),
    ]
    made["metadata"]["annotations"] |= chosen(max(sizes), at, gpu)
    made["spec"]["nodeName"] = "n"
    return made


def pods_of(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that the kubelet's checkpoint speaks of: from the questions to the extender in the same run, where there are any."""
    asked = [
        json.loads(path.read_text()) for path in sorted((QUESTIONS / "kubelet-extender").glob("*-filter.request.json"))
    ]
    real = {one["Pod"]["metadata"]["uid"]: one["Pod"] for one in asked}
    last = next(call for call in reversed(calls) if "checkpoint" in call)
    found = {}
    for entry in last["checkpoint"]:
        uid, at = entry["PodUID"], len(found)
        if uid not in found:
            made = assigned(real[uid], 1, at) if uid in real else burst(uid, entry["ContainerName"], at)
            found[uid] = made
    return list(found.values())


def burst(uid: str, container: str, at: int) -> dict[str, Any]:
    """One of five pods of which only the kubelet's side was recorded."""
    made = assumed(f"burst-{at}", 3, at=at, gpu=at % 2)
    made["metadata"]["uid"], made["spec"]["containers"][0]["name"] = uid, container
    return made


@dataclass
class Replay:
    """Asks what was recorded. ``cdi``: the name that each set of ids was answered with."""

    found: Plugged
    cdi: dict[frozenset[str], str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    started: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)

    async def one(self, call: dict[str, Any]) -> None:
        rpc = call["rpc"]
        if rpc == "GetPreferredAllocation":
            await self._prefer(call["request"])
        elif rpc == "Allocate":
            await self._allocate(call["request"])
        elif rpc == "PreStartContainer":
            await self._start(call)
        elif rpc == "kubelet.sock recreated":
            await self.found.kubelet.crash()
            await self.found.kubelet.start()
            await until(lambda: self.found.kubelet.health and self.found.kubelet.registrations == 2)

    async def _prefer(self, request: dict[str, Any]) -> None:
        asked = request["containerRequests"][0]
        free = sorted(ALL - self.taken)
        assert asked["availableDeviceIDs"] == f"<{len(free)} ids>"
        whole = {"containerRequests": [{**asked, "availableDeviceIDs": free}]}
        message = json_format.ParseDict(whole, messages().PreferredAllocationRequest())
        answer = await self.found.kubelet._ask("GetPreferredAllocation", message)
        chosen = list(answer.container_responses[0].deviceIDs)
        assert len(set(chosen)) == len(chosen) == asked["allocationSize"] and set(chosen) <= set(free)
        assert {gpu_of(each) for each in chosen} == {1}, "where the pod's GPU is known, that one's"

    async def _allocate(self, request: dict[str, Any]) -> None:
        message = json_format.ParseDict(request, messages().AllocateRequest())
        answer = await self.found.kubelet._ask("Allocate", message)
        (one,) = answer.container_responses
        (device,) = one.cdi_devices
        ids = frozenset(request["containerRequests"][0]["devicesIds"])
        self.cdi[ids] = device.name
        self.taken |= ids

    async def _start(self, call: dict[str, Any]) -> None:
        """The checkpoint lies there as it did then; ids come in another order than they were allocated in."""
        entries = {"Data": {"PodDeviceEntries": call["checkpoint"], "RegisteredDevices": {}}, "Checksum": 0}
        (self.found.folder / CHECKPOINT).write_text(json.dumps(entries))
        ids = frozenset(call["request"]["devicesIds"])
        message = json_format.ParseDict(call["request"], messages().PreStartContainerRequest())
        await self.found.kubelet._ask("PreStartContainer", message)
        (owner,) = [one for one in call["checkpoint"] if set(one["DeviceIDs"]["-1"]) == ids]
        self.started[owner["PodUID"], owner["ContainerName"]] = self.found.env(self.cdi[ids])


@pytest.mark.parametrize("name", ["basic", "cdi-late", "burst-order"])
def test_every_recorded_message_of_a_kubelet_is_answered_as_it_should_be(name: str) -> None:
    """Each container finds the GPU of its own pod and its own share, whatever ids it was given and in whatever order they come;
    after the kubelet's restart the plugin is there again."""

    async def scene() -> None:
        calls = lines(name)
        pods = pods_of(calls)
        async with plugged(isolation=IsolationSettings("off")) as found:
            await found.ready()
            for one in pods:
                await found.create(one)
            replay = Replay(found)
            for call in calls:
                await replay.one(call)
            # Our kubelet closes its stream itself, and hears nothing of it.
            skipped = ("kubelet.sock recreated", "ListAndWatch.closed")
            assert [rpc for rpc, _ in found.kubelet.calls] == [
                each["rpc"] for each in calls if each["rpc"] not in skipped
            ]
            assert set(found.kubelet.health) == ALL
            for one in pods:
                spec, notes = one["spec"], one["metadata"]["annotations"]
                for container in (*spec.get("initContainers", ()), *spec["containers"]):
                    env = replay.started.pop((one["metadata"]["uid"], container["name"]))
                    assert env[names.VISIBLE] == f"GPU-fake-000{notes[names.IDX]}"
                    assert env[names.CONTAINER] == container["resources"]["limits"][names.MEM]
                    assert (env[names.POD], env[names.DEV]) == (notes[names.POD], "15")
                assert found.notes(one["metadata"]["name"])[names.ASSIGNED] == "true"
            assert not replay.started
            assert not found.warnings()

    run(scene)


@pytest.mark.parametrize("name", REJECTED)
def test_a_pod_that_a_kubelet_rejected_holds_nothing_and_is_nobody(name: str) -> None:
    """Such a pod keeps its annotations and its node, and never comes back. The extender gives its GPU to the next one, and the
    plugin does not take the next one's containers for its."""
    rejected = json.loads((RECORDED / f"{name}.json").read_text())
    assert rejected["metadata"]["annotations"][names.ASSIGNED] == "false" and rejected["spec"]["nodeName"]
    rejected["spec"]["nodeName"] = "n"
    assert read_gpu_assignment(rejected) is None

    async def scene() -> None:
        async with FakeApi().served() as api:
            await api.create("nodes", node("n", 3, 1))
            await api.create("pods", rejected)
            async with extending(api, lead="off") as extender:
                following = await api.create("pods", assumed("next", 3, at=2) | {"status": {"phase": "Pending"}})
                del following["spec"]["nodeName"]
                assert (await extender.filter(following, ["n"]))["NodeNames"] == ["n"]
        async with plugged() as found:
            await found.ready()
            await found.create(rejected)
            own = await found.create(assumed("next", 3, at=2, gpu=1))
            await found.kubelet.admit(own)
            made = await found.kubelet.start_container(own["metadata"]["uid"], "c0")
            assert found.env(made.cdi[0])[names.VISIBLE] == "GPU-fake-0001"

    run(scene)
