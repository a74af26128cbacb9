"""Ring 3's mark is named in the file whose tests have it: ``make test`` gives ring 3 only the files that name it."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
MARK = re.compile(r"\bmark\.processes\b")
ANOTHERS = re.compile(r"^ *from \S*\btest_\w+ import .*\b[Tt]est(_|[A-Z])", re.MULTILINE)
"""A test taken over from another file, with that one's marks."""


def hidden(files: dict[str, str]) -> list[str]:
    """Files by which a test could have the mark that its own file does not name."""
    return [
        name
        for name, text in files.items()
        if (MARK.search(text) and not name.startswith("test_")) or (ANOTHERS.search(text) and "processes" not in text)
    ]


def test_no_test_has_the_mark_by_way_of_another_file() -> None:
    files = {str(path.relative_to(TESTS)): path for path in TESTS.rglob("*.py")}
    assert sum(bool(MARK.search(path.read_text())) for path in files.values()) > 80
    assert not hidden({f"{path.name} in {path.parent}": path.read_text() for path in files.values()})


def test_planted_marks_are_caught() -> None:
    assert hidden({"kit.py": "RING = pytest.mark." + "processes"})
    assert hidden({"test_a.py": "from .test_b import test_it"}) and hidden(
        {"test_a.py": "from x.test_b import f, TestIt"}
    )
    assert not hidden({"test_a.py": "pytestmark = pytest.mark." + "processes"})
    assert not hidden({"test_a.py": "from .test_b import free_port"})
