"""DISB on the device model: ``python bench/disb_model.py [--seconds 1] [--workloads A,B,...] [--device mi50|h200] [--open]``.

A MODEL, NOT A MEASUREMENT. Kernels are REEF's published profiles (TIDEWRIGHT_DATA, ../shared/data by default) or, without
them, made-up ones. Rows stand beside what was published about the systems that they are named after, with its source; the model
is not tuned to those figures. Writes bench/results/disb_model.json and, with --report FILE, a page with plots.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from facts import keep
from tidewright.runtime.device_model.costs import ModelCosts
from tidewright.runtime.device_model.kernels import KernelChain, profiled_chain
from tidewright.runtime.device_model.published_rows import ROWS
from tidewright.runtime.device_model.synthetic import synthetic_model
from tidewright.runtime.disb.model_run import ModelledDevice, model_table, run_row
from tidewright.runtime.disb.report import MODEL_NOTE, html, table
from tidewright.runtime.disb.result import DisbMatrix, DisbResult, over_dedicated
from tidewright.runtime.disb.workload import NAMES, load_workload
from tidewright.runtime.padding.reef_models import DISB_TO_REEF, load_reef_model

PROFILES = Path(os.environ.get("TIDEWRIGHT_DATA", "../shared/data")) / "reef" / "profiles"
DEVICES = {"mi50": (60, 1.0), "h200": (132, 0.25)}
"""SMs, and what multiplies the profiles' times. The scale of the H200 is a guess; its kernels are not these."""
_GPREEMPT = "GPreempt, ATC'25 (MI100)"
PUBLISHED = {
    "RT-only": ("0", "38.8 % of STREAM", _GPREEMPT),
    "SEQ": ("+297.9 %", "53.1 % of STREAM", _GPREEMPT),
    "STREAM": ("+170.1 %", "100 %", _GPREEMPT),
    "REEF-reset": ("+13.2 %", "72.4 % of STREAM", f"{_GPREEMPT}: REEF without padding"),
    "REEF": ("below +2 %", "up to 7.7 times RT-only", "REEF, OSDI'22, abstract (MI50)"),
    "XSched-Lv1": ("preemption p99 8 kernels", "", "XSched, OSDI'25 (threshold 8)"),
    "Orion": ("", "up to 7.3 times dedicated", "Orion, EuroSys'24 (V100, A100)"),
}
"""Row to (mean RT latency increase, throughput, source). Over DISB's workloads unless it says otherwise."""


def chains(scale: float, costs: ModelCosts) -> tuple[dict[str, KernelChain], str]:
    """The chain of each DISB model, and where it is from."""
    if PROFILES.is_dir():
        models = {disb: load_reef_model(PROFILES, reef) for disb, reef in DISB_TO_REEF.items()}
        source = "REEF's profiles of an MI50 (bert for DistilBERT)"
    else:
        models = {disb: synthetic_model(disb) for disb in DISB_TO_REEF}
        source = f"made-up kernels: no profiles in {PROFILES}"
    return {
        name: profiled_chain(model, node_start_ns=costs.node_start_ns, scale=scale) for name, model in models.items()
    }, source


def published(matrix: DisbMatrix) -> Table:
    """The model's means over all workloads, beside published figures."""
    grid = Table(title="means over the workloads, beside published figures", title_justify="left", caption=MODEL_NOTE)
    for name in (
        "row",
        "model: over alone",
        "over RT-only",
        "requests: of STREAM",
        "of RT-only",
        "published: RT latency",
        "throughput",
        "source",
    ):
        grid.add_column(name)
    rows = {row.label: [r for r in matrix.results if r.row == row.label] for row in ROWS}
    rate = {label: sum(r.per_second for r in mine) / len(mine) for label, mine in rows.items()}
    for label, mine in rows.items():
        increase = sum(r.rt_increase for r in mine) / len(mine)
        over = [found for r in mine if (found := over_dedicated(matrix, r)) is not None]
        share, times = (rate[label] / rate[other] for other in ("STREAM", "RT-only"))
        grid.add_row(
            label,
            f"{100 * increase:+.1f}%",
            f"{100 * sum(over) / len(over):+.1f}%",
            f"{100 * share:.0f}%",
            f"x{times:.2f}",
            *PUBLISHED.get(label, ("", "", "")),
        )
    return grid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="virtual seconds of each run")
    parser.add_argument("--workloads", default=",".join(NAMES))
    parser.add_argument("--device", choices=sorted(DEVICES), default="mi50")
    parser.add_argument("--open", action="store_true", help="open loop: no launch is dropped")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path)
    args = parser.parse_args()
    began = time.process_time()
    sms, scale = DEVICES[args.device]
    costs = ModelCosts()
    found, source = chains(scale, costs)
    device = ModelledDevice(args.device, sms, found, costs)
    device.table = model_table(device, found, [share for share in (8, 16, 24, 32, 48, 64) if 2 * share <= sms])
    results: list[DisbResult] = []
    for name in args.workloads.split(","):
        for row in ROWS:
            loop = "open" if args.open else "closed"
            results.append(run_row(device, load_workload(name), row, seconds=args.seconds, seed=args.seed, loop=loop))
    facts = (
        ("kernels", source),
        ("SMs", str(sms)),
        ("scale of the profiles' times", str(scale)),
        *((field, str(getattr(costs, field))) for field in costs.__dataclass_fields__),
    )
    matrix = DisbMatrix(args.device, tuple(results), facts)
    console = Console(width=200)
    console.print(table(matrix))
    console.print(published(matrix))
    if args.report:
        args.report.write_text(html(matrix, {row.label: row.about for row in ROWS}))
        console.print(f"report: {args.report}")
    print(f"{MODEL_NOTE} CPU {time.process_time() - began:.0f} s.")
    kept = [_brief(result) for result in results]
    print(
        "kept in", keep("disb_model", {"note": MODEL_NOTE, "facts": dict(facts), "device": args.device, "rows": kept})
    )


def _brief(result: DisbResult) -> dict[str, object]:
    """What of a result is kept: without clients and distributions."""
    return {
        "workload": result.workload,
        "row": result.row,
        "rt_p50": result.rt.p50,
        "rt_p99": result.rt.p99,
        "rt_increase": round(result.rt_increase, 5),
        "rt_increase_p99": round(result.rt_increase_p99, 5),
        "rt_rate": round(result.rt_per_second, 2),
        "be_rate": round(result.be_per_second, 2),
        "work": round(result.done, 4),
        "dropped": result.dropped,
        "preemption_p50": result.preemption.latency.p50,
        "preemption_max": result.preemption.latency.max,
        "wasted": round(result.preemption.wasted, 5),
    }


if __name__ == "__main__":
    main()
