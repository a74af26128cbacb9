"""Single faults around images, through the whole stack: what is lost is little, and said."""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.criu_here import criu_here
from tests.unmodified.harness import Outcome
from tests.unmodified.pool import FINAL
from tests.unmodified.programs import script
from tidewright.checkpoint.processes import send
from tidewright.model.cause import Code
from tidewright.wire.api import JobView

from .hosts import EVERY_S, HOSTS, Hosts, plain, says
from .storm import Kind

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(240),
    pytest.mark.skipif(isinstance(criu_here(), str), reason="no CRIU here: tide setup criu"),
]
QUICK = script("plain_numpy", "--batch", "64")
GO = "go"
ALONE = script("plain_numpy", "--batch", "64", "--pause", "0.05", "--pause-until", GO)
"""The same, but it lives for some twenty seconds, or until it may go, and leaves the cores to other tests."""
STEPS = 400
SOON_S = 1
"""Between images, where just one is waited for."""
LONGER = 2 * STEPS
"""For two images in turn."""
DICE = random.Random(7)
NAMES = itertools.count()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return plain(QUICK, 1, STEPS, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    found = Hosts(tmp_path_factory.mktemp("pool"))
    found.up()
    yield found
    found.clean()
    assert (found.left(), found.groups()) == ([], [])


@pytest.fixture
def hosts(pool: Hosts) -> Iterator[Hosts]:
    """Each test finds all of them up, and nothing runs there when it has ended well."""
    pool.thaw()
    pool.restart()
    for host in list(pool.decoys):
        pool.find(host)
    pool.until(lambda: all(pool.agent(host) for host in HOSTS) and "down" not in pool.states().values())
    for node in pool.client().nodes().nodes:
        if node.state != "up":
            pool.client().undrain(node.name)
    pool.until(lambda: pool.states() == dict.fromkeys(HOSTS, "up"))
    left = [job.id for job in pool.client().jobs().jobs]
    for job in left:  # of a test that failed
        pool.client().cancel(job)
    pool.until(lambda: all(pool.ended(job) for job in left) and not any(pool.ranks(host) for host in HOSTS))
    yield pool
    assert [job.id for job in pool.client().jobs().jobs] == []


def begin(hosts: Hosts, steps: int = STEPS, every_s: float = EVERY_S) -> tuple[int, str]:
    """A running job with an image in two places, and where it is."""
    job = hosts.begin(ALONE, 1, f"job{next(NAMES)}", steps, every_s)
    hosts.until(lambda: hosts.copied(job))
    return job, hosts.view(job).where[0].node


def runs_again(hosts: Hosts, job: int, attempt: int = 1) -> str:
    """Wait until a later attempt runs; its story."""
    hosts.until(
        lambda: (view := hosts.view(job)).state in FINAL or (view.attempt > attempt and view.state == "running")
    )
    return hosts.story_of(job)


def ends_right(hosts: Hosts, job: int, expected: Outcome) -> None:
    name = next(name for name, each in hosts.ids.items() if each == job)
    (hosts.root / name / GO).touch()
    hosts.until(lambda: hosts.ended(job), 120)
    assert hosts.verdict(job, expected) == [], hosts.story_of(job)
    assert hosts.view(job).state == "completed"


def only_stored(hosts: Hosts, host: str) -> None:
    """Wait until the raw image is gone that the newest one was made of: for two seconds a rank would come back from it."""
    hosts.until(lambda: not hosts.raw_files(host))


def imaged_again(view: JobView, before: JobView) -> bool:
    """Whether there is a later image than the newest of ``before``, or none will come."""
    return view.state in FINAL or (bool(view.images) and view.images[-1].serial > before.images[-1].serial)


@pytest.mark.parametrize(
    "part", ["main", pytest.param("init", marks=pytest.mark.full), pytest.param("shim", marks=pytest.mark.full)]
)
def test_a_killed_rank_goes_on_from_its_image(hosts: Hosts, expected: Outcome, part: str) -> None:
    job, host = begin(hosts, every_s=SOON_S)
    assert hosts.kill_rank(host, part, DICE)
    runs_again(hosts, job)
    assert says(hosts.view(job), Code.ROLLED_BACK) and says(hosts.view(job), Code.RUNS_FROM_IMAGE)
    ends_right(hosts, job, expected)


def test_a_lost_host_costs_at_most_an_interval(hosts: Hosts, expected: Outcome) -> None:
    job, host = begin(hosts, every_s=SOON_S)
    hosts.lose(host, disk=True)
    assert f"node {host} is down" in runs_again(hosts, job)
    view = hosts.view(job)
    assert [held.node for held in view.where] != [host]
    # Beyond the interval only what passed until the image was taken and the node was known to be gone.
    assert 0 < view.lost_us < (SOON_S + 5) * 1_000_000
    hosts.find(host)
    ends_right(hosts, job, expected)


def test_a_host_is_emptied_and_its_job_ends_as_if_it_had_never_left(hosts: Hosts, expected: Outcome) -> None:
    job, host = begin(hosts, every_s=SOON_S)
    assert not hosts.client().drain(host, "new kernel", move=True).warning
    hosts.until(lambda: (view := hosts.view(job)).state == "running" and view.where[0].node != host)
    (node,) = (one for one in hosts.client().nodes().nodes if one.name == host)
    assert (node.state, node.jobs, node.suspended) == ("draining", (), ()) and node.since
    hosts.lose(host, disk=True)
    view = hosts.view(job)
    assert view.attempt == 1 and view.lost_us == 0 and says(view, Code.NODE_DRAINED)
    ends_right(hosts, job, expected)


@pytest.mark.full
def test_ranks_whose_agent_stays_away_are_ended_before_their_job_goes_on_elsewhere(hosts: Hosts) -> None:
    kind = Kind("table", 1, 2000)
    expected = plain(kind.program, kind.ranks, kind.steps, hosts.root)
    job = hosts.begin(kind.program, kind.ranks, "job", kind.steps)
    hosts.until(lambda: hosts.copied(job))
    host = hosts.view(job).where[0].node
    hosts.orphan(host)
    assert hosts.ranks(host, job)
    assert f"node {host} is down" in runs_again(hosts, job)
    assert not hosts.ranks(host, job)
    ends_right(hosts, job, expected)


def test_an_agent_that_hangs_is_noticed_and_its_job_goes_on_elsewhere(hosts: Hosts, expected: Outcome) -> None:
    job, host = begin(hosts, every_s=SOON_S)
    hung = hosts.agent(host)
    assert hung is not None
    hosts.stopped = [hung]
    send(hosts.stopped, signal.SIGSTOP)
    story = runs_again(hosts, job)
    assert says(hosts.view(job), Code.NODE_DOWN) and f"node {host} is down" in story and "has not moved" in story
    assert not hosts.ranks(host, job), "its ranks still run"
    assert hosts.view(job).where[0].node != host
    hosts.until(lambda: hosts.states()[host] == "up" and hosts.agent(host) not in (None, hung))
    ends_right(hosts, job, expected)


@pytest.mark.full
def test_an_agent_that_wakes_in_time_keeps_its_job(hosts: Hosts, expected: Outcome) -> None:
    job, host = begin(hosts, every_s=SOON_S)
    hosts.stopped = [pid for pid in [hosts.agent(host)] if pid]
    send(hosts.stopped, signal.SIGSTOP)
    log = hosts.state / "controller.log"
    hosts.until(lambda: "has not moved" in log.read_text())
    hosts.thaw()
    hosts.until(lambda: hosts.states()[host] == "up")
    assert hosts.view(job).attempt == 1
    ends_right(hosts, job, expected)


@pytest.mark.full
def test_every_copy_of_an_image_damaged_costs_one_more_interval(hosts: Hosts, tmp_path: Path) -> None:
    job, host = begin(hosts, LONGER)
    first = {host: hosts.packs(host) for host in HOSTS}
    newest = hosts.view(job).images[-1].serial
    hosts.until(lambda: hosts.imaged(job, newest) and hosts.copied(job))
    only_stored(hosts, host)
    damaged = [path for each in HOSTS for path in hosts.packs(each) if path not in first[each]]
    for path in damaged:
        assert hosts.flip(path, DICE)
    newest = hosts.view(job).images[-1].serial
    assert damaged and hosts.kill_rank(host, "main", DICE)
    story = runs_again(hosts, job)
    assert (
        says(hosts.view(job), Code.IMAGE_UNUSABLE) and f"image {newest} is unusable" in story and "is damaged" in story
    )
    ends_right(hosts, job, plain(QUICK, 1, LONGER, tmp_path))


@pytest.mark.full
def test_no_good_image_left_is_said_and_it_starts_over(hosts: Hosts, expected: Outcome) -> None:
    job, host = begin(hosts)
    only_stored(hosts, host)
    for each in HOSTS:
        for path in hosts.packs(each):
            assert hosts.truncate(path, DICE)
    assert hosts.kill_rank(host, "main", DICE)
    story = runs_again(hosts, job, attempt=2)
    assert "there is no image" in story and "of work lost" in story
    ends_right(hosts, job, expected)


@pytest.mark.full
def test_criu_killed_in_a_save_leaves_the_job_running(hosts: Hosts, expected: Outcome) -> None:
    """Unless it dies while its trap is in a task's code, which happens once in some fifteen times (docs/why/criu.md): the
    job then goes on from its image."""
    job, host = begin(hosts)
    assert list(hosts.ranks(host, job))
    for _ in range(3):
        before = hosts.view(job)
        hosts.client().checkpoint(job)
        assert hosts.kill_criu(10)
        hosts.until(lambda before=before: imaged_again(hosts.view(job), before))  # type: ignore[misc]
        if hosts.view(job).attempt == before.attempt:
            break
        assert says(hosts.view(job), Code.RUNS_FROM_IMAGE)
    else:
        raise AssertionError(f"none of three jobs ran on: {hosts.story_of(job)}")
    ends_right(hosts, job, expected)


@pytest.mark.full
def test_a_raw_image_damaged_while_suspended(hosts: Hosts, expected: Outcome) -> None:
    job, host = begin(hosts)
    hosts.client().suspend(job)
    hosts.until(lambda: hosts.view(job).state == "held")
    assert hosts.raw_files(host)
    for path in hosts.raw_files(host):
        assert hosts.flip(path, DICE)
    hosts.client().resume(job)
    hosts.until(lambda: hosts.view(job).state in ("running", *FINAL))
    ends_right(hosts, job, expected)


@pytest.mark.full
def test_both_daemons_and_all_agents_killed(hosts: Hosts, expected: Outcome) -> None:
    job, _ = begin(hosts)
    assert all(hosts.kill_agent(each) for each in HOSTS) and hosts.kill_controller()
    time.sleep(0.5)
    hosts.restart()
    ends_right(hosts, job, expected)
