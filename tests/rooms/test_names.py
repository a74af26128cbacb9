"""One noun, one meaning: no two public classes of the package have the same name."""

from __future__ import annotations

from .house import Source, sources
from .names import shared_names


def test_public_classes_have_names_of_their_own() -> None:
    bad = shared_names(sources())
    assert not bad, "\n".join(bad)


def test_a_planted_name_is_caught() -> None:
    first, second = Source("engine/a.py", "class Shelf: ..."), Source("live/b.py", "x = 1\nclass Shelf: ...")
    assert shared_names([first, second]) == ["Shelf: engine/a.py, live/b.py"]


def test_private_and_nested_classes_may_share_names() -> None:
    assert not shared_names([Source(f"{room}/a.py", "class _Shelf: ...") for room in ("engine", "live")])
    nested = "class {0}:\n    class Shelf: ..."
    assert not shared_names([Source(f"{one}/a.py", nested.format(one.title())) for one in ("engine", "live")])
