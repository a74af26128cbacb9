"""Sizes: short files, short functions, packages that one can look over."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from statistics import median

from .house import Source

FILE_LINES = 400
FUNCTION_LINES = 60
PACKAGE_FILES = 25
MEDIAN_LINES = 9

ALLOWED: dict[str, int] = {}
"""``path`` or ``path:function`` to its length. It only ever shrinks: shorten the thing, then its number here."""


def overfull(sources: Iterable[Source]) -> list[str]:
    """Packages with more files than one can look over, ``__init__.py`` included, those of sub-packages not."""
    files: dict[str, int] = {}
    for source in sources:
        package = source.path.rpartition("/")[0]
        files[package] = files.get(package, 0) + 1
    return [
        f"{package} has {count} files, more than {PACKAGE_FILES}: give it sub-packages"
        for package, count in sorted(files.items())
        if count > PACKAGE_FILES
    ]


@cache
def sizes(source: Source) -> dict[str, int]:
    """Lines of the file under its path, and of each function under ``path:qualified.name``."""
    found = {source.path: source.text.count("\n") + (not source.text.endswith("\n"))}
    _functions(source.tree(), f"{source.path}:", found)
    return found


def _functions(node: ast.AST, prefix: str, found: dict[str, int]) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = prefix + child.name
            if not isinstance(child, ast.ClassDef):
                found[name] = (child.end_lineno or child.lineno) - child.lineno + 1
            _functions(child, f"{name}.", found)
        elif not isinstance(child, ast.expr):
            _functions(child, prefix, found)


def misshapen(sources: Iterable[Source], allowed: dict[str, int]) -> list[str]:
    """Files and functions beyond their limit, and entries of ``allowed`` that are out of date."""
    lines = {name: count for source in sources for name, count in sizes(source).items()}
    bad = []
    for name, count in lines.items():
        limit = allowed.get(name, FUNCTION_LINES if ":" in name else FILE_LINES)
        if count > limit:
            bad.append(f"{name} has {count} lines, more than {limit}")
    for name, count in allowed.items():
        if lines.get(name, 0) < count:
            bad.append(f"{name} has {lines.get(name, 0)} lines now: lower or remove its entry ({count})")
    return bad


def median_function(sources: Iterable[Source]) -> float:
    """Lines of the median function."""
    return median(count for source in sources for name, count in sizes(source).items() if ":" in name)
