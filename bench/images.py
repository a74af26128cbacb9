"""What ten images of a real job take on disk: four ranks, DistributedDataParallel, 25 million parameters.

Through everything: tide's own client, controller, agent and store; an image is taken while the job trains, wherever that
is. One raw set is what a plain dump of all ranks would write: the anonymous memory that they have while they train. What
Tidewright's own images come to raw is less, as it gives back first what is free; it is reported beside.
Needs root and CRIU (`tide setup criu`).

    python bench/images.py [--images 10] [--keep]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from facts import keep
from suspend import Follower, begun, daemons, steps
from tidewright import Client, JobSpec
from tidewright.app import images as app
from tidewright.launch.environment import submitted_environment

RANKS, PROGRAM = 4, Path(__file__).parent / "programs" / "ddp_25m.py"
BAR = 1.5
"""Of one raw set, on disk, for ten images."""
BETWEEN_S, PATIENCE_S = 3.0, 300.0


def memory() -> int:
    """Bytes of anonymous memory of all ranks, the most of them at once while they trained for three seconds."""
    ranks = [each for each in psutil.process_iter(["cmdline"]) if str(PROGRAM) in (each.info["cmdline"] or ())[1:2]]
    found = 0
    for _ in range(60):
        found = max(found, sum(part.anonymous for rank in ranks for part in rank.memory_maps()))
        time.sleep(0.05)
    return found


class Rows:
    """The rows of all images that have been in the store; it need not keep ten of one job."""

    def __init__(self, state: Path) -> None:
        self._state, self._rows = state, dict[tuple[int, int], app.ImageRow]()

    def of(self, serials: int) -> list[app.ImageRow]:
        """Those of the newest image, once the store has taken in so many of all ranks."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for row in app.listed(self._state).images:
                self._rows.setdefault((row.serial, row.rank), row)
            if len(self._rows) == serials * RANKS:
                last = max(serial for serial, _ in self._rows)
                return [self._rows[last, rank] for rank in range(RANKS)]
            time.sleep(0.5)
        raise SystemExit(f"no {serials} images after {PATIENCE_S:g} s")

    def stored(self) -> int:
        """Bytes on disk of all of them."""
        return sum(row.stored for row in self._rows.values())


def measure(state: Path, images: int) -> dict[str, Any]:
    """Train, and take images."""
    client, follower, rows = Client(state), Follower(state), Rows(state)
    spec = JobSpec(
        name="bench", command=(sys.executable, str(PROGRAM)), ranks=RANKS, devices=RANKS, workdir=str(PROGRAM.parent),
        env=submitted_environment(os.environ), checkpoint_us=-1,
    )  # fmt: skip
    job = begun(client, follower, spec, 10)
    began, at = time.monotonic(), steps(client, job)
    found: dict[str, Any] = {"raw_set": memory(), "images": []}
    found["step_s"] = (time.monotonic() - began) / max(1, steps(client, job) - at)
    print(
        f"{found['raw_set'] / RANKS / 1e6:.0f} MB per rank as it trains, {found['step_s']:.2f} s per step", flush=True
    )
    for number in range(1, images + 1):
        time.sleep(BETWEEN_S)
        client.checkpoint(job)
        taken = rows.of(number)
        found["images"].append({name: [getattr(row, name) for row in taken] for name in ("size", "new", "stored")})
        found["disk"] = rows.stored() / found["raw_set"]
        print(
            f"{number:2d}: raw {sum(row.size for row in taken) / RANKS / 1e6:4.0f} MB per rank, on disk for it "
            f"{' + '.join(f'{row.stored / 1e6:.0f}' for row in taken)} MB; all {found['disk']:.2f} raw sets",
            flush=True,
        )
    client.cancel(job)
    own = statistics.median(sum(each["size"]) for each in found["images"])
    return {**found, "disk_of_own_raw": rows.stored() / own}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--keep", action="store_true", help="write bench/results")
    given = parser.parse_args()
    with daemons("--slots", str(RANKS)) as state:
        found = measure(state, given.images)
    print(
        f"{given.images} images of {RANKS} ranks: {found['disk']:.2f} of one raw set (bar {BAR} for 10); "
        f"{found['disk_of_own_raw']:.2f} of what one image of all ranks comes to raw"
    )
    if given.keep:
        print(f"kept in {keep('images', found)}")


if __name__ == "__main__":
    main()
