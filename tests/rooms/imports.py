"""Which rooms and which outside modules a file imports, wherever in the file the import stands."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from .house import LAZY_NAMES, WIDEST, Source

WHOLE_HOUSE = "(the whole package)"


@dataclass(frozen=True)
class Import:
    """``module`` is absolute; ``lazy`` means that it runs only when a function is called."""

    module: str
    line: int
    lazy: bool


@cache
def imports(source: Source) -> tuple[Import, ...]:
    """Every import of a file: statements at any depth, TYPE_CHECKING blocks, and ``import_module`` of a literal."""
    found: list[Import] = []
    calls = "import_module" in source.text or "__import__" in source.text
    for node, inside in _walk(source.tree(), False, calls):
        found.extend(Import(module, node.lineno, inside) for module in _modules(node, source.path))
    return tuple(found)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Those right below."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        found = getattr(node, name, None)
        if isinstance(found, list):
            yield from found


def _walk(node: ast.AST, inside: bool, calls: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Every statement below, and whether it lies in a function; ``calls``: every other node, too."""
    todo, into = [(node, inside)], ast.iter_child_nodes if calls else _statements
    while todo:
        node, inside = todo.pop()
        yield node, inside
        deeper = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        todo.extend((child, deeper) for child in into(node))


def _modules(node: ast.AST, path: str) -> Iterable[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        module = _absolute(node, path)
        return [f"{module}.{alias.name}" for alias in node.names] if module == "tidewright" else [module]
    if isinstance(node, ast.Call) and _called(node.func) in ("import_module", "__import__") and node.args:
        first = node.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            return [first.value]
    return []


def _absolute(node: ast.ImportFrom, path: str) -> str:
    if not node.level:
        return node.module or ""
    package = ["tidewright", *path.split("/")[:-1]]
    parts = package[: len(package) - node.level + 1]
    return ".".join([*parts, node.module] if node.module else parts)


def _called(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def room_of(module: str) -> str | None:
    """The room that importing ``module`` enters; None for outside modules and for facts of the package itself."""
    head, _, rest = module.partition(".")
    if head != "tidewright":
        return None
    name = rest.split(".")[0]
    if not name or name == "*":
        return WHOLE_HOUSE
    if name in LAZY_NAMES:
        return LAZY_NAMES[name]
    return name if name in WIDEST else None


def through_the_wall(source: Source, card: frozenset[str]) -> list[str]:
    """Imports of rooms that are not on the card, as ``path:line room``."""
    allowed = card | {source.room}
    met = ((found, room_of(found.module)) for found in imports(source))
    return [f"{source.path}:{found.line} {room}" for found, room in met if room is not None and room not in allowed]


def outside(source: Source, lazily: frozenset[str] = frozenset()) -> list[str]:
    """Imports that are neither of the house nor of the standard library; ``lazily`` names are allowed in functions."""
    bad = []
    for found in imports(source):
        top = found.module.split(".")[0]
        if top in sys.stdlib_module_names or top == "tidewright" or (found.lazy and top in lazily):
            continue
        bad.append(f"{source.path}:{found.line} {found.module}")
    return bad


def loaded_by(modules: Iterable[str], path: Iterable[str] = ()) -> set[str]:
    """Top-level modules that a fresh interpreter holds after importing ``modules``; ``path`` is put before sys.path."""
    script = (
        "import sys, json, importlib\n"
        "names, path = json.loads(sys.argv[1])\n"
        "sys.path[:0] = path\n"
        "for name in names: importlib.import_module(name)\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))\n"
    )
    argument = json.dumps([list(modules), list(path)])
    done = subprocess.run(
        [sys.executable, "-c", script, argument], capture_output=True, text=True, timeout=60, check=True
    )
    return set(json.loads(done.stdout))
