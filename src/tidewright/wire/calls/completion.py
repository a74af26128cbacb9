"""Words that a shell may complete: what of the pool begins with what was typed."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

from ..answers import SCHEMA
from .asks import Asks

WordKind = Literal["jobs", "ended", "names", "nodes", "teams", "users", "services"]
"""jobs: ids and unique names of live jobs; ended: of the latest ended ones too; names: of jobs, each once."""
WORD_KINDS: tuple[str, ...] = get_args(WordKind)
MOST_WORDS = 200
"""Words in one answer."""


class Word(Struct, frozen=True):
    """A word, and what it stands for in a few others."""

    word: str
    text: str = ""


class WordList(Struct, frozen=True, kw_only=True):
    """Answer to what begins with a prefix, at most MOST_WORDS."""

    words: tuple[Word, ...]
    schema: str = SCHEMA


class WordCalls:
    """The call of a client for the completion of a shell."""

    def words(self: Asks, of: WordKind, prefix: str = "") -> tuple[Word, ...]:
        """What of the pool begins with ``prefix``; at most MOST_WORDS."""
        return self._ask("GET", "/v1/words", WordList, query={"of": of, "prefix": prefix}).words
