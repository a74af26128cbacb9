"""``tide doctor`` on this machine's kernel, from planted /proc trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidewright.app.criu import Found
from tidewright.app.health import machine
from tidewright.app.health.machine import check_groups, check_images, check_kernel, check_limits
from tidewright.wire.nodes import NodeView


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A kernel with cgroup v2 that offers CPUs alone."""
    (tmp_path / "self").mkdir()
    (tmp_path / "cgroup" / "me").mkdir(parents=True)
    (tmp_path / "self" / "cgroup").write_text("0::/me\n")
    (tmp_path / "self" / "mounts").write_text(f"cgroup {tmp_path}/cgroup cgroup2 rw 0 0\n")
    (tmp_path / "cgroup" / "me" / "cgroup.controllers").write_text("cpu pids\n")
    return tmp_path


def test_controllers_that_are_missing_are_named(proc: Path) -> None:
    found = check_groups(proc)
    assert found.level == "note" and "v2; controllers: cpu, freezer, pids; not here: memory" in found.text
    (proc / "cgroup" / "me" / "cgroup.controllers").write_text("cpu memory\n")
    assert check_groups(proc).level == "ok"
    (proc / "self" / "mounts").write_text("")
    assert "none mounted" in check_groups(proc).text


def _set(proc: Path, name: str, value: int) -> None:
    path = proc / "sys" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")


def test_a_kernel_that_lets_nothing_be_traced_is_found(proc: Path) -> None:
    assert "ptrace scope 0; user namespaces allowed" in check_kernel(proc).text
    _set(proc, "kernel/yama/ptrace_scope", 3)
    _set(proc, "kernel/unprivileged_userns_clone", 0)
    found = check_kernel(proc)
    assert found.level == "note" and "ptrace scope 3; user namespaces restricted: no process" in found.text
    _set(proc, "kernel/yama/ptrace_scope", 1)
    assert check_kernel(proc).level == "ok"


def test_few_open_files_are_found(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    lines = [
        f"{name:<26}{soft:<21}{hard:<21}{unit}"
        for name, soft, hard, unit in (
            ("Limit", "Soft Limit", "Hard Limit", "Units"),
            ("Max processes", "100", "100", "processes"),
            ("Max open files", "1024", "2048", "files"),
        )
    ]
    (proc / "7").mkdir()
    (proc / "7" / "limits").write_text("\n".join(lines))
    found = check_limits(7, proc)
    assert found.level == "note" and "(pid 7): 2,048 open files, 100 processes" in found.text
    assert "ulimit -n 4096; ulimit -u 1024" in found.next
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "ulimit -u" not in check_limits(7, proc).next
    assert "unlimited open files" in check_limits(None, proc).text, "nothing is known of a process that has ended"


def test_full_images_are_as_the_nodes_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def node(name: str, **more: object) -> NodeView:
        return NodeView(name=name, state="up", kind="cpu", devices=1, free=1, **more)  # type: ignore[arg-type]

    able, *unable = check_images(
        (node("a", full=True, criu="4.2"), node("b", full_why="no root"), node("c", full_why="no root"))
    )
    assert able.level == "ok" and "a (CRIU 4.2)" in able.text
    assert [one.text for one in unable] == ["no full images on b, c: no root"] and unable[0].level == "note"
    monkeypatch.setattr(machine, "find", lambda: Found(why="there is no CRIU"))
    assert "there is no CRIU" in check_images(())[0].text
    monkeypatch.setattr(machine, "find", lambda: Found("/usr/sbin/criu", "4.2"))
    assert check_images(())[0].text == "/usr/sbin/criu, version 4.2"
