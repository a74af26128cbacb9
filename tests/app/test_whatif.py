"""One's own jobs on another pool: what is changed, what is compared, and how far the simulation is off the record."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from tidewright.app.recorded import read
from tidewright.app.remembered import remember
from tidewright.app.whatif import PoolChange, changed_pool, policy_of, unfit_jobs, what_if
from tidewright.base.errors import UsageError
from tidewright.base.units import SECOND
from tidewright.model.job import State
from tidewright.model.node import NodeSpec

from .test_recorded import record, spec

POOL = (NodeSpec(name="a", kind="h100", devices=8, cpus=64), NodeSpec(name="b", kind="cpu", devices=2))


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Six jobs on two devices under fifo; the last ones wait."""
    sizes = [
        (spec(devices=2), 30),
        (spec(), 20),
        (spec(), 20),
        (spec(devices=2, tier="premium"), 10),
        (spec(), 5),
        (spec(), 5),
    ]
    jobs = [(msgspec.structs.replace(one, expected_us=seconds * SECOND), seconds) for one, seconds in sizes]
    return record(jobs, end=500).write(tmp_path / "journal.ndjson")


def test_the_record_simulated_as_it_was_is_the_record(journal: Path) -> None:
    found = what_if(journal, PoolChange(policy="srtf"))
    assert found.recorded.policy == found.before.policy == "fifo" and found.after.policy == "srtf"
    assert found.recorded.jobs == found.before.completed == 6
    assert abs(found.off) < 0.01
    assert found.before.jct_mean_s == pytest.approx(found.recorded.jct_mean_s, rel=0.01)
    assert found.after.jct_mean_s < found.before.jct_mean_s


def test_more_devices_shorten_the_wait(journal: Path) -> None:
    shares: list[float] = []
    found = what_if(journal, PoolChange(add=("2xcpu",)), progress=lambda share, text: shares.append(share))
    assert (found.before.devices, found.after.devices) == (2, 4)
    assert found.after.queue_mean_s < found.before.queue_mean_s
    assert shares == sorted(shares)


def test_only_the_last_part_counts(journal: Path) -> None:
    whole = what_if(journal, PoolChange(add=("2xcpu",)))
    last = what_if(journal, PoolChange(add=("2xcpu",)), since_us=15_000_000)
    assert last.before.jobs < whole.before.jobs


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (PoolChange(add=("8xh100",)), {"added-1": ("h100", 8, 64)}),
        (
            PoolChange(add=("2x4:a100", "1xcpu")),
            {"added-1": ("a100", 4, 0), "added-2": ("a100", 4, 0), "added-3": ("cpu", 1, 0)},
        ),
        (PoolChange(remove=("b",), add=("2xcpu",)), {"added-1": ("cpu", 2, 0)}),
    ],
)
def test_nodes_are_added_and_taken_away(change: PoolChange, kinds: dict[str, tuple[str, int, int]]) -> None:
    pool = changed_pool(POOL, change)
    kept = [node.name for node in POOL if node.name not in change.remove]
    assert [node.name for node in pool] == [*kept, *kinds]
    new = {node.name: (node.kind, node.devices, node.cpus if node.kind == "h100" else 0) for node in pool}
    assert {name: new[name] for name in kinds} == kinds


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (PoolChange(), "nothing is changed"),
        (PoolChange(add=("0xh100",)), "1 to 64 devices"),
        (PoolChange(add=("h100",)), "not a cluster"),
        (PoolChange(remove=("zz",)), "no node zz"),
        (PoolChange(remove=("n",)), "no node is left"),
        (PoolChange(policy="fif"), "no policy"),
    ],
)
def test_what_cannot_be_is_said(journal: Path, change: PoolChange, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        what_if(journal, change)


def test_a_state_directory_knows_its_policy(journal: Path, tmp_path: Path) -> None:
    recording = read(journal)
    recording.policy = ""
    assert policy_of(tmp_path, recording) == "sla"
    remember(tmp_path, {"policy": "las:round=6m"})
    assert policy_of(tmp_path, recording) == "las:round=6m"


@pytest.fixture
def two_devices(tmp_path: Path) -> Path:
    """Two jobs that need both devices, and one that needs one."""
    jobs = [(spec(devices=2, ranks=2, name="wide"), 10), (spec(name="small"), 5), (spec(devices=2, ranks=2), 5)]
    return record(jobs, end=100).write(tmp_path / "journal.ndjson")


def test_jobs_that_no_longer_fit_are_named(two_devices: Path) -> None:
    found = what_if(two_devices, PoolChange(cluster="1x1:cpu"))
    assert [(one.job, one.name) for one in found.unfit] == [("1", "wide"), ("3", "")]
    assert all(one.why == "NeverFits" for one in found.unfit)
    assert (found.before.completed, found.after.completed, found.after.refused) == (3, 1, 2)


def test_where_all_fit_none_is_named(two_devices: Path) -> None:
    assert what_if(two_devices, PoolChange(add=("2xcpu",))).unfit == ()


def test_jobs_that_never_start_and_those_that_are_cancelled_first_are_named_too(two_devices: Path) -> None:
    """As simulations leave them."""

    def simulated(start: list[int], state: list[int], why: dict[int, str]) -> Any:
        outcomes = SimpleNamespace(start=np.array(start), state=np.array(state), refusals={})
        return SimpleNamespace(outcomes=outcomes, why_unfinished=lambda: why)

    before = simulated([0, 1, 2], [int(State.COMPLETED)] * 3, {})
    after = simulated([-1, -1, 2], [-1, int(State.CANCELLED), int(State.COMPLETED)], {0: "queued: NoCapacity"})
    found = [(one.job, one.why) for one in unfit_jobs(read(two_devices), before, after)]
    assert found == [("1", "queued: NoCapacity"), ("2", "cancelled")]
