"""Views that print themselves again: on a terminal in place, in a pipe one after another."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from ..wire.api import JobList
from . import output as out

PERIOD_S = 2.0


def repeat(render: Callable[[], Any], period_s: float = PERIOD_S) -> None:
    """Show what ``render`` returns (a rich renderable) anew every ``period_s`` seconds until Ctrl-C."""
    from rich.live import Live

    try:
        with Live(render(), console=out.rich_console(), screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(period_s)
                live.update(render(), refresh=True)
    except KeyboardInterrupt:
        return


def watch_jobs(fetch: Callable[[], JobList], output: str, headers: bool) -> None:
    """``tide ps --watch``."""
    from .ps import columns

    def table() -> Any:
        listing = fetch()
        shown = [column for column in columns(listing.now) if output == "wide" or not column.wide]
        return out.rich_table(listing.jobs, shown, headers)

    if output in ("table", "wide") and out.colourful():
        repeat(table)
        return
    try:
        while True:
            listing = fetch()
            out.print_rows(listing.jobs, columns(listing.now), output, headers, lambda job: str(job.id), listing)
            click.echo("")
            time.sleep(PERIOD_S)
    except KeyboardInterrupt:
        return
