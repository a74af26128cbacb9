"""Cycles of imports between modules of the package, wherever in a file the import stands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from .house import Source, nodes

_NAMED = re.compile(r"tidewright(\.\w+)+")
_BESIDE = re.compile(r"\w+\.py")
"""A file that a module loads by its path, beside itself."""


def module_of(path: str) -> str:
    """``engine/book.py`` is ``engine.book``; a package's ``__init__.py`` is the package."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def graph(sources: Iterable[Source]) -> dict[str, set[str]]:
    """Module to the modules of the package that it imports, by statement, by dotted name in a string, or by path."""
    known = {module_of(source.path): source for source in sources}
    names = frozenset(known)
    return {module: {one for one in _imported(source, names) if one != module} for module, source in known.items()}


def _imported(source: Source, known: frozenset[str]) -> set[str]:
    found: set[str] = set()
    package = source.path.split("/")[:-1]
    for node in nodes(source.tree()):
        if isinstance(node, ast.Import):
            found |= {name for alias in node.names if (name := _within(alias.name)) in known}
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            for alias in node.names:
                below = f"{base}.{alias.name}" if base else alias.name
                found |= {below} if below in known else {base} & known
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= _in_string(node.value, package) & known
    return found


def _base(node: ast.ImportFrom, package: list[str]) -> str:
    if not node.level:
        return _within(node.module or "")
    parts = package[: len(package) - node.level + 1]
    return ".".join([*parts, node.module] if node.module else parts)


def _within(module: str) -> str:
    """The module's name below the package; the wrapper inside a user's process calls its own package ``_tidewright``."""
    head, _, rest = module.partition(".")
    if head == "_tidewright":
        return f"launch.inject.{module}"
    return rest if head == "tidewright" else "(elsewhere)"


def _in_string(text: str, package: list[str]) -> set[str]:
    name = text.partition(":")[0]
    if _NAMED.fullmatch(name):
        return {_within(name)}
    return {".".join([*package, text.removesuffix(".py")])} if _BESIDE.fullmatch(text) else set()


def cycles(imported: dict[str, set[str]]) -> list[frozenset[str]]:
    """The sets of modules that reach each other (strongly connected components of more than one; Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[frozenset[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(imported[module]):
            if other not in index:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == index[module]:
            cut = stack.index(module)
            component, stack[cut:] = frozenset(stack[cut:]), []
            if len(component) > 1:
                found.append(component)

    for module in sorted(imported):
        if module not in index:
            visit(module)
    return found
