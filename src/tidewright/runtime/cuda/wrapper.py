"""Inductor's wrapper: what it launches, in which order, and the same wrapper with gated kernels. Text in, text out.

The ``call`` function of a wrapper is a straight line of launches and allocations, so a launch's place in it is its
kernel's index in the chain. What is no launch of a Triton kernel and not known to be harmless counts as a launch of
a foreign kernel, which the gate cannot stop.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from .exclusion import Excluded, Exclusion, exclusion
from .gate import CONTROL, GateRefused, gate_source

BOUNDARY, BUFFER = "tide_boundary", "tide_buffer"
HEADER = f"""\
{CONTROL} = None  # the control block of the queue, set when this module is loaded
{BUFFER}s = {{}}


def {BOUNDARY}(index, gated):
    \"\"\"Called before and after what the gate cannot stop: launches from ``index`` on are gated, or are not. Replaced while
    launches are captured.\"\"\"


def {BUFFER}(site, *form):
    \"\"\"The memory of one allocation in ``call``, the same each time: a chain that was captured twice can go on in either.\"\"\"
    if site not in {BUFFER}s:
        {BUFFER}s[site] = empty_strided_cuda(*form)
    return {BUFFER}s[site]


"""
ALLOCATION = "empty_strided_cuda"
HARMLESS = frozenset(
    {
        "alloc_from_pool",
        "args.clear",
        "assert_alignment",
        "assert_size_stride",
        "empty_strided_cpu",
        "empty_strided_cuda",
        "get_raw_stream",
        "reinterpret_tensor",
        "torch.cuda._DeviceGuard",
        "torch.cuda.set_device",
    }
)
"""What ``call`` calls besides launches: it checks, allocates, and asks for the stream."""


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A Triton kernel as Inductor wrote it, and gated; ``gated`` is empty where ``excluded`` says why."""

    name: str
    plain: str
    gated: str
    excluded: Excluded | None


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One entry of the chain. ``index`` counts from 1 over all launches, gated or not; ``line`` is its line in the plain
    wrapper."""

    index: int
    kernel: str
    line: int
    arguments: tuple[int | None, ...]
    """By position, without the gate's: sizes that are written out, None for anything else."""
    excluded: Excluded | None


@dataclass(frozen=True, slots=True)
class GatedWrapper:
    """``text`` is the wrapper with gated kernels and their indices at the launches."""

    text: str
    kernels: dict[str, KernelSource]
    launches: tuple[KernelLaunch, ...]


@dataclass(frozen=True, slots=True)
class ChainSegment:
    """Launches ``first`` to ``last`` that are submitted together. One that is not gated is a segment of its own: when it
    is submitted, everything before it is known to be complete, for it would run after an aborted kernel as well."""

    first: int
    last: int
    gated: bool


@dataclass(slots=True)
class _Site:
    """A call in the wrapper, its statement in the body of ``call``, and whether that always runs exactly once."""

    kernel: str
    call: ast.Call
    statement: ast.stmt
    straight: bool


def gate_wrapper(text: str, first_index: int = 1) -> GatedWrapper:
    """Gate every kernel of a wrapper that can be gated. ``first_index`` above 1 continues a chain of several graphs.

    Raises GateRefused where there is no function ``call``, SyntaxError.
    """
    tree = ast.parse(text)
    constants = dict(_definitions(tree))
    kernels = {name: prepare_kernel(name, str(constant.value)) for name, constant in constants.items()}
    body = _call_function(tree).body
    sites = list(_sites(body, kernels))
    # A gated kernel takes two arguments more at all of its launches, so one without an index keeps it from being gated.
    for site in sites:
        if not site.straight and site.kernel in kernels:
            excluded = Excluded(Exclusion.CONTROL_FLOW, f"line {site.call.lineno}")
            kernels[site.kernel] = replace(kernels[site.kernel], gated="", excluded=excluded)
    launches = tuple(_launch(site, index, kernels) for index, site in enumerate(sites, first_index))
    edits = _Edits(text)
    for name, constant in constants.items():
        if kernels[name].gated:
            edits.replace(constant, _quoted(kernels[name].gated))
    for site, launch in zip(sites, launches, strict=True):
        if launch.excluded is None:
            edits.first_arguments(site.call, f"{CONTROL}, {launch.index}, ")
    for statement, first, last in _foreign(sites, launches):
        indent = " " * _indentation(statement, edits)
        edits.insert_before(statement, f"{BOUNDARY}({first}, False)\n{indent}")
        edits.insert_after(statement, f"\n{indent}{BOUNDARY}({last + 1}, True)")
    for number, call in enumerate(_allocations(body)):
        edits.replace(call.func, BUFFER)
        edits.first_arguments(call, f"{number}, ")
    edits.insert_before(next(node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)), HEADER)
    return GatedWrapper(edits.text(), kernels, launches)


def prepare_kernel(name: str, text: str) -> KernelSource:
    """The kernel gated, or the reason why it is not."""
    excluded = exclusion(text)
    if excluded is None:
        try:
            return KernelSource(name, text, gate_source(text, [name]), None)
        except GateRefused as error:
            excluded = Excluded(Exclusion.NOT_GATEABLE, str(error))
    return KernelSource(name, text, "", excluded)


def segments(launches: tuple[KernelLaunch, ...]) -> list[ChainSegment]:
    """The chain in pieces: runs of gated launches, and each other launch alone."""
    found: list[ChainSegment] = []
    for launch in launches:
        if launch.excluded is None and found and found[-1].gated:
            found[-1] = replace(found[-1], last=launch.index)
        else:
            found.append(ChainSegment(launch.index, launch.index, launch.excluded is None))
    return found


def _definitions(tree: ast.Module) -> Iterator[tuple[str, ast.Constant]]:
    """Names of kernels and their sources: ``NAME = async_compile.triton('NAME', '''source''', ...)``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name):
            call = node.value
            if ast.unparse(call.func) == "async_compile.triton" and isinstance(call.args[1], ast.Constant):
                yield node.targets[0].id, call.args[1]


def _call_function(tree: ast.Module) -> ast.FunctionDef:
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "call"]
    if len(found) != 1:
        raise GateRefused("the wrapper has no function call(args) at its top level; is graph_partition on?")
    return found[0]


def _sites(body: list[ast.stmt], kernels: dict[str, KernelSource]) -> Iterator[_Site]:
    for statement in body:
        if isinstance(statement, ast.With):
            for item in statement.items:
                yield from _calls(item.context_expr, statement, True, kernels)
            yield from _sites(statement.body, kernels)
        else:
            compound = hasattr(statement, "body")
            yield from _calls(statement, statement, not compound, kernels)


def _calls(node: ast.AST, statement: ast.stmt, straight: bool, kernels: dict[str, KernelSource]) -> Iterator[_Site]:
    calls = (inner for inner in ast.walk(node) if isinstance(inner, ast.Call))
    # An inner call is evaluated before the one whose argument it is; it ends first.
    for call in sorted(calls, key=lambda call: (call.end_lineno or 0, call.end_col_offset or 0)):
        name = ast.unparse(call.func)
        kernel = name.removesuffix(".run")
        if kernel != name and kernel in kernels:
            yield _Site(kernel, call, statement, straight)
        elif name not in HARMLESS:
            yield _Site(name, call, statement, straight)


def _launch(site: _Site, index: int, kernels: dict[str, KernelSource]) -> KernelLaunch:
    if site.kernel in kernels:
        excluded = kernels[site.kernel].excluded
    else:
        excluded = Excluded(Exclusion.EXTERNAL, site.kernel)
    return KernelLaunch(index, site.kernel, site.call.lineno, tuple(_size(one) for one in site.call.args), excluded)


def _size(argument: ast.expr) -> int | None:
    value = argument.value if isinstance(argument, ast.Constant) else None
    return value if isinstance(value, int) else None


def _foreign(sites: list[_Site], launches: tuple[KernelLaunch, ...]) -> Iterator[tuple[ast.stmt, int, int]]:
    """Statements that launch what is not gated, with their first and last launch."""
    pairs = zip(sites, launches, strict=True)
    for _, group in groupby(pairs, lambda pair: id(pair[0].statement)):
        of_statement = list(group)
        if any(launch.excluded for _, launch in of_statement):
            yield of_statement[0][0].statement, of_statement[0][1].index, of_statement[-1][1].index


def _allocations(body: list[ast.stmt]) -> Iterator[ast.Call]:
    """Allocations of device memory that are made exactly once in each call."""
    for statement in body:
        if isinstance(statement, ast.With):
            yield from _allocations(statement.body)
        elif not hasattr(statement, "body"):
            calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
            yield from (call for call in calls if ast.unparse(call.func) == ALLOCATION)


def _indentation(statement: ast.stmt, edits: _Edits) -> int:
    line = edits.lines[statement.lineno - 1]
    return len(line) - len(line.lstrip(b" "))


def _quoted(text: str) -> str:
    """A literal over several lines, so that the wrapper stays readable."""
    return "'''\n" + text.replace("\\", "\\\\").replace("'''", "\\'\\'\\'") + "'''"


class _Edits:
    """Changes to a text at nodes of its syntax tree, made all at once. Offsets are in bytes, as in ``ast``."""

    def __init__(self, text: str) -> None:
        self._bytes = text.encode()
        self.lines = self._bytes.splitlines(keepends=True)
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line))
        self._edits: list[tuple[int, int, bytes]] = []

    def replace(self, node: ast.expr, text: str) -> None:
        self._edits.append((self._start(node), self._end(node), text.encode()))

    def insert_before(self, node: ast.stmt, text: str) -> None:
        self._edits.append((self._start(node), self._start(node), text.encode()))

    def insert_after(self, node: ast.stmt, text: str) -> None:
        self._edits.append((self._end(node), self._end(node), text.encode()))

    def first_arguments(self, call: ast.Call, text: str) -> None:
        at = self._bytes.index(b"(", self._end(call.func)) + 1
        self._edits.append((at, at, text.encode()))

    def text(self) -> str:
        pieces, at = [], 0
        for start, end, new in sorted(self._edits, key=lambda edit: edit[:2]):
            pieces += [self._bytes[at:start], new]
            at = end
        return b"".join([*pieces, self._bytes[at:]]).decode()

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
