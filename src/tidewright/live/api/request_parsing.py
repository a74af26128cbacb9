"""Reading what a request asks: query parameters and bodies. Every mistake is a UsageError that names the field."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import Request

from ...base.errors import UsageError
from ...model.job import State
from ...model.launchable import printable
from ...wire.nodes import MAX_REASON
from ...wire.states import states_of

T = TypeVar("T", bound=Struct)
_LONG = re.compile(rb"\d{19}")


def states(text: str) -> list[State]:
    """States separated by commas, by their names here or in Slurm."""
    return [State[name.upper()] for name in states_of(text)]


def flag(request: Request, name: str, default: bool = False) -> bool:
    """A query parameter that is 0 or 1."""
    text = request.query_params.get(name, "")
    if text not in ("", "0", "1"):
        raise UsageError(f"{name}: {text!r} is neither 0 nor 1", "correct the query and ask again")
    return text == "1" if text else default


def reason(text: str) -> str:
    """An operator's reason, which tables and terminals show in one line."""
    if len(text) > MAX_REASON or not printable(text):
        what = f"{len(text)} characters" if len(text) > MAX_REASON else "it holds control characters or line breaks"
        raise UsageError(f"the reason is not right: {what}", f"give one line of at most {MAX_REASON} characters")
    return text


def number(request: Request, name: str, default: int) -> int:
    """A whole-number query parameter, not negative."""
    text = request.query_params.get(name)
    if text is None or text == "":
        return default
    if not re.fullmatch(r"[0-9]{1,15}", text):
        raise UsageError(f"{name}: {text!r} is not a whole number from 0 on", "correct the query and ask again")
    return int(text)


def seconds(request: Request, name: str, default: float) -> float:
    """A query parameter in seconds, fractions allowed."""
    text = request.query_params.get(name, "")
    if text and not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
        raise UsageError(f"{name}: {text!r} is not a number of seconds", "correct the query and ask again")
    return float(text) if text else default


async def body(request: Request, kind: type[T], default: T | None = None) -> T:
    """The request's body. Raises UsageError naming the field that is wrong."""
    data = await request.body()
    return default if not data and default is not None else parsed(data, kind)


def parsed(data: bytes, kind: type[T]) -> T:
    """A body as a message. Raises UsageError naming the field that is wrong."""
    try:
        found = msgspec.json.decode(data, type=kind)
        if _LONG.search(data):
            msgspec.msgpack.encode(found)  # as snapshots of the book are
        return found
    except OverflowError:
        raise UsageError("the request's body has a number of more than 64 bits", "correct it and ask again") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"the request's body is not right: {error}", "see /openapi.json for what is expected"
        ) from None
