"""The journal's format: one JSON record per step of the engine, chained by SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..engine.commands import Command
from ..engine.events import Event
from ..engine.snapshots import upcast
from ..model.failure import RankFailure
from ..model.job import JobSpec
from ..model.notify import hide_targets

FORMAT = 1
"""Version of the record; the first thing a reader checks."""
GENESIS = bytes(32)
"""What the first record is chained to."""


class StepRecord(Struct, array_like=True, frozen=True):
    """The events of one step and the commands that it answered with. ``now`` in microseconds of the engine's clock."""

    turn: int
    """Number of the step, from 1; called so in the journal and the API."""
    now: int
    events: list[Event]
    commands: list[Command]


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(StepRecord)


def encode(record: StepRecord) -> bytes:
    """One line of JSON, without the newline."""
    return _encoder.encode(record)


def decode(body: bytes) -> StepRecord:
    """Raises msgspec.DecodeError or ValidationError on anything that is not a step, of this version or an earlier one."""
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError:
        return _decode_earlier(body)


def _decode_earlier(body: bytes) -> StepRecord:
    """A step that has sentences where now are causes."""
    row = msgspec.json.decode(body)
    if isinstance(row, list) and len(row) == len(StepRecord.__struct_fields__) and isinstance(row[3], list):
        for item in row[3]:
            if isinstance(item, dict):
                upcast.command(item)
    return msgspec.convert(row, StepRecord)


def chain(previous: bytes, body: bytes) -> bytes:
    """Hash of a record: SHA-256 over the previous record's hash and this body. 32 bytes."""
    return hashlib.sha256(previous + body).digest()


HIDDEN = "…"
"""What stands for the value of an environment variable where it is left out."""


def hide_environment(spec: JobSpec) -> JobSpec:
    """The spec with the names of its environment, and none of the values: they may be the submitter's secrets, as may be the
    paths of webhooks."""
    return replace(spec, env=dict.fromkeys(spec.env, HIDDEN), notify=hide_targets(spec.notify))


def without_environments(items: Sequence[Any]) -> list[Any]:
    """Events or commands, those among them that carry a spec without the values of its environment, and those that carry
    the failure of a rank without what that wrote last."""
    return [_redact(item) for item in items]


def _redact(item: Any) -> Any:
    spec, failure = getattr(item, "spec", None), getattr(item, "failure", None)
    changes: dict[str, Any] = {"spec": hide_environment(spec)} if isinstance(spec, JobSpec) else {}
    if isinstance(failure, RankFailure) and failure.lines:
        changes["failure"] = replace(failure, lines=())
    return replace(item, **changes) if changes else item


def redacted(body: bytes) -> bytes:
    """An encoded step without the values of any job's environment; it still replays to the same decisions."""
    if not any(key in body for key in (b'"env":', b'"lines":', b'"webhooks":')):
        return body
    record = decode(body)
    events, commands = without_environments(record.events), without_environments(record.commands)
    return encode(StepRecord(record.turn, record.now, events, commands))
