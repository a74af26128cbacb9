"""Words that the repository must not hold: traces of one machine, and promises instead of work."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

# Written in pieces, so that this file does not trip over itself.
BANNED = {
    "a promise instead of work": r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b",
    "a path of one machine": r"(?<![\w.])/(wo" + r"rk|ro" + r"ot)/\w",
    "a package registry's host": r"(py" + r"pi\.org|pythonhos" + r"ted\.org|download\.pyt" + r"orch\.org)",
    "a merge conflict": r"^(<{7}|>{7}) ",
}
BINARY = frozenset({".png", ".xz", ".gz", ".ico", ".zst"})


def offences(name: str, text: str) -> list[str]:
    """``name:line what`` for every banned word."""
    return [
        f"{name}:{number} {what}: {match[0]!r}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in BANNED.items()
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
