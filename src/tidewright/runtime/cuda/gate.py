"""The CTA gate as Triton source, put into kernels before their first write: text in, text out.

Two parameters come first in every gated kernel: the control block (``control``) and the kernel's index in its chain. Why
the gate is written as it is stands in docs/why/cta-gate.md; what it does, step by step, in ``control.gate_steps``. Which
kernels may have it, ``exclusion`` decides.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection

from .control import ABORTED, CLOSED, MARKS, START
from .gate_place import gate_place

CONTROL = "tide_ctl"
KERNEL = "tide_kid"
PARAMETERS = (CONTROL, KERNEL)
SIGNATURE = {CONTROL: "*i32", KERNEL: "i32"}
"""Types of the parameters, in Triton's notation."""

# An atomic addition of nothing is read once for the whole CTA: one thread loads, the others take its value from shared
# memory behind a barrier. A plain load is made by every thread, and two warps could see two values.
GATE_SOURCE = f"""\
tide_gate = tl.atomic_add({CONTROL}.to(tl.pointer_type(tl.int64)), 0, sem='relaxed', scope='gpu')
tide_low = (tide_gate & 0xffffffff).to(tl.int32)
if ({KERNEL} <= tide_low) | ((tide_gate >> 32) != 0):
    tide_cta = tl.program_id(0) + tl.num_programs(0) * (tl.program_id(1) + tl.num_programs(1) * tl.program_id(2))
    tide_start = tl.load({CONTROL} + {START}, volatile=True)
    if {KERNEL} < tide_start:
        return
    if (tide_low == {CLOSED}) | ((tide_gate >> 32) != 0):
        tl.atomic_max({CONTROL}, {CLOSED}, sem='relaxed', scope='gpu')
        tide_previous = tl.atomic_min({CONTROL} + {ABORTED}, {KERNEL}, sem='relaxed', scope='gpu')
        if (tide_previous >= {KERNEL}) & ({KERNEL} > tide_start):
            tl.store({CONTROL} + {MARKS} + tide_cta, 1)
        return
    if tl.atomic_xchg({CONTROL} + {MARKS} + tide_cta, 0, sem='relaxed', scope='gpu') == 0:
        return
"""


class GateRefused(Exception):
    """This source cannot be gated; the text says which line of it is in the way."""


def gate_source(text: str, kernels: Collection[str] | None = None, source: str = GATE_SOURCE) -> str:
    """``text``, a module of Triton kernels, with the gate ``source`` in each of ``kernels`` (all entry kernels by default).

    Launches of these kernels in the same text (``kernel[grid](...)``) are not changed: who launches says which index it is
    (``wrapper`` for Inductor, the caller for others). Raises GateRefused, SyntaxError.
    """
    tree = ast.parse(text)
    if not any("tl" in _bound_names(node) for node in tree.body):
        raise GateRefused("triton.language is not imported as tl")
    names = entry_kernels(tree) if kernels is None else kernels
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names and is_jit(node)]
    missing = sorted(set(names) - {node.name for node in found})
    if missing or not found:
        raise GateRefused(f"no @triton.jit function is called {', '.join(missing) or 'anything here'}")
    for node in found:
        _gate_function(node, source)
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def is_jit(node: ast.FunctionDef) -> bool:
    """Whether a function is compiled by Triton."""
    return any(_name_of(decorator) in ("triton.jit", "jit") for decorator in node.decorator_list)


def entry_kernels(tree: ast.Module) -> list[str]:
    """Triton functions that none of the others calls, in the order of the text: those that are launched."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and is_jit(node)}
    # Combine functions of reductions are passed by name, so any mention counts.
    used = {
        inner.id
        for node in functions.values()
        for statement in node.body
        for inner in ast.walk(statement)
        if isinstance(inner, ast.Name)
    }
    return [name for name in functions if name not in used]


def _bound_names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    return []


def _name_of(decorator: ast.expr) -> str:
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


def _gate_function(node: ast.FunctionDef, source: str) -> None:
    taken = sorted({name for name in _names(node) if name.startswith("tide_")})
    if taken:
        raise GateRefused(f"{node.name}:{node.lineno} uses names of the gate already: {', '.join(taken)}")
    if node.args.posonlyargs or node.args.vararg:
        raise GateRefused(f"{node.name}:{node.lineno} has parameters by position only, which Triton does not pass on")
    node.args.args[:0] = [ast.arg(name) for name in PARAMETERS]
    at = gate_place(node)
    node.body[at:at] = ast.parse(f"def gate():\n{_indent(source)}").body[0].body  # type: ignore[attr-defined]
    node.decorator_list = [_shift_decorator(decorator) for decorator in node.decorator_list]


def _names(node: ast.FunctionDef) -> set[str]:
    inner = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
    return inner | {child.arg for child in ast.walk(node) if isinstance(child, ast.arg)}


def _indent(source: str) -> str:
    return "".join(f"    {line}" for line in source.splitlines(keepends=True))


def _shift_decorator(decorator: ast.expr) -> ast.expr:
    """A decorator for two more parameters in front: Inductor's meta data, and what Triton specializes on."""
    if _name_of(decorator) in ("triton.jit", "jit"):
        return _unspecialized(decorator)
    if isinstance(decorator, ast.Call):
        for keyword in decorator.keywords:
            if keyword.arg == "triton_meta" and isinstance(keyword.value, ast.Dict):
                _shift_triton_meta(keyword.value)
    return decorator


def _unspecialized(decorator: ast.expr) -> ast.expr:
    """Triton compiles a kernel anew for an integer argument of 1 or a multiple of 16: the index must not count as such."""
    call = decorator if isinstance(decorator, ast.Call) else ast.Call(decorator, [], [])
    keyword = next((keyword for keyword in call.keywords if keyword.arg == "do_not_specialize"), None)
    if keyword is None:
        call.keywords.append(ast.keyword("do_not_specialize", ast.List([ast.Constant(KERNEL)], ast.Load())))
    elif isinstance(keyword.value, ast.List | ast.Tuple):
        items = [_shifted(item) for item in keyword.value.elts]
        keyword.value = ast.List([ast.Constant(KERNEL), *items], ast.Load())
    else:
        raise GateRefused(f"line {decorator.lineno}: do_not_specialize is computed; write it as a list")
    return call


def _shift_triton_meta(meta: ast.Dict) -> None:
    """Inductor's ``triton_meta``: types of the new parameters first, and every index of a parameter two later."""
    entries: dict[str, Callable[[ast.expr], ast.expr]] = {
        "signature": _longer_signature,
        "configs": _shift_each,
        "constants": _shift_keys,
    }
    for place, (key, value) in enumerate(zip(meta.keys, meta.values, strict=True)):
        change = entries.get(key.value) if isinstance(key, ast.Constant) and isinstance(key.value, str) else None
        if change is not None:
            meta.values[place] = change(value)


def _longer_signature(value: ast.expr) -> ast.expr:
    if not isinstance(value, ast.Dict):
        raise GateRefused(f"line {value.lineno}: the signature is computed; it must be written out")
    names = [ast.Constant(name) for name in SIGNATURE]
    types = [ast.Constant(type_) for type_ in SIGNATURE.values()]
    return ast.Dict([*names, *value.keys], [*types, *value.values])


def _shift_each(value: ast.expr) -> ast.expr:
    if not isinstance(value, ast.List | ast.Tuple):
        raise GateRefused(f"line {value.lineno}: configs are computed; they must be written out")
    value.elts = [_shift_config(item) for item in value.elts]
    return value


def _shift_config(item: ast.expr) -> ast.expr:
    """Attributes of parameters by tuples of indices; releases before PyTorch 2.6 wrote them in another form."""
    if isinstance(item, ast.Dict):
        return _shift_keys(item)
    raise GateRefused(f"line {item.lineno}: attributes of parameters in a form that is not known: {ast.unparse(item)}")


def _shift_keys(value: ast.expr) -> ast.expr:
    if not isinstance(value, ast.Dict):
        raise GateRefused(f"line {value.lineno}: not a dictionary that is written out: {ast.unparse(value)}")
    return ast.Dict([key if key is None else _shifted(key) for key in value.keys], value.values)


def _shifted(key: ast.expr) -> ast.expr:
    """An index, or a tuple of them, two later; names stay."""
    if isinstance(key, ast.Tuple):
        return ast.Tuple([_shifted(item) for item in key.elts], ast.Load())
    if isinstance(key, ast.Constant) and isinstance(key.value, int):
        return ast.Constant(key.value + len(PARAMETERS))
    return key
