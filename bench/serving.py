"""The gateway's bars: requests per second and latency of a no-op model, refusals, overload, and policies of batching.

usage: python bench/serving.py [--seconds S] [--repeat N]
Gateway and replica on one core, the client on another; closed loop over keep-alive connections for the no-op model, an open loop
at ten times the capacity of a model of 5 ms for the overload. A network of PyTorch, on the client's core, is served under each
policy at the same objective. No controller: nothing is scaled.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
sys.path.insert(0, str(Path(__file__).parent))

from inference_client import InferenceConnection, connect, inference_request

from tidewright.serve.define import serves
from tidewright.serve.replica.link import GATEWAY, OPTIONS, ServingOptions

CONNECTIONS = 16
POLICIES = ("deadline", "aimd", "eager")
LOADS = (0.5, 0.8, 1.0, 2.0)
OBJECTIVE_MS, WIDTH, EXTENT = 100, 2048, 16
MODEL_MS = 5
GATEWAY_CODE = (
    "import sys; from pathlib import Path; from tidewright.app.serving import run_gateway;"
    " run_gateway(Path(sys.argv[1]), '127.0.0.1:0', None)"
)


@serves(inputs={"x": "FP32[1]"}, outputs={"y": "FP32[1]"}, max_batch=32)
def noop(x: Any) -> Any:
    return x


@serves(inputs={"x": "FP32[1]"}, outputs={"y": "FP32[1]"}, max_batch=1)
def busy(x: Any) -> Any:
    time.sleep(MODEL_MS / 1000)  # as a model on an accelerator, which takes no core from the gateway
    return x


@serves(inputs={"x": f"FP32[{EXTENT}]"}, outputs={"y": "FP32[8]"}, max_batch=64, factory=True)
def network() -> Any:
    """Weights of 48 MiB: a small batch is bound by memory, so that a large one costs less for each item."""
    import torch

    torch.set_num_threads(1)
    hidden = [layer for _ in range(3) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    return torch.nn.Sequential(torch.nn.Linear(EXTENT, WIDTH), *hidden, torch.nn.Linear(WIDTH, 8))


async def asked(client: InferenceConnection, sent: bytes) -> tuple[int, float]:
    """Status, 0 where the connection was closed, and seconds that it took."""
    start = time.perf_counter()
    return await client.ask(sent), time.perf_counter() - start


def request(model: str, extent: int = 1) -> bytes:
    return inference_request(model, [1.0] * extent)


async def clients(address: str, count: int) -> list[InferenceConnection]:
    return [await connect(address) for _ in range(count)]


async def closed(address: str, model: str, seconds: float) -> list[tuple[int, float]]:
    """As many requests as ``CONNECTIONS`` clients make that wait for their answers."""
    found: list[tuple[int, float]] = []
    end = time.perf_counter() + seconds

    async def loop(client: InferenceConnection) -> None:
        while time.perf_counter() < end:
            found.append(await asked(client, request(model)))

    await asyncio.gather(*(loop(client) for client in await clients(address, CONNECTIONS)))
    return found


async def opened(address: str, sent: bytes, times: list[float]) -> list[tuple[int, float]]:
    """The request at these seconds from now on, whether or not answers come."""
    free = await clients(address, 256)
    found: list[tuple[int, float]] = []
    tasks = set()

    async def one(client: InferenceConnection) -> None:
        found.append(await asked(client, sent))
        if found[-1][0]:
            free.append(client)

    start, at = time.perf_counter(), 0
    while at < len(times):
        now = time.perf_counter() - start
        while at < len(times) and times[at] <= now and free:
            task = asyncio.ensure_future(one(free.pop()))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            at += 1
        await asyncio.sleep(0.001)
    await asyncio.gather(*tasks)
    for client in free:
        client.transport.close()  # type: ignore[union-attr]
    return found


def steady(per_second: float, seconds: float) -> list[float]:
    return [at / per_second for at in range(int(per_second * seconds))]


def poisson(per_second: float, seconds: float) -> list[float]:
    """The same for each policy: drawn from a fixed seed."""
    draw, times = random.Random(7), [0.0]
    while times[-1] < seconds:
        times.append(times[-1] + draw.expovariate(per_second))
    return times


def goodput(found: list[tuple[int, float]], seconds: float, within_s: float) -> float:
    return sum(status == 200 and took < within_s for status, took in found) / seconds


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else float("nan")


def measure(state: Path, seconds: float, repeat: int) -> dict[str, Any]:
    """Starts gateway and replicas, and asks from the last core. The replicas of ``network``, which computes, are there, too,
    with a lower priority than the client."""
    cores = sorted(os.sched_getaffinity(0))
    processes = []

    def start(command: list[str], core: int, **env: str) -> None:
        log = (state / "log").open("ab")
        pinned = ["taskset", "-c", str(core), *command]
        processes.append(
            subprocess.Popen(pinned, env={**os.environ, **env}, cwd=Path(__file__).parent, stdout=log, stderr=log)
        )

    try:
        start([sys.executable, "-c", GATEWAY_CODE, str(state)], cores[0])
        for service, model, batching, core in (
            ("noop", "noop", "deadline", cores[0]), ("busy", "busy", "deadline", cores[0]),
            *((policy, "network", policy, cores[-1]) for policy in POLICIES),
        ):  # fmt: skip
            objective_us = OBJECTIVE_MS * 1000 if model == "network" else 50_000
            options = ServingOptions(service, f"serving:{model}", objective_us, batching)
            variables = {GATEWAY: str(state / "serve.sock"), OPTIONS: msgspec.json.encode(options).decode()}
            nice = ["nice", "-n", "5"] if core != cores[0] else []
            start([*nice, sys.executable, "-m", "tidewright.serve.replica.main"], core, **variables)
        ready = 2 + len(POLICIES)
        while (state / "log").read_text().count("is ready") < ready or not (state / "serve.address").exists():
            time.sleep(0.1)
        time.sleep(1)
        os.sched_setaffinity(0, {cores[-1]})
        largest_us = max(
            map(int, re.findall(r"network is ready; a batch of 64 takes (\d+) us", (state / "log").read_text()))
        )
        address = (state / "serve.address").read_text()
        return asyncio.run(ask(address, seconds, repeat)) | asyncio.run(compare(address, seconds, repeat, largest_us))
    finally:
        for one in processes:
            one.kill()
            one.wait()


async def ask(address: str, seconds: float, repeat: int) -> dict[str, Any]:
    """Medians of so many runs; peak and overload in turn."""
    await closed(address, "noop", 1)
    found = await closed(address, "noop", seconds)
    ok = [took for status, took in found if status == 200]
    peaks, overs, offered, refused = [], [], [], list[float]()
    for _ in range(repeat):
        peaks.append(goodput(await opened(address, request("busy"), steady(900 / MODEL_MS, seconds)), seconds, 0.05))
        over = await opened(address, request("busy"), steady(10_000 / MODEL_MS, seconds))
        overs.append(goodput(over, seconds, 0.05))
        offered.append(len(over) / seconds)
        refused += [took for status, took in over if status == 503]
    return {
        "noop_per_s": len(ok) / seconds, "noop_p50_ms": 1000 * quantile(ok, 0.5), "noop_p99_ms": 1000 * quantile(ok, 0.99),
        "noop_failed": len(found) - len(ok),
        "peak_goodput_per_s": peaks, "overload_goodput_per_s": overs, "overload_offered_per_s": offered,
        "overload_of_peak": median(over / peak for over, peak in zip(overs, peaks, strict=True)),
        "refused_p50_ms": 1000 * quantile(refused, 0.5), "refused_p99_ms": 1000 * quantile(refused, 0.99),
    }  # fmt: skip


async def compare(address: str, seconds: float, repeat: int, largest_us: int) -> dict[str, Any]:
    """Goodput of the policies at the same loads (parts of what full batches carry, Poisson) and objective, in turn."""
    capacity = 64e6 / largest_us
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(repeat):
        for load in LOADS:
            for policy in POLICIES:
                answers = await opened(address, request(policy, EXTENT), poisson(load * capacity, seconds))
                good = goodput(answers, seconds, OBJECTIVE_MS / 1000)
                found.setdefault(str(load), {}).setdefault(policy, []).append(good)
    return {"network_capacity_per_s": capacity, "network_goodput_per_s": found}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=8)
    options.add_argument("--repeat", type=int, default=3)
    given = options.parse_args()
    from facts import keep

    with tempfile.TemporaryDirectory() as folder:
        got = measure(Path(folder), given.seconds, given.repeat)
    part = got["overload_of_peak"]
    rows = [
        ("no-op model, requests/s", f"{got['noop_per_s']:.0f}", ">= 2000", got["noop_per_s"] >= 2000),
        ("no-op model, p99", f"{got['noop_p99_ms']:.1f} ms", "< 15 ms", got["noop_p99_ms"] < 15),
        ("refused, p50 under 10x overload", f"{got['refused_p50_ms']:.2f} ms", "< 2 ms", got["refused_p50_ms"] < 2),
        ("goodput at 10x overload, of peak", f"{100 * part:.0f} %", ">= 90 %", part >= 0.9),
    ]
    for load, policies in got["network_goodput_per_s"].items():
        eager = median(policies["eager"])
        for policy in POLICIES[:-1]:
            rate = median(policies[policy])
            # Two runs of one policy differ by some per cent.
            rows.append(
                (
                    f"{policy} at {load} of capacity, good/s",
                    f"{rate:.0f}",
                    f">= eager {eager:.0f}",
                    rate >= 0.97 * eager,
                )
            )
    for name, figure, bar, met in rows:
        print(f"{name:<36} {figure:>10}  bar {bar}{'' if met else '  MISSED'}")
    print(f"written to {keep('serving', got | {'seconds': given.seconds})}")


if __name__ == "__main__":
    main()
