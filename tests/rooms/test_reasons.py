"""The engine, policies and placement give reasons as codes: they hold no sentences but those of errors that stop them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .house import Source, sources

ROOMS = ("engine/", "placement/", "policy/", "plan/", "explain/")
WORDED = ("plan/sentences.py", "plan/advice.py", "plan/render.py")
"""Where the words are."""
SENTENCE = re.compile(r"[A-Za-z]{2,}[,;:]? [A-Za-z]{2,}")
STOPS = {"Bug", "UsageError", "ValueError", "TypeError", "_fail", "_check_board"}
"""Calls whose words are for whoever repairs the engine or corrects its settings."""


def sentences(source: Source) -> Iterator[str]:
    """Strings of a file that are sentences, with their lines."""
    tree = ast.parse(source.text)
    free = {id(node) for node in _not_reasons(tree)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in free:
            continue
        if SENTENCE.search(node.value) and not node.value.startswith("-"):  # an option to type
            yield f"{source.path}:{node.lineno}: {node.value!r}"


def _not_reasons(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in STOPS:
            yield from ast.walk(node)


def test_reasons_are_codes() -> None:
    found = [
        line
        for source in sources()
        if source.path.startswith(ROOMS) and source.path not in WORDED
        for line in sentences(source)
    ]
    assert not found, "\n".join(found)


def test_a_planted_sentence_is_caught() -> None:
    planted = Source("engine/planted.py", 'def f(n):\n    """Is told why."""\n    return f"job {n} has ended"\n')
    assert len(list(sentences(planted))) == 1
    assert not list(sentences(Source("engine/planted.py", 'raise Bug("time went backwards")\n')))
