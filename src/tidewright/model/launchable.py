"""What no node could start, though the book could hold it: checked where a job comes in, and not again in a replay.

Limits are those of Linux (execve(2), "Limits on size of arguments and environment"; linux/binfmts.h, linux/limits.h).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from .job import JobSpec

MAX_STRING = 128 * 1024
"""Bytes of one argument or one KEY=VALUE with its closing zero byte: MAX_ARG_STRLEN, 32 pages."""
MAX_STRINGS = 2 * 2**20 - MAX_STRING
"""Bytes of all arguments and variables, with a pointer for each: a quarter of the usual stack limit of 8 MiB, less what is
kept for the variables that a rank is given."""
MAX_PATH = 4096
MAX_WORD = 256
"""Characters of a user's or a device type's name."""
_POINTER = 8


def unlaunchable(spec: JobSpec) -> list[str]:
    """Everything in a spec that no node could start or no terminal should see, by field; empty when it is sound."""
    return [*_strings(spec), *_paths(spec), *_words(spec)]


def _strings(spec: JobSpec) -> Iterator[str]:
    if _small(spec):
        return
    total = 0
    for at, text in enumerate(spec.command):
        yield from _string(f"command[{at}]", text, 0)
        total += _size(text) + _POINTER
    for key, text in spec.env.items():
        yield from _string(f"env[{key[:64]!r}]", text, _size(key))
        total += _size(key) + _size(text) + _POINTER
    if total > MAX_STRINGS:
        yield f"command and env: {total} bytes together; a program can be given {MAX_STRINGS}"


def _small(spec: JobSpec) -> bool:
    """Whether all strings together are shorter than one may be: nearly always, and 100 times quicker to see than one by one."""
    strings = (*spec.command, *spec.env, *spec.env.values())
    together = "".join(strings)
    return "\0" not in together and 4 * len(together) + len(strings) * (_POINTER + 1) < MAX_STRING


def _string(field: str, text: str, before: int) -> Iterator[str]:
    if "\0" in text:
        yield f"{field}: holds a zero byte; no program can be given one"
    if before + _size(text) > MAX_STRING:
        yield f"{field}: {before + _size(text) - 1} bytes; one string can have {MAX_STRING - 1} at most (put it into a file)"


def _paths(spec: JobSpec) -> Iterator[str]:
    for field in ("workdir", "output"):
        text: str = getattr(spec, field)
        if "\0" in text:
            yield f"{field}: holds a zero byte; no path can"
        if _size(text) > MAX_PATH:
            yield f"{field}: {_size(text) - 1} bytes; a path can have {MAX_PATH - 1} at most"
    if spec.workdir and not spec.workdir.startswith("/"):
        yield f"workdir: {spec.workdir[:64]!r} is not absolute; the controller does not know from where it is counted"


def _words(spec: JobSpec) -> Iterator[str]:
    words = [("user", spec.user), *(("device_types", kind) for kind in spec.device_types)]
    if spec.array is not None:
        words.append(("array.parent", spec.array.parent))
    for field, text in words:
        if not printable(text):
            yield f"{field}: {text[:64]!r} holds control characters or line breaks"
        if len(text) > MAX_WORD:
            yield f"{field}: {len(text)} characters; {MAX_WORD} at most"


def printable(text: str) -> bool:
    """Whether a terminal shows the text as it is: no control characters, no line breaks, nothing that turns directions."""
    return (text.isascii() and text.isprintable()) or not any(unicodedata.category(each) in _ODD for each in text)


_ODD = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def _size(text: str) -> int:
    return (len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))) + 1
