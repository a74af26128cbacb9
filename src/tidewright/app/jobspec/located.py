"""YAML with line numbers: every value knows where it was written, so that every mistake can say so.

Scalars keep the text the user typed: YAML 1.1 would read ``1:30:00`` as 5400 and ``on`` as true.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import yaml

from ...base.errors import NotFound, UsageError

MAX_FILE = 4 * 1024 * 1024
"""Bytes of the largest file read; far above any hand-written one."""
_MAX_VALUES = 200_000
_MAX_DEPTH = 32
_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


COMMAND_LINE = -1
"""The line of what an option says, which no line of a file does."""


@dataclass(frozen=True)
class Mistake:
    """One thing wrong at one line: 1 for the first, 0 when it concerns the whole file, COMMAND_LINE when an option is wrong."""

    line: int
    text: str


@dataclass
class Mistakes:
    """Everything found wrong in one file so far."""

    file: str
    found: list[Mistake] = field(default_factory=list)

    def add(self, line: int, text: str) -> None:
        """Note one mistake and go on reading."""
        mistake = Mistake(line, text)
        if mistake not in self.found:
            self.found.append(mistake)

    def unknown(self, line: int, what: str, name: str, known: Iterable[str]) -> None:
        """Note a name that means nothing here, with the nearest one that does."""
        near = get_close_matches(name, list(known), n=1)
        self.add(line, f"unknown {what} {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))

    def check(self, remedy: str) -> None:
        """Raise all of them as one UsageError, in the order of the file; nothing when there are none."""
        if not self.found:
            return
        where = sorted(self.found, key=lambda mistake: mistake.line)
        lines = [located_text(self.file, one.line, one.text) for one in where]
        count = "1 mistake" if len(lines) == 1 else f"{len(lines)} mistakes"
        place = "on the command line" if where[-1].line == COMMAND_LINE else f"in {self.file}"
        raise UsageError(f"{count} {place}\n" + "\n".join(lines), remedy)


def located_text(file: str, line: int, text: str) -> str:
    """What a message says of a line of a file, of the whole file (line 0) or of the command line."""
    if line == COMMAND_LINE:
        return f"command line: {text}"
    return f"{file}:{line}: {text}" if line else f"{file}: {text}"


@dataclass(frozen=True)
class Scalar:
    """A single value as typed. ``null`` is true for nothing, ``~`` and ``null``."""

    text: str
    line: int
    null: bool = False


@dataclass(frozen=True)
class Sequence:
    """A list."""

    items: tuple[Value, ...]
    line: int


@dataclass(frozen=True)
class Mapping:
    """Keys in the order of the file; ``key_lines`` says where each stands."""

    entries: dict[str, Value]
    key_lines: dict[str, int]
    line: int


Value = Scalar | Sequence | Mapping


def read_text(path: Path) -> str:
    """The file as text. Raises NotFound or UsageError in words a user can act on."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE + 1)
    except FileNotFoundError:
        raise NotFound(f"no such file: {path}", "check the path; it is taken from the current directory") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "give a readable file") from None
    return decoded(data, str(path))


def decoded(data: bytes, name: str) -> str:
    """The bytes of a file as text. Raises UsageError for too many, or what is no UTF-8."""
    if len(data) > MAX_FILE:
        raise UsageError(f"{name} is larger than {MAX_FILE} bytes", "split it into several files")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"{name}:{line}: not UTF-8 text", "save the file as UTF-8") from None


def parse(text: str, mistakes: Mistakes) -> list[Value]:
    """Every document of a YAML text; empty documents are left out. What cannot be read is noted in ``mistakes``."""
    reader = _Reader(mistakes)
    try:
        nodes = [node for node in yaml.compose_all(text, Loader=_Loader) if node is not None]
        return [reader.value(node, 0) for node in nodes if not _is_null(node)]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        mistakes.add(mark.line + 1 if mark else 0, f"not YAML: {error.problem or error.context}")
    except yaml.YAMLError as error:
        mistakes.add(_line_of_character(text, error), f"not YAML: {str(error).splitlines()[0]}")
    except RecursionError:
        mistakes.add(0, f"not YAML: nested deeper than {_MAX_DEPTH} levels")
    except _TooMuch as error:
        mistakes.add(error.line, str(error))
    return []


def _line_of_character(text: str, error: yaml.YAMLError) -> int:
    position = getattr(error, "position", None)
    return text[:position].count("\n") + 1 if isinstance(position, int) else 0


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


class _TooMuch(Exception):
    def __init__(self, text: str, line: int) -> None:
        super().__init__(text)
        self.line = line


class _Reader:
    """Turns YAML nodes into values, with bounds: an alias can make a small file mean an endless one."""

    def __init__(self, mistakes: Mistakes) -> None:
        self.mistakes = mistakes
        self.values = 0

    def value(self, node: yaml.Node, depth: int) -> Value:
        line = node.start_mark.line + 1
        self.values += 1
        if self.values > _MAX_VALUES or depth > _MAX_DEPTH:
            raise _TooMuch(f"more than {_MAX_VALUES} values, or nested deeper than {_MAX_DEPTH} levels", line)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, line, depth)
        if isinstance(node, yaml.SequenceNode):
            return Sequence(tuple(self.value(item, depth + 1) for item in node.value), line)
        return Scalar(str(node.value), line, _is_null(node))

    def _mapping(self, node: yaml.MappingNode, line: int, depth: int) -> Mapping:
        entries: dict[str, Value] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key_line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.mistakes.add(key_line, "a key must be a plain word")
                continue
            key = str(key_node.value)
            if key in entries:
                self.mistakes.add(key_line, f"{key!r} is given twice (first at line {lines[key]})")
                continue
            lines[key] = key_line
            entries[key] = self.value(value_node, depth + 1)
        return Mapping(entries, lines, line)
