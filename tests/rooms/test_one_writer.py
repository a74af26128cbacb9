"""Nobody outside the engine writes the book: not its fields, not the records in it, not by its methods that write."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "tidewright"
FIELD = re.compile(r"(?<![a-z])_?book\.\w")
MUTATES = re.compile(
    r"(?<![a-z])_?book\.(\w|\.|\[[^]]*\])*\.(pop|popitem|clear|update|append|extend|insert|remove|setdefault|sort|reverse)$"
)
READS = {"view", "state", "true_level", "usual_level", "hold_reason", "story_text", "image_nodes"}


def methods_that_write() -> set[str]:
    """Of Book and the catalog that it is."""
    found = set()
    for name in ("book.py", "image_catalog.py"):
        for node in ast.walk(ast.parse((SOURCE / "engine" / name).read_text())):
            if isinstance(node, ast.ClassDef):
                found |= {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
    return {name for name in found if not name.startswith("_")} - READS


def writes(tree: ast.AST, methods: set[str]) -> Iterator[tuple[int, str]]:
    called = re.compile(rf"(?<![a-z])_?book\.({'|'.join(sorted(methods))})$")
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = list(node.targets)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            text = ast.unparse(node.func)
            if MUTATES.search(text) or called.search(text):
                yield node.lineno, text
        for target in targets:
            for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                if FIELD.search(ast.unparse(one)):
                    yield node.lineno, ast.unparse(one)


def test_only_the_engine_writes_the_book() -> None:
    methods = methods_that_write()
    assert {"move", "forget", "keep_images", "commit"} <= methods
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {text}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] not in ("engine", "testing")
        for line, text in writes(ast.parse(path.read_text()), methods)
    ]
    assert not found, found


def test_a_write_is_seen() -> None:
    for line in (
        "book.now = 1",
        "self._book.jobs[1].attempt += 1",
        "del book.outages.faults[1]",
        "book.stories.pop(1)",
        "engine.book.move(1, 2, '')",
    ):
        assert list(writes(ast.parse(line), {"move"})), line
    assert not list(writes(ast.parse("x = book.jobs[1]\nbook.state(1)\nself.book = book"), {"move"}))
