"""What nobody below the run loops may do.

Ask the clock, draw unseeded randomness, read the environment, touch the world, or let the order of a ``set`` decide.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from .house import Source, nodes

QUIET_ROOMS = ("base", "model", "plan", "estimate", "placement", "policy", "engine", "drive", "sim", "serve")
LOOPS_AND_EDGES = (
    "sim/run.py", "sim/traces", "sim/formats", "sim/philly", "sim/profile", "sim/clusters", "sim/rate_files",
    "sim/report", "serve/profile", "serve/arrivals", "serve/gateway", "serve/replica",
)  # fmt: skip
"""The simulator's loop may time itself, and its edges read and write files; gateway and replicas are processes."""

EXCEPTIONS = {("base/ids.py", "secrets.token_hex")}
"""(file, name): the id of one call, drawn by clients and run loops; base is where ids live."""

MODULES = frozenset(
    {"asyncio", "http", "multiprocessing", "requests", "select", "socket", "subprocess", "threading", "urllib"}
)
CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
NAMES = frozenset(
    {f"time.{clock}{ns}" for clock in CLOCKS for ns in ("", "_ns")}
    | {"time.sleep", "time.localtime", "time.gmtime", "time.ctime", "time.strftime"}
    | {"datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"}
    | {"os.environ", "os.getenv", "os.urandom", "os.getpid", "os.listdir", "os.scandir", "os.walk", "os.cpu_count"}
    | {"uuid.uuid1", "uuid.uuid4", "random.SystemRandom"}
)  # fmt: skip
FAMILIES = ("secrets.", "random.", "numpy.random.")
SEEDED = frozenset({"random.Random", "numpy.random.default_rng", "numpy.random.SeedSequence", "numpy.random.PCG64"})
"""Allowed when called with a seed; merely naming them (as a type, say) is harmless."""
TYPES = frozenset({"numpy.random.Generator", "numpy.random.BitGenerator"})
BUILTINS = frozenset({"print", "open", "input", "hash", "breakpoint"})
METHODS = frozenset({"read_text", "write_text", "read_bytes", "write_bytes", "iterdir", "rglob"})
ORDER_MATTERS = frozenset({"list", "tuple", "enumerate", "iter", "zip", "map", "filter", "reversed", "dict", "deque"})
ORDER_METHODS = frozenset({"pop", "join", "extend"})
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})


def is_quiet(source: Source) -> bool:
    """Whether the bans hold for this file."""
    edge = any(source.path == name or source.path.startswith((f"{name}.", f"{name}/")) for name in LOOPS_AND_EDGES)
    return source.room in QUIET_ROOMS and not edge


def banned(source: Source) -> list[str]:
    """Every violation of a file, as ``path:line what``."""
    tree = source.tree()
    aliases = _aliases(tree)
    seeded = {id(node.func) for node in nodes(tree) if isinstance(node, ast.Call) and (node.args or node.keywords)}
    bare = {id(node.func) for node in nodes(tree) if isinstance(node, ast.Call)} - seeded
    found = [*_module_uses(tree), *_name_uses(tree, aliases, bare), *_calls(tree), *_set_walks(tree)]
    kept = sorted({(line, what) for line, what in found if (source.path, what) not in EXCEPTIONS})
    return [f"{source.path}:{line} {what}" for line, what in kept]


def _aliases(tree: ast.AST) -> dict[str, str]:
    """Local name to the dotted name it stands for."""
    names: dict[str, str] = {}
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return names


def _dotted(node: ast.AST, aliases: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return aliases.get(node.id, "")
    if isinstance(node, ast.Attribute):
        head = _dotted(node.value, aliases)
        return f"{head}.{node.attr}" if head else ""
    return ""


def _module_uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from (
                (node.lineno, f"import {alias.name}") for alias in node.names if alias.name.split(".")[0] in MODULES
            )
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] in MODULES:
            yield node.lineno, f"import {node.module}"


def _name_uses(tree: ast.AST, aliases: dict[str, str], bare: set[int]) -> Iterator[tuple[int, str]]:
    for node in nodes(tree):
        if not isinstance(node, ast.Name | ast.Attribute):
            continue
        name = _dotted(node, aliases)
        if name in SEEDED:
            if id(node) in bare:
                yield node.lineno, f"{name} without a seed"
        elif name in NAMES or (name.startswith(FAMILIES) and name not in TYPES and not _is_prefix_of_seeded(name)):
            yield node.lineno, name


def _is_prefix_of_seeded(name: str) -> bool:
    return any(known.startswith(f"{name}.") for known in SEEDED | TYPES)


def _calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in nodes(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in BUILTINS:
                yield node.lineno, f"{node.func.id}()"
            elif isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
                yield node.lineno, f".{node.func.attr}()"


def _set_walks(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Loops over what is visibly a set: a literal, ``set(...)``, an annotated name, or an operation on such."""
    attributes = {name for name in _known_sets(nodes(tree), set()) if "." in name}
    yield from _scope_walks(tree, attributes, tree)


def _scope_walks(scope: ast.AST, inherited: set[str], tree: ast.Module) -> Iterator[tuple[int, str]]:
    own = list(_own_nodes(scope))
    known = inherited | _known_sets(own, inherited)
    for node in own:
        if node is not scope and isinstance(node, FUNCTIONS):
            yield from _scope_walks(node, known, tree)
        for item in _walked(node):
            if _is_set(item, known) and not _harmless(node, tree):
                yield item.lineno, "walks a set"


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Everything in a scope, nested functions themselves included but not what is in them."""
    yield scope
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, FUNCTIONS):
            yield child
        else:
            yield from _own_nodes(child)


def _walked(node: ast.AST) -> list[ast.expr]:
    """The expressions whose order this node lets through."""
    if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        return [node.iter]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ORDER_MATTERS:
        return list(node.args)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ORDER_METHODS:
        return list(node.args) or [node.func.value]
    return []


def _harmless(node: ast.AST, tree: ast.AST) -> bool:
    """A comprehension that only feeds an operation whose result no order can change (or that builds a set again)."""
    for outer in nodes(tree):
        if isinstance(outer, ast.SetComp) and node in outer.generators:
            return True
        if isinstance(outer, ast.Call) and isinstance(outer.func, ast.Name) and outer.args:
            first = outer.args[0]
            settled = outer.func.id in ("sorted", "len", "any", "all", "set", "frozenset")
            if settled and isinstance(first, ast.GeneratorExp | ast.ListComp) and node in first.generators:
                return True
    return False


def _known_sets(among: Iterable[ast.AST], inherited: set[str]) -> set[str]:
    """Names and dotted attributes that are annotated as sets or assigned a set, ``among`` some nodes."""
    known: set[str] = set()
    for node in among:
        if isinstance(node, ast.AnnAssign) and _is_set_type(node.annotation):
            known.add(ast.unparse(node.target))
        elif isinstance(node, ast.arg) and node.annotation is not None and _is_set_type(node.annotation):
            known.add(node.arg)
        elif isinstance(node, ast.Assign) and _is_set(node.value, known | inherited):
            known.update(ast.unparse(target) for target in node.targets)
    return known


def _is_set_type(annotation: ast.expr) -> bool:
    head = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return isinstance(head, ast.Name) and head.id in ("set", "frozenset", "Set", "AbstractSet", "MutableSet")


def _is_set(node: ast.expr, known: set[str]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Name | ast.Attribute):
        return ast.unparse(node) in known
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
        return any(_is_set(side, known) or _is_keys(side) for side in (node.left, node.right))
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name):
            return node.func.id in ("set", "frozenset")
        return (
            isinstance(node.func, ast.Attribute) and node.func.attr in SET_METHODS and _is_set(node.func.value, known)
        )
    return False


def _is_keys(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys"
