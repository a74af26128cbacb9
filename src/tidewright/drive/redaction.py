"""A journal without the words of its users: names, teams, commands, paths and hosts become pseudonyms; sizes, times, tiers, kinds
of devices and decisions stay, so that it replays to the same result.

Equal words get equal pseudonyms, and a composed word (``vision-0``, ``sweep[3]``) the composition of its parts', since the engine
composes some itself. They are drawn with a key that is kept nowhere: without it a guess cannot be looked up (RFC 2104).
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import re
from ipaddress import IPv6Address
from typing import Any, NamedTuple

import msgspec

from ..engine.settings import EngineSettings
from ..model.job import Level, State
from .record import StepRecord

KEPT = frozenset({"kinds", "device_types", "freeze_kinds", "fault", "policy", "version", "type", "code"})
"""Fields whose texts are not their users' words: kinds of devices, whose fault a failure is, names of policies. Fields that take
one of a few words (``tier``) are kept as well."""
DROPPED: dict[str, Any] = {"env": {}, "lines": [], "state": None}
"""Fields that nothing is decided by, and what stands there instead: environments, output, a planner's own notes."""
_VARIABLE = re.compile(r"(\d+|[0-9a-f]{8,})")
"""Numbers and hashes, which estimates do not tell apart: the same as in estimate.history."""
_IPV4 = r"(?<!\d)(?<!\d\.)\d{1,3}(?:\.\d{1,3}){3}(?!\d|\.\d)"
_IPV6 = r"(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,7}(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F]{0,4})(?![\w:])"
_ADDRESS = re.compile(f"({_IPV6}|{_IPV4})")
"""Of a host: its numbers are short, and say where it is. What looks like an IPv6 address may be a time (10:30:00)."""
_WORD = re.compile(r"[^\W\d_]+")
_LETTERS = "ghijklmnopqrstuv"
"""None of them is a digit of a hash."""
_HASH_LETTERS = "abcdef"
_SHORT_NUMBER = 3
"""Digits of numbers that stay: counters and indices, which the engine appends itself."""
_LEAST = 4
"""Letters of a pseudonym; more where those are taken."""
_HASH = 12
"""Letters of a hash's."""


class Pseudonyms:
    """Words to pseudonyms, the same for the same word as long as this lives."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._known: dict[str, str] = {}
        self._taken: dict[str, None] = {}

    def text(self, text: str) -> str:
        """A text with a pseudonym for every word, number above three digits, hash and IP address in it; signs between them
        stay."""
        parts = _ADDRESS.split(text)
        parts[::2] = map(self._words, parts[::2])
        parts[1::2] = map(self._address, parts[1::2])
        return "".join(parts)

    def _words(self, text: str) -> str:
        between_and_variable = _VARIABLE.split(text)
        between_and_variable[::2] = [_WORD.sub(self._word, part) for part in between_and_variable[::2]]
        between_and_variable[1::2] = map(self._variable, between_and_variable[1::2])
        return "".join(between_and_variable)

    def _address(self, part: str) -> str:
        if ":" not in part:
            drawn = self._unique(part, "0123456789", 12)
            return ".".join((drawn[:3], drawn[3:6], drawn[6:9], drawn[9:]))  # as many numbers, for estimates
        try:
            IPv6Address(part)
        except ValueError:
            return self._words(part)
        return self._unique(part, _HASH_LETTERS, _HASH)

    def _word(self, match: re.Match[str]) -> str:
        return self._unique(match[0], _LETTERS, _LEAST)

    def _variable(self, part: str) -> str:
        if not part.isdecimal():
            return self._unique(part, _HASH_LETTERS, _HASH)
        return part if len(part) <= _SHORT_NUMBER else self._unique(part, "0123456789", len(part))

    def _unique(self, part: str, letters: str, length: int) -> str:
        found = self._known.get(part)
        while found is None:
            drawn = int.from_bytes(hmac.digest(self._key, f"{length} {part}".encode(), hashlib.sha256), "big")
            word = "".join(letters[drawn // len(letters) ** at % len(letters)] for at in range(length))
            if word not in self._taken and word != part:
                found = self._known[part] = word
                self._taken[word] = None
            length += 1
        return found


class Redaction:
    """Encoded steps, and the head of an export, with pseudonyms. ``key``: random, and not used again."""

    def __init__(self, key: bytes) -> None:
        self._names, self._known = Pseudonyms(key), journal_words()
        self._kinds: dict[str, None] = {"gpu": None, "cpu": None}
        """Kinds of devices so far: engines write them into reasons."""

    def step(self, body: bytes) -> bytes:
        """An encoded step of this version or an earlier one."""
        turn, now, events, commands = msgspec.json.decode(body)
        return msgspec.json.encode([turn, now, self._value(events, ""), self._value(commands, "")])

    def settings(self, settings: EngineSettings) -> Any:
        """Engine settings as plain data."""
        return self._value(msgspec.json.decode(msgspec.json.encode(settings)), "")

    def _value(self, value: Any, field: str) -> Any:
        if isinstance(value, dict):
            return {
                self._key(key, field): self._field(item, key if key in self._known.fields else field)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return self._history(value) if field == "story" else [self._value(item, field) for item in value]
        return self._word(value, field) if isinstance(value, str) else value

    def _field(self, value: Any, field: str) -> Any:
        if field == "state" and not isinstance(value, dict):
            return value  # of a job, a number
        return DROPPED[field] if field in DROPPED else self._value(value, field)

    def _key(self, key: str, field: str) -> str:
        return key if key in self._known.fields or field in KEPT else self._word(key, field)

    def _history(self, entries: list[Any]) -> list[Any]:
        """(time, label, why): the labels are the engine's."""
        return [[at, label, self._value(why, "why")] for at, label, why in entries]

    def _word(self, text: str, field: str) -> str:
        if field in ("kind", "device_types"):
            self._kinds[text] = None
        if (
            field in KEPT
            or field in self._known.choices
            or (field == "args" and (text in self._known.words or text in self._kinds))
        ):
            return text
        if field == "runtime" and text.isdecimal():
            return text  # a job's id
        return self._names.text(text)


class JournalWords(NamedTuple):
    """What of all that a journal may hold are not its users' words."""

    fields: frozenset[str]
    choices: frozenset[str]
    """Fields that take one of a few words."""
    words: frozenset[str]
    """These words, and the engine's own in the arguments of its reasons."""


@functools.cache
def journal_words() -> JournalWords:
    """Of all types of records. Computed on first use: controllers seldom export, and would start 30 ms later."""
    from msgspec import inspect

    fields: dict[str, None] = {"type": None}
    choices: dict[str, None] = {}
    words: dict[str, None] = {}
    seen: dict[Any, None] = {}

    def look(kind: Any) -> None:
        if isinstance(kind, inspect.StructType):
            if kind.cls in seen:
                return
            seen[kind.cls] = None
            for own in kind.fields:
                fields[own.encode_name] = None
                if isinstance(own.type, inspect.LiteralType | inspect.EnumType):
                    choices[own.encode_name] = None
                look(own.type)
        elif isinstance(kind, inspect.LiteralType):
            words.update(dict.fromkeys(map(str, kind.values)))
        for below in ("types", "item_types"):
            for one in getattr(kind, below, ()):
                look(one)
        for below in ("item_type", "value_type"):
            if (one := getattr(kind, below, None)) is not None:
                look(one)
        for part in kind.fields if isinstance(kind, inspect.NamedTupleType) else ():
            look(part.type)

    for found in inspect.multi_type_info([StepRecord, EngineSettings]):
        look(found)
    own_names = {name for each in (State, Level) for one in each for name in (one.name, one.name.lower())}
    return JournalWords(frozenset(fields), frozenset(choices), frozenset(words) | own_names)
