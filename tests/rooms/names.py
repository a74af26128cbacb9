"""Names of public classes: each once in the package."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .house import Source


def public_classes(sources: Iterable[Source]) -> dict[str, list[str]]:
    """Name to the files that define a class of that name at their top level."""
    found: dict[str, list[str]] = {}
    for source in sources:
        for node in source.tree().body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(source.path)
    return found


def shared_names(sources: Iterable[Source]) -> list[str]:
    """Names of several public classes, with their files."""
    return [f"{name}: {', '.join(files)}" for name, files in sorted(public_classes(sources).items()) if len(files) > 1]
