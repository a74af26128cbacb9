"""How long a two-rank DDP job takes to let go of its devices, to come back, to move to another host, and to reconnect.

Through everything: tide's own client, controller, two agents of this machine (hosts a and b, each with two CPU slots),
the cut, CRIU, the shims. Storing, compressing and copying go on behind and are reported apart. Nothing is polled, as that
would take a tenth of two cores; reconnecting, which can only be seen by looking all the time, has rounds of its own.

    python bench/suspend.py [--rounds 10] [--width 512] [--keep]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from facts import facts, keep
from tidewright import Client, JobSpec
from tidewright.base.errors import TideError
from tidewright.base.units import SECOND
from tidewright.launch.environment import submitted_environment
from tidewright.launch.inject._tidewright import page as pg

CHECKOUT = Path(__file__).resolve().parents[1]
SUSPEND = "suspend until the devices are free"
CUT = "of that, until all ranks stand still (cut)"
RESUME = "resume"
MIGRATE = "migrate, request until it runs there"
RECONNECT = "reconnect"
BARS = {SUSPEND: 1.0, CUT: None, RESUME: 0.5, MIGRATE: 2.5, RECONNECT: 0.05}
PATIENCE_S = 120.0


class Reconnects:
    """Watches control pages for the time that ranks spend connecting again, in a thread of its own."""

    def __init__(self, state: Path) -> None:
        self._state, self.seconds = state, list[float]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        since: dict[Path, float] = {}
        pages: dict[Path, pg.Page] = {}
        while not self._over.wait(0.001):
            if not pages or int(time.monotonic() * 20) % 4 == 0:
                for path in self._state.glob("hosts/*/ranks/*/*/box/ctl/*.page"):
                    if path not in pages:
                        with contextlib.suppress(OSError, ValueError):  # being made, or gone
                            pages[path] = pg.Page(path)
            for path, page in pages.items():
                if page.words[pg.STATE] == pg.REBUILDING:
                    since.setdefault(path, time.monotonic())
                elif path in since and page.words[pg.STATE] == pg.RUNNING:
                    self.seconds.append(time.monotonic() - since.pop(path))

    def close(self) -> None:
        self._over.set()
        self._thread.join()


class Follower:
    """Tells of a job's state by the controller's events."""

    def __init__(self, state: Path) -> None:
        self.client, self._events = Client(state), queue.Queue[int]()
        threading.Thread(target=self._listen, args=(Client(state),), daemon=True).start()

    def _listen(self, client: Client) -> None:
        with contextlib.suppress(TideError):  # the controller's end
            for event in client.events():
                self._events.put(event.job)

    def until(self, job: int, states: set[str], where: str = "") -> Any:
        """The job once it is in one of these states, on that node."""
        while True:
            view = self.client.job(job)
            if view.state in states and (not where or {held.node for held in view.where} == {where}):
                return view
            if view.end >= 0:
                raise SystemExit(f"job {job} ended: {view.why}")
            try:
                while self._events.get(timeout=PATIENCE_S) != job:
                    pass
            except queue.Empty:
                raise SystemExit(f"job {job} is {view.state} after {PATIENCE_S:g} s") from None


def settled(client: Client, job: int) -> None:
    """Until the last image is stored and copied: what goes on behind would be measured with the rest."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and not client.job(job).images[-1].copies:
        time.sleep(0.05)
    time.sleep(0.5)


def steps(client: Client, job: int) -> int:
    """Lines of its log: one per step."""
    return sum(block.count(b"\n") for block in client.logs(job))


@contextlib.contextmanager
def daemons(*options: str) -> Iterator[Path]:
    """A state directory of their own, with what ``tide up`` starts by these options."""
    with tempfile.TemporaryDirectory(prefix="tide-bench-") as scratch:
        state = Path(scratch) / "state"
        tide = [str(Path(sys.executable).with_name("tide"))]
        environment = {**os.environ, "TIDE_STATE": str(state)}
        subprocess.run([*tide, "up", *options], env=environment, check=True)
        try:
            yield state
        finally:
            subprocess.run([*tide, "down", "--jobs"], env=environment, check=False)


def begun(client: Client, follower: Follower, spec: JobSpec, least: int) -> int:
    """The job, when it has made so many steps."""
    job = client.submit([spec]).ids[0]
    follower.until(job, {"running"})
    while steps(client, job) < least:
        follower.until(job, {"running"})
        time.sleep(0.1)
    return job


def start(client: Client, follower: Follower, width: int) -> int:
    """The job, when it has run for a while."""
    command = (sys.executable, str(CHECKOUT / "examples" / "unmodified" / "ddp_mlp.py"), "--steps", "1000000")
    spec = JobSpec(
        name="bench", command=(*command, "--width", str(width)), ranks=2, devices=2, workdir=str(CHECKOUT),
        env=submitted_environment(os.environ),
    )  # fmt: skip
    return begun(client, follower, spec, 20)


def leave_and_return(client: Client, follower: Follower, job: int) -> dict[str, float]:
    """Suspend, and resume where the image lies: seconds."""
    time.sleep(1.0)
    client.suspend(job)
    view = follower.until(job, {"held", "suspended"})
    took = {SUSPEND: view.save_us / SECOND, CUT: view.hold_us / SECOND}
    settled(client, job)
    here = next(iter(set(client.job(job).images[-1].where) - set(client.job(job).images[-1].copies)))
    other = "b" if here == "a" else "a"
    client.drain(other, "a resume where the image was taken is measured")
    client.resume(job)
    took[RESUME] = follower.until(job, {"running"}).restore_us / SECOND
    client.undrain(other)
    return took


def move(client: Client, follower: Follower, job: int) -> tuple[float, float]:
    """Migrate to the other host: seconds, and bytes of a rank's image."""
    time.sleep(1.0)
    there = "b" if client.job(job).where[0].node == "a" else "a"
    began = time.monotonic()
    client.migrate(job, [there])
    view = follower.until(job, {"running"}, there)
    took = time.monotonic() - began
    settled(client, job)
    return took, max((image.size_bytes for image in view.images), default=0) / 2


def run(state: Path, rounds: int, width: int) -> tuple[dict[str, list[float]], float]:
    """Suspend, resume and move one job again and again."""
    client, follower = Client(state), Follower(state)
    job = start(client, follower, width)
    found: dict[str, list[float]] = {name: [] for name in BARS}
    for number in range(rounds):
        for name, seconds in leave_and_return(client, follower, job).items():
            found[name].append(seconds)
        seconds, size = move(client, follower, job)
        found[MIGRATE].append(seconds)
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    watching = Reconnects(state)
    try:
        for _ in range(rounds):
            leave_and_return(client, follower, job)
        time.sleep(1.0)
    finally:
        watching.close()
    found[RECONNECT] = watching.seconds
    client.cancel(job)
    return found, size


def show(found: dict[str, list[float]], size: float) -> None:
    """The table, bars beside the figures."""
    print(f"\n{'':45} {'median':>8} {'worst':>8} {'bar':>8}   (image {size / 1e6:.0f} MB per rank)")
    for name, bar in BARS.items():
        if found.get(name):
            values = found[name]
            limit = f"{bar:.2f} s" if bar else "-"
            print(f"{name:45} {statistics.median(values):6.3f} s {max(values):6.3f} s {limit:>8}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--width", type=int, default=512, help="of the model; 512: 0.3 M, 4700: 23 M parameters")
    parser.add_argument("--keep", action="store_true", help="write bench/results")
    given = parser.parse_args()
    with daemons("--host", "a=2:0-1", "--host", "b=2:0-1") as state:
        found, size = run(state, given.rounds, given.width)
    show(found, size)
    if given.keep:
        measured = {
            name: {"median_s": statistics.median(values), "worst_s": max(values), "bar_s": BARS[name], "rounds_s": values}
            for name, values in found.items() if values
        }  # fmt: skip
        print(keep(f"suspend-{given.width}", {"facts": facts(), "rounds": given.rounds, "measured": measured}))


if __name__ == "__main__":
    main()
