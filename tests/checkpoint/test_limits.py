"""Limits of ranks by either version of control groups: what is written where. That the kernel keeps to it: tests/agent."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewright.base.control_groups import Hierarchy
from tidewright.checkpoint import limits
from tidewright.checkpoint.cgroup import LEAF, TOP, CgroupV2, Signals, base_of, places, remove
from tidewright.checkpoint.limits import GroupBase, HostLimits, RankLimits

GIB = 2**30


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands in for a hierarchy: groups made in it get the files that the kernel would put there."""
    real = Path.mkdir

    def mkdir(path: Path, *rest: Any, **more: Any) -> None:
        real(path, *rest, **more)
        if path.name.startswith("tidewright-"):
            for name in (*files, "cgroup.procs"):
                (path / name).touch()

    files = ("cpu.max", "cpu.weight", "cpu.shares", "memory.max", "memory.swap.max", "memory.oom.group")
    monkeypatch.setattr(Path, "mkdir", mkdir)
    return tmp_path


def read(group: str) -> dict[str, str]:
    return {path.name: path.read_text() for path in Path(group).iterdir() if path.read_text()}


def test_version_two_has_one_group_for_all_which_swaps_nothing_and_dies_whole(tree: Path) -> None:
    both = HostLimits({kind: GroupBase(2, tree) for kind in ("cpu", "memory")})
    made = both.create("tidewright-t-1.0.0", 1500, GIB)
    (group,) = made.groups
    assert made == RankLimits((group,), group) and not both.missing
    assert read(group) == {
        "cpu.max": "150000 100000", "memory.max": str(GIB), "memory.swap.max": "0", "memory.oom.group": "1",
    }  # fmt: skip
    assert both.made("tidewright-t-") == (group,) and both.made("tidewright-u-") == ()
    assert both.describe(1, 1) == "enforced by cgroup v2"


def test_a_rank_that_is_restored_gets_its_cpus_once_it_is_back(tree: Path) -> None:
    both = HostLimits({kind: GroupBase(2, tree) for kind in ("cpu", "memory")})
    made = both.create("tidewright-t-1.0.1", 500, GIB, restored=True)
    assert "cpu.max" not in read(made.groups[0]) and read(made.groups[0])["memory.max"] == str(GIB)
    assert made.late == ((f"{made.groups[0]}/cpu.max", "50000 100000"),)


def weights(version: int, tree: Path) -> HostLimits:
    return HostLimits({"weight": GroupBase(version, tree)})


@given(first=st.integers(20, 1000), second=st.integers(20, 1000), version=st.sampled_from((1, 2)))
def test_weights_are_in_the_proportion_of_the_shares(first: int, second: int, version: int) -> None:
    one, other = (int(limits._settings(version, "weight", share, Path("/none"))[0][1]) for share in (first, second))
    assert abs(one / (one + other) - first / (first + second)) < 0.06
    whole = int(limits._settings(version, "weight", 1000, Path("/none"))[0][1])
    assert whole == (100 if version == 2 else 1024), "as much as a group that nobody has given a weight"


@pytest.mark.parametrize(("version", "file", "least"), [(1, "cpu.shares", "2"), (2, "cpu.weight", "1")])
def test_a_group_for_idle_time_is_idle_where_the_kernel_has_it_and_of_least_weight_elsewhere(
    tree: Path, version: int, file: str, least: str
) -> None:
    (made,) = weights(version, tree).create("tidewright-t-1", 0, 0, idle=True, weight=300).groups
    assert not read(made), "it starts like others"
    (Path(made) / ("cpu.shares" if version == 2 else "cpu.weight")).unlink()
    limits.set_idle([made, "/gone"], True)
    assert read(made) == {file: least}
    limits.set_idle([made, "/gone"], False)
    assert read(made) == {file: "100" if version == 2 else "1024"}
    new = tree / "tidewright-t-2"
    new.mkdir()
    (new / "cpu.idle").touch()
    for idle in (True, False, True):
        limits.set_idle([str(new)], idle)
        assert read(str(new)) == {"cpu.idle": str(int(idle))}


def test_a_restore_is_not_slowed_by_a_weight(tree: Path) -> None:
    both = HostLimits({kind: GroupBase(2, tree) for kind in ("cpu", "weight")})
    made = both.create("tidewright-t-1", 500, 0, restored=True, weight=300)
    (group,) = made.groups
    assert not read(group)
    assert made.late == ((f"{group}/cpu.max", "50000 100000"), (f"{group}/cpu.weight", "30"))


def test_what_shares_can_be_held_to_depends_on_the_host(tree: Path) -> None:
    assert HostLimits({}).offers == HostLimits({}, idle_groups=True).offers == frozenset()
    assert weights(2, tree).offers == {limits.WEIGHTS}
    assert HostLimits({"weight": GroupBase(2, tree)}, idle_groups=True).offers == {limits.WEIGHTS, limits.IDLE_GROUPS}
    assert HostLimits({}).create("tidewright-t-1", 0, 0, weight=300, idle=True) == RankLimits()


@pytest.mark.parametrize(
    ("milli", "text"), [(1, "1000 1000000"), (9, "9000 1000000"), (10, "1000 100000"), (64_000, "6400000 100000")]
)
def test_a_quota_is_never_below_what_the_kernel_takes(tree: Path, milli: int, text: str) -> None:
    made = HostLimits({"cpu": GroupBase(2, tree)}).create("tidewright-t-1", milli, 0)
    assert read(made.groups[0]) == {"cpu.max": text}


def test_what_one_controller_lacks_the_other_still_has(tree: Path) -> None:
    memory = HostLimits({"memory": GroupBase(2, tree)}, "cpu: no such thing")
    made = memory.create("tidewright-t-1", 500, GIB)
    assert set(read(made.groups[0])) == {"memory.max", "memory.swap.max", "memory.oom.group"} and not made.late
    assert memory.describe(500, GIB).startswith("CPUs not enforced: cpu: no such thing; run tide up")
    assert memory.describe(0, GIB) == "enforced by cgroup v2"
    assert memory.create("tidewright-t-2", 500, 0) == RankLimits()


def test_a_limit_that_cannot_be_written_leaves_no_group(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(settings: Any) -> None:
        raise OSError(errno.EACCES, "denied")

    monkeypatch.setattr(limits, "apply", refused)
    monkeypatch.setattr(
        limits, "remove", lambda groups: [os.unlink(p) for g in groups for p in Path(g).iterdir()] and remove(groups)
    )
    with pytest.raises(OSError, match="denied"):
        HostLimits({"memory": GroupBase(2, tree)}).create("tidewright-t-1", 0, GIB)
    assert not list(tree.iterdir())


# -- version two, by the kernel -------------------------------------------------------------------------------------------


def spare() -> tuple[Path, str] | None:
    """The group of version 2 this process is in, and a controller that it can give to groups below."""
    for version, _, base in places():
        if version == 2 and os.access(base / "cgroup.subtree_control", os.W_OK):
            free = [one for one in (base / "cgroup.controllers").read_text().split() if one not in ("cpu", "memory")]
            return (base, free[0]) if free else None
    return None


FOUND = spare()
needs_two = pytest.mark.skipif(FOUND is None, reason="no group of cgroup v2 here that is ours to change")


@pytest.fixture
def group() -> Iterator[Path]:
    """A group of version 2 with a controller and one process."""
    assert FOUND is not None
    base, controller = FOUND
    was = controller in (base / "cgroup.subtree_control").read_text().split()
    (base / "cgroup.subtree_control").write_text(f"+{controller}")
    path = base / f"tidewright-test-{os.getpid()}"
    path.mkdir()
    process = subprocess.Popen(["sleep", "600"])
    (path / "cgroup.procs").write_text(str(process.pid))
    yield path
    process.kill()
    process.wait()
    (path / "cgroup.subtree_control").write_text(f"-{controller}")
    assert remove((str(path / LEAF), str(path)))
    if not was:
        (base / "cgroup.subtree_control").write_text(f"-{controller}")


@needs_two
def test_a_group_of_others_is_left_alone(group: Path) -> None:
    assert FOUND is not None
    with pytest.raises(OSError):
        limits._enable(group, FOUND[1])
    assert not (group / LEAF).exists()


@needs_two
def test_processes_of_a_delegated_group_move_into_one_of_their_own(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert FOUND is not None
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"1")
    before = (group / "cgroup.procs").read_text()
    limits._enable(group, FOUND[1])
    limits._enable(group, FOUND[1])
    assert (group / LEAF / "cgroup.procs").read_text() == before and not (group / "cgroup.procs").read_text()
    assert FOUND[1] in (group / "cgroup.subtree_control").read_text()


def test_nothing_works_where_no_group_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(controller: GroupBase, kind: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(controller.base))

    monkeypatch.setattr(limits, "_try", denied)
    found = limits.detect(Signals())
    assert "Permission denied" in found.missing or "no such controller" in found.missing
    assert (limits.REMEDY if os.geteuid() else limits.REMEDY_OF_ROOT) in found.missing


def test_ranks_that_are_frozen_by_version_two_are_limited_in_the_same_group(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    (first, *_) = limits._places(CgroupV2(tmp_path))
    assert first == (2, ("cpu", "memory", "pids"), tmp_path)


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A tree of version two with a group that holds processes of others, as a login session's does."""
    group = tmp_path / "session-1.scope"
    group.mkdir()
    (group / "cgroup.controllers").write_text("cpu memory pids")
    (group / "cgroup.procs").write_text(f"1\n{os.getpid()}\n")
    return group


def test_root_makes_a_group_of_its_own_where_the_present_one_holds_others(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Hierarchy(2, (), session.parent, f"/{session.name}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert base_of(tree) == session and not (session.parent / TOP).exists()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert base_of(tree) == session.parent / TOP and (session.parent / TOP).is_dir()
    assert base_of(tree._replace(own="/")) == session.parent, "the root of a tree may have both"
    assert base_of(Hierarchy(1, ("cpu",), session.parent, f"/{session.name}")) == session


def test_a_group_that_is_ours_or_has_no_controllers_is_kept(session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    tree = Hierarchy(2, (), session.parent, f"/{session.name}/{LEAF}")
    (session / "cgroup.procs").write_text(f"{os.getpid()}\n")
    assert base_of(tree) == session
    (session / "cgroup.procs").write_text("1\n")
    (session / "cgroup.controllers").write_text("pids")
    assert base_of(tree) == session
    (session / "cgroup.controllers").write_text("memory")
    (session.parent / TOP).write_text("no folder")
    assert base_of(tree) == session
