"""The options of submissions that say whom a job notifies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ...app.jobspec.notify import addresses, kinds
from ..types import Reader


def notify_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``mail_type``, ``mail_user``, ``webhook``, as ``app.jobspec.notify.notification`` takes them."""
    for option in reversed(
        [
            click.option(
                "--mail-type",
                type=Reader("kinds", kinds),
                metavar="KIND[,KIND]",
                help="Notify of begin, end, fail, requeue, preempt, breach (of a promise), forecast (of a breach), all, none; "
                "of an array as a whole unless array_tasks is added. Default: all, with --mail-user or --webhook.",
            ),
            click.option(
                "--mail-user",
                type=Reader("addresses", addresses),
                metavar="ADDRESS[,ADDRESS]",
                help="Whom to mail. Default: you, with --mail-type.",
            ),
            click.option("--webhook", multiple=True, metavar="URL", help="Send a signed POST there; may be repeated."),
        ]
    ):
        command = option(command)
    return command
