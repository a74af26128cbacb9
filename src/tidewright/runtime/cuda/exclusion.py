"""Which kernels must not have the CTA gate, recognized in their source, with the reason as a code.

The gate lets some CTAs of a kernel run and others not. A CTA that waits for another one of its kernel would then wait
until the kernel is resumed, which is only after it has ended: a deadlock. Such kernels are launched whole, at G2 of the
ladder. The test is conservative: what it does not understand is excluded.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum


class Exclusion(Enum):
    """Why a kernel is not gated. The value is the code that reports and results carry; ``SENTENCES`` are for people."""

    COOPERATIVE = "cooperative"
    GRID_SYNC = "grid-sync"
    SPIN_WAIT = "spin-wait"
    STREAM_K = "stream-k"
    CLUSTER = "cluster"
    DEPENDENT_LAUNCH = "dependent-launch"
    OPAQUE_ASSEMBLY = "opaque-assembly"
    EXTERNAL = "external"
    UNSEEN_HELPER = "unseen-helper"
    CONTROL_FLOW = "control-flow"
    NOT_GATEABLE = "not-gateable"


SENTENCES = {
    Exclusion.COOPERATIVE: "its CTAs reduce together and wait for each other at a barrier of the grid",
    Exclusion.GRID_SYNC: "it waits for all CTAs of its grid",
    Exclusion.SPIN_WAIT: "it waits in a loop for memory that another CTA writes",
    Exclusion.STREAM_K: "it is a stream-K kernel: CTAs wait for the partial sums of others",
    Exclusion.CLUSTER: "its CTAs are launched as clusters and may read each other's shared memory",
    Exclusion.DEPENDENT_LAUNCH: "it is launched before its predecessor has ended (programmatic dependent launch)",
    Exclusion.OPAQUE_ASSEMBLY: "it holds inline assembly that touches memory or synchronizes",
    Exclusion.EXTERNAL: "it belongs to a library, whose source is not at hand",
    Exclusion.UNSEEN_HELPER: "it calls a function of another file, which may wait for other CTAs",
    Exclusion.CONTROL_FLOW: "it is launched under a condition or in a loop, so it has no index in the chain",
    Exclusion.NOT_GATEABLE: "the gate cannot be written into its source",
}


@dataclass(frozen=True, slots=True)
class Excluded:
    """``reason``, and the expression or line that shows it."""

    reason: Exclusion
    where: str


ASM_SYNCHRONIZES = re.compile(r"\b(ld|st|atom|red|bar|barrier|mbarrier|mapa|fence|membar|cp|multimem|nanosleep)\b")
ASM_DEPENDENT = re.compile(r"\bgriddepcontrol\b")
ASM_CLUSTER = re.compile(r"\bcluster\b|%cluster|\bmapa\b")
STREAM_K_NAME = re.compile(r"stream_?k", re.IGNORECASE)
CALLS = {
    "x_grid_barrier": Exclusion.GRID_SYNC,  # Inductor's, in triton_helpers
    "grid_barrier": Exclusion.GRID_SYNC,
    "grid_sync": Exclusion.GRID_SYNC,
    "exclusive_scan_decoupled_lookback": Exclusion.SPIN_WAIT,  # Inductor's: a CTA waits for the sums of those before it
    "exclusive_scan_decoupled_lookback_64": Exclusion.SPIN_WAIT,
    "gdc_wait": Exclusion.DEPENDENT_LAUNCH,
    "gdc_launch_dependents": Exclusion.DEPENDENT_LAUNCH,
}
KNOWN_MODULES = ("triton", "torch._inductor.runtime", "math")
"""Functions of these modules wait for no other CTA, but for those in ``CALLS``."""
BUILTINS = frozenset(
    {"range", "min", "max", "abs", "len", "int", "float", "bool", "print", "isinstance", "super", "getattr"}
)
TRUE_MEANS = {
    "launch_cooperative_grid": Exclusion.COOPERATIVE,
    "launch_pdl": Exclusion.DEPENDENT_LAUNCH,
}
ABOVE_ONE_MEANS = {"num_ctas": Exclusion.CLUSTER}


def exclusion(text: str) -> Excluded | None:
    """The first reason why no kernel of ``text`` may be gated; None where all may. Raises SyntaxError."""
    tree = ast.parse(text)
    found = next((found for node in ast.walk(tree) for find in FINDERS if (found := find(node))), None)
    return found or _unseen_helper(tree)


def _settings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """What a keyword or an entry of a dictionary is set to."""
    if isinstance(node, ast.keyword) and node.arg:
        yield node.arg, node.value
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, value


def _launch_settings(node: ast.AST) -> Excluded | None:
    for name, value in _settings(node):
        constant = value.value if isinstance(value, ast.Constant) else None
        # What is computed may be anything, so it counts as set.
        if name in TRUE_MEANS and (constant or not isinstance(value, ast.Constant)):
            return Excluded(TRUE_MEANS[name], f"{name}={ast.unparse(value)}")
        if name in ABOVE_ONE_MEANS and constant != 1:
            return Excluded(ABOVE_ONE_MEANS[name], f"{name}={ast.unparse(value)}")
        if name in ("cluster_dims", "ctas_per_cga") and not _all_ones(value):
            return Excluded(Exclusion.CLUSTER, f"{name}={ast.unparse(value)}")
    return None


def _all_ones(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return value.value is None
    items = value.elts if isinstance(value, ast.Tuple | ast.List) else []
    return bool(items) and all(isinstance(item, ast.Constant) and item.value == 1 for item in items)


def _cooperative_heuristics(node: ast.AST) -> Excluded | None:
    if isinstance(node, ast.Attribute) and node.attr == "cooperative_reduction":
        return Excluded(Exclusion.COOPERATIVE, ast.unparse(node))
    return None


def _called(node: ast.AST) -> str:
    """The last part of what is called; empty for anything but a call."""
    if not isinstance(node, ast.Call):
        return ""
    return ast.unparse(node.func).rpartition(".")[2]


def _barrier_calls(node: ast.AST) -> Excluded | None:
    name = _called(node)
    return Excluded(CALLS[name], name) if name in CALLS else None


def _stream_k(node: ast.AST) -> Excluded | None:
    if isinstance(node, ast.FunctionDef) and STREAM_K_NAME.search(node.name):
        return Excluded(Exclusion.STREAM_K, node.name)
    return None


def _spin_wait(node: ast.AST) -> Excluded | None:
    """A ``while`` that reads memory which others may write: an atomic operation, or a load that is not cached in registers.

    Any load counts in the condition. A lock that its own CTA releases would be safe, but looks the same.
    """
    if not isinstance(node, ast.While):
        return None
    for inner in ast.walk(node):
        name = _called(inner)
        if name.startswith("atomic_") or (name == "load" and (_is_volatile(inner) or _within(node.test, inner))):
            return Excluded(Exclusion.SPIN_WAIT, f"while {ast.unparse(node.test)}: {name}")
    return None


def _is_volatile(call: ast.AST) -> bool:
    keywords = call.keywords if isinstance(call, ast.Call) else []
    return any(keyword.arg in ("volatile", "cache_modifier") for keyword in keywords)


def _within(outer: ast.AST, node: ast.AST) -> bool:
    return any(child is node for child in ast.walk(outer))


def _assembly(node: ast.AST) -> Excluded | None:
    """Inline assembly: arithmetic is harmless, what touches memory or waits is not looked into."""
    if not _called(node).startswith("inline_asm"):
        return None
    text = " ".join(
        part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)
    )
    for pattern, reason in (
        (ASM_DEPENDENT, Exclusion.DEPENDENT_LAUNCH),
        (ASM_CLUSTER, Exclusion.CLUSTER),
        (ASM_SYNCHRONIZES, Exclusion.OPAQUE_ASSEMBLY),
    ):
        if found := pattern.search(text):
            return Excluded(reason, found[0])
    if not text.strip():
        return Excluded(Exclusion.OPAQUE_ASSEMBLY, "the assembly is computed")
    return None


def _unseen_helper(tree: ast.Module) -> Excluded | None:
    """A function that a kernel calls by name and that is neither in this text nor in a module that is known."""
    imported = {alias: origin for node in tree.body for alias, origin in _imports(node)}
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        local = {
            node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        local |= {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
        for call in (node for statement in function.body for node in ast.walk(statement) if isinstance(node, ast.Call)):
            name = _root(call.func)
            origin = imported.get(name, "")
            known = (
                name in local | defined | BUILTINS
                or origin.split(".")[0] == "triton"
                or origin.startswith(KNOWN_MODULES)
            )
            if name and not known:
                return Excluded(Exclusion.UNSEEN_HELPER, ast.unparse(call.func))
    return None


def _imports(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """Local names and the modules that they come from."""
    if isinstance(node, ast.Import):
        yield from ((alias.asname or alias.name.split(".")[0], alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from ((alias.asname or alias.name, node.module) for alias in node.names)


def _root(node: ast.expr) -> str:
    """The name that a dotted expression begins with; empty for methods of values."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


FINDERS: tuple[Callable[[ast.AST], Excluded | None], ...] = (
    _cooperative_heuristics,
    _launch_settings,
    _barrier_calls,
    _stream_k,
    _spin_wait,
    _assembly,
)
