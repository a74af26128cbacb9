"""docs/cli.md says what the commands' help says."""

from __future__ import annotations

import runpy

import click
import pytest

from tidewright.cli.shell import tide


def test_the_page_is_fresh(pytestconfig: pytest.Config) -> None:
    tool = runpy.run_path(str(pytestconfig.rootpath / "tools" / "make_cli_docs.py"))
    assert tool["PAGE"].read_text() == tool["page"](), "run python tools/make_cli_docs.py"


def test_the_page_of_codes_is_fresh(pytestconfig: pytest.Config) -> None:
    tool = runpy.run_path(str(pytestconfig.rootpath / "tools" / "make_code_docs.py"))
    assert tool["PAGE"].read_text() == tool["page"](), "run python tools/make_code_docs.py"


def test_commands_under_commands_are_on_the_page(pytestconfig: pytest.Config) -> None:
    page = (pytestconfig.rootpath / "docs" / "cli.md").read_text()
    top = click.Context(tide)
    commands = {name: tide.get_command(top, name) for name in tide.list_commands(top)}
    groups = {name: command for name, command in commands.items() if isinstance(command, click.Group)}
    under = {(name, below) for name, group in groups.items() for below in group.commands}
    assert {("images", "gc"), ("setup", "criu")} <= under
    for name, below in under:
        assert f"#### tide {name} {below}\n\n```text\nUsage: tide {name} {below} " in page
