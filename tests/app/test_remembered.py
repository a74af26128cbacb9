"""Options of ``tide up`` are those of later starts, too; an explicit new value wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidewright.app import hosts, remembered
from tidewright.app.compose import DaemonSettings, local_agents
from tidewright.app.daemon import _arguments
from tidewright.base.errors import UsageError
from tidewright.base.units import MINUTE


def start(state: Path, *options: str) -> DaemonSettings:
    """A daemon's settings, as if it had come up with these options."""
    settings = _arguments(["--state", str(state), *options])
    settings.started()
    return settings


ALL = (
    *("--policy", "las", "--listen", "127.0.0.1:7700", "--slots", "4", "--backend", "cpu", "--images", "file:///i"),
    *("--image-quota", "2GiB", "--node-timeout", "1m"),
)


def test_every_option_is_inherited_by_the_next_start(tmp_path: Path) -> None:
    first = start(tmp_path, *ALL)
    again = start(tmp_path)
    for name in ("policy", "listen", "slots", "backend", "images", "image_quota", "node_timeout_us"):
        assert getattr(again, name) == getattr(first, name) != getattr(DaemonSettings(tmp_path), name), name
    assert again.node_timeout_us == MINUTE
    assert local_agents(again) == local_agents(first)


def test_an_option_given_now_wins_over_earlier_ones_and_those_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("policy: fifo\nslots: 3\n")
    assert start(tmp_path).policy == "fifo"
    assert start(tmp_path, "--policy", "las").slots == 3
    assert start(tmp_path).policy == "las"
    assert start(tmp_path, "--policy", "srtf").policy == "srtf"
    assert start(tmp_path).policy == "srtf"
    assert start(tmp_path, "--reset").policy == "fifo"
    assert start(tmp_path).policy == "fifo"


def test_none_ends_what_was_given_before(tmp_path: Path) -> None:
    start(tmp_path, *ALL)
    start(tmp_path, "--listen", "none", "--images", "none")
    again = start(tmp_path)
    assert (again.listen, again.images, again.slots) == ("", "", 4)


def test_a_start_that_fails_is_not_remembered(tmp_path: Path) -> None:
    start(tmp_path, "--policy", "las")
    _arguments(["--state", str(tmp_path), "--policy", "nonsense", "--hosts", "2"])  # never serves
    again = start(tmp_path)
    assert again.policy == "las" and again.agents == hosts.Agents()


def test_slots_given_now_are_those_of_remembered_hosts_too(tmp_path: Path) -> None:
    start(tmp_path, "--host", "a=2", "--host", "b=2")
    assert [host.slots for host in start(tmp_path, "--slots", "3").agents.hosts] == [3, 3]
    assert [host.slots for host in start(tmp_path).agents.hosts] == [3, 3]
    assert start(tmp_path, "--reset").agents == hosts.Agents()


def test_what_is_said_of_options(tmp_path: Path) -> None:
    before = {"policy": "las", "slots": "4"}
    assert remembered.changes(before, {"slots": "2"}) == ["slots 2 (was 4)"]
    assert remembered.changes(before, {"slots": "4", "listen": "x"}) == []
    assert remembered.inherited(before, {"slots": "2"}) == ["policy las"]
    (tmp_path / remembered.FILE).write_text("[]")
    with pytest.raises(UsageError, match="unreadable"):
        remembered.recall(tmp_path)
