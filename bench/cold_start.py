"""Scale from zero: how long the first request takes, from the beginning and from an image. Bar: 3 times sooner from the image.

usage: python bench/cold_start.py [--rounds N]
Real controller, agents and gateway on temporary state; root and CRIU. The model: a PyTorch network of 25 million parameters, read
from a file, warmed up on batches of 1 to 8. By turns one service that starts from the beginning and one from an image are asked
while they have no replica; the request waits until one has started.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from tidewright import Client
from tidewright.serve.define import serves
from tidewright.wire.services import ServiceView

WIDTH, LAYERS, BAR, WITHIN_S = 1024, 24, 3.0, 120.0
TIDE = Path(sys.executable).with_name("tide")


def _network() -> Any:
    import torch

    layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers)


@serves(inputs={"x": f"FP32[{WIDTH}]"}, outputs={"y": f"FP32[{WIDTH}]"}, max_batch=8, factory=True)
def network() -> Any:
    import torch

    made = _network()
    made.load_state_dict(torch.load(os.environ["WEIGHTS"], weights_only=True))
    return made


def until(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WITHIN_S
    while not done():
        if time.monotonic() > end:
            raise SystemExit(f"not within {WITHIN_S:.0f} s: {what}")
        time.sleep(0.05)


@contextlib.contextmanager
def pool(state: Path) -> Iterator[Client]:
    """A controller with one agent, and a gateway, for as long as it lasts."""
    tide = [str(TIDE), "--state", str(state)]
    subprocess.run([*tide, "up"], check=True, stdout=subprocess.DEVNULL)
    log = (state / "gateway.log").open("wb")
    gateway = subprocess.Popen([*tide, "serve", "gateway", "--listen", "127.0.0.1:0"], stdout=log, stderr=log)
    try:
        until((state / "serve.address").exists, "the gateway serves")
        yield Client(state)
    finally:
        gateway.terminate()
        gateway.wait()
        subprocess.run([*tide, "down", "--jobs"], check=True, stdout=subprocess.DEVNULL)


def deploy(state: Path, name: str, *more: str) -> None:
    command = [
        str(TIDE),
        "--state",
        str(state),
        "serve",
        "deploy",
        name,
        "--model",
        "cold_start:network",
        "--replicas",
        "0:1",
    ]
    env = {**os.environ, "WEIGHTS": str(state / "weights.pt")}
    subprocess.run(
        [*command, "--share", "0.4", "--objective", "2s", *more],
        check=True, stdout=subprocess.DEVNULL, cwd=Path(__file__).parent, env=env,
    )  # fmt: skip


def asked(state: Path, name: str) -> float:
    """Seconds that one request takes."""
    import numpy
    import tritonclient.http as triton

    client = triton.InferenceServerClient((state / "serve.address").read_text().strip(), network_timeout=WITHIN_S)
    given = triton.InferInput("x", [1, WIDTH], "FP32")
    given.set_data_from_numpy(numpy.ones((1, WIDTH), numpy.float32))
    start = time.perf_counter()
    client.infer(name, [given])
    return time.perf_counter() - start


def measure(state: Path, rounds: int) -> dict[str, list[float]]:
    import torch

    torch.save(_network().state_dict(), state / "weights.pt")
    took: dict[str, list[float]] = {"cold": [], "image": []}
    with pool(state) as client:

        def view(name: str) -> ServiceView:
            return next(one for one in client.services().services if one.name == name)

        deploy(state, "cold")
        until(lambda: view("cold").running == 1, "a replica is ready")
        deploy(state, "image", "--from-image")
        until(lambda: (one := view("image")).image == "ready" and one.running == 1, "the image is taken")
        for _ in range(rounds):
            for name, found in took.items():
                client.scale_service(name, 0)
                until(lambda name=name: not view(name).replicas, "its replicas have ended")  # type: ignore[misc]
                found.append(asked(state, name))
    return took


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    from facts import keep

    with tempfile.TemporaryDirectory() as folder:
        took = measure(Path(folder), given.rounds)
    medians = {name: statistics.median(found) for name, found in took.items()}
    ratio = medians["cold"] / medians["image"]
    for name, found in took.items():
        print(f"first request, {name:<6} {medians[name]:6.2f} s  ({min(found):.2f} to {max(found):.2f})")
    print(f"sooner from the image   {ratio:6.1f} times  bar {BAR:g}{'' if ratio >= BAR else '  MISSED'}")
    print(f"written to {keep('cold_start', {'seconds': took, 'ratio': ratio})}")


if __name__ == "__main__":
    main()
