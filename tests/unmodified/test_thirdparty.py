"""Programs that nobody here wrote go through random events, and leave the files and print the lines that they do alone."""

from __future__ import annotations

import contextlib
import random
import subprocess
import time
import zlib
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.unmodified.harness import LIMIT_S, Outcome, rank_environment
from tests.unmodified.pool import FINAL, Ended, Event, Pool, Ride
from tests.unmodified.test_programs import full_images
from tests.unmodified.thirdparty import ThirdParty
from tests.unmodified.thirdparty_programs import CHECKED_OUT, PACKAGED

pytestmark = [pytest.mark.processes, pytest.mark.full, pytest.mark.timeout(900), full_images]

EVENTS, LEAST = 6, 4
"""So many are wanted of each program, and so many must take place before it ends by itself."""


def plain(program: ThirdParty, root: Path) -> tuple[dict[str, str], float]:
    """What a run without us comes to, under the variables that torchrun would set, and how many seconds it takes."""
    folder = root / "plain"
    folder.mkdir()
    program.prepare(folder)
    since = time.monotonic()
    done = subprocess.run(
        program.argv(),
        cwd=folder,
        env={**program.environment(root), **rank_environment(0, 1, free_port())},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=LIMIT_S,
        check=False,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return program.outcome(folder, done.stdout), time.monotonic() - since


def ride(pool: Pool, program: ThirdParty, folder: Path, seconds: float, seed: int) -> Ride:
    """Run it as a job through events that are spread over its life."""
    dice = random.Random(seed)
    job = pool.start(folder.name, program.argv(), folder, program.environment(pool.root), devices=program.slots)
    made = Ride(Outcome({}, {}), pool.view(job))
    deck: list[Event] = []
    pool.reach(job, "running")
    with contextlib.suppress(Ended):
        for _ in range(EVENTS):
            time.sleep(dice.uniform(0.3, 1.4) * seconds / (EVENTS + 1))
            if pool.view(job).state in FINAL:
                break
            deck = deck or pool.deck(1, dice)
            pool.event(job, dice, deck, made)
    pool.until(lambda: pool.view(job).state in FINAL, LIMIT_S)
    made.view, made.last = pool.view(job), pool.log(job, 0)
    return made


@pytest.mark.parametrize("program", [*PACKAGED, *CHECKED_OUT], ids=lambda program: program.name)
def test_third_party_programs_end_as_they_do_alone(pool: Pool, program: ThirdParty, tmp_path: Path) -> None:
    if lacking := program.missing():
        pytest.skip(f"{program.name} needs {lacking}")
    expected, seconds = plain(program, tmp_path)
    assert expected, "nothing to compare"
    folder = pool.root / program.name
    folder.mkdir()
    program.prepare(folder)
    done = ride(pool, program, folder, seconds, zlib.crc32(program.name.encode()))
    told = f"events {done.events}, refused {done.refused}, level {done.view.level} {done.view.level_why}"
    assert done.view.state == "completed", f"{told}\n{done.view.why}\n{done.last[-3000:]}"
    assert program.outcome(folder, done.last) == expected, told
    assert len(done.events) >= LEAST, told
