"""The journal as lines of JSON that can be taken elsewhere: a header, then one record per turn.

Without being asked to, it leaves out the values of jobs' environments, in which their submitters may have secrets; asked to
redact, it leaves out every word of users.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import msgspec

from ...drive.record import FORMAT, redacted
from ...drive.redaction import Redaction
from ..controller.controller_context import ControllerContext
from .recover import settings_since

KEY_BYTES = 32
"""Of the key that pseudonyms are drawn with, as long as what it draws (RFC 2104, section 3)."""


def exported(context: ControllerContext, with_environment: bool = False, redact: bool = False) -> Iterator[bytes]:
    """The lines, each with its newline, as far as the journal is durable now. ``redact``: see drive.redaction."""
    journal, settings = context.journal, context.loop.driver.engine.settings
    redaction = Redaction(secrets.token_bytes(KEY_BYTES)) if redact else None
    since = settings_since(journal, settings)
    plain = redaction.settings if redaction is not None else msgspec.to_builtins
    header = {
        "tidewright_journal": FORMAT, "version": context.version, "policy": context.policy, "base_turn": journal.base,
        "settings": plain(settings), "settings_since": [{"turn": one.turn, "settings": plain(one.settings)} for one in since],
        "environment": with_environment and not redact, "redacted": redact,
    }  # fmt: skip
    yield msgspec.json.encode(header) + b"\n"
    for _, body in journal.bodies(journal.base):
        if redaction is not None:
            yield redaction.step(body) + b"\n"
        else:
            yield (body if with_environment else redacted(body)) + b"\n"
