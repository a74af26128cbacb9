"""Bounds that the controller enforces on requests, in the words of JSON Schema: shown in the OpenAPI document, and compared
with the validators by a test (tests/wire/test_openapi.py)."""

from __future__ import annotations

from typing import Any

from ..model.job import (
    LONGEST_US,
    MAX_CPUS_MILLI,
    MAX_HOST_MEMORY,
    MAX_MEMORY,
    MAX_RANKS,
    MIN_HOST_MEMORY,
)
from ..model.launchable import MAX_PATH, MAX_STRING, MAX_WORD
from . import api
from .calls.job_changes import MOST_AT_ONCE
from .nodes import MAX_REASON

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._\[\]-]{0,127}$"
_TIME = {"minimum": 0, "maximum": LONGEST_US}
_NUMBER = {"minimum": 0, "maximum": 2**31 - 1}

BODIES: dict[str, dict[str, dict[str, Any]]] = {
    "JobSpec": {
        "name": {"pattern": rf"^$|{_NAME}", "not": {"pattern": r"^\d+$"}},
        "command": {"minItems": 1, "items": {"type": "string", "maxLength": MAX_STRING - 1}},
        "ranks": {"minimum": 1, "maximum": MAX_RANKS},
        "devices": {"minimum": 1, "maximum": MAX_RANKS},
        "min_devices": {"minimum": 0, "maximum": MAX_RANKS},
        "gpu_memory": {"minimum": 0, "maximum": MAX_MEMORY},
        "gpu_milli": {"minimum": 0, "maximum": 1000},
        "gpu_share": {"minimum": 0, "maximum": 1000},
        "cpus_milli": {"minimum": 0, "maximum": MAX_CPUS_MILLI},
        "memory": {"minimum": 0, "maximum": MAX_HOST_MEMORY, "not": {"minimum": 1, "maximum": MIN_HOST_MEMORY - 1}},
        "team": {"pattern": _NAME},
        "user": {"maxLength": MAX_WORD},
        "weight": {"exclusiveMinimum": 0, "maximum": 1e6},
        "deadline_us": _TIME,
        "max_duration_us": _TIME,
        "expected_us": _TIME,
        "grace_us": _TIME,
        "retries": {"minimum": 0, "maximum": 1000},
        "retry_exit_codes": {"items": {"type": "integer", "minimum": 0, "maximum": 255}},
        "checkpoint_us": {"minimum": -1, "maximum": LONGEST_US},
        "workdir": {"pattern": "^(/.*)?$", "maxLength": MAX_PATH - 1},
        "output": {"maxLength": MAX_PATH - 1},
    },
    "BulkRequest": {"jobs": {"maxItems": MOST_AT_ONCE}},
    "ArrayMember": {
        "index": _NUMBER,
        "size": _NUMBER,
        "limit": _NUMBER,
        "parent": {"maxLength": MAX_WORD},
        "job": _NUMBER,
    },
    "SubmitRequest": {"specs": {"minItems": 1, "maxItems": api.MAX_SPECS}},
    "DrainRequest": {"why": {"maxLength": MAX_REASON}},
    "ScaleRequest": {"devices": {"minimum": 0}},
    "ArrayLimitRequest": {"limit": _NUMBER},
    "SuspendRequest": {"until_us": {"minimum": 0}},
    "ErrorBody": {
        "code": {"enum": ["usage", "notfound", "conflict", "unauthorized", "toolarge", "full", "busy", "bug"]}
    },
}
"""Component to field to what is added to the field's schema."""

QUERIES: dict[str, dict[str, Any]] = {
    "all": {"enum": [0, 1]}, "follow": {"enum": [0, 1]}, "agent": {"enum": [0, 1]}, "environment": {"enum": [0, 1]},
    "limit": {"minimum": 0}, "single": {"enum": [0, 1]}, "collapse": {"enum": [0, 1]},
    "rank": {"minimum": 0}, "tail": {"minimum": 0}, "timeout": {"minimum": 0}, "by": {"enum": ["team", "user", "tier"]},
}  # fmt: skip
"""Query parameter to what is added to its schema."""


def bound(components: dict[str, Any]) -> dict[str, Any]:
    """The schemas of an OpenAPI document with these bounds."""
    for name, fields in BODIES.items():
        for field, more in fields.items():
            components[name]["properties"][field].update(more)
    components["JobSpec"]["required"] = ["command"]
    del components["JobSpec"]["properties"]["command"]["default"]  # empty, which is refused
    return components
