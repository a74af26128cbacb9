"""Training done in one pool with a service, over that of a static split at the same attainment: python bench/one_pool.py.

usage: python bench/one_pool.py [--only NAME,...] [--plot docs/one-pool.svg]
A SIMULATION by the engine, the policy `sla` and the autoscaler that run live. The service: the day of Alibaba's GenAI trace
(qps, 57 s a bin; needs TIDEWRIGHT_DATA), scaled so that its highest bin needs a part of 480 devices, one a replica; ResNet-50 on
a V100, mixed precision, objective 50 ms. A replica loads for as long as a base model of the same trace did (percentiles of what
was recorded). The training: of 24 parts of the packaged Philly trace the one that asks for most devices, as it was recorded.
Bar: 20 % more useful training than the split with the fewest devices that answers as large a part of the requests in time.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from facts import keep
from tidewright.app.one_pool.present import plot
from tidewright.app.one_pool.run import PoolComparison, ServedDay, as_json, compare_day
from tidewright.app.simulate import Question, load_trace_of, options_of, shaped
from tidewright.base.units import MINUTE, MS, SECOND
from tidewright.serve.arrivals import RateCurve, read_day
from tidewright.serve.profile import packaged_profile
from tidewright.sim.clusters import load_cluster
from tidewright.sim.costs import Cost, recorded_cost

BAR = 0.20
GENAI = Path(os.environ.get("TIDEWRIGHT_DATA", "../shared/data")) / "genai-2026"
CASES: dict[str, dict[str, Any]] = {
    "main": {},
    "peak 30 %": {"peak": 0.3},
    "peak 50 %": {"peak": 0.5},
    "API requests": {"requests": "API Requests"},
    "images of 30 s": {"costs": "save=30s,restore=30s", "start_s": 100},
    "load 3": {"load": 3.0},
}
"""Name to what differs from the first."""


def unpacked(name: str, folder: str) -> Path:
    with tarfile.open(GENAI / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return Path(folder) / f"{name}.csv"


def recorded(requests: str) -> tuple[RateCurve, Cost]:
    """The day's rates, and what loading a base model took."""
    with tempfile.TemporaryDirectory() as folder:
        curve = read_day(unpacked("qps", folder), requests)
        with unpacked("basemodel_update_latency_anon", folder).open(newline="") as file:
            loads = [round(float(row["value"]) * MS) for row in csv.DictReader(file) if row["value"]]
    return curve, recorded_cost(loads)


def compare(
    requests: str = "Generative Requests",
    peak: float = 0.4,
    costs: str = "",
    load: float | None = None,
    start_s: int = 60,
) -> PoolComparison:
    curve, load_us = recorded(requests)
    question = Question(
        trace="philly", cluster="philly-480", policy="sla", window="15/24", load=load, costs=costs,
        tiers="standard:0.4/basic:0.6",
    )  # fmt: skip
    nodes = load_cluster(question.cluster)
    trace = shaped(load_trace_of(question, nodes), question, nodes)
    day = ServedDay(
        curve=curve, profile=packaged_profile("resnet50-v100-amp"), objective_us=50 * MS, peak_share=peak,
        load_us=load_us, start_us=start_s * SECOND, hold_us=5 * MINUTE,
    )  # fmt: skip
    return compare_day(trace, nodes, question.policy, options_of(question), day)


def show(name: str, found: PoolComparison) -> None:
    pool, split, reclaims = found.pool, found.split, found.pool.reclaims
    print(
        f"{name}: {found.devices} devices, peak {found.peak_replicas}; {found.requests / 1e9:.1f} thousand million requests"
    )
    print(f"  pool   {100 * pool.attainment.requests:.2f} % in time, {100 * pool.attainment.bins:.1f} % of bins good; service "
          f"{pool.held_devices:.0f} devices (at most {pool.wanted_most} wanted), training {pool.training.devices:.0f}: "
          f"{pool.training.useful:,.0f} useful device-hours, lost {pool.training.lost:.1f}")  # fmt: skip
    for what, one, gain in (
        ("same requests", split, found.gain),
        ("same bins", found.bins_split, found.gain_over_bins),
        ("peak", found.peak_split, found.gain_over_peak),
    ):
        print(f"  split  {what}: {one.serving_devices} devices serve, {100 * one.attainment.requests:.2f} % in time, "
              f"{100 * one.attainment.bins:.1f} % of bins good; training {one.training.devices:.0f}: "
              f"{one.training.useful:,.0f}; gain {100 * gain:+.1f} % (bar {100 * BAR:+.0f} %)")  # fmt: skip
    print(f"  reclaims {reclaims.replicas:,} ({reclaims.cancelled} cancelled): device after {reclaims.released_p50_s:.1f} s "
          f"(p99 {reclaims.released_p99_s:.1f}), ready after {reclaims.ready_p50_s:.1f} s (p99 {reclaims.ready_p99_s:.1f}, "
          f"longest {reclaims.ready_longest_s:.1f}); in time {100 * reclaims.in_time:.1f} %", flush=True)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(CASES), help="cases, by name")
    parser.add_argument("--plot", type=Path, help="file of the plot of the first case, SVG")
    args = parser.parse_args()
    if not GENAI.is_dir():
        print(f"skipped: no recorded day in {GENAI}; set TIDEWRIGHT_DATA")
        return 0
    names, results, gains = args.only.split(","), {}, {}
    for name in names:
        began = time.process_time()
        found = compare(**CASES[name])
        show(name, found)
        figures = json.loads(as_json(found))
        del figures["lines"]
        results[name], gains[name] = {**figures, "cpu_s": round(time.process_time() - began, 1)}, found.gain
        if args.plot and name == names[0]:
            args.plot.write_bytes(plot(found))
    if names == list(CASES):
        print(f"kept in {keep('one_pool', {'bar': BAR, 'cases': results})}")
    return int(gains[names[0]] < BAR)


if __name__ == "__main__":
    sys.exit(main())
