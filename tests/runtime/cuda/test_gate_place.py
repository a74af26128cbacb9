"""Where the gate stands in a kernel: as late as its own load can still go with others, and before anything that could do harm."""

from __future__ import annotations

import ast

import pytest

from tidewright.runtime.cuda.gate_place import gate_place

HEAD = ["at = tl.program_id(0) * B + tl.arange(0, B)"]


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (["x = tl.load(a + at, None).to(tl.float32)", "y = tl.load(b + at)", "tl.store(a + at, x + y)"], 3),
        (["x = tl.load(a + at)", "z = libdevice.exp(x)", "y = tl.load(b + at)", "tl.store(a + at, y)"], 4),
        # An address from memory: unfinished input may point anywhere.
        (["x = tl.load(a + at)", "y = tl.load(b + x)", "tl.store(a + at, y)"], 2),
        (["x = tl.load(a + at)", "i = x + 1", "y = tl.load(b + i)", "tl.store(a + at, y)"], 2),
        (["x = tl.load(a + at)", "y = tl.load(b + at, mask=x > 0)", "tl.store(a + at, y)"], 2),
        (["y = tl.load(b + tl.load(a + at))", "tl.store(a + at, y)"], 0),
        # A write, a name that is not known, control flow, and what waits for all threads end the search.
        (["tl.store(a + at, 1)", "y = tl.load(b + at)"], 0),
        (["x = tl.atomic_add(a, 1)", "y = tl.load(b + at)"], 0),
        (["x = helper(a)", "y = tl.load(b + at)"], 0),
        (["for i in range(3):\n        tl.store(a, i)", "y = tl.load(b + at)"], 0),
        (["x = tl.load(a + at)", "s = tl.sum(x, 0)", "y = tl.load(b + at)"], 2),
        (["tl.device_assert(at < 5, 'no')", "y = tl.load(b + at)"], 0),
        (["x, z = tl.load(a + at), 1", "y = tl.load(b + at)"], 0),
        (["x = tl.zeros([B], tl.float32)"], 0),
    ],
)
@pytest.mark.parametrize("docstring", [[], ["'''What it does.'''"]])
def test_the_gate_stands_behind_loads_that_are_safe(body: list[str], place: int, docstring: list[str]) -> None:
    lines = "".join(f"    {line}\n" for line in [*docstring, *HEAD, *body])
    function = ast.parse(f"def kernel(a, b, B):\n{lines}").body[0]
    assert isinstance(function, ast.FunctionDef)
    assert gate_place(function) == len(docstring) + place
