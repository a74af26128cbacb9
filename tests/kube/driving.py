"""A DRA driver that runs, with an API server and the kubelet's half beside it."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kube.extending import until
from tidewright.kube.client.credentials import Cluster
from tidewright.kube.dra.preparer import PREFIX
from tidewright.kube.dra.protocol import DRIVER
from tidewright.kube.dra.service import DraService, DraSettings
from tidewright.kube.isolation.isolation_levels import IsolationSettings
from tidewright.kube.node.partitions import FakePartitions
from tidewright.testing.kube_api import FakeApi
from tidewright.testing.kubelet_dra import ContainerAllocation, FakeDraKubelet

NODE = "localhost"
POD = "f39acc82-2a6e-4007-8016-1e90a2b3e16d"


@dataclass
class Driving:
    """A driver on ``NODE``. ``logged``: its log lines."""

    api: FakeApi
    kubelet: FakeDraKubelet
    driver: DraService
    gpus: FakePartitions
    logged: list[str]
    root: Path

    def slices(self) -> list[dict[str, Any]]:
        """By name."""
        return [item for (kind, *_), item in sorted(self.api.store.objects.items()) if kind == "resourceslices"]

    def devices(self) -> dict[str, dict[str, Any]]:
        """Of a complete pool, which every look at it checks."""
        found = self.slices()
        pools = {json.dumps(item["spec"]["pool"], sort_keys=True) for item in found}
        if len(pools) != 1 or found[0]["spec"]["pool"]["resourceSliceCount"] != len(found):
            return {}
        return {device["name"]: device for item in found for device in item["spec"].get("devices") or ()}

    async def ready(self) -> None:
        """Registered and published."""
        await until(lambda: self.driver.places.found.exists() and self.devices())
        assert await self.kubelet.look()

    async def claim(self, name: str, *results: dict[str, Any], uid: str = "", **status: Any) -> ContainerAllocation:
        """One that is allocated."""
        made = await self.api.create("resourceclaims", claim(name, *results, uid=uid or f"uid-{name}", **status))
        return made["metadata"]["namespace"], made["metadata"]["name"], made["metadata"]["uid"]

    def env(self, cdi: str) -> dict[str, str]:
        """What the runtime finds under a CDI name."""
        kind, _, name = cdi.partition("=")
        for path in (self.root / "cdi").glob(f"{PREFIX}*.json"):
            found = json.loads(path.read_text())
            for device in found["devices"]:
                if (found["kind"], device["name"]) == (kind, name):
                    return dict(one.split("=", 1) for one in device["containerEdits"]["env"])
        raise AssertionError(f"no CDI device {cdi}")


def result(device: str, memory: object = "", percent: object = "", **more: Any) -> dict[str, Any]:
    """As kube-scheduler writes it; without ``memory`` for a device that is not shared."""
    found = {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": device, **more}
    if memory:
        found |= {"shareID": f"share-{device}", "consumedCapacity": {"memory": memory, "smPercent": percent or "100"}}
    return found


def claim(name: str, *results: dict[str, Any], uid: str, pods: tuple[str, ...] = (POD,)) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default", "uid": uid},
        "spec": {"devices": {"requests": [{"name": "gpu"}]}},
        "status": {
            "allocation": {"devices": {"results": list(results)}},
            "reservedFor": [{"resource": "pods", "name": f"p{at}", "uid": pod} for at, pod in enumerate(pods)],
        },
    }


def pod(name: str, uid: str, *claims: str) -> dict[str, Any]:
    """On the node, with claims of a template."""
    return {
        "metadata": {"name": name, "namespace": "default", "uid": uid},
        "spec": {"nodeName": NODE, "resourceClaims": [{"name": one} for one in claims]},
        "status": {
            "phase": "Running",
            "resourceClaimStatuses": [{"name": one, "resourceClaimName": one} for one in claims],
        },
    }


def seen_from_the_node(proc: Path) -> Path:
    """A /proc of the node's pid namespace, without pods yet."""
    for name, home in (("1", "/init.scope"), ("self", "/kubepods/pod0/us")):
        (proc / name).mkdir()
        (proc / name / "cgroup").write_text(f"0::{home}\n")
    return proc


@asynccontextmanager
async def started(api: FakeApi, root: Path, gpus: FakePartitions, **settings: Any) -> AsyncIterator[Driving]:
    """A driver over what is in ``root``, ended in an orderly way."""
    logged: list[str] = []
    chosen = settings_in(root, **settings)
    driver = DraService(Cluster(api.url), chosen, gpus, gpus, logged.append)
    running = asyncio.create_task(driver.run())
    try:
        yield Driving(api, FakeDraKubelet(chosen.registry), driver, gpus, logged, root)
    finally:
        driver.stop()
        await running


def settings_in(root: Path, **settings: Any) -> DraSettings:
    """Everything below ``root``, which is made ready as a kubelet does."""
    (root / "registry").mkdir(exist_ok=True)
    return DraSettings(
        NODE, plugins=root / "plugins", registry=root / "registry", cdi=root / "cdi",
        **{"poll_s": 0.05, "health_s": 0.05, "isolation": isolation(root, "auto"), **settings},
    )  # fmt: skip


def isolation(root: Path, chosen: str) -> IsolationSettings:
    """Nothing of the machine under the test."""
    return IsolationSettings(chosen, cgroups=root / "cgroup", mps=root / "mps", hami=root / "hami")


@asynccontextmanager
async def driving(spec: str = "2x15", **settings: Any) -> AsyncIterator[Driving]:
    """Everything anew. ``settings``: of DraSettings."""
    # Not pytest's folder: a socket's path has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="tide-") as name:
        async with FakeApi().served() as api:
            await api.create("nodes", {"metadata": {"name": NODE, "annotations": {}}, "status": {}})
            async with started(api, Path(name), FakePartitions(spec), **settings) as found:
                yield found
