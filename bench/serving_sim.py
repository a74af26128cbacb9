"""Batching policies with and without admission by deadline, simulated on a published GPU profile: goodput at one objective.

usage: python bench/serving_sim.py [--profile resnet50-v100-amp] [--objective 50ms] [--replicas 1,8]
A SIMULATION of the policies that serve, on latencies that others measured (the profile says who). Rates are relative to the
capacity of replicas that start in turn ((1 + 1/N) l(b) <= objective). "rate at 99 %": the highest offered rate of the grid,
found by bisection, at which 99 % of all offered requests, refused ones included, are answered within the objective. The burst
is an hour of Alibaba's GenAI trace (qps, 60 bins of 57 s around its peak) at 0.1 s for each bin, scaled to each mean rate;
without TIDEWRIGHT_DATA the packaged made-up burst. Bars: 2 times the rate of eager batching; 90 % of peak goodput at 10 times
the capacity, with admission.
"""

from __future__ import annotations

import argparse
import os
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from facts import keep
from tidewright.base.units import SECOND, parse_duration
from tidewright.serve.admission import AdmissionRule
from tidewright.serve.arrivals import SYNTHETIC_BURST, RateCurve, along, poisson, read_rates
from tidewright.serve.autoscale import replica_capacity
from tidewright.serve.lane import ServedModel
from tidewright.serve.profile import BatchProfile, packaged_profile
from tidewright.serve.routing import PoolSettings
from tidewright.serve.simulate import OfferedLoad, ServingFigures, SimulatedPool, simulate

ATTAINMENT, FACTOR, KEPT = 0.99, 2.0, 0.90
GRID = [round(0.05 * step, 2) for step in range(1, 25)]
WARM_UP = 40
"""Objectives that pass before requests count: AIMD begins with batches of one."""
NOISE = 0.05
"""Sigma of the natural logarithm of measured over profiled latency, for the rows "noise"."""
TUNED = (16, 32, 64, 128)
"""Largest batches tried for "eager, tuned": the best fixed one counts."""
POLICIES = ("eager", "aimd", "deadline", "deferred")
QPS = Path(os.environ.get("TIDEWRIGHT_DATA", "../shared/data")) / "genai-2026" / "qps.tar.gz"


def recorded_burst() -> RateCurve:
    """The hour around the peak of the generative requests, or the made-up burst where there is no recording."""
    if not QPS.is_file():
        return SYNTHETIC_BURST
    with tempfile.TemporaryDirectory() as folder, tarfile.open(QPS) as archive:
        archive.extract("qps.csv", folder, filter="data")
        return read_rates(
            Path(folder) / "qps.csv", request_type="Generative Requests", bin_us=SECOND // 10, first=300, bins=60
        )


class Bench:
    """One profile, one objective, one number of replicas."""

    def __init__(self, profile: BatchProfile, objective_us: int, replicas: int, noise: float, burst: RateCurve) -> None:
        self.profile, self.objective_us, self.replicas, self.noise, self.burst = (
            profile, objective_us, replicas, noise, burst,
        )  # fmt: skip
        self.capacity = replicas * replica_capacity(profile.table(), objective_us, replicas)

    def run(self, policy: str, admission: AdmissionRule, load: float, arrivals: str, objectives: int) -> ServingFigures:
        rate = load * self.capacity
        times = (
            poisson(rate, objectives * self.objective_us, 1) if arrivals == "poisson" else along(self.burst, rate, 1)
        )
        model = ServedModel("m", self.profile, self.objective_us, policy)
        warm_us = WARM_UP * self.objective_us
        pool = SimulatedPool([model], self.replicas, PoolSettings(admission), self.noise, counted_from_us=warm_us)
        return simulate(pool, [OfferedLoad("m", times)])

    def highest(self, policy: str, admission: AdmissionRule, arrivals: str) -> tuple[float, ServingFigures | None]:
        """(load of the grid, figures) at which 99 % are still in time; (0, None) if at none."""
        low, high, best = -1, len(GRID), None
        while high - low > 1:
            middle = (low + high) // 2
            found = self.run(policy, admission, GRID[middle], arrivals, 140)
            if found.attainment >= ATTAINMENT:
                low, best = middle, found
            else:
                high = middle
        return (GRID[low] if low >= 0 else 0.0), best

    def tuned(self, arrivals: str) -> tuple[str, float, ServingFigures | None]:
        rows = [
            (f"eager:max_batch={size}", *self.highest(f"eager:max_batch={size}", AdmissionRule.NONE, arrivals))
            for size in TUNED
        ]
        return max(rows, key=lambda row: row[1])


def row(policy: str, admission: str, load: float, found: ServingFigures | None) -> dict[str, Any]:
    if found is None:
        return {"policy": policy, "admission": admission, "load_at_99": 0.0}
    busy = found.busy_s / found.replica_s
    return {
        "policy": policy, "admission": admission, "load_at_99": load, "goodput_per_s": round(found.goodput),
        "p50_ms": round(found.p50_us / 1000, 1), "p99_ms": round(found.p99_us / 1000, 1),
        "mean_batch": round(found.mean_batch, 1), "busy": round(busy, 3),
    }  # fmt: skip


def rates_at_99(bench: Bench, arrivals: str) -> list[dict[str, Any]]:
    rows = []
    name, load, found = bench.tuned(arrivals)
    rows.append(row(name, "none", load, found))
    for policy in POLICIES:
        rows += [
            row(policy, rule.value, *bench.highest(policy, rule, arrivals))
            for rule in (AdmissionRule.NONE, AdmissionRule.DEADLINE)
        ]
    for one in rows:
        print(f"  {arrivals:8} {one['policy']:20} admission {one['admission']:9} load {one['load_at_99']:.2f} "
              f"goodput {one.get('goodput_per_s', 0):7,}/s p50 {one.get('p50_ms', 0):5} p99 {one.get('p99_ms', 0):5} ms "
              f"batch {one.get('mean_batch', 0):5} busy {one.get('busy', 0):.2f}")  # fmt: skip
    return rows


def sweep(bench: Bench) -> dict[str, Any]:
    """Goodput and busy share over loads, and the share of the best that is left at 10 times the capacity."""
    found: dict[str, Any] = {}
    cells = [
        ("eager", "none"),
        ("deferred", "none"),
        ("deferred", "late"),
        *((policy, "deadline") for policy in POLICIES),
    ]
    for policy, admission in cells:
        line = {}
        for load in (0.25, 0.5, 0.75, 0.9, 1.0, 1.25, 2.0, 10.0):
            if load == 10.0 and admission != "deadline":
                load = 4.0  # late requests are all served, so the run lasts as long as the backlog
            figures = bench.run(policy, AdmissionRule(admission), load, "poisson", 80 if load > 2 else 120)
            line[load] = {
                "goodput": round(figures.goodput / bench.capacity, 3), "attainment": round(figures.attainment, 4),
                "busy": round(min(1.0, figures.busy_s / figures.replica_s), 3), "p50_ms": round(figures.p50_us / 1000, 1),
            }  # fmt: skip
        peak = max(cell["goodput"] for cell in line.values())
        kept = line[max(line)]["goodput"] / peak
        found[f"{policy}+{admission}"] = {"loads": line, "kept_in_overload": round(kept, 3)}
        print(f"  {policy + '+' + admission:20} goodput of capacity "
              + " ".join(f"{load:g}x:{cell['goodput']:.2f}" for load, cell in line.items())
              + f"  keeps {100 * kept:.0f} % at {max(line):g}x (bar {100 * KEPT:.0f} %)")  # fmt: skip
    return found


def noisy(bench: Bench) -> dict[str, Any]:
    """The candidates for the default where batches take 5 % more or less than profiled (log-normal)."""
    found = {}
    bench.noise = NOISE
    for policy in ("deadline", "deferred"):
        line = {}
        for load in (0.5, 0.8, 0.9):
            figures = bench.run(policy, AdmissionRule.DEADLINE, load, "poisson", 120)
            line[load] = {
                "attainment": round(figures.attainment, 4), "late": figures.answered - figures.within,
                "busy": round(min(1.0, figures.busy_s / figures.replica_s), 3), "p50_ms": round(figures.p50_us / 1000, 1),
            }  # fmt: skip
        found[policy] = line
        print(f"  noise {NOISE:g}: {policy:9} " + "; ".join(f"{load:g}x: {cell}" for load, cell in line.items()))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", default="resnet50-v100-amp")
    parser.add_argument("--objective", default="50ms")
    parser.add_argument("--replicas", default="1,8")
    parser.add_argument("--keep", default="serving_sim", help="name of the file of results")
    args = parser.parse_args()
    profile, objective_us, burst = packaged_profile(args.profile), parse_duration(args.objective), recorded_burst()
    print(f"{profile.model}, {profile.device}, {profile.statistic}; objective {args.objective}; {profile.source}")
    print(f"burst: {burst.source}, peak {burst.peak_over_mean:.2f} times the mean")
    began, missed, results = time.process_time(), 0, {}
    for replicas in map(int, args.replicas.split(",")):
        bench = Bench(profile, objective_us, replicas, 0.0, burst)
        print(f"{replicas} replicas, capacity {bench.capacity:,.0f}/s")
        at_99 = {arrivals: rates_at_99(bench, arrivals) for arrivals in ("poisson", "burst")}
        ratios = {}
        for arrivals, rows in at_99.items():
            load = {
                (one["policy"].partition(":")[0] + ("-tuned" if ":" in one["policy"] else ""), one["admission"]): one[
                    "load_at_99"
                ]
                for one in rows
            }
            ours = load["deferred", "deadline"]
            for base in ("eager", "eager-tuned"):
                ratio = ours / load[base, "none"] if load[base, "none"] else float("inf")
                ratios[f"{arrivals}, over {base}"] = round(ratio, 2)
                print(f"  {arrivals}: deferred with admission {ratio:.2f} times {base} at 99 % (bar {FACTOR:g})")
        overload = sweep(bench)
        missed += overload["deferred+deadline"]["kept_in_overload"] < KEPT
        missed += ratios["poisson, over eager"] < FACTOR and replicas > 1
        results[str(replicas)] = {
            "capacity_per_s": round(bench.capacity),
            "at_99": at_99,
            "ratios": ratios,
            "overload": overload,
            "noise": noisy(bench),
        }
    measured = {
        "profile": profile.to_json(), "objective": args.objective, "noise": NOISE, "burst": burst.source,
        "peak_over_mean": round(burst.peak_over_mean, 2), "cpu_s": round(time.process_time() - began, 1), "replicas": results,
    }  # fmt: skip
    print(f"kept in {keep(args.keep, measured)}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
