"""Ids: jobs are whole numbers given by the engine in order of arrival; operations are random 128-bit hex strings."""

from __future__ import annotations

import re
import secrets

NO_JOB = -1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\[\]-]{0,127}")


def new_op_id() -> str:
    """A fresh id that makes one call idempotent. Drawn by clients and run loops only, never by the engine."""
    return secrets.token_hex(16)


def valid_name(text: str) -> bool:
    """Names of jobs, nodes and teams: a letter or digit, then letters, digits, ``. _ -`` and brackets; at most 128."""
    return _NAME.fullmatch(text) is not None
