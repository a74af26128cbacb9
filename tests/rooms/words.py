"""Words that the repository must not hold: traces of one machine, and promises instead of work."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from .house import Source

# Written in pieces, so that this file does not trip over itself.
BANNED = {
    "a promise instead of work": r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b",
    "a path of one machine": r"(?<![\w.])/(wo" + r"rk|ro" + r"ot)/\w",
    "a package registry's host": r"(py" + r"pi\.org|pythonhos" + r"ted\.org|download\.pyt" + r"orch\.org)",
    "a merge conflict": r"^(<{7}|>{7}) ",
}
VAGUE = re.compile(
    r"\b(?!(?<=\")\w+\")"
    r"(nobody|whoever|somebody|told|lets? go|letting go|for ever|forever|sittings?|boxes|s[ae]n[dt]s? away|sending away"
    r"|makes? room|could not be had|takes? no work|gone for good"
    r"|deeds?|shel(?:f|ves)|heirs?|bur(?:y|ies|ied)|knock(?:s|ed|ing)?|(?:gives|gave|given|giving) back"
    r"|limbo|translator|everybody|less than nothing)\b",
    re.IGNORECASE,
)
"""Words that say less than the term of the field: released, preempted, unschedulable, reported, until it is cancelled.

A word that is a whole string in quotes is none of them: it is a name as encoded (a key of a record, an account)."""
VAGUE_ALLOWED: dict[str, int] = {}
"""Room to how often its files hold one. It only ever shrinks."""
BINARY = frozenset({".png", ".xz", ".gz", ".ico", ".zst"})


def offences(name: str, text: str) -> list[str]:
    """``name:line what`` for every banned word."""
    lines = text.splitlines()
    whole = "\n".join(lines)
    there = [(what, pattern) for what, pattern in BANNED.items() if re.search(pattern, whole, re.MULTILINE)]
    return [
        f"{name}:{number} {what}: {match[0]!r}"
        for number, line in enumerate(lines, 1)
        for what, pattern in there
        if (match := re.search(pattern, line))
    ]


def repository_files(root: Path) -> Iterator[Path]:
    """Text files that git tracks; without git (a source archive) those of the usual folders."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        files = [root / name for name in listed.stdout.split("\0") if name]
    else:
        folders = ("src", "tests", "docs", "examples", "tools", "bench")
        files = [file for folder in folders for file in (root / folder).rglob("*") if "__pycache__" not in file.parts]
    return (file for file in files if file.is_file() and file.suffix not in BINARY)


def vague(sources: Iterable[Source]) -> dict[str, list[str]]:
    """Room to ``path:line word`` for every vague word of it."""
    found: dict[str, list[str]] = {}
    for source in sources:
        for number, line in enumerate(source.text.splitlines(), 1):
            for match in VAGUE.finditer(line):
                found.setdefault(source.room, []).append(f"{source.path}:{number} {match[0]!r}")
    return found


def too_vague(sources: Iterable[Source], allowed: Mapping[str, int]) -> list[str]:
    """The vague words of each room that holds more of them than ``allowed``."""
    return [
        f"{room} holds {len(lines)} vague words, more than {allowed.get(room, 0)}: {', '.join(lines)}"
        for room, lines in sorted(vague(sources).items())
        if len(lines) > allowed.get(room, 0)
    ]
