"""Batching policies by name, settings included: ``aimd:backoff=0.9,timeout=2ms``."""

from __future__ import annotations

import inspect
from typing import get_type_hints

from ...base.errors import UsageError
from ...base.registry import Registry
from ...base.units import parse_duration
from .protocol import Batcher

batchers = Registry(
    "batching policy",
    "tidewright.batching",
    {
        "eager": "tidewright.serve.batching.eager:EagerBatcher",
        "aimd": "tidewright.serve.batching.aimd:AimdBatcher",
        "deadline": "tidewright.serve.batching.deadline:DeadlineBatcher",
        "deferred": "tidewright.serve.batching.deferred:DeferredBatcher",
    },
)
"""Third parties register a factory under the entry point group ``tidewright.batching``.

It takes the objective in microseconds, then settings by keyword (int or float; those ending in ``_us`` are times).
"""


def make_batcher(text: str, objective_us: int) -> Batcher:
    """The batching policy ``name:key=value,key=value`` for a model with this objective.

    Times carry units, and ``_us`` may be left off their keys. Raises UsageError for unknown names and settings, and for values
    that the policy refuses.
    """
    if not objective_us >= 1:  # nor NaN
        raise UsageError(f"no latency objective: {objective_us} us", "give a time above 0, for example 100ms")
    name, _, rest = text.partition(":")
    factory = batchers.get(name)
    kinds = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    known = {key: kind for key, kind in kinds.items() if key not in ("objective_us", "return")}
    settings: dict[str, int | float] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        full = key if key in known else f"{key}_us"
        if not equals or full not in known:
            names = ", ".join(sorted(key.removesuffix("_us") for key in known)) or "none"
            raise UsageError(f"batching policy {name} has no setting {pair!r}", f"its settings: {names}")
        settings[full] = _value(full, value, known[full])
    made: Batcher = factory(objective_us, **settings)
    return made


def _value(key: str, text: str, kind: type) -> int | float:
    if key.endswith("_us"):
        return parse_duration(text)
    try:
        return float(text) if kind is float else int(text)
    except ValueError:
        raise UsageError(f"{key} is not a number: {text!r}", f"write {key}=NUMBER") from None
