"""What a process may use of its host, by either version of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidewright.base.control_groups import Hierarchy, hierarchies
from tidewright.devices.host import host_cpus, host_memory

GIB = 2**30


class Place:
    """A made-up /proc/self and the trees that it names."""

    def __init__(self, root: Path) -> None:
        self.root, self.proc, self.groups, self.mounts = root, root / "proc", "", ""
        self.proc.mkdir()

    def tree(self, kind: str, controllers: str, own: str) -> Path:
        mount = self.root / (controllers or "unified")
        mount.mkdir()
        self.groups += f"{len(self.mounts)}:{controllers}:{own}\n"
        self.mounts += f"{kind} {mount} {kind} rw,{controllers} 0 0\n"
        (self.proc / "cgroup").write_text(self.groups)
        (self.proc / "mounts").write_text(self.mounts)
        return mount

    def group(self, path: Path, **files: str) -> None:
        path.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (path / name.replace("__", ".")).write_text(f"{text}\n")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_version_two_counts_every_group_around(place: Place) -> None:
    mount = place.tree("cgroup2", "", "/slice/service")
    place.group(mount / "slice/service", cpu__max="max 100000", memory__max="max")
    place.group(mount / "slice", cpu__max="250000 100000", memory__max=str(4 * GIB))
    assert host_cpus(8, place.proc) == 2 and host_memory(16 * GIB, place.proc) == 4 * GIB
    assert host_cpus(1, place.proc) == 1 and host_memory(GIB, place.proc) == GIB


def test_version_one_has_a_tree_for_each_and_minus_one_is_no_limit(place: Place) -> None:
    cpu, memory = place.tree("cgroup", "cpu,cpuacct", "/a/b"), place.tree("cgroup", "memory", "/a")
    place.group(cpu / "a/b", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    place.group(cpu / "a", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    place.group(memory / "a", memory__limit_in_bytes=str(3 * GIB))
    place.group(memory, memory__limit_in_bytes="9223372036854771712")
    assert host_cpus(8, place.proc) == 1, "half a CPU is counted as one: a node has whole ones"
    assert host_memory(16 * GIB, place.proc) == 3 * GIB


def test_a_container_sees_its_own_group_at_the_mount(place: Place) -> None:
    memory = place.tree("cgroup", "memory", "/docker/0123")
    place.group(memory, memory__limit_in_bytes=str(2 * GIB))
    assert host_memory(16 * GIB, place.proc) == 2 * GIB


def test_without_control_groups_it_is_all_of_the_host(tmp_path: Path) -> None:
    assert host_cpus(8, tmp_path) == 8 and host_memory(GIB, tmp_path) == GIB
    assert host_cpus() >= 1 and host_memory() >= 2**20


def test_a_hierarchy_is_found_by_all_its_controllers() -> None:
    groups = "3:cpu,cpuacct:/x\n2:name=systemd:/y\n0::/z\n"
    mounts = "cgroup /c cgroup rw,cpu,cpuacct 0 0\ncgroup /s cgroup rw,name=systemd 0 0\n"
    mounts += "cgroup2 /u cgroup2 rw 0 0\ntmpfs /t tmpfs rw 0 0\n"
    assert hierarchies(groups, mounts) == [
        Hierarchy(1, ("cpu", "cpuacct"), Path("/c"), "/x"),
        Hierarchy(1, ("name=systemd",), Path("/s"), "/y"),
        Hierarchy(2, (), Path("/u"), "/z"),
    ]
