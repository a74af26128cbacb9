"""The journal as lines of JSON that can be taken elsewhere: a header, then one record per turn.

Without being asked to, it leaves out the values of jobs' environments, in which their submitters may have secrets.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ...drive.record import FORMAT, redacted
from ..controller.controller_context import ControllerContext
from .recover import settings_since


def exported(context: ControllerContext, with_environment: bool = False) -> Iterator[bytes]:
    """The lines, each with its newline, as far as the journal is durable now."""
    journal, settings = context.journal, context.loop.driver.engine.settings
    header = {
        "tidewright_journal": FORMAT, "version": context.version, "policy": context.policy, "base_turn": journal.base,
        "settings": settings, "settings_since": settings_since(journal, settings), "environment": with_environment,
    }  # fmt: skip
    yield msgspec.json.encode(header) + b"\n"
    for _, body in journal.bodies(journal.base):
        yield (body if with_environment else redacted(body)) + b"\n"
