"""Writes docs/cli.md from the commands' own help. ``--check`` only says whether it is fresh."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from tidewright.cli.shell import SECTIONS, tide

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
HEAD = """# The command line

Made by `tools/make_cli_docs.py` from the commands' own help; change it there.

`tide` speaks to the controller of a state directory (`--state`, `TIDE_STATE`) over its unix socket, or over TCP with
`--url` (`TIDE_URL`) and the token in `DIR/token`. JOB is an id or a unique name. Lists take `-o table|wide|json|name`,
`--format COLUMN,...` and `--no-headers`; JSON carries `"schema": "tidewright/v2"`, and `-o name` prints one id or name
per line. Tables are coloured and [fitted to its width](output.md) on a terminal, plain and whole in a pipe; `NO_COLOR`
is honoured. Messages go to stderr; exit codes are in [exit-codes.md](exit-codes.md), specs in [jobs.md](jobs.md),
batch scripts in [slurm.md](slurm.md).

`DIR/config.yaml` (optional) holds the defaults of `tide up`: `policy`, `listen`, `slots`, `backend`
(`auto`, `cpu`, `nvidia`), `images`, `node_timeout`, `forecast_check` (pause between the controller's own forecasts of starts,
which are counted by whether they [held](why/explain.md); 15s; 0: none), `rate_check` (pause between
readings of the samples that jobs report, from which [rates](rates.md#learnt-from-jobs) are learnt; 1m; 0: none), `smtp`,
`smtp_password_file`, `mail_from` and `mail_domain` ([notifications](notifications.md)), and under
`engine:` the engine's settings by name, durations with units (`backoff: 5s`).
A mistake in it is reported with its line. Options of earlier starts (`DIR/up.json`) win over it until `tide up --reset`.
"""


def page() -> str:
    """The whole page."""
    top = click.Context(tide, info_name="tide")
    parts = [HEAD, f"```text\n{_help(tide, top)}\n```\n"]
    for section, names in SECTIONS.items():
        parts.append(f"## {section}\n")
        for name in names:
            parts.extend(_command(name, top))
    return "\n".join(parts)


def _command(name: str, parent: click.Context) -> Iterator[str]:
    """A command's section, and those of the commands under it."""
    assert isinstance(parent.command, click.Group)
    command = parent.command.get_command(parent, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent)
    marks = "###" if parent.parent is None else "####"
    yield f"{marks} {context.command_path}\n\n```text\n{_help(command, context)}\n```\n"
    if isinstance(command, click.Group):
        for under in command.list_commands(context):
            yield from _command(under, context)


def _help(command: click.Command, context: click.Context) -> str:
    context.terminal_width = 100
    context.help_option_names = ["-h", "--help"]
    return "\n".join(line.rstrip() for line in command.get_help(context).splitlines())


def main() -> int:
    """Write the page, or with ``--check`` compare it."""
    if "--check" in sys.argv[1:]:
        fresh = PAGE.read_text() == page()
        print("docs/cli.md is fresh" if fresh else "docs/cli.md is stale: run python tools/make_cli_docs.py")
        return int(not fresh)
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
