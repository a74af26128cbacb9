"""docs/slurm.md names commands and options that exist."""

from __future__ import annotations

import re

import click
import pytest

from tidewright.cli.shell import SUMMARY, tide
from tidewright.launch.inject._tidewright.slurm import others, scontrol

CALL = re.compile(r"`tide ([a-z]+)([^`]*)`")
LONG = re.compile(r"(?<![\w-])--?[a-z][\w-]*")


def calls(text: str) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in CALL.finditer(text)]


def options_of(name: str) -> set[str]:
    command = tide.get_command(click.Context(tide), name)
    assert command is not None
    return {spelling for parameter in command.params for spelling in (*parameter.opts, *parameter.secondary_opts)}


def test_every_command_of_the_page_exists_and_has_the_options_named(pytestconfig: pytest.Config) -> None:
    page = (pytestconfig.rootpath / "docs" / "slurm.md").read_text()
    found = calls(page)
    assert {"submit", "ps", "why", "cancel"} <= {name for name, _ in found}
    missing = [name for name, _ in found if name not in SUMMARY]
    assert not missing
    odd = [
        (name, option)
        for name, rest in found
        for option in LONG.findall(rest.partition(" -- ")[0])
        if option not in options_of(name)
    ]
    assert not odd


def test_every_command_that_a_task_is_pointed_to_exists() -> None:
    texts = [*others.INSTEAD.values(), *scontrol.INSTEAD.values()]
    named = {match[1] for text in texts for match in re.finditer(r"tide ([a-z]+)", text)}
    assert named and named <= set(SUMMARY)
