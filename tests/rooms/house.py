"""The house as a table: which rooms there are, what each may import at most, and where its files lie."""

from __future__ import annotations

import ast
import gc
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "src" / "tidewright"

_LOWER: dict[str, str] = {
    "base": "",
    "model": "base",
    "plan": "base model",
    "estimate": "base model",
    "devices": "base model",
    "report": "base",
    "checkpoint": "base model",
    "placement": "base model plan estimate",
    "policy": "base model plan estimate placement",
    "runtime": "base model devices report",
    "launch": "base",
    "engine": "base model plan estimate placement",
    "drive": "base model plan engine",
    "wire": "base model",
    "fabric": "base model wire",
    "sim": "base model plan estimate placement engine drive report",
    "explain": "base model plan estimate placement policy engine drive sim",
    "live": "base model plan engine drive wire fabric",
    "agent": "base model wire devices checkpoint runtime launch",
    "notify": "base model wire",
    "serve": "base model estimate wire runtime",
    "kube": "base model plan placement wire devices",
}
WIDEST: dict[str, frozenset[str]] = {
    **{room: frozenset(may.split()) for room, may in _LOWER.items()},
    "web": frozenset({"base", "model", "wire"}),
    "cli": frozenset({"base", "model", "wire", "app"}),
    "app": frozenset(_LOWER),
    "testing": frozenset(_LOWER),
}
"""Room to the widest card it may have (the table of docs/house.md). Nobody may import ``testing``."""

LAZY_NAMES = {"Client": "wire", "JobSpec": "model"}
"""Names that ``tidewright/__init__.py`` loads on first use, and the room that this enters."""


@dataclass(frozen=True)
class Source:
    """One Python file of a room. ``path`` is relative to the package, e.g. ``engine/book.py``."""

    path: str
    text: str

    @property
    def room(self) -> str:
        return self.path.split("/")[0]

    def tree(self) -> ast.Module:
        return _parse(self.text, self.path)


@cache
def _parse(text: str, path: str) -> ast.Module:
    """Trees stay until the end: looking through all of them for garbage with each new one takes longer than parsing."""
    gc.disable()
    try:
        return ast.parse(text, path)
    finally:
        gc.freeze()
        gc.enable()


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a tree, in the order of ``ast.walk``, which takes twice as long."""
    found = [tree]
    for node in found:
        for name in node._fields:
            below = getattr(node, name, None)
            if isinstance(below, list):
                found += [one for one in below if isinstance(one, ast.AST)]
            elif isinstance(below, ast.AST):
                found.append(below)
    return tuple(found)


def rooms() -> list[str]:
    """Rooms that are open: the folders of the package that hold Python files."""
    return sorted(folder.name for folder in PACKAGE.iterdir() if folder.is_dir() and any(folder.rglob("*.py")))


@cache
def sources() -> tuple[Source, ...]:
    """Every Python file in a room, by path."""
    files = sorted(file for room in rooms() for file in (PACKAGE / room).rglob("*.py"))
    return tuple(Source(file.relative_to(PACKAGE).as_posix(), file.read_text()) for file in files)


def card(init: str) -> frozenset[str] | None:
    """The rooms that ``MAY_IMPORT`` names in the text of a room's ``__init__.py``; None when it has no literal card."""
    for node in ast.parse(init).body:
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if any(isinstance(target, ast.Name) and target.id == "MAY_IMPORT" for target in targets) and node.value:
            try:
                return frozenset(ast.literal_eval(node.value))
            except ValueError:
                return None
    return None
