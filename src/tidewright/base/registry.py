"""Names to factories: built-in ones, and third parties' through entry points (``tidewright.policies`` and others)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints


class Registry:
    """Named factories of one kind. Built-ins are given as ``"module:attribute"`` and loaded on first use."""

    def __init__(self, kind: str, group: str, builtin: dict[str, str]) -> None:
        self.kind = kind
        self.group = group
        self._builtin = dict(builtin)

    def names(self) -> list[str]:
        """Every known name, sorted."""
        return sorted({*self._builtin, *(entry.name for entry in self._entry_points())})

    def _entry_points(self) -> EntryPoints:
        from importlib.metadata import entry_points  # with email; a start that names built-ins does without

        return entry_points(group=self.group)

    def __contains__(self, name: str) -> bool:
        """Whether there is a factory of this name; entry points are looked through only where no built-in one has it."""
        return name in self._builtin or any(entry.name == name for entry in self._entry_points())

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def _load(self, entry: EntryPoint) -> Callable[..., Any]:
        try:
            return entry.load()  # type: ignore[no-any-return]
        except Exception as error:  # whatever a third party's module does when it is imported
            package = entry.dist.name if entry.dist else entry.module
            raise UsageError(
                f"{self.kind} {entry.name!r} cannot be loaded from {entry.value}: {type(error).__name__}: {error}",
                f"repair or uninstall the package {package}",
            ) from error

    def get(self, name: str) -> Callable[..., Any]:
        """The factory called ``name``. Raises UsageError naming the nearest known one, or the plug-in that cannot be loaded."""
        if name in self._builtin:
            module, _, attribute = self._builtin[name].partition(":")
            return getattr(import_module(module), attribute)  # type: ignore[no-any-return]
        for entry in self._entry_points():
            if entry.name == name:
                return self._load(entry)
        from difflib import get_close_matches

        near = get_close_matches(name, self.names(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"no {self.kind} called {name!r}", f"{hint}known: {', '.join(self.names())}")
