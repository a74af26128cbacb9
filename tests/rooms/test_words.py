"""The repository speaks of the project alone."""

from __future__ import annotations

import pytest

from .house import REPOSITORY, Source, sources
from .words import VAGUE_ALLOWED, offences, repository_files, too_vague


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


def test_rooms_speak_in_terms_of_the_field() -> None:
    bad = too_vague(sources(), VAGUE_ALLOWED)
    assert not bad, "\n".join(bad)


def test_the_docs_speak_in_terms_of_the_field() -> None:
    pages = [
        Source(page.relative_to(REPOSITORY).as_posix(), page.read_text())
        for page in sorted((REPOSITORY / "docs").rglob("*.md"))
        if page.name != "cli.md"  # made of the help texts
    ]
    assert len(pages) > 20
    bad = too_vague(pages, VAGUE_ALLOWED)
    assert not bad, "\n".join(bad)


def test_a_planted_vague_word_is_caught() -> None:
    planted = [Source("engine/planted.py", '"""Nobody is told, and it lets go for ever."""')]
    assert too_vague(planted, {"engine": 3}) and not too_vague(planted, {"engine": 4})
    assert too_vague([Source("engine/planted.py", "# buried on a shelf, and given back")], {"engine": 2})
    assert not too_vague([Source("engine/planted.py", "# released; preempted for job 3; unschedulable")], {})
    encoded = Source("engine/planted.py", 'name="sitting", "the sitting"')
    assert not too_vague([encoded], {"engine": 1}) and too_vague([encoded], {})
