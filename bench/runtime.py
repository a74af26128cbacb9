"""The device runtime on CPU cores beside its bars: how quickly best-effort work stops, what real-time work feels, what it costs.

    python bench/runtime.py [--runs 5] [--requests 1500] [--preemptions 10000]

The device is one core; clients run on another one where there is one. Medians over the runs, each of which measures everything
by turns. A real-time request is a small network (about a millisecond), best-effort tasks are a larger one (tens of
milliseconds) that keeps the core busy all the time. *No policy* are two plain processes on that core.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing as mp
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from facts import keep
from tidewright.runtime.client import RemoteModel, RuntimeClient
from tidewright.testing import runtime_kit

MODELS = "tidewright.testing.runtime_models"
RT = {"width": 256, "depth": 10, "batch": 16}
BE = {"width": 1024, "depth": 8, "batch": 64}
BARS = {
    "stop_same_core_p50_us": 50.0,
    "stop_same_core_p99_us": 300.0,
    "stop_other_core_p50_us": 200.0,
    "stop_other_core_p99_us": 5000.0,
    "rt_p99_ratio": 1.25,
    "be_ratio": 0.97,
}
GAP_S = 0.005


@contextlib.contextmanager
def runtime(*arguments: str) -> Iterator[Path]:
    """A runtime on one core, or as ``arguments`` say."""
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "s"
        command = [sys.executable, "-m", "tidewright.runtime.daemon", "--socket", str(socket), *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None and process.stdout.readline().startswith(b"runtime: ready")
            yield socket
            process.terminate()


def load(client: RuntimeClient, size: dict[str, int]) -> RemoteModel:
    arguments = {"width": size["width"], "depth": size["depth"]}
    return client.load(f"{MODELS}:layers", [("float32", (size["batch"], size["width"]))], arguments=arguments, slots=4)


def zeros(size: dict[str, int]) -> Any:
    return np.zeros((size["batch"], size["width"]), np.float32)


def feed(socket: Path, core: int, over: Any, done: Any) -> None:
    """A best-effort client in a process of its own: four tasks outstanding all the time."""
    os.sched_setaffinity(0, {core})
    with RuntimeClient(socket, "be") as client:
        model, given = load(client, BE), zeros(BE)
        pending = [model.submit(given) for _ in range(4)]
        while not over.is_set():
            pending.pop(0).result(60)
            done.value += 1
            pending.append(model.submit(given))


def plain(size: dict[str, int], core: int, over: Any, done: Any) -> None:
    """The same model in a loop, without a runtime."""
    call = network(size, core)
    while not over.is_set():
        call()
        done.value += 1


def network(size: dict[str, int], core: int) -> Any:
    os.sched_setaffinity(0, {core})
    import torch

    from tidewright.testing.runtime_models import layers

    torch.set_num_threads(1)
    module, given = layers(size["width"], size["depth"]).eval(), torch.zeros(size["batch"], size["width"])

    def call() -> None:
        with torch.inference_mode():
            module(given)

    for _ in range(20):
        call()
    return call


def plain_latencies(core: int, requests: int, result: Any) -> None:
    """Real-time requests of a plain process, ms."""
    call = network(RT, core)
    result.put(timed(call, requests))


def timed(call: Any, requests: int) -> list[float]:
    taken = []
    for _ in range(requests):
        began = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - began))
        time.sleep(GAP_S)
    return taken


@contextlib.contextmanager
def beside(target: Any, *arguments: Any) -> Iterator[Any]:
    """A process that works until the end of the block; the count of what it has done."""
    context = mp.get_context("spawn")
    over, done = context.Event(), context.Value("q", 0)
    process = context.Process(target=target, args=(*arguments, over, done))
    process.start()
    while done.value < 3:
        time.sleep(0.05)
        assert process.exitcode is None, "it ended"
    try:
        yield done
    finally:
        over.set()
        process.join(60)


def rate(done: Any, seconds: float) -> float:
    before, began = done.value, time.monotonic()
    time.sleep(seconds)
    return (done.value - before) / (time.monotonic() - began)  # type: ignore[no-any-return]


def in_process(target: Any, *arguments: Any) -> Any:
    context = mp.get_context("spawn")
    result = context.Queue()
    process = context.Process(target=target, args=(*arguments, result))
    process.start()
    found = result.get(timeout=300)
    process.join()
    return found


def p(values: list[float], share: float) -> float:
    return sorted(values)[round(share * (len(values) - 1))]


def one_run(requests: int) -> dict[str, float]:
    """Everything once."""
    cores = sorted(os.sched_getaffinity(0))
    device, other = cores[0], cores[-1]
    found: dict[str, float] = {}
    with runtime("--cores", str(device)) as socket, RuntimeClient(socket, "rt") as client:
        os.sched_setaffinity(0, {other})
        model, given = load(client, RT), zeros(RT)
        for _ in range(50):
            model.infer(given)
        alone = timed(lambda: model.infer(given), requests)
        with beside(plain, BE, device) as done:
            found["be_plain_per_s"] = rate(done, 4)
        with beside(feed, socket, other) as done:
            found["be_runtime_per_s"] = rate(done, 4)
            shared = timed(lambda: model.infer(given), requests)
        stops = client.stats()["stop_acknowledged_us"]
    found["stop_same_core_p50_us"], found["stop_same_core_p99_us"] = stops["p50"], stops["p99"]
    os.sched_setaffinity(0, set(cores))
    found |= stops_on_another_core(cores, requests)
    plain_alone = in_process(plain_latencies, device, requests)
    with beside(plain, BE, device):
        plain_shared = in_process(plain_latencies, device, requests)
    for name, values in (
        ("alone", alone),
        ("shared", shared),
        ("plain_alone", plain_alone),
        ("plain_shared", plain_shared),
    ):
        found[f"rt_{name}_p50_ms"], found[f"rt_{name}_p99_ms"] = p(values, 0.5), p(values, 0.99)
    found["rt_p99_ratio"] = found["rt_shared_p99_ms"] / found["rt_alone_p99_ms"]
    found["no_policy_p99_ratio"] = found["rt_plain_shared_p99_ms"] / found["rt_plain_alone_p99_ms"]
    found["be_ratio"] = found["be_runtime_per_s"] / found["be_plain_per_s"]
    return found


def stops_on_another_core(cores: list[int], requests: int) -> dict[str, float]:
    """Best-effort work with as many threads as there are cores."""
    with runtime("--be-threads", str(len(cores))) as socket, RuntimeClient(socket, "rt") as client:
        model, given = load(client, RT), zeros(RT)
        with beside(feed, socket, cores[-1]):
            timed(lambda: model.infer(given), requests // 2)
        stops = client.stats()["stop_acknowledged_us"]
    return {"stop_other_core_p50_us": stops["p50"], "stop_other_core_p99_us": stops["p99"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--preemptions", type=int, default=10_000)
    args = parser.parse_args()
    runs = []
    for number in range(args.runs):
        print(f"run {number + 1} of {args.runs} ...", file=sys.stderr, flush=True)
        runs.append(one_run(args.requests))
    measured: dict[str, Any] = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    with runtime() as socket:
        began = time.monotonic()
        measured["exact_preemptions"] = (
            runtime_kit.exact_under_preemption(socket, args.preemptions) if args.preemptions else 0
        )
        measured["exact_s"] = time.monotonic() - began
    for name, value in measured.items():
        better = "at least" if name == "be_ratio" else "at most"
        bar = f"  (bar: {better} {BARS[name]:g})" if name in BARS else ""
        print(f"{name:<28}{value:>12.3f}{bar}")
    measured["bars"], measured["runs"] = BARS, runs
    print(f"kept in {keep('runtime', measured)}")


if __name__ == "__main__":
    main()
