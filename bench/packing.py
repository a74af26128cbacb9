"""Placing pods by a score, on Alibaba's openb trace (1,213 nodes, 6,212 GPUs, some 10,900 pods that arrive and never leave).

usage: python bench/packing.py [--seeds 42]
Pods per second of processor time, of one core. Bars: 3,000 for FGD, 5,000 for best-fit.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

BARS = {"fgd": 3_000, "best-fit": 5_000}
OTHERS = ("dot-product", "gpu-packing", "gpu-clustering", "random")


def main() -> int:
    from facts import keep
    from tidewright.app.packing import pack

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="42")
    seeds = parser.parse_args().seeds
    found = pack("openb", ",".join([*BARS, *OTHERS]), seeds)
    missed = 0
    for one in found:
        bar = BARS.get(one.placement)
        missed += bar is not None and one.pods_per_s < bar
        said = f"bar {bar:,}" if bar else "no bar"
        print(
            f"{one.placement:<15} {one.pods_per_s:9,.0f} pods/s ({said}), "
            f"{one.mean('allocation'):.2f} % allocated, {one.mean('failed'):,.0f} pods failed"
        )
    figures = {one.placement: {"pods_per_s": round(one.pods_per_s), "bar": BARS.get(one.placement)} for one in found}
    print(f"kept in {keep('packing', {'seeds': seeds, 'placements': figures})}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
