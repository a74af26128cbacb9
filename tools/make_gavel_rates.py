"""Make src/tidewright/sim/data/gavel_throughputs.csv from Gavel's scheduler/simulation_throughputs.json.

usage: python tools/make_gavel_rates.py SIMULATION_THROUGHPUTS.json
Only the throughput of a job alone is kept. Rows of ``KIND_unconsolidated`` were measured with every device on a node of its own.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from tidewright.sim.rate_files import gavel_rows

OUT = Path(__file__).parent.parent / "src/tidewright/sim/data/gavel_throughputs.csv"


def main() -> None:
    found = gavel_rows(Path(sys.argv[1]).read_text(), sys.argv[1])
    rows = [(row.workload, row.kind, row.devices, row.nodes, f"{row.per_s:.9g}") for row in found]
    with OUT.open("w", newline="", encoding="ascii") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("workload", "kind", "devices", "nodes", "per_s"))
        writer.writerows(sorted(rows))
    print(f"{len(rows)} rows in {OUT}")


if __name__ == "__main__":
    main()
