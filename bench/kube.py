"""The extender under load, as kube-scheduler meets it: over HTTP, in a process of its own, against a fake API server.

    python bench/kube.py [--nodes 1000] [--pods 20000] [--seeds 42 43 44] [--no-openb] [--keep]

Latency is what a client with one kept-alive connection sees. The openb part (Alibaba's trace of FGD, ATC'23) plays the
in-tree scheduler: it offers the nodes with enough CPU, memory and the right model, asks filter, prioritize and bind, and
takes the best score, ties by the trace's node order. About pods without GPUs only prioritize is asked; where all nodes have
the same score (best-fit has no opinion on them) the scheduler's own decides, NodeResourcesFit with LeastAllocated, its
default. What is left unallocated is judged when 130 % of all GPUs were asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import http.client
import json
import multiprocessing
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import uvloop

from facts import keep
from tidewright.kube.objects import names
from tidewright.testing.kube_api import FakeApi

BARS = {
    "filter p50": (5.0, "ms"),
    "filter p99": (20.0, "ms"),
    "prioritize p50": (5.0, "ms"),
    "prioritize p99": (20.0, "ms"),
    "filter, full nodes, p50": (None, "ms"),
    "cycles, one by one": (None, "/s"),
    "filter + bind cycles": (300.0, "/s"),
    "cold rebuild": (5.0, "s"),
    "memory": (200.0, "MB"),
}
GPUS, UNITS = 8, 80
BINDERS = 8
OPENB = Path(os.environ.get("TIDEWRIGHT_DATA", "../shared/data")) / "fgd-openb"


def pod(
    name: str, mem: int, count: int = 1, node: str = "", gpu: int = -1, policy: str = "", cpu: int = 4000
) -> dict[str, Any]:
    """With what a real pod carries along, about 3 kB."""
    notes = {names.POLICY: policy} if policy else {}
    if gpu >= 0:
        notes |= {names.IDX: str(gpu), names.POD: str(mem), names.ASSIGNED: "true", names.ASSUME_TIME: "1"}
    shared = {names.MEM: str(mem), **({names.COUNT: str(count)} if count > 1 else {})} if mem else {}
    limits = {"cpu": f"{cpu}m", **shared}
    env = [{"name": f"VARIABLE_{at}", "value": "x" * 40} for at in range(20)]
    spec: dict[str, Any] = {"containers": [{"name": "c", "image": "registry.example/x:1", "env": env,
                                            "resources": {"limits": limits, "requests": limits}}]}  # fmt: skip
    if node:
        spec["nodeName"] = node
    meta = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "annotations": notes,
        "labels": {"app": "bench"},
    }
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running" if node else "Pending"}}


def node(name: str, gpus: int, units: int, cpu: int = 128_000) -> dict[str, Any]:
    """With conditions and images as a real node has them, about 6 kB."""
    amounts = {names.MEM: str(gpus * units), names.COUNT: str(gpus), "cpu": f"{cpu}m", "memory": "1Ti"}
    images = [{"names": [f"registry.example/image-{at}@sha256:{'0' * 64}"], "sizeBytes": 1} for at in range(40)]
    return {"metadata": {"name": name, "uid": f"uid-{name}", "annotations": {}},
            "status": {"capacity": amounts, "allocatable": amounts, "images": images}}  # fmt: skip


def cluster(url: Any, stop: Any, nodes: list[dict[str, Any]], pods: int, seed: int) -> None:
    """A process: the fake API server with ``pods`` running pods that leave about half of the memory free."""

    async def main() -> None:
        api, rng = FakeApi(), random.Random(seed)
        for one in nodes:
            await api.create("nodes", one)
        free = {(one["metadata"]["name"], gpu): UNITS for one in nodes for gpu in range(GPUS)}
        spots = list(free)
        for at in range(pods):
            where, mem = rng.choice(spots), rng.randint(4, 20)
            if free[where] >= mem:
                free[where] -= mem
                await api.create("pods", pod(f"old-{at}", mem, node=where[0], gpu=where[1], cpu=1000))
        api.store.compact()
        async with api.served():
            url.put(api.url)
            while not stop.is_set():
                await asyncio.sleep(0.1)

    uvloop.run(main())


class Bench:
    """One fake cluster and one extender process."""

    def __init__(self, nodes: list[dict[str, Any]], pods: int, policy: str) -> None:
        make = multiprocessing.get_context("spawn")
        url, self._stop = make.Queue(), make.Event()
        self._api = make.Process(target=cluster, args=(url, self._stop, nodes, pods, 1))
        self._api.start()
        self._scratch = tempfile.TemporaryDirectory()
        config = Path(self._scratch.name) / "config"
        self.api_url = url.get(timeout=300)
        config.write_text(json.dumps({
            "current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "x"}}],
            "clusters": [{"name": "x", "cluster": {"server": self.api_url}}],
        }))  # fmt: skip
        self.port = free_port()
        began = time.perf_counter()
        tide = str(Path(sys.executable).with_name("tide"))
        call = [tide, "kube", "extender", "--kubeconfig", str(config), "--port", str(self.port), "--policy", policy]
        self.process = subprocess.Popen(call, stderr=subprocess.DEVNULL)
        self.extender = self.connection()
        while not self._ready():
            time.sleep(0.02)
        self.rebuild_s = time.perf_counter() - began
        self.api = http.client.HTTPConnection(self.api_url.removeprefix("http://"), timeout=60)

    def _ready(self) -> bool:
        try:
            self.extender.request("GET", "/readyz")
            answer = self.extender.getresponse()
            answer.read()
        except OSError:
            self.extender.close()
            return False
        return answer.status == 200

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(self, verb: str, body: bytes, by: http.client.HTTPConnection | None = None) -> Any:
        by = by or self.extender
        by.request("POST", f"/gpushare-scheduler/{verb}", body, {"Content-Type": "application/json"})
        return msgspec.json.decode(by.getresponse().read())

    def create(self, made: dict[str, Any]) -> None:
        self.api.request("POST", "/api/v1/namespaces/default/pods", json.dumps(made))
        self.api.getresponse().read()

    def bind(self, made: dict[str, Any], where: str, by: http.client.HTTPConnection | None = None) -> None:
        meta = made["metadata"]
        body = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": where}
        if why := self.ask("bind", json.dumps(body).encode(), by)["Error"]:
            raise SystemExit(f"{meta['name']} was not bound: {why}")

    def memory_mb(self) -> float:
        return psutil.Process(self.process.pid).memory_info().rss / 1e6

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        self._stop.set()
        self._api.join(20)
        self._scratch.cleanup()


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def quantiles(bench: Bench, verb: str, bodies: list[bytes]) -> tuple[float, float]:
    """(p50, p99) in milliseconds."""
    found = []
    for body in bodies:
        began = time.perf_counter()
        bench.ask(verb, body)
        found.append(1000 * (time.perf_counter() - began))
    return statistics.median(found), statistics.quantiles(found, n=100)[98]


def load(nodes: int, pods: int) -> dict[str, float]:
    """The figures of BARS."""
    listed = [node(f"node-{at:04}", GPUS, UNITS) for at in range(nodes)]
    every = [one["metadata"]["name"] for one in listed]
    bench = Bench(listed, pods, "fgd")
    try:
        found = {"cold rebuild": bench.rebuild_s}
        asks = [pod(f"ask-{at}", 1 + at % 40, policy=("best-fit", "fgd")[at % 2]) for at in range(1000)]
        bodies = [json.dumps({"Pod": ask, "Nodes": None, "NodeNames": every}).encode() for ask in asks]
        for verb in ("filter", "prioritize"):
            found[f"{verb} p50"], found[f"{verb} p99"] = quantiles(bench, verb, bodies)
        full = json.dumps({"Pod": asks[0], "Nodes": {"metadata": {}, "items": listed}, "NodeNames": None}).encode()
        found["filter, full nodes, p50"], _ = quantiles(bench, "filter", [full] * 20)
        found["cycles, one by one"] = cycles(bench, every, "single", 1500, 0)
        found["filter + bind cycles"] = cycles(bench, every, "new", 1500, BINDERS)
        found["memory"] = bench.memory_mb()
        return found
    finally:
        bench.close()


def cycles(bench: Bench, every: list[str], name: str, count: int, binders: int) -> float:
    """Per second. As kube-scheduler: filters come one after the other, each bind beside the filters of the next pods (its
    binding cycle is a goroutine), here by so many ``binders``; without any, a bind is waited for. Pods are created
    beforehand; the node is drawn from what filter leaves, as scores are another request."""
    made = [pod(f"{name}-{at}", 2) for at in range(count)]
    bench.api.close()  # the server has, after so long
    for one in made:
        bench.create(one)
    bodies = [json.dumps({"Pod": one, "Nodes": None, "NodeNames": every}).encode() for one in made]
    rng, local = random.Random(3), threading.local()

    def connect() -> None:
        local.by = bench.connection()

    began = time.perf_counter()
    with ThreadPoolExecutor(max(binders, 1), initializer=connect) as pool:
        bound = []
        for one, body in zip(made, bodies, strict=True):
            where = rng.choice(bench.ask("filter", body)["NodeNames"])
            bound.append(pool.submit(lambda one=one, where=where: bench.bind(one, where, local.by)))
            if not binders:
                bound[-1].result()
        for each in bound:
            each.result()
    return count / (time.perf_counter() - began)


def openb(seed: int, policy: str) -> float:
    """Per cent of all GPU units that are still free when the trace is over."""
    rows = sorted(csv.DictReader((OPENB / "openb_node_list_gpu_node.csv").open()), key=lambda row: row["sn"])
    trace = {row["name"][-4:]: row for row in csv.DictReader((OPENB / "openb_pod_list_default.csv").open())}
    lines = (line.split() for line in (OPENB / "arrival_order_default_seeds42-51.txt").open())
    orders = {name: rest for name, *rest in lines}
    order = np.array([int(value) for value in orders[f"nodes_{seed}"]])
    every = np.array([row["sn"] for row in rows])
    cpu, memory = (np.array([int(row[key]) for row in rows]) for key in ("cpu_milli", "memory_mib"))
    model, free = np.array([row["model"] for row in rows]), np.array([1000 * int(row["gpu"]) for row in rows])
    total, at_of, whole = int(free.sum()), {name: at for at, name in enumerate(every)}, np.array([cpu, memory])
    bench = Bench([node(row["sn"], int(row["gpu"]), 1000, int(row["cpu_milli"])) for row in rows], 0, policy)
    try:
        for number, arrival in enumerate(orders[str(seed)]):
            row = trace[arrival]
            gpus, needs = int(row["num_gpu"]), (int(row["cpu_milli"]), int(row["memory_mib"]))
            offered = (cpu >= needs[0]) & (memory >= needs[1])
            if row["gpu_spec"]:
                offered &= np.isin(model, row["gpu_spec"].split("|"))
            units = 0 if not gpus else gpus * 1000 if gpus > 1 else int(row["gpu_milli"])
            made = pod(f"{arrival}-{number}", units, gpus, cpu=needs[0])
            # Whole per cents, as kube-scheduler's scores.
            least = (100 * (np.array([cpu - needs[0], memory - needs[1]]) / whole).mean(axis=0)).astype(int)
            chosen = place(bench, made, units, every, np.flatnonzero(offered), order, least, at_of)
            if chosen is not None:
                cpu[chosen], memory[chosen] = cpu[chosen] - needs[0], memory[chosen] - needs[1]
                free[chosen] -= units
            if number % 2000 == 1999:
                text = f"  openb seed {seed}, {policy}: {number + 1} of {len(orders[str(seed)])} pods"
                print(text, file=sys.stderr, flush=True)
        return 100 * float(free.sum()) / total
    finally:
        bench.close()


def place(
    bench: Bench, made: dict[str, Any], units: int, every: Any, candidates: Any, order: Any, least: Any, at_of: dict[str, int]
) -> int | None:  # fmt: skip
    """The node's number; None when the pod fits nowhere."""
    kept = [str(one) for one in every[candidates]]
    body = {"Pod": made, "Nodes": None, "NodeNames": kept}
    if kept and units:
        kept = bench.ask("filter", json.dumps(body).encode())["NodeNames"]
    if not kept:
        return None
    scored = bench.ask("prioritize", json.dumps({**body, "NodeNames": kept}).encode())
    if len({one["Score"] for one in scored}) == 1 and not units:
        at = int(candidates[np.lexsort((order[candidates], -least[candidates]))[0]])
    else:
        best = min(scored, key=lambda one: (-one["Score"], order[at_of[one["Host"]]]))
        at = at_of[best["Host"]]
    if not units:
        made["spec"]["nodeName"] = str(every[at])
    bench.create(made)
    if units:
        bench.bind(made, str(every[at]))
    return at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, nargs="*", default=[42, 43, 44])
    parser.add_argument("--no-openb", action="store_true")
    parser.add_argument("--keep", action="store_true", help="write bench/results")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends too
    measured: dict[str, Any] = load(given.nodes, given.pods)
    for name, (bar, unit) in BARS.items():
        limit = "" if bar is None else f"   bar {bar:g} {unit}"
        print(f"{name:26} {measured[name]:9.2f} {unit}{limit}", flush=True)
    if not given.no_openb and not OPENB.exists():
        print(f"openb: skipped, {OPENB} does not exist (set TIDEWRIGHT_DATA)")
    elif not given.no_openb:
        for seed in given.seeds:
            left = {policy: openb(seed, policy) for policy in ("best-fit", "fgd")}
            gain = left["best-fit"] - left["fgd"]
            measured[f"openb {seed}"] = left
            print(f"openb seed {seed}: unallocated best-fit {left['best-fit']:.2f} %, fgd {left['fgd']:.2f} %, "
                  f"{gain:.2f} points less   bar 1.5", flush=True)  # fmt: skip
    if given.keep:
        print(f"written to {keep('kube', measured)}")


if __name__ == "__main__":
    main()
