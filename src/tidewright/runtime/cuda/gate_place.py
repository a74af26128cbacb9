"""Where in a kernel the gate stands: behind the loads that the kernel begins with, so that the gate's own load is under way
together with them and not before them.

What a CTA reads harms nothing if it then leaves; what it writes does. So the gate may stand anywhere before the first write, and
behind what must not run on unfinished input: an address that was itself loaded may lie anywhere then.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

LOAD = "tl.load"
PLAIN_CALLS = frozenset(
    f"tl.{name}" for name in ("program_id", "num_programs", "arange", "full", "zeros", "load", "where", "broadcast_to")
)
PLAIN_MODULES = ("libdevice.", "tl_math.")
PLAIN_HELPERS = frozenset({"triton_helpers.maximum", "triton_helpers.minimum"})
"""What computes elements and nothing else. All that is not known to ends the search."""


def gate_place(function: ast.FunctionDef) -> int:
    """The index in the body of a kernel before which the gate goes: behind the last load of its straight-line beginning whose
    address was not loaded; behind the docstring where there is no such load."""
    place = 1 if ast.get_docstring(function) is not None else 0
    loaded: set[str] = set()
    for at, statement in enumerate(function.body[place:], place):
        target = _assigned(statement)
        if target is None or not all(map(_is_plain, _calls(statement))):
            break
        loads = [call for call in _calls(statement) if ast.unparse(call.func) == LOAD]
        if any(_mentions(call, loaded) for call in loads):
            break
        if loads:
            place = at + 1
        if loads or loaded & _names(statement):
            loaded.add(target)
    return place


def _assigned(statement: ast.stmt) -> str | None:
    """The one name that a statement assigns to; None for any other statement."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (inner for inner in ast.walk(node) if isinstance(inner, ast.Call))


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _is_plain(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    if isinstance(call.func, ast.Attribute) and call.func.attr == "to":
        return True
    return name in PLAIN_CALLS or name in PLAIN_HELPERS or name.startswith(PLAIN_MODULES)


def _mentions(load: ast.Call, loaded: set[str]) -> bool:
    """Whether the address or the mask of a load comes from memory."""
    given = [*load.args, *(keyword.value for keyword in load.keywords)]
    return any(loaded & _names(one) or any(ast.unparse(call.func) == LOAD for call in _calls(one)) for one in given)
