"""Make the packaged Philly trace from the Sia artifact's derived csv: sorted, in seconds, compressed. Reproducible.

usage: python tools/make_philly.py PATH/philly.csv
"""

from __future__ import annotations

import csv
import lzma
import sys
from datetime import datetime
from pathlib import Path

TARGET = Path(__file__).parent.parent / "src" / "tidewright" / "sim" / "data" / "philly.csv.xz"
JOBS = 82_247


def convert(source: Path) -> str:
    """The trace as text: seconds since the first submission, sorted by it, ties in the order of the source."""
    rows = []
    with source.open(newline="") as lines:
        for row in csv.DictReader(lines):
            submitted = datetime.fromisoformat(row["timestamp"])
            rows.append((submitted, int(float(row["duration"])), int(row["num_gpus"]), row["cluster"]))
    if len(rows) != JOBS:
        raise SystemExit(f"{source} holds {len(rows)} jobs, not {JOBS}: not the file this was written for")
    rows.sort(key=lambda row: row[0])
    start = rows[0][0]
    lines_out = [f"{int((at - start).total_seconds())},{duration},{devices},{vc}" for at, duration, devices, vc in rows]
    return "\n".join(["submit_s,duration_s,devices,vc", *lines_out, ""])


def main() -> None:
    text = convert(Path(sys.argv[1]))
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{TARGET}: {TARGET.stat().st_size} bytes, {JOBS} jobs")


if __name__ == "__main__":
    main()
