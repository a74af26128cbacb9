"""Files, functions and packages stay small; what is too long is on a list that only shrinks."""

from __future__ import annotations

from .house import Source, sources
from .shape import (
    ALLOWED,
    FILE_LINES,
    FUNCTION_LINES,
    MEDIAN_LINES,
    PACKAGE_FILES,
    median_function,
    misshapen,
    overfull,
)


def test_files_and_functions_are_short() -> None:
    bad = misshapen(sources(), ALLOWED)
    assert not bad, "\n".join(bad)


def test_the_median_function_is_short() -> None:
    assert median_function(sources()) <= MEDIAN_LINES


def function(lines: int) -> str:
    return "def long():\n" + "    x = 1\n" * (lines - 1)


def test_planted_lengths_are_caught() -> None:
    assert misshapen([Source("engine/planted.py", "x = 1\n" * (FILE_LINES + 1))], {})
    assert not misshapen([Source("engine/planted.py", "x = 1\n" * FILE_LINES)], {})
    assert misshapen([Source("engine/planted.py", function(FUNCTION_LINES + 1))], {})
    assert not misshapen([Source("engine/planted.py", function(FUNCTION_LINES))], {})
    nested = "class A:\n    def long(self):\n" + "        x = 1\n" * FUNCTION_LINES
    assert "engine/planted.py:A.long" in misshapen([Source("engine/planted.py", nested)], {})[0]


def test_the_list_only_shrinks() -> None:
    long = Source("engine/planted.py", function(80))
    assert not misshapen([long], {"engine/planted.py:long": 80})
    assert misshapen([long], {"engine/planted.py:long": 79})
    assert misshapen([long], {"engine/planted.py:long": 81})
    assert misshapen([], {"engine/planted.py:long": 80})


def test_a_long_median_is_seen() -> None:
    assert median_function([Source("engine/planted.py", function(12))]) > MEDIAN_LINES


def test_packages_have_few_files() -> None:
    bad = overfull(sources())
    assert not bad, "\n".join(bad)


def test_a_planted_package_of_many_files_is_caught() -> None:
    many = [Source(f"engine/planted_{number}.py", "") for number in range(PACKAGE_FILES + 1)]
    assert overfull(many)
    assert not overfull(many[1:])
    assert not overfull([*many[1:], Source("engine/below/planted.py", "")])
