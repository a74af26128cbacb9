"""What a rank finds its controller by, for its own ``tide``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidewright.agent.layout import AgentLayout
from tidewright.agent.processes.rank_spec import NodeContext, controller_variables, specs
from tidewright.checkpoint.cgroup import Signals
from tidewright.devices.fake import FakeBackend
from tidewright.wire.agent import LaunchArgs, RankSeat

HERE = controller_variables("/var/tide")
THERE = controller_variables("https://head:7700", "/etc/tide/token", "/etc/tide/ca.pem")


def test_a_directory_of_this_machine_or_a_url_with_the_files_for_it() -> None:
    assert HERE == {"TIDE_STATE": "/var/tide"} and controller_variables("") == {}
    assert THERE == {
        "TIDE_URL": "https://head:7700",
        "TIDE_TOKEN_FILE": "/etc/tide/token",
        "TIDE_CA": "/etc/tide/ca.pem",
    }
    assert controller_variables("http://127.0.0.1:7700") == {"TIDE_URL": "http://127.0.0.1:7700"}


@pytest.mark.parametrize(
    ("controller", "account", "own", "found"),
    [
        (HERE, "", {}, HERE),
        (HERE, "65534:65534", {}, {}),  # the socket is for the operator
        (THERE, "65534:65534", {}, THERE),
        (HERE, "", {"TIDE_STATE": "/mine"}, {"TIDE_STATE": "/mine"}),
        ({}, "", {}, {}),
    ],
)
def test_a_rank_gets_them(
    tmp_path: Path, controller: dict[str, str], account: str, own: dict[str, str], found: dict[str, str]
) -> None:
    layout = AgentLayout(tmp_path)
    layout.prepare()
    context = NodeContext(layout, FakeBackend("n1"), Signals(), controller=controller)
    args = LaunchArgs(job=1, attempt=0, command=("true",), env=own, ranks=(RankSeat(0, 0, (0,)),), run_as=account)
    env = specs(args, context)[0].env
    assert {
        name: value for name, value in env.items() if name in ("TIDE_STATE", "TIDE_URL", "TIDE_TOKEN_FILE", "TIDE_CA")
    } == found
