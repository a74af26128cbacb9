"""Make src/tidewright/sim/data/gavel_throughputs.csv from Gavel's scheduler/simulation_throughputs.json.

usage: python tools/make_gavel_rates.py SIMULATION_THROUGHPUTS.json
Only the throughput of a job alone is kept. Rows of ``KIND_unconsolidated`` were measured with every device on a node of its own.
"""

from __future__ import annotations

import ast
import csv
import json
import sys
from pathlib import Path

OUT = Path(__file__).parent.parent / "src/tidewright/sim/data/gavel_throughputs.csv"


def main() -> None:
    table = json.loads(Path(sys.argv[1]).read_text())
    rows = []
    for name, jobs in table.items():
        kind, apart, _ = name.partition("_unconsolidated")
        for job, speeds in jobs.items():
            workload, devices = ast.literal_eval(job)
            if apart and devices == 1:
                continue
            rows.append((workload, kind, devices, devices if apart else 0, f"{speeds['null']:.9g}"))
    with OUT.open("w", newline="", encoding="ascii") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("workload", "kind", "devices", "nodes", "per_s"))
        writer.writerows(sorted(rows))
    print(f"{len(rows)} rows in {OUT}")


if __name__ == "__main__":
    main()
