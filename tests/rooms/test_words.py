"""The repository speaks of the project alone."""

from __future__ import annotations

import pytest

from .house import REPOSITORY
from .words import offences, repository_files


def test_no_banned_word_in_the_repository() -> None:
    files = list(repository_files(REPOSITORY))
    assert len(files) > 20
    bad = [
        line for file in files for line in offences(str(file.relative_to(REPOSITORY)), file.read_text(errors="replace"))
    ]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(
    "text",
    [
        "# TO" + "DO: later",
        "x = 1  # FIX" + "ME",
        "cd /wo" + "rk/main",
        "see /ro" + "ot/x",
        "https://py" + "pi.org/simple",
        "<" * 7 + " HEAD",
    ],
)
def test_a_planted_word_is_caught(text: str) -> None:
    assert offences("planted.py", f"fine\n{text}\n")


@pytest.mark.parametrize("text", ["network/main.py", "a mastodon", "the root of it", "./work/x"])
def test_ordinary_words_pass(text: str) -> None:
    assert not offences("planted.py", text)
