"""Everything that can happen to a job while an image of it is being taken, at random moments: nothing is refused for it, and
no step is lost, doubled or wrong."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.criu_here import criu_here
from tests.unmodified.pool import FINAL, Pool, places
from tidewright.base.errors import TideError
from tidewright.checkpoint.criu.program import Criu
from tidewright.checkpoint.processes import send
from tidewright.model.job import JobSpec
from tidewright.wire.api import JobView

CRIU = criu_here()
pytestmark = [
    pytest.mark.processes,
    pytest.mark.full,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not isinstance(CRIU, Criu), reason=f"no full images here: {CRIU}"),
]
CHAIN = """
import hashlib, random, sys, time
draw = random.Random(1)
ballast = bytearray(b"".join(draw.randbytes(1 << 20) for _ in range(int(sys.argv[1]))))
link = b""
while True:
    link = hashlib.sha256(link + ballast[:64]).digest()
    ballast[:32] = link
    print("link", link.hex()[:16], flush=True)
    time.sleep(0.02)
"""
TRIES, MIB, LONGEST_S = 20, 500, 1.5
"""The last: by then the image of a rank of so many MiB is mostly done."""

FAILED = {"SuspendFailed", "ImageFailed", "HoldFailed", "ResumeFailed", "LaunchFailed", "LaunchFailedOn"}
"""Codes of a suspension, image or launch that failed."""


class Imaged:
    """A job on a pool, of one rank or two, and what may be asked of it while an image is being taken."""

    def __init__(self, pool: Pool, mib: int = MIB) -> None:
        self.pool, self.mib, self.dice = pool, mib, random.Random(mib)
        self.job, self.world = 0, 0
        self.begin(1)

    def begin(self, world: int) -> None:
        """Another job, once it has made some steps."""
        spec = JobSpec(
            name=f"imaged-{time.monotonic_ns()}", command=(sys.executable, "-c", CHAIN, str(self.mib // world)),
            ranks=world, devices=world, workdir=str(self.pool.root), checkpoint_us=-1,
        )  # fmt: skip
        self.job, self.world = self.pool.client().submit([spec]).ids[0], world
        self.pool.reach(self.job, "running")
        self.grows()

    def view(self) -> JobView:
        return self.pool.view(self.job)

    def lines(self) -> list[str]:
        return self.pool.log(self.job, 0).splitlines()

    def grows(self) -> None:
        """It runs, and every line is as it must be: each follows from the one before."""
        before = len(self.lines())
        self.pool.until(lambda: len(self.lines()) > before + 2)
        said = self.lines()[:-1]
        assert len(set(said)) == len(said), "a step came twice"
        assert all(line.startswith("link ") for line in said)

    def image(self) -> None:
        """Begin an image, and be somewhere in it."""
        while True:
            try:
                self.pool.client().checkpoint(self.job)
                break
            except TideError as error:
                assert "one is being taken already" in str(error), error
                time.sleep(0.1)
        time.sleep(self.dice.uniform(0, LONGEST_S))

    def whole(self) -> None:
        """It can be suspended in full as before, and nothing was ever refused or failed."""
        view = self.view()
        assert (view.level, view.level_why) == ("full", ""), view.level_why
        bad = [line for line in view.story if line.cause.code in FAILED or "debugger" in line.why]
        assert not bad, bad

    # what may happen

    def suspend(self) -> None:
        self.pool.suspend(self.job, self.dice)

    def migrate(self) -> None:
        self.pool.migrate(self.job, self.dice)

    def scale(self) -> None:
        if self.world == 1:
            self.end()
            self.begin(2)
            self.image()
        self.pool.scale(self.job, self.dice)

    def again(self) -> None:
        """Another image: the first is waited for, or it is said that there is one already."""
        before = self.view()
        self.image()
        self.pool.until(lambda: self.pool._imaged(before))

    def drain(self) -> None:
        """Its node takes nothing new, and it goes to the other."""
        (node,) = places(self.view())
        self.pool.client().drain(node)
        try:
            self.pool.client().migrate(self.job)
            self.pool.until(lambda: self.view().state == "running" and node not in places(self.view()))
        finally:
            self.pool.client().undrain(node)

    def cancel(self) -> None:
        self.end()
        assert self.view().state == "cancelled"
        self.begin(1)

    def agent_dies(self) -> None:
        """And is started again by the controller's keeper, as any agent of this machine that dies."""
        (node,) = places(self.view())
        found = int((self.pool.state / "hosts" / node / "agent.pid").read_text())
        send([found], 9)
        self.pool.until(lambda: self.view().state == "running")

    def end(self) -> None:
        self.pool.client().cancel(self.job)
        self.pool.until(lambda: self.view().state in FINAL)


VERBS: dict[str, Callable[[Imaged], None]] = {
    "suspend": Imaged.suspend, "migrate": Imaged.migrate, "scale": Imaged.scale, "image": Imaged.again,
    "drain": Imaged.drain, "cancel": Imaged.cancel, "agent": Imaged.agent_dies,
}  # fmt: skip


@pytest.fixture
def pool() -> Iterator[Pool]:
    with tempfile.TemporaryDirectory(prefix="tide-um-") as root:
        made = Pool(Path(root), slots=2)
        try:
            made.up()
            yield made
        finally:
            made.clean()


def put_through(imaged: Imaged, verb: str, tries: int = TRIES) -> None:
    """An image, and a verb at a random moment of it, again and again."""
    for _ in range(tries):
        imaged.image()
        VERBS[verb](imaged)
        imaged.grows()
        imaged.whole()
    imaged.end()


@pytest.mark.parametrize("verb", VERBS)
def test_at_any_moment_of_an_image(pool: Pool, verb: str) -> None:
    put_through(Imaged(pool), verb)
