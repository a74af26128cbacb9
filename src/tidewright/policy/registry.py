"""Policies by name, settings included: ``las:round=6m,thresholds=1h+10h``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec

from ..base.errors import UsageError
from ..base.registry import Registry
from ..base.units import parse_duration
from ..plan.plan import Planner

policies = Registry(
    "policy",
    "tidewright.policies",
    {
        "sla": "tidewright.policy.sla:Sla",
        "fifo": "tidewright.policy.baselines.fifo:Fifo",
        "fifo-backfill": "tidewright.policy.baselines.backfill:Backfill",
        "fjf": "tidewright.policy.baselines.fjf:FitJobFirst",
        "sjf": "tidewright.policy.baselines.sjf:Sjf",
        "smallest": "tidewright.policy.baselines.smallest:Smallest",
        "srsf": "tidewright.policy.baselines.srsf:Srsf",
        "srtf": "tidewright.policy.baselines.srtf:Srtf",
        "las": "tidewright.policy.baselines.las:Las",
        "static": "tidewright.policy.baselines.static:Static",
        "gavel-fifo": "tidewright.policy.baselines.gavel_fifo:GavelFifo",
    },
)
"""Third parties register a factory with keyword settings under the entry point group ``tidewright.policies``."""


def make(name: str) -> Planner:
    """The planner called ``name``, which may carry settings: ``name:key=value,key=value``.

    Times (settings ending in ``_us``, which may be left off) carry units, lists are joined by ``+``. Raises UsageError for
    unknown names and settings.
    """
    base, _, text = name.partition(":")
    factory = policies.get(base)
    hints = _settings(factory)
    settings: dict[str, Any] = {}
    for pair in filter(None, text.split(",")):
        key, equals, value = pair.partition("=")
        full = key if key in hints else f"{key}_us"
        if not equals or full not in hints:
            known = ", ".join(sorted(key.removesuffix("_us") for key in hints)) or "none"
            raise UsageError(f"policy {base} has no setting {pair!r}", f"write {base}:key=value; its settings: {known}")
        settings[full] = _convert(base, full, value, hints[full])
    planner: Planner = factory(**settings)
    return planner


def _settings(factory: Callable[..., Any]) -> dict[str, Any]:
    """Keyword settings of a factory and their types."""
    target: Any = factory.__init__ if inspect.isclass(factory) else factory
    hints = get_type_hints(target)
    parameters = inspect.signature(factory).parameters.values()
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {p.name: hints.get(p.name, str) for p in parameters if p.kind in named}


def _convert(policy: str, key: str, text: str, kind: Any) -> Any:
    values: Any = text.split("+") if getattr(kind, "__origin__", None) is tuple else text
    if key.endswith("_us"):
        values = [parse_duration(value) for value in values] if isinstance(values, list) else parse_duration(values)
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"policy {policy}, setting {key}: {error}", f"not understood: {text!r}") from None
