"""Factories by name with their settings in text: ``las:round=6m,thresholds=1h+10h``, for policies and placement scores."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias, get_origin, get_type_hints

import msgspec

from ..base.errors import UsageError
from ..base.registry import Registry
from ..base.units import parse_duration

Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
"""A setting that is part of a whole."""
Proportion: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
"""One of several settings of which only the proportions matter."""
Interval: TypeAlias = Annotated[int, msgspec.Meta(gt=0)]
"""A setting in microseconds by which others are divided or rounds follow each other."""


def build(registry: Registry, text: str, given: Mapping[str, Any] | None = None) -> Any:
    """What the factory called ``name`` makes of ``name:key=value,key=value``.

    Times (settings ending in ``_us``, which may be left off) carry units, lists are joined by ``+``, switches are yes or no.
    ``given`` holds arguments by name that a user cannot write; a factory gets those that it has. Bounds are those that its
    signature says (``Annotated[int, msgspec.Meta(ge=1)]``). Raises UsageError for unknown names and settings, for values out of
    bounds, and for a setting that is there twice.
    """
    base, _, rest = text.partition(":")
    whose = f"{registry.kind} {base}"
    factory, given = registry.get(base), given or {}
    kinds = _settings(factory)
    values: dict[str, Any] = {key: value for key, value in given.items() if key in kinds}
    known = {key: kind for key, kind in kinds.items() if key not in given}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        full = key if key in known else f"{key}_us"
        short = full.removesuffix("_us")
        if full not in known:
            names = ", ".join(sorted(key.removesuffix("_us") for key in known)) or "none"
            raise UsageError(f"{whose} has no setting {pair!r}", f"write {base}:key=value; its settings: {names}")
        if not equals:
            raise UsageError(f"{whose}, setting {short}: it has no value", f"write {base}:{short}=VALUE")
        if full in values:
            raise UsageError(f"{whose}: setting {short} is there twice", f"write {short}= once in {text!r}")
        values[full] = _convert(whose, full, value, known[full])
    return factory(**values)


def _settings(factory: Callable[..., Any]) -> dict[str, Any]:
    """Keyword settings of a factory and their types."""
    target: Any = factory.__init__ if inspect.isclass(factory) else factory
    hints = get_type_hints(target, include_extras=True)
    parameters = inspect.signature(factory).parameters.values()
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {p.name: hints.get(p.name, str) for p in parameters if p.kind in named}


def _convert(whose: str, key: str, text: str, kind: Any) -> Any:
    if kind is bool:
        return _yes_or_no(whose, key, text)
    values: Any = text.split("+") if get_origin(kind) is tuple else text
    if key.endswith("_us"):
        values = [parse_duration(value) for value in values] if isinstance(values, list) else parse_duration(values)
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"{whose}, setting {key.removesuffix('_us')}: {error}", f"not understood: {text!r}") from None


_YES_OR_NO = {"yes": True, "no": False, "true": True, "false": False, "1": True, "0": False}


def _yes_or_no(whose: str, key: str, text: str) -> bool:
    if text.lower() not in _YES_OR_NO:
        raise UsageError(
            f"{whose}, setting {key}: {text!r} is neither yes nor no",
            f"write {key}=yes or {key}=no; true, false, 1 and 0 are read, too",
        )
    return _YES_OR_NO[text.lower()]
