"""One rank of the job of ``bench/gpu_splice.py``. Answers each line of its input, an order in JSON, with a line of JSON.

Shares its device by the product's own code (``_tidewright.splice``), by a hook of DDP as ``bench/splice.py`` has it: the wrapper
does the same, and a bare checkout has no agent to start it. Gloo, because NCCL refuses two ranks on one device. Runs on a CPU
(``"device": "cpu"``) for its test. Needs PyTorch alone, also no numpy.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

INJECT = Path(__file__).resolve().parents[1] / "src" / "tidewright" / "launch" / "inject"


def build(width: int, depth: int, device: str) -> Any:
    """A net of ``depth`` square layers, the same in each process."""
    from torch import manual_seed, nn

    manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU(inplace=True))]
    return nn.Sequential(*layers, nn.Linear(width, 8)).to(device)


class Rank:
    """``given``: rank, world, store, slots and box (paths), device, width, depth, rows."""

    def __init__(self, given: dict[str, Any]) -> None:
        import torch
        import torch.distributed as dist

        sys.path.insert(0, str(INJECT))
        from _tidewright import splice

        torch.use_deterministic_algorithms(True)
        self.torch, self.dist, self.splice, self.given = torch, dist, splice, given
        dist.init_process_group(
            "gloo", init_method=f"file://{given['store']}", rank=given["rank"], world_size=given["world"]
        )
        self.pending: list[Any] = []
        self.slices = 0
        self._drain, splice._drain = splice._drain, self._counted
        net = build(given["width"], given["depth"], given["device"])
        self.batch = (
            torch.randn(given["rows"], given["width"], device=given["device"]) + given["rank"]
        )  # seeded by build
        self.net = torch.nn.parallel.DistributedDataParallel(net)
        self.net.register_comm_hook(None, self._reduce)
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        self.alone: tuple[Any, Any] | None = None

    def _counted(self) -> None:
        """A time slice ends."""
        self.slices += 1
        self._drain()

    def _reduce(self, _state, bucket):
        """As the wrapper does: the pass ends with one hand-over, which the first bucket asks for."""
        future = self.dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        self.pending.append(future)
        self.splice.after_backward(self._wait)
        return future.then(lambda done: done.value()[0] / self.given["world"])

    def _wait(self) -> None:
        for future in self.pending:
            future.wait()

    def share(self, turns: str) -> dict[str, Any]:
        """From now on by ``lock`` or ``swap``; empty: not at all."""
        reach = {"devices": [0], "share": self.given["world"] if turns else 1, "turns": turns}
        self.splice.reset(reach, {"TIDE_SLOTS": self.given["slots"], "TIDE_BOX": self.given["box"]})
        return {"active": self.splice.active()}

    def run(self, steps: int) -> dict[str, Any]:
        """Seconds per step of the whole job, time slices that this rank had, and those that it waited for in vain."""
        before = self.slices
        self.dist.barrier()
        began = time.perf_counter()
        self.splice.acquire()
        for _ in range(steps):
            self.pending.clear()
            self._step(self.net, self.optimizer)
        self._synchronize()
        self.splice.release()
        self.dist.barrier()
        took = time.perf_counter() - began
        share = self.splice._share
        return {
            "step_s": took / steps,
            "slices": self.slices - before,
            "timeouts": share.timeouts if share is not None else 0,
        }

    def solo(self, steps: int) -> dict[str, Any]:
        """Seconds of a step of this rank alone, without its collective, on a net of its own."""
        if self.alone is None:
            net = build(self.given["width"], self.given["depth"], self.given["device"])
            self.alone = net, self.torch.optim.AdamW(net.parameters(), lr=1e-3)
            self._step(*self.alone)
        self._synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            self._step(*self.alone)
        self._synchronize()
        return {"step_s": (time.perf_counter() - began) / steps}

    def collective(self, steps: int) -> dict[str, Any]:
        """Seconds of summing up as many gradients as a step has, in one piece, without computing beside it."""
        count = sum(one.numel() for one in self.net.parameters())
        buffer = self.torch.zeros(count, device=self.given["device"])
        self._synchronize()
        self.dist.barrier()
        began = time.perf_counter()
        for _ in range(steps):
            self.dist.all_reduce(buffer)
            buffer /= self.given["world"]
            self._synchronize()
        return {"step_s": (time.perf_counter() - began) / steps}

    def digest(self) -> dict[str, Any]:
        """Of all weights and optimizer state."""
        made = hashlib.sha256()
        states = self.optimizer.state_dict()["state"].values()
        for tensor in [*self.net.state_dict().values(), *(value for state in states for value in state.values())]:
            there = tensor.cpu().contiguous()
            made.update(ctypes.string_at(there.data_ptr(), there.nbytes))
        return {"digest": made.hexdigest()[:16]}

    def _step(self, net: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        net(self.batch).square().mean().backward()
        optimizer.step()

    def _synchronize(self) -> None:
        if self.given["device"] != "cpu":
            self.torch.cuda.synchronize()


def main() -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what torch asks for with deterministic algorithms
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    rank = Rank(json.loads(sys.argv[1]))
    orders = {order.__name__: order for order in (rank.share, rank.run, rank.solo, rank.collective, rank.digest)}
    print(json.dumps({"ready": rank.given["rank"]}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(orders[order.pop("do")](**order)), flush=True)


if __name__ == "__main__" and len(sys.argv) > 1:  # make bench starts every file of this folder
    main()
