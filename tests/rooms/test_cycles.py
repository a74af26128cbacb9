"""No module imports itself by way of others."""

from __future__ import annotations

from .cycles import cycles, graph
from .house import Source, sources


def test_no_cycle_of_imports_between_modules() -> None:
    imported = graph(sources())
    assert sum(len(found) for found in imported.values()) > 1000
    bad = [" <-> ".join(sorted(one)) for one in cycles(imported)]
    assert not bad, "\n".join(bad)


def planted(**files: str) -> list[frozenset[str]]:
    return cycles(graph([Source(f"engine/{name}.py", text) for name, text in files.items()]))


def test_planted_cycles_are_caught() -> None:
    both = [frozenset({"engine.a", "engine.b"})]
    assert planted(a="from . import b", b="from .a import x") == both
    assert planted(a="def f():\n    from .b import x", b="if TYPE_CHECKING:\n    from . import a") == both
    assert planted(a="import tidewright.engine.b", b="from tidewright.engine.a import x") == both
    assert planted(a="x = 'tidewright.engine.b:make'", b="from tidewright.engine import a") == both
    assert planted(a="load('b.py')", b="from ..engine.a import x") == both
    three = planted(a="from . import b", b="from . import c", c="from .a import x")
    assert three == [frozenset({"engine.a", "engine.b", "engine.c"})]


def test_what_is_no_cycle_passes() -> None:
    assert not planted(a="from . import b", b="from .c import x", c="x = 'b'")
    assert not planted(a="'''Says what engine.a is.'''\nfrom .b import x", b="import a")
