"""GPU sharing on a real Kubernetes: binds a second with and without the extender, and how soon the pods of a burst run.

    KUBE_TEST_SERVER=KUBECONFIG [KUBE_TEST_NODE=NAME KUBE_TEST_IMAGE=IMAGE] python bench/kube_real.py
        [--nodes 50] [--pods 500] [--rounds 3] [--burst 30] [--qps 2000] [--keep]

Hollow nodes (Node objects without a kubelet) and a kube-scheduler of its own, found on PATH or by KUBE_TEST_SCHEDULER. In each
round the pods are created while that scheduler is stopped (SIGSTOP), then it goes on, and the time runs until none is left
unbound: first pods that ask a resource no extender manages, then as many that ask aliyun.com/gpu-mem, by late binding.
By default kube-scheduler sends no more than 50 requests a second and so binds no quicker, while the extender has a connection of
its own; measured with that limit, and with it lifted to --qps, where all that is left is CPU time. The burst runs on the kubelet
of KUBE_TEST_NODE, which must be this machine (as root), with GPUs that are not there.
All that is made has the label tidewright.io/bench and goes again at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import yaml

from facts import keep
from tidewright.kube.client.api import NODES, STRATEGIC, ApiError, KubeClient
from tidewright.kube.client.credentials import find_cluster
from tidewright.kube.objects import names
from tidewright.kube.objects.gpu_inventory import GpuInfo, publish
from tidewright.kube.objects.heartbeat import PluginHeartbeat, written
from tidewright.kube.objects.pod_request import read_gpu_assignment

SERVER, NODE, IMAGE = (os.environ.get(f"KUBE_TEST_{name}", "") for name in ("SERVER", "NODE", "IMAGE"))
SCHEDULER = os.environ.get("KUBE_TEST_SCHEDULER", "kube-scheduler")
PODS, LABEL, NAME = "/api/v1/namespaces/default/pods", "tidewright.io/bench", "tidewright-bench"
CHOSEN, FREELY = f"labelSelector={LABEL.replace('/', '%2F')}", "tidewright.io/bench-units"
GPUS, UNITS, SIZES = 8, 80, (4, 8, 16, 2)
RATIO_BAR = 85.0
DEFAULT_QPS = 50
"""kube-scheduler's own limit (clientConnection.qps)."""
PATIENCE_S = 180.0
Object = dict[str, Any]


def node(at: int) -> Object:
    inventory = publish(tuple(GpuInfo(gpu, UNITS) for gpu in range(GPUS)))
    heartbeat = written(PluginHeartbeat(True, "2026-01-01T00:00:00Z", every_s=3600, late=True))
    meta = {
        "name": f"{NAME}-{at}",
        "labels": {LABEL: "1"},
        "annotations": {names.TABLE: inventory, names.PLUGIN: heartbeat},
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": meta,
        "spec": {"taints": [{"key": LABEL, "effect": "NoSchedule"}]},
    }


def amounts() -> Object:
    shared = str(GPUS * UNITS)
    return {"cpu": "64", "memory": "512Gi", "pods": "250", names.MEM: shared, names.COUNT: str(GPUS), FREELY: shared}


def pod(name: str, limits: Object, where: Object, image: str = "none", command: tuple[str, ...] = ("true",)) -> Object:
    container = {"name": "c", "image": image, "command": list(command), "resources": {"limits": limits}}
    spec = {"schedulerName": NAME, "nodeSelector": where, "automountServiceAccountToken": False, "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0, "tolerations": [{"operator": "Exists"}], "hostNetwork": True,
            "containers": [container]}  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {LABEL: "1"}}, "spec": spec}


def configuration(port: int, qps: int) -> Object:
    extender = {
        "urlPrefix": f"http://127.0.0.1:{port}/gpushare-scheduler", "filterVerb": "filter", "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt", "bindVerb": "bind", "weight": 5, "httpTimeout": "10s", "nodeCacheCapable": True,
        "managedResources": [{"name": names.MEM, "ignoredByScheduler": False}],
    }  # fmt: skip
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": SERVER, "qps": qps, "burst": 2 * qps}, "leaderElection": {"leaderElect": False},
        "profiles": [{"schedulerName": NAME}], "extenders": [extender],
    }  # fmt: skip


@contextmanager
def process(*words: str) -> Iterator[psutil.Popen]:
    """Ended with the block; its standard error goes nowhere."""
    found = psutil.Popen(list(words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield found
    finally:
        found.send_signal(signal.SIGCONT)
        found.terminate()
        found.wait(20)


def tide(*words: str) -> tuple[str, ...]:
    return (str(Path(sys.executable).with_name("tide")), "kube", *words, "--kubeconfig", SERVER)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server_process(url: str) -> psutil.Process | None:
    """kube-apiserver behind ``url``, where it runs on this machine."""
    port = str(urlsplit(url).port or 443)
    with suppress(psutil.Error):
        for one in psutil.process_iter(["name", "cmdline"]):
            words = one.info["cmdline"] or []
            if "kube-apiserver" in str(one.info["name"]) and any(
                word in (f"--secure-port={port}", port) for word in words
            ):
                return one
    return None


def cpu_s(found: psutil.Process) -> float:
    times = found.cpu_times()
    return float(times.user + times.system)


class Bench:
    """A cluster, and the processes whose CPU time is told."""

    def __init__(self, api: KubeClient, scheduler: psutil.Popen, extender: psutil.Popen) -> None:
        self.api, self.scheduler = api, scheduler
        server = server_process(api.cluster.server)
        self.watched = {"scheduler": scheduler, "extender": extender} | ({"API server": server} if server else {})

    async def queue(self, kind: str, count: int) -> tuple[float, dict[str, float]]:
        """(binds a second, milliseconds of CPU per pod by process) of ``count`` pods that wait when the scheduler goes on."""
        resource = FREELY if kind == "plain" else names.MEM
        self.scheduler.suspend()
        limit = asyncio.Semaphore(16)

        async def create(at: int) -> None:
            limits = {"cpu": "10m", resource: str(SIZES[at % len(SIZES)])}
            async with limit:
                await self.api.post(PODS, pod(f"{NAME}-{kind}-{at}", limits, {LABEL: "1"}))

        await asyncio.gather(*map(create, range(count)))
        await asyncio.sleep(1.0)  # whoever watches has read it
        before = {name: cpu_s(one) for name, one in self.watched.items()}
        began = time.perf_counter()
        self.scheduler.resume()
        async with asyncio.timeout(PATIENCE_S):
            while await self.unbound():
                await asyncio.sleep(0.05)
        took = time.perf_counter() - began
        spent = {name: 1000 * (cpu_s(one) - before[name]) / count for name, one in self.watched.items()}
        if kind == "shared":
            check(await self.api.items(f"{PODS}?{CHOSEN}"), UNITS)
        await self.clear()
        return count / took, spent

    async def unbound(self) -> bool:
        path = f"{PODS}?{CHOSEN}&fieldSelector=spec.nodeName%3D&resourceVersion=0"
        return bool((await self.api.get(path)).get("items"))

    async def clear(self) -> None:
        """No pod of ours is left."""
        await self.api.delete(f"{PODS}?{CHOSEN}", {"gracePeriodSeconds": 0})
        async with asyncio.timeout(PATIENCE_S):
            while (await self.api.get(f"{PODS}?{CHOSEN}&limit=1")).get("items"):
                await asyncio.sleep(0.2)

    async def burst(self, count: int) -> list[float]:
        """Seconds from each create to Running, of pods of one unit on the real node; all are created at once."""
        begun: dict[str, float] = {}
        running: dict[str, float] = {}
        version = str((await self.api.get(f"{PODS}?limit=1"))["metadata"]["resourceVersion"])

        async def watch() -> None:
            async for event in self.api.watch(PODS, version, for_s=int(PATIENCE_S)):
                found = event["object"]
                name, phase = found["metadata"].get("name", ""), (found.get("status") or {}).get("phase")
                if name in begun and phase == "Failed":
                    raise SystemExit(f"{name} failed: {found['status'].get('message')}")
                if name in begun and phase == "Running":
                    running.setdefault(name, time.perf_counter())
                if len(running) == count:
                    return

        async def create(at: int) -> None:
            name = f"{NAME}-burst-{at}"
            begun[name] = time.perf_counter()
            made = pod(name, {names.MEM: "1"}, {"kubernetes.io/hostname": NODE}, IMAGE, ("sh", "-c", "sleep 10000"))
            await self.api.post(PODS, made)

        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(watch(), *map(create, range(count)))
        check(await self.api.items(f"{PODS}?{CHOSEN}"), 15)
        await self.clear()
        return sorted(running[name] - begun[name] for name in begun)


def check(pods: list[Object], units: int) -> None:
    """No GPU has more than its units given away."""
    used: Counter[tuple[str, int]] = Counter()
    for held in filter(None, map(read_gpu_assignment, pods)):
        used.update({(held.node, gpu): count for gpu, count in held.units.items()})
    if not used or max(used.values()) > units:
        raise SystemExit(f"over-committed, or nothing was given: {used.most_common(3)}")


async def hollow(api: KubeClient, count: int) -> None:
    for at in range(count):
        with suppress(ApiError):
            await api.post(NODES, node(at))
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "bench",
            "lastHeartbeatTime": now(),
            "lastTransitionTime": now(),
        }
        body = {"status": {"capacity": amounts(), "allocatable": amounts(), "conditions": [ready]}}
        await api.patch(f"{NODES}/{NAME}-{at}/status", body, STRATEGIC)


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


async def ready(port: int) -> None:
    """The extender answers, and knows the hollow nodes."""
    import aiohttp

    async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as session:
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get(f"http://127.0.0.1:{port}/gpushare-scheduler/inspect/{NAME}-0") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.1)


async def registered(api: KubeClient) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while str((await api.get(f"{NODES}/{NODE}"))["status"]["allocatable"].get(names.MEM)) != "30":
            await asyncio.sleep(0.2)


async def measure(given: argparse.Namespace) -> dict[str, Any]:
    port, found = free_port(), dict[str, Any]()
    async with KubeClient(find_cluster(SERVER)) as api:
        with ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            found["version"] = (await api.get("/version"))["gitVersion"]
            try:
                await hollow(api, given.nodes)
                extender = stack.enter_context(process(*tide("extender", "--port", str(port), "--leader-elect", "off")))
                await ready(port)
                for limit in dict.fromkeys((DEFAULT_QPS, given.qps)):
                    config = scratch / f"{limit}.yaml"
                    config.write_text(yaml.safe_dump(configuration(port, limit)))
                    with process(SCHEDULER, f"--config={config}", "--secure-port=0") as scheduler:
                        await asyncio.sleep(3.0)
                        bench = Bench(api, scheduler, extender)
                        await bench.clear()
                        found[f"{limit} requests/s"] = await rounds(bench, given)
                        if limit == given.qps and NODE and IMAGE:
                            found |= await bursts(bench, given, stack)
            finally:
                await api.delete(f"{PODS}?{CHOSEN}", {"gracePeriodSeconds": 0})
                await api.delete(f"{NODES}?{CHOSEN}")
    return found


async def rounds(bench: Bench, given: argparse.Namespace) -> dict[str, Any]:
    rates: dict[str, list[float]] = {"plain": [], "shared": []}
    cpu: dict[str, list[dict[str, float]]] = {"plain": [], "shared": []}
    for number in range(given.rounds + 1):
        for kind in rates:
            rate, spent = await bench.queue(kind, given.pods)
            if number:  # the first warms everybody up
                rates[kind].append(rate)
                cpu[kind].append(spent)
            print(f"  round {number} {kind}: {rate:.0f} binds/s", file=sys.stderr, flush=True)
    mean = {kind: {name: statistics.mean(one[name] for one in some) for name in some[0]} for kind, some in cpu.items()}
    ratio = statistics.median(100 * one / other for one, other in zip(rates["shared"], rates["plain"], strict=True))
    return {"binds per s": rates, "ratio, %": ratio, "CPU ms per pod": mean}


async def bursts(bench: Bench, given: argparse.Namespace, stack: ExitStack) -> dict[str, Any]:
    stack.enter_context(process(*tide("device-plugin", "--node", NODE, "--fake-gpus", "2x15", "--binding", "late")))
    await registered(bench.api)
    await asyncio.sleep(2.0)
    found = [one for _ in range(given.rounds) for one in await bench.burst(given.burst)]
    p99 = sorted(found)[max(0, round(0.99 * len(found)) - 1)]
    return {"create to running, s": {"p50": statistics.median(found), "p99": p99, "pods": len(found)}}


def show(found: dict[str, Any]) -> None:
    print(f"Kubernetes {found['version']}")
    for limit, one in found.items():
        if not limit.endswith("requests/s"):
            continue
        print(f"scheduler's limit {limit}:")
        for kind, rates in one["binds per s"].items():
            spent = ", ".join(f"{name} {ms:.1f}" for name, ms in one["CPU ms per pod"][kind].items())
            each = ", ".join(f"{rate:.0f}" for rate in rates)
            print(f"  binds/s, {kind:6} {statistics.median(rates):7.0f}   ({each}; CPU ms per pod: {spent})")
        print(f"  with the extender {one['ratio, %']:6.0f} % of without   bar {RATIO_BAR:g} %")
    if burst := found.get("create to running, s"):
        print(f"create to running  p50 {burst['p50']:.2f} s, p99 {burst['p99']:.2f} s ({burst['pods']} pods)")
    else:
        print("create to running: skipped, KUBE_TEST_NODE and KUBE_TEST_IMAGE are not set")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("nodes", 50), ("pods", 500), ("rounds", 3), ("burst", 30), ("qps", 2000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--keep", action="store_true", help="write bench/results")
    given = parser.parse_args()
    if not SERVER or not shutil.which(SCHEDULER):
        print("skipped: KUBE_TEST_SERVER is not set, or there is no kube-scheduler (PATH, KUBE_TEST_SCHEDULER)")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends too
    found = asyncio.run(measure(given))
    show(found)
    if given.keep:
        print(f"written to {keep('kube_real', found | {'nodes': given.nodes, 'pods': given.pods, 'qps': given.qps})}")


if __name__ == "__main__":
    main()
