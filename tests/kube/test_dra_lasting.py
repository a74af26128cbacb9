"""The DRA driver served, where things outlive each other: slices and their node, claims and the containers that use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kube.driving import NODE, POD, driving, isolation, pod, result
from tests.kube.extending import until
from tests.kube.test_dra_served import scene
from tidewright.base.errors import UsageError
from tidewright.kube.client.api import KubeClient
from tidewright.kube.client.credentials import Cluster
from tidewright.kube.dra.slice_publisher import SlicePublisher
from tidewright.kube.objects import names
from tidewright.testing.kube_api import FakeApi

pytestmark = pytest.mark.processes


def test_slices_go_with_their_node_and_come_back_with_the_next() -> None:
    async def main() -> None:
        async with driving() as found:
            await found.ready()
            [old] = [one["metadata"] for one in found.slices()]
            uid = found.api.store.objects["nodes", "", NODE]["metadata"]["uid"]
            assert old["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid}]
            await found.api.remove("nodes", "", NODE)
            await found.api.remove("resourceslices", "", old["name"])
            await until(lambda: any("not published" in line and "404" in line for line in found.logged))
            assert not found.slices(), "nobody would ever take them away"
            await found.api.create("nodes", {"metadata": {"name": NODE, "annotations": {}}, "status": {}})
            uid = found.api.store.objects["nodes", "", NODE]["metadata"]["uid"]
            await until(lambda: [one["metadata"]["ownerReferences"][0]["uid"] for one in found.slices()] == [uid])

    scene(main)


def test_slices_of_before_get_their_owner_and_keep_it_without_the_right_to_read_it() -> None:
    async def main() -> None:
        async with FakeApi().served() as api, KubeClient(Cluster(api.url)) as client:
            made = await api.create("nodes", {"metadata": {"name": NODE}})
            api.mischief.forbidden = ("/nodes/",)
            devices: list[dict[str, Any]] = [{"name": "gpu-0"}]
            said: list[str] = []
            without = SlicePublisher(client, NODE, said.append)
            assert await without.sync(lambda taints: [{"devices": devices}])
            assert not await without.sync(lambda taints: [{"devices": devices}])
            [key] = [key for key in api.store.objects if key[0] == "resourceslices"]
            assert "ownerReferences" not in api.store.objects[key]["metadata"]
            assert len(said) == 1 and "cannot be read" in said[0], "once"
            api.mischief.forbidden = ()
            assert await SlicePublisher(client, NODE, said.append).sync(lambda taints: [{"devices": devices}])
            [owner] = api.store.objects[key]["metadata"]["ownerReferences"]
            assert owner["uid"] == made["metadata"]["uid"]
            api.mischief.forbidden = ("/nodes/",)
            assert not await without.sync(lambda taints: [{"devices": devices}])
            devices.append({"name": "gpu-1"})
            assert await without.sync(lambda taints: [{"devices": devices}])
            assert api.store.objects[key]["metadata"]["ownerReferences"] == [owner]

    scene(main)


def test_hami_core_is_not_offered_for_claims(tmp_path: Path) -> None:
    """Several containers may use a claim, and its count is of one."""

    async def main() -> None:
        (tmp_path / "hami").mkdir()
        for name in ("libvgpu.so", "ld.so.preload"):
            (tmp_path / "hami" / name).write_text("")
        async with driving(isolation=isolation(tmp_path, "auto")) as found:
            await found.ready()
            assert found.driver.ladder.level() == "L1 cooperative"
            assert "several may use a claim" in found.driver.ladder.refused["hami"]
            await until(lambda: any("several may use a claim" in line for line in found.logged))
        with pytest.raises(UsageError, match=r"hami cannot be used here: .* several may use a claim"):
            async with driving(isolation=isolation(tmp_path, "hami")):
                pass

    scene(main)


def test_frameworks_of_a_pod_that_says_so_are_told_their_share() -> None:
    async def main() -> None:
        async with driving() as found:
            await found.ready()
            says = pod("p", POD, "a")
            says["metadata"]["annotations"] = {names.COOPERATES: "torch"}
            await found.api.create("pods", says)
            await until(lambda: len(found.driver.pods.known()) == 1)
            for stem in ("a", "b"):
                one = await found.claim(stem, result("gpu-0", "3Gi"))
                [device] = (await found.kubelet.prepare(one))[one[2]].devices
                env = found.env(device.cdi_device_ids[0])
                assert env.get("PYTORCH_ALLOC_CONF") == ("per_process_memory_fraction:0.2" if stem == "a" else None)

    scene(main)
