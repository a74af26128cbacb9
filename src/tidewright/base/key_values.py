"""Settings as people write them on one line: ``launch=3s,save=60s``."""

from __future__ import annotations

from .errors import UsageError


def key_values(text: str, whose: str, remedy: str) -> dict[str, str]:
    """The keys and values of ``KEY=VALUE,…`` in their order, without the blanks around them.

    ``whose`` begins the message. Raises UsageError for a part without a key or a value, and for a key that is there twice: which
    of the two was meant cannot be known.
    """
    found: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        key, value = (word.strip() for word in part.partition("=")[::2])
        if not key or not value:
            raise UsageError(f"{whose}: {part!r} is not key=value", remedy)
        if key in found:
            raise UsageError(f"{whose}: {key} is there twice, as {found[key]} and as {value}", f"write {key}= once")
        found[key] = value
    return found
