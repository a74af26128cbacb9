"""Views that print themselves again: on a terminal in place, in a pipe one after another."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn

from . import output as out

PERIOD_S = 2.0


def repeat(render: Callable[[], Any], period_s: float = PERIOD_S) -> NoReturn:
    """Show what ``render`` returns (a rich renderable) anew every ``period_s`` seconds until Ctrl-C."""
    from rich.live import Live

    with Live(render(), console=out.rich_console(), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(period_s)
            live.update(render(), refresh=True)
