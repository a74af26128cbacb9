"""Nobody outside the engine writes the book: not its fields, not the records in it, not by its methods that write.

Names that a function gives to parts of the book (``record = book.jobs[job]``) are followed, through tuples and loops.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "tidewright"
BOOK = r"(?<![a-z])_?book\b"
PART = re.compile(BOOK + r"\.(jobs|table|board|phys|outages|ledger|timers|world_failures)\b")
CHANGES = [
    "pop", "popitem", "clear", "update", "append", "extend", "insert", "remove", "setdefault", "sort", "reverse",
    "reset", "acquire", "release", "advance", "open", "close", "set_up",
]  # fmt: skip
READS = {"view", "state", "request", "true_level", "usual_level", "hold_reason", "format_history", "image_node_names"}


def methods_that_write() -> set[str]:
    """Of Book and the catalog that it is."""
    found = set()
    for name in ("book.py", "image_catalog.py"):
        for node in ast.walk(ast.parse((SOURCE / "engine" / name).read_text())):
            if isinstance(node, ast.ClassDef):
                found |= {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
    return {name for name in found if not name.startswith("_")} - READS


def root(node: ast.expr) -> str:
    """The name that a chain of attributes and indices begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def aliases(function: ast.AST) -> set[str]:
    """Local names of parts of the book."""
    found: set[str] = set()
    for node in ast.walk(function):
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.For | ast.comprehension):
            pairs = [(node.target, node.iter)]
        for target, value in pairs:
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs += zip(target.elts, value.elts, strict=False)
            elif PART.search(ast.unparse(value)) and not _made(value):
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                found |= {one.id for one in names if isinstance(one, ast.Name)}
    return found


def _made(value: ast.expr) -> bool:
    """Something new, and no part of the book."""
    plain = isinstance(value, ast.Call) and isinstance(value.func, ast.Name)
    return plain or isinstance(value, ast.Compare | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp)


def writes(tree: ast.AST, methods: set[str]) -> Iterator[tuple[int, str]]:
    scopes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for scope in scopes or [tree]:
        yield from _writes(scope, methods, aliases(scope))


def _writes(scope: ast.AST, methods: set[str], known: set[str]) -> Iterator[tuple[int, str]]:
    field = re.compile(BOOK + r"\.\w")
    called = re.compile(rf"{BOOK}\.({'|'.join(sorted(methods))})$")
    changed = re.compile(rf"\.({'|'.join(CHANGES)})$")
    for node in ast.walk(scope):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = list(node.targets)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            text, ours = ast.unparse(node.func), root(node.func) in known
            if called.search(text) or ((ours or field.search(text)) and changed.search(text)):
                yield node.lineno, text
        for target in targets:
            for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                inside = isinstance(one, ast.Attribute | ast.Subscript) and root(one) in known
                if inside or field.search(ast.unparse(one)):
                    yield node.lineno, ast.unparse(one)


def test_only_the_engine_writes_the_book() -> None:
    methods = methods_that_write()
    assert {"vacate", "forget", "keep_images", "reserve"} <= methods
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {text}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] not in ("engine", "testing")
        and "book" in (source := path.read_text())  # every pattern above has it
        for line, text in writes(ast.parse(source), methods)
    ]
    assert not found, found


WRITES = """
book.now = 1
self._book.jobs[1].attempt += 1
del book.outages.faults[1]
book.nodes.pop(1)
engine.book.vacate(1)
record = book.jobs[1]; record.attempt = 2
record = self.book.jobs.get(1); record.history.append(3)
n, record = 1, book.jobs[1]; record.saving = None
table = book.table; table.state[0] = 1
book.board.acquire(a)
for job, record in book.jobs.items(): record.failures = 0
book.jobs[1].reset(())
ledger = book.ledger; ledger.advance(3)
"""


@pytest.mark.parametrize("line", WRITES.strip().splitlines())
def test_a_write_is_seen(line: str) -> None:
    assert list(writes(ast.parse(line), {"vacate"}))


def test_reading_is_none() -> None:
    text = """
record = book.jobs[1]
book.state(1)
self.book = book
names = [one.spec for one in book.jobs.values()]
names.append(1)
jobs = list(book.jobs); jobs.sort()
"""
    assert not list(writes(ast.parse(text), {"vacate"}))
