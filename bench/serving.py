"""The gateway's bars: requests per second and latency of a no-op model, refusals, and overload.

usage: python bench/serving.py [--seconds S]
Gateway and replica on one core, the client on another; closed loop over keep-alive connections for the no-op model, an open loop
at ten times the capacity of a model of 5 ms for the overload. No controller: nothing is scaled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from tidewright.serve.define import serves
from tidewright.serve.replica.link import GATEWAY, OPTIONS, ServingOptions

CONNECTIONS = 16
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


class Client(asyncio.Protocol):
    """One request at a time on one connection; knows as much of HTTP as the gateway's answers need."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.answer: asyncio.Future[int] | None = None
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(0)

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]) if found else 0
        if found and len(body) >= length and self.answer is not None and not self.answer.done():
            self.data = b""
            self.answer.set_result(int(head[9:12]))

    async def ask(self, request: bytes) -> tuple[int, float]:
        """Status, 0 where the connection was closed, and seconds that it took."""
        self.answer = asyncio.get_running_loop().create_future()
        start = time.perf_counter()
        self.transport.write(request)  # type: ignore[union-attr]
        return await self.answer, time.perf_counter() - start


def request(model: str) -> bytes:
    """An inference request with one number."""
    body = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}).encode()
    return f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def clients(address: str, count: int) -> list[Client]:
    host, port = address.split(":")
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(Client, host, int(port)))[1] for _ in range(count)]


async def closed(address: str, model: str, seconds: float) -> list[tuple[int, float]]:
    """As many requests as ``CONNECTIONS`` clients make that wait for their answers."""
    found: list[tuple[int, float]] = []
    end = time.perf_counter() + seconds

    async def loop(client: Client) -> None:
        while time.perf_counter() < end:
            found.append(await client.ask(request(model)))

    await asyncio.gather(*(loop(client) for client in await clients(address, CONNECTIONS)))
    return found


async def opened(address: str, model: str, per_second: float, seconds: float) -> list[tuple[int, float]]:
    """Requests at a steady rate, whether or not answers come."""
    free = await clients(address, 256)
    found: list[tuple[int, float]] = []
    tasks = set()

    async def one(client: Client) -> None:
        found.append(await client.ask(request(model)))
        if found[-1][0]:
            free.append(client)

    start, sent = time.perf_counter(), 0
    while (now := time.perf_counter() - start) < seconds:
        while sent < now * per_second and free:
            task = asyncio.ensure_future(one(free.pop()))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            sent += 1
        await asyncio.sleep(0.001)
    await asyncio.gather(*tasks)
    return found


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else float("nan")


def measure(state: Path, seconds: float) -> dict[str, Any]:
    """Starts gateway and replicas on the first core, and asks from the last."""
    cores = sorted(os.sched_getaffinity(0))
    processes = []

    def start(command: list[str], **env: str) -> None:
        log = (state / "log").open("ab")
        pinned = ["taskset", "-c", str(cores[0]), *command]
        processes.append(
            subprocess.Popen(pinned, env={**os.environ, **env}, cwd=Path(__file__).parent, stdout=log, stderr=log)
        )

    try:
        start([sys.executable, "-c", GATEWAY_CODE, str(state)])
        for model, objective in (("noop", 50_000), ("busy", 50_000)):
            options = ServingOptions(service=model, model=f"serving:{model}", objective_us=objective)
            variables = {GATEWAY: str(state / "serve.sock"), OPTIONS: msgspec.json.encode(options).decode()}
            start([sys.executable, "-m", "tidewright.serve.replica.main"], **variables)
        while (state / "log").read_text().count("is ready") < 2 or not (state / "serve.address").exists():
            time.sleep(0.1)
        time.sleep(1)
        os.sched_setaffinity(0, {cores[-1]})
        address = (state / "serve.address").read_text()
        return asyncio.run(ask(address, seconds))
    finally:
        for one in processes:
            one.kill()
            one.wait()


async def ask(address: str, seconds: float) -> dict[str, Any]:
    await closed(address, "noop", 1)
    found = await closed(address, "noop", seconds)
    ok = [took for status, took in found if status == 200]
    peak = [took for status, took in await opened(address, "busy", 0.9 * 1000 / MODEL_MS, seconds) if status == 200]
    over = await opened(address, "busy", 10 * 1000 / MODEL_MS, seconds)
    served = [took for status, took in over if status == 200]
    refused = [took for status, took in over if status == 503]
    return {
        "noop_per_s": len(ok) / seconds, "noop_p50_ms": 1000 * quantile(ok, 0.5), "noop_p99_ms": 1000 * quantile(ok, 0.99),
        "noop_failed": len(found) - len(ok),
        "peak_goodput_per_s": len([took for took in peak if took < 0.05]) / seconds,
        "overload_goodput_per_s": len([took for took in served if took < 0.05]) / seconds,
        "overload_offered_per_s": len(over) / seconds, "refused_p50_ms": 1000 * quantile(refused, 0.5),
        "refused_p99_ms": 1000 * quantile(refused, 0.99),
    }  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=10)
    given = options.parse_args()
    from facts import keep

    with tempfile.TemporaryDirectory() as folder:
        got = measure(Path(folder), given.seconds)
    part = got["overload_goodput_per_s"] / got["peak_goodput_per_s"]
    rows = (
        ("no-op model, requests/s", f"{got['noop_per_s']:.0f}", ">= 2000", got["noop_per_s"] >= 2000),
        ("no-op model, p99", f"{got['noop_p99_ms']:.1f} ms", "< 15 ms", got["noop_p99_ms"] < 15),
        ("refused, p50 under 10x overload", f"{got['refused_p50_ms']:.2f} ms", "< 2 ms", got["refused_p50_ms"] < 2),
        ("goodput at 10x overload, of peak", f"{100 * part:.0f} %", ">= 90 %", part >= 0.9),
    )
    for name, figure, bar, met in rows:
        print(f"{name:<36} {figure:>10}  bar {bar}{'' if met else '  MISSED'}")
    print(f"written to {keep('serving', got | {'seconds': given.seconds, 'overload_of_peak': part})}")


if __name__ == "__main__":
    main()
