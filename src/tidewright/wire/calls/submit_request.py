"""Many jobs in one request: the variables that all of them have travel once, so that a large array is submitted whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from ...model.job import JobSpec
from ..api import MAX_BODY, SubmitRequest

PLAIN_BYTES = MAX_BODY // 2
"""Requests up to this size are sent as they are: controllers of earlier versions know no common variables."""


def submit_request(specs: Sequence[JobSpec], after: Sequence[str], op_id: str, dry_run: bool) -> SubmitRequest:
    """The request that submits ``specs``, no longer than it has to be."""
    env: Mapping[str, str] = {}
    if len(specs) > 1 and sum(map(spec_bytes, specs)) > PLAIN_BYTES:
        env = common_env(specs)
        specs = [without(spec, env) for spec in specs]
    return SubmitRequest(specs=tuple(specs), env=dict(env), after=tuple(after), op_id=op_id, dry_run=dry_run)


def common_env(specs: Sequence[JobSpec]) -> dict[str, str]:
    """The variables that every spec has with the same value."""
    common = dict(specs[0].env)
    for spec in specs[1:]:
        for name in [name for name, value in common.items() if spec.env.get(name) != value]:
            del common[name]
    return common


def without(spec: JobSpec, env: Mapping[str, str]) -> JobSpec:
    """The spec less the variables that ``env`` brings."""
    return replace(spec, env={name: value for name, value in spec.env.items() if name not in env})


def spec_bytes(spec: JobSpec) -> int:
    """The length of a spec in a request's body, with the comma after it."""
    return len(msgspec.json.encode(spec)) + 1
