"""The commands of a shell script, with their lines: read as sh(1) divides a script into words, without running anything.

Values that only a run knows stand as ``UNKNOWN``. Commands in variables and of ``eval`` are not seen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ...launch.inject._tidewright.slurm.step import UNKNOWN

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^]]*\])?\+?=")
_NAME = re.compile(r"\w+")
_OPEN = frozenset({"if", "while", "until", "for", "case", "select", "{"})
_CLOSE = frozenset({"fi", "done", "esac", "}"})
_PREFIX = frozenset({"then", "do", "else", "elif", "!", "time", "exec", "command", "nohup"})
_WITHOUT_COMMAND = frozenset({"for", "case", "select", "function"})


@dataclass(frozen=True)
class ShellCommand:
    """One simple command. ``sure``: it runs whenever the script does; ``captured``: a ``$( )`` takes its output; ``forked``: it
    runs beside others, in a pipe or in the background."""

    words: tuple[str, ...]
    line: int
    sure: bool
    captured: bool
    forked: bool


def shell_commands(text: str, known: Mapping[str, str]) -> list[ShellCommand]:
    """The commands of a script, in order. ``known``: variables whose values are known before it runs."""
    reader = _Reader(text, known)
    while reader.at < len(text):
        reader.read("", captured=False)  # goes on after a bracket that closes nothing
    return sorted(reader.found, key=lambda command: command.line)


class _Reader:
    def __init__(self, text: str, known: Mapping[str, str]) -> None:
        self.text, self.known = text, known
        self.at, self.line, self.depth = 0, 1, 0
        self.found: list[ShellCommand] = []
        self.heredocs: list[str] = []

    def read(self, until: str, captured: bool, command: bool = True) -> None:
        """Up to and including ``until``; "" is the end. ``command``: its words are commands, not the values of an array."""
        _Sequence(self, until, captured, command).read()

    def take(self) -> str:
        letter = self.text[self.at]
        self.at += 1
        self.line += letter == "\n"
        return letter

    def peek(self, ahead: int = 0) -> str:
        return self.text[self.at + ahead : self.at + ahead + 1]

    def until(self, end: str) -> str:
        """The text before the next ``end``, which is taken as well."""
        stop = self.text.find(end, self.at)
        stop = len(self.text) if stop < 0 else stop
        taken = self.text[self.at : stop]
        self.line += taken.count("\n") + end.count("\n") * (stop < len(self.text))
        self.at = min(len(self.text), stop + len(end))
        return taken

    def double_quoted(self) -> str:
        """After the opening quote."""
        made = []
        while self.at < len(self.text):
            letter = self.take()
            if letter == '"':
                break
            if letter == "\\":
                following = self.take() if self.at < len(self.text) else ""
                made.append(following if following != "\n" else "")
            elif letter in "$`":
                made.append(self.expansion(letter))
            else:
                made.append(letter)
        return "".join(made)

    def expansion(self, letter: str) -> str:
        """What ``$...`` or a backquote comes to; the commands in it are read."""
        if letter == "`":
            self.read("`", captured=True)
            return UNKNOWN
        if self.text.startswith("((", self.at):
            self.until("))")
            return UNKNOWN
        if self.peek() == "(":
            self.take()
            self.read(")", captured=True)
            return UNKNOWN
        if self.peek() == "{":
            self.take()
            return self.known.get(self.until("}"), UNKNOWN)
        match = _NAME.match(self.text, self.at)
        if match is None:
            self.at += self.peek() in tuple("@*#?$!-")
            return UNKNOWN
        self.at = match.end()
        return self.known.get(match[0], UNKNOWN)

    def redirected(self) -> str:
        """The word after a redirection."""
        made = list[str]()
        while self.peek() and self.peek() not in " \t\n;|&<>()":
            letter = self.take()
            if letter == "\\":
                made.append(self.take() if self.peek() else "")
            else:
                made.append(self.piece(letter))
        return "".join(made)

    def piece(self, letter: str) -> str:
        """What a letter of a word, but for a backslash, comes to: a quoted part, an expansion or itself."""
        if letter == "'":
            return self.until("'")
        if letter == '"':
            return self.double_quoted()
        return self.expansion(letter) if letter in "$`" else letter

    def skip_comment(self) -> None:
        """Up to the end of the line, which is not taken."""
        stop = self.text.find("\n", self.at)
        self.at = len(self.text) if stop < 0 else stop

    def skip_heredocs(self) -> None:
        """The lines of the documents that the line before has begun."""
        for end in self.heredocs:
            while self.at < len(self.text) and self.until("\n").strip("\t") != end:
                pass
        self.heredocs.clear()


class _Sequence:
    """Commands one after the other, up to a closing letter."""

    def __init__(self, reader: _Reader, until: str, captured: bool, command: bool) -> None:
        self.reader, self.until, self.captured, self.command = reader, until, captured, command
        self.words: list[str] = []
        self.word: list[str] | None = None
        self.line = reader.line
        self.before = ""
        """The operator before the present command."""

    def read(self) -> None:
        reader = self.reader
        while reader.at < len(reader.text):
            line, letter = reader.line, reader.take()
            if letter == self.until:
                break
            if not self.words and self.word is None:
                self.line = line
            if self._operator(letter):
                continue
            self._in_word(letter)
        self._end_command("")

    def _operator(self, letter: str) -> bool:
        reader = self.reader
        if letter in " \t\n":
            self._end_word()
            if letter == "\n":
                self._end_command(";")
                reader.skip_heredocs()
        elif letter == "#" and self.word is None:
            reader.skip_comment()
        elif letter in "<>" or (letter == "&" and reader.peek() == ">"):
            self._redirection(letter)
        elif letter in ";|&":
            double = letter + (reader.take() if reader.peek() == letter else "")
            self._end_command(double)
        elif letter == "(":
            self._bracket()
        elif letter == ")":
            self.words, self.word = [], None  # the pattern of a case
        else:
            return False
        return True

    def _in_word(self, letter: str) -> None:
        reader, word = self.reader, self.word if self.word is not None else []
        self.word = word
        if letter == "\\":
            following = reader.take() if reader.at < len(reader.text) else ""
            if following == "\n":
                self.word = word or None
            else:
                word.append(following)
        else:
            word.append(reader.piece(letter))

    def _redirection(self, letter: str) -> None:
        reader = self.reader
        if self.word is not None and "".join(self.word).isdigit():
            self.word = None
        self._end_word()
        operator = letter
        while reader.peek() in tuple("<>&|-"):
            operator += reader.take()
        if reader.peek() == "(":
            reader.take()
            reader.read(")", captured=True)
            return
        while reader.peek() in (" ", "\t"):
            reader.take()
        target = reader.redirected()
        if operator in ("<<", "<<-"):
            reader.heredocs.append(target)

    def _bracket(self) -> None:
        reader, word = self.reader, "".join(self.word or [])
        if reader.peek() == "(" and not word:
            reader.until("))")
        elif word.endswith("="):
            reader.read(")", captured=True, command=False)
            self.word = None
        elif reader.peek() == ")" and word:
            reader.take()
            self.words, self.word = [], None  # a function: its body is a group
        else:
            reader.read(")", self.captured)

    def _end_word(self) -> None:
        if self.word is not None:
            self.words.append("".join(self.word))
            self.word = None

    def _end_command(self, operator: str) -> None:
        self._end_word()
        words, reader = self.words, self.reader
        while words and (words[0] in _OPEN | _CLOSE | _PREFIX or _ASSIGNMENT.match(words[0])):
            first = words.pop(0)
            reader.depth += (first in _OPEN) - (first in _CLOSE and reader.depth > 0)
            if first in _WITHOUT_COMMAND:
                words.clear()
        if words and self.command:
            sure = not reader.depth and self.before not in ("&&", "||")
            forked = operator in ("|", "&") or self.before == "|"
            reader.found.append(ShellCommand(tuple(words), self.line, sure, self.captured, forked))
        if operator or words:
            self.before = operator
        self.words = []
