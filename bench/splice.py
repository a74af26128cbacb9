"""Several ranks on fewer cores, K changing while the job runs. Bar: at most 6 % over the ideal, and the same bits.

One data-parallel job of N processes goes through phases in one run, round after round: cores shared by the kernel, turns
by lock, and, where there are enough cores, one for each rank. The ideal for K cores is the CPU time that the ranks need when
nothing is lost by sharing: a step is not over before its busiest core is through, so of each step it is the CPU time of
all ranks of the core that has most to do. It is measured while exactly one rank at a time computes on each of the K
cores (turns by lock; or a core for each rank): two ranks that compute at once on two cores slow each other down in
memory and by the processor's clock, with or without sharing, so for two cores the ideal is measured with two that compute.

After the first round the job's weights and optimizer state are compared with those of a job that never shared. Figures
are only good when nothing else runs, or with --nice.

Run: python bench/splice.py [--rounds 3] [--models small,25M] [--ranks 2,4] [--nice]        (some 4 minutes)
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from facts import keep

BAR_PERCENT = 6.0
INJECT = Path(__file__).parents[1] / "src" / "tidewright" / "launch" / "inject"
WAYS = {"own": "os", "os": "os", "pool": "os", "lock": "lock"}
"""Phase to how its devices are shared. ``own`` and ``os`` pin a rank to one core, ``pool`` lets it use all K."""
STEPS = {("small", 2): 150, ("small", 3): 100, ("small", 4): 75, ("25M", 2): 8, ("25M", 3): 6, ("25M", 4): 5}


def phases(ranks: int, cores: int) -> list[tuple[str, int]]:
    """(phase, K) of one round."""
    found = [("lock", 1), ("os", 1)]
    if ranks % cores and ranks > cores:
        return [*found, ("os", cores), ("pool", cores)]
    found += [("own", ranks)] if ranks <= cores else [("os", cores), ("lock", cores)]
    return found


# what one rank does


def build(model: str) -> tuple[Any, Any]:
    """A net and its batch: 0.4 M parameters and 128 rows, or 23 M and 64."""
    import torch
    from torch import nn

    width, depth, rows = (256, 6, 128) if model == "small" else (1696, 8, 64)
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 8)), torch.randn(rows, width)


def confine(cores: list[int]) -> None:
    """All threads of this process."""
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task), cores)


class Rank:
    """One process of the job."""

    def __init__(self, args: argparse.Namespace) -> None:
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        sys.path.insert(0, str(INJECT))
        from _tidewright import splice

        torch.set_num_threads(1)
        self.splice, self.dist, self.torch, self.args = splice, dist, torch, args
        dist.init_process_group("gloo", init_method=f"file://{args.store}", rank=args.rank, world_size=args.world)
        net, self.batch = build(args.model)
        self.batch = self.batch + args.rank
        self.net = DistributedDataParallel(net)
        self.net.register_comm_hook(None, self._reduce)
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        self.pending: list[Any] = []
        self.looking = 0.0
        self._await, splice._await = splice._await, self._look

    def _look(self, *args: Any) -> bool:
        """Waiting for a turn means looking again and again; that is no part of a rank's own work."""
        began = time.thread_time()
        try:
            return bool(self._await(*args))
        finally:
            self.looking += time.thread_time() - began

    def _reduce(self, _state, bucket):
        """As the wrapper does: the pass ends with one hand-over, which the first bucket asks for."""
        work = self.dist.all_reduce(bucket.buffer(), async_op=True)
        future = work.get_future()
        self.pending.append(future)
        self.splice.after_backward(self._wait)
        return future.then(lambda done: done.value()[0] / self.args.world)

    def _wait(self) -> None:
        for future in self.pending:
            future.wait()

    def share(self, phase: str, devices: int) -> None:
        """Move to the cores of a phase and share them as it says."""
        cores = self.args.cores[:devices]
        device = self.args.rank % devices
        confine(cores if phase == "pool" else [cores[device]])
        share = -(-self.args.world // devices)
        environ = {"TIDE_SLOTS": self.args.slots}
        self.splice.reset({"devices": [device], "share": share, "turns": WAYS[phase]}, environ)

    def run(self, steps: int) -> dict[str, Any]:
        """Wall milliseconds per step, and the CPU milliseconds of each."""
        self.dist.barrier()
        began, used = time.perf_counter(), [self._used()]
        self.splice.acquire()
        for _ in range(steps):
            self._step()
            used.append(self._used())
        self.splice.release_while(self.dist.barrier)
        wall = time.perf_counter() - began
        self.splice.release()
        return {"wall": 1000 * wall / steps, "cpu": [1000 * (b - a) for a, b in itertools.pairwise(used)]}

    def _used(self) -> float:
        return time.process_time() - self.looking

    def _step(self) -> None:
        self.pending.clear()
        self.optimizer.zero_grad()
        loss = self.net(self.batch).square().mean()
        loss.backward()
        self.optimizer.step()

    def digest(self) -> str:
        """Of all weights and optimizer state."""
        made = hashlib.sha256()
        for tensor in self.net.state_dict().values():
            made.update(tensor.numpy().tobytes())
        for state in self.optimizer.state_dict()["state"].values():
            for value in state.values():
                made.update(value.numpy().tobytes())
        return made.hexdigest()[:16]


def be_a_rank(args: argparse.Namespace) -> None:
    """Go through all phases and print what they took."""
    rank, taken, digest = Rank(args), [], ""
    steps = args.steps or STEPS[args.model, args.world]
    confine([args.cores[args.rank % len(args.cores)]])
    rank.run(max(2, steps // 4))
    for number in range(args.rounds):
        order = args.phases if number % 2 == 0 else args.phases[::-1]
        for phase, devices in order:
            if not args.plain:
                rank.share(phase, devices)
            taken.append([phase, devices, rank.run(steps)])
        digest = digest or rank.digest()
        if not args.rank:
            done = f"round {number + 1} of {args.rounds}" if not args.plain else "the same without sharing"
            print(f"{args.model} on {args.world} ranks: {done}", file=sys.stderr, flush=True)
    print(json.dumps({"taken": taken, "digest": digest}))
    rank.dist.destroy_process_group()


# what the bench does


def go_first() -> None:
    """Before the processes of other sessions: sched(7), autogroup."""
    os.setsid()
    os.nice(-20)
    with contextlib.suppress(FileNotFoundError):
        Path("/proc/self/autogroup").write_text("-20")


def job(
    model: str, ranks: int, cores: list[int], rounds: int, nice: bool, *, plain: bool, steps: int = 0
) -> list[dict[str, Any]]:
    """Run the job; ``plain``: it never shares; ``steps`` of a phase (0: as measured). What each rank printed."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "slots").mkdir()
        given = {
            "model": model, "world": ranks, "cores": cores, "rounds": rounds, "plain": plain, "steps": steps,
            "phases": phases(ranks, len(cores)), "store": f"{folder}/store", "slots": f"{folder}/slots",
        }  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--as-rank", json.dumps({**given, "rank": rank})],
                env=environment,
                stdout=subprocess.PIPE,
                preexec_fn=go_first if nice else None,
            )
            for rank in range(ranks)
        ]
        try:
            return [json.loads(process.communicate(timeout=900)[0]) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()


Key = tuple[str, int]


def summary(found: list[dict[str, Any]]) -> dict[Key, dict[str, float]]:
    """Medians over rounds, milliseconds of a step: ``wall``, ``cpu`` of all ranks, ``busiest`` core."""
    made: dict[Key, dict[str, list[float]]] = {}
    for entries in zip(*(rank["taken"] for rank in found), strict=True):
        phase, devices, _ = entries[0]
        each = made.setdefault((phase, devices), {"wall": [], "cpu": [], "busiest": []})
        each["wall"].append(max(entry[2]["wall"] for entry in entries))
        steps = list(zip(*(entry[2]["cpu"] for entry in entries), strict=True))
        each["cpu"].append(statistics.fmean(map(sum, steps)))
        each["busiest"].append(
            statistics.fmean(max(sum(step[device::devices]) for device in range(devices)) for step in steps)
        )
    return {key: {name: statistics.median(values) for name, values in each.items()} for key, each in made.items()}


def ideal(medians: dict[Key, dict[str, float]], ranks: int, devices: int) -> float | None:
    """Milliseconds of a step on so many cores if sharing cost nothing; None where it was not measured."""
    alone = medians.get(("own", ranks)) if ranks <= devices else medians.get(("lock", devices))
    return alone and alone["busiest"]


def measure(model: str, ranks: int, cores: list[int], rounds: int, nice: bool) -> dict[str, Any]:
    """One model and N: every phase beside its ideal."""
    found = job(model, ranks, cores, rounds, nice, plain=False)
    plain = job(model, ranks, cores, 1, nice, plain=True)
    rows = []
    medians = summary(found)
    for (phase, devices), each in medians.items():
        best = ideal(medians, ranks, devices)
        over = best and 100 * (each["wall"] / best - 1)
        row = {"step_ms": each["wall"], "cpu_ms": each["cpu"], "ideal_ms": best, "over_percent": over}
        rows.append({"phase": phase, "K": devices, **row})
    same = len({rank["digest"] for rank in found + plain}) == 1
    return {"model": model, "N": ranks, "rows": rows, "same_bits": same}


def show(found: dict[str, Any]) -> bool:
    """Print the rows; whether the bar is met by the way that CPU slots are shared in."""
    good: bool = found["same_bits"]
    for row in found["rows"]:
        over = row["over_percent"]
        held = row["phase"] == "os" and over is not None
        note = f"bar {BAR_PERCENT:.0f} %" if held else ("for comparison" if row["phase"] != "own" else "not shared")
        beside = "no ideal" if over is None else f"ideal {row['ideal_ms']:8.2f} ms  over {over:+6.1f} %"
        print(
            f"{found['model']:>5}  {found['N']} on {row['K']}  {row['phase']:>4}  step {row['step_ms']:8.2f} ms  "
            f"CPU {row['cpu_ms']:8.2f} ms  {beside}  ({note})", flush=True
        )  # fmt: skip
        good = good and not (held and over > BAR_PERCENT)
    print(f"{found['model']:>5}  N={found['N']}: weights and optimizer state "
          f"{'as' if found['same_bits'] else 'NOT AS'} without sharing")  # fmt: skip
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default="small,25M")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--nice", action="store_true", help="go before other processes (needs root)")
    parser.add_argument("--as-rank", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_rank:
        be_a_rank(argparse.Namespace(**json.loads(args.as_rank)))
        return 0
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        print("two cores are needed to change K")
        return 0
    pairs = [(model, int(ranks)) for model in args.models.split(",") for ranks in args.ranks.split(",")]
    found, good = [], True
    for model, ranks in pairs:
        found.append(measure(model, ranks, cores, args.rounds, args.nice))
        good = show(found[-1]) and good
    print(f"kept in {keep('splice', {'bar_percent': BAR_PERCENT, 'rounds': args.rounds, 'found': found})}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
