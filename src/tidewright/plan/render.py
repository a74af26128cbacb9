"""Causes in words: the one place where sentences for people are made, for the command line, the API and pages alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import Formatter
from typing import Any, NamedTuple

from ..base.units import counted, format_bytes, format_duration
from ..model.cause import Arg, Cause, Code
from .advice import KINDS_OF_CHANGE, REMEDIES, STANDINGS
from .sentences import SENTENCES


def render(why: Cause | str | None) -> str:
    """A cause in words; words stay as they are. Never raises: of a cause that lacks arguments its code is shown."""
    if why is None or isinstance(why, str):
        return why or ""
    return _filled(_FORMS[why.code].sentence, why) if why.args else _PLAIN[why.code]


def remedy(why: Cause | str | None) -> str:
    """What to do next about a refusal; empty where the sentence itself says all."""
    if why is None or isinstance(why, str):
        return ""
    return _filled(_FORMS[why.code].remedy, why) if len(why.args) == len(_FORMS[why.code].names) else ""


def named(why: Cause) -> dict[str, Arg]:
    """The arguments of a cause by their names."""
    return dict(zip(_FORMS[why.code].names, why.args, strict=False))


def signature(code: Code) -> dict[str, type]:
    """Names and types of a code's arguments, in order. A ``tuple`` is of texts, numbers or causes."""
    return {name: KINDS[kind].type for name, kind in named_kinds(code).items()}


def named_kinds(code: Code) -> dict[str, str]:
    """Names and kinds (``KINDS``) of a code's arguments, in order."""
    return dict(zip(_FORMS[code].names, _FORMS[code].kinds, strict=True))


def misused(why: Cause) -> str:
    """What is wrong with a cause's arguments, or with those of a cause among them; empty when they are as its sentence says."""
    wanted = signature(why.code)
    least = 1 if why.code is Code.TEXT else len(wanted)
    if not least <= len(why.args) <= len(wanted):
        return f"{why.code.value} takes {', '.join(wanted) or 'no arguments'}, not {why.args}"
    for (name, kind), arg in zip(wanted.items(), why.args, strict=False):
        if type(arg) is not kind:
            return f"{name} of {why.code.value} is {arg!r}, not {kind.__name__}"
        for inner in arg if isinstance(arg, tuple) else (arg,):
            found = misused(inner) if isinstance(inner, Cause) else ""
            if found:
                return f"{why.code.value}: {found}"
    return ""


# -- kinds of arguments -------------------------------------------------------------------------------------------------


class ArgumentKind(NamedTuple):
    """What an argument is, and how it is written."""

    type: type
    write: Callable[[Any], str]


def _waiters(number: int) -> str:
    return "1 waiting job is" if number == 1 else f"{number} waiting jobs are"


def _job_ids(jobs: Sequence[int]) -> str:
    return f"job{'s' * (len(jobs) > 1)} {_names(jobs)}"


def _ended(jobs: Sequence[int]) -> str:
    return f"{_job_ids(jobs)} {'have' if len(jobs) > 1 else 'has'} ended"


def _names(items: Sequence[str | int]) -> str:
    return ", ".join(map(str, items))


def _held_by(jobs: Sequence[int]) -> str:
    return f"; held by job{'s' * (len(jobs) > 1)} {_names(jobs)}" if jobs else ""


def _kinds_of_change(kinds: Sequence[str]) -> str:
    return ", ".join(KINDS_OF_CHANGE.get(kind, kind) for kind in kinds) or "nothing yet"


TIMES = {"max_duration_us": "time limit", "deadline_us": "deadline", "expected_us": "expected run time"}
"""Times of a spec, as people call them."""

KINDS: dict[str, ArgumentKind] = {
    "": ArgumentKind(str, str),
    "quoted": ArgumentKind(str, repr),
    "kinds": ArgumentKind(str, lambda kinds: f"{kinds} " if kinds else ""),
    "where": ArgumentKind(str, lambda placement: "one node" if placement == "one-node" else "the whole pool"),
    "n": ArgumentKind(int, str),
    "us": ArgumentKind(int, format_duration),
    "time": ArgumentKind(str, lambda field: TIMES.get(field, field)),
    "us_or_none": ArgumentKind(int, lambda us: format_duration(us) if us else "none"),
    "seconds": ArgumentKind(int, lambda us: f"{us // 1_000_000}s"),
    "bytes": ArgumentKind(int, format_bytes),
    "gib": ArgumentKind(int, lambda size: f"{size / 2**30:.1f}GiB"),
    "mib": ArgumentKind(int, lambda size: str(size // 2**20)),
    "milli": ArgumentKind(int, lambda milli: f"{milli / 1000:.1f}".removesuffix(".0")),
    "cpus": ArgumentKind(int, lambda milli: f"{milli / 1000:g}"),
    "host_cpus": ArgumentKind(int, lambda milli: f"{milli / 1000:g} host CPU{'' if milli == 1000 else 's'}"),
    "each_rank": ArgumentKind(int, lambda number: "its rank" if number == 1 else f"each of its {number} ranks"),
    "fraction": ArgumentKind(int, lambda milli: f"{milli / 1000:.2f}"),
    "devices": ArgumentKind(int, lambda number: counted(number, "device")),
    "sizes": ArgumentKind(tuple, lambda sizes: f"{_names(sizes)} device{'s' * (sizes != (1,))}"),
    "standing": ArgumentKind(str, lambda standing: STANDINGS.get(standing, standing)),
    "kinds_of_change": ArgumentKind(tuple, _kinds_of_change),
    "free": ArgumentKind(int, lambda number: f"{number} {'is' if number == 1 else 'are'} free"),
    "waiters": ArgumentKind(int, _waiters),
    "job_ids": ArgumentKind(tuple, _job_ids),
    "ended": ArgumentKind(tuple, _ended),
    "s": ArgumentKind(int, lambda number: "" if number == 1 else "s"),
    "es": ArgumentKind(int, lambda number: "" if number == 1 else "es"),
    "be": ArgumentKind(int, lambda number: "is" if number == 1 else "are"),
    "state": ArgumentKind(str, str.lower),
    "more_nodes": ArgumentKind(int, lambda number: counted(number, "more node")),
    "why": ArgumentKind(Cause, lambda why: render(why)),
    "remedy": ArgumentKind(Cause, lambda why: remedy(why)),
    "names": ArgumentKind(tuple, _names),
    "csv": ArgumentKind(tuple, ",".join),
    "and": ArgumentKind(tuple, " and ".join),
    "list": ArgumentKind(tuple, "; ".join),
    "whys": ArgumentKind(tuple, lambda whys: ", ".join(map(render, whys))),
    "of_types": ArgumentKind(tuple, lambda types: f" of type {_names(types)}" if types else ""),
    "have": ArgumentKind(tuple, lambda nodes: f"{_names(nodes)} {'have' if len(nodes) > 1 else 'has'}"),
    "others": ArgumentKind(tuple, lambda nodes: _names(nodes) or "the other nodes"),
    "held_by": ArgumentKind(tuple, _held_by),
}

# -- sentences taken apart ----------------------------------------------------------------------------------------------

Pieces = tuple[tuple[str, int, Callable[[Any], str] | None], ...]
"""(text, index of the argument after it, how that is written); None: no argument follows."""


class _Form(NamedTuple):
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    sentence: Pieces
    remedy: Pieces


def _form(code: Code) -> _Form:
    known: dict[str, str] = {}
    sentence, todo = _pieces(SENTENCES[code], known), _pieces(REMEDIES.get(code, ""), known)
    return _Form(tuple(known), tuple(known.values()), sentence, todo)


def _pieces(template: str, known: dict[str, str]) -> Pieces:
    found: list[tuple[str, int, Callable[[Any], str] | None]] = []
    for text, name, kind, _ in Formatter().parse(template):
        if name is None:
            found.append((text, 0, None))
            continue
        known.setdefault(name, kind or "")
        found.append((text, list(known).index(name), KINDS[kind or ""].write))
    return tuple(found)


def _filled(pieces: Pieces, why: Cause) -> str:
    try:
        return "".join(text + write(why.args[at]) if write is not None else text for text, at, write in pieces)
    except (IndexError, TypeError, ValueError):  # of another version
        return f"{why.code.value} {' '.join(map(str, why.args))}"


_FORMS: dict[Code, _Form] = {code: _form(code) for code in Code}
_PLAIN: dict[Code, str] = {code: _filled(form.sentence, Cause(code)) for code, form in _FORMS.items()}
"""Causes without arguments, which most changes of state have."""
