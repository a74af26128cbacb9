"""What a shell completes: jobs, nodes, teams and the like, asked of the controller. Quick, and silent whatever goes wrong.

Which words a parameter takes goes by its name, so that a new command's JOB is completed as every other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from ..base.errors import TideError
from ..wire.calls.completion import Word, WordKind
from ..wire.states import STATES
from .session import Session
from .visible import visible

ANSWER_S = 1.0
"""How long a controller is waited for: a shell stands still meanwhile."""
_TYPEABLE = re.compile(r"[\w.@+/-]+")
"""Words that a shell takes as they are. Others are not offered: a name with ``$(...)`` would be run."""
_ENDED_TOO = frozenset({"show", "logs", "why", "eta", "wait", "requeue"})
"""Commands whose JOB may have ended."""
_NEW_NAME = frozenset({"run", "submit", "update", "runtime up", "serve deploy"})
"""Commands whose --name is a new one."""
Words = Callable[[Session, str], Iterable[Word]]


def complete(tide: click.Group) -> int:
    """Answer the shell's question, which stands in the environment. Returns the exit code."""
    try:
        tide.main([], prog_name="tide", complete_var="_TIDE_COMPLETE")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except (click.ClickException, TideError, OSError, UnicodeError):
        pass  # the line is not right yet, or no text, or no controller answers: there is nothing to offer
    return 1


def offer(command: click.Command, path: str) -> None:
    """Give the parameters of a command, and of those below it, their words. ``path``: its name, ``serve ls`` for one below."""
    for param in command.params:
        if param.name in ("argv", "arguments"):
            param.type = _Files(param.type)
        elif (words := words_of(param, path)) is not None:
            param.type = _Completed(param.type, words)
    for name, below in getattr(command, "commands", {}).items():
        offer(below, f"{path} {name}")


def words_of(param: click.Parameter, path: str) -> Words | None:
    """What a parameter of the command ``path`` takes; None where its type says that, or nothing is known."""
    argument = isinstance(param, click.Argument)
    if param.name in ("job", "jobs") and argument:
        return _of_pool("ended" if path in _ENDED_TOO else "jobs")
    if param.name in ("name", "names"):
        group = path.split()[0]
        if argument and group in ("serve", "runtime"):
            return _of_pool("services") if group == "serve" else _runtimes
        return None if argument or path in _NEW_NAME else _of_pool("names")
    return _BY_NAME.get(param.name or "")


def _of_pool(kind: WordKind) -> Words:
    return lambda session, prefix: session.client(timeout=ANSWER_S).words(kind, prefix)


def _states(session: Session, prefix: str) -> list[Word]:
    return _beginning(STATES, prefix.lower())


def _policies(session: Session, prefix: str) -> list[Word]:
    from ..app.completion import policy_names

    return _beginning(policy_names(), prefix)


def _runtimes(session: Session, prefix: str) -> list[Word]:
    from ..app.completion import runtime_names

    return _beginning(runtime_names(session.state), prefix)


def _beginning(words: Iterable[str], prefix: str) -> list[Word]:
    return [Word(word) for word in words if word.startswith(prefix)]


_BY_NAME: dict[str, Words] = {
    "node": _of_pool("nodes"), "nodes": _of_pool("nodes"), "team": _of_pool("teams"), "user": _of_pool("users"),
    "state": _states, "policy": _policies, "policies": _policies, "runtime": _runtimes,
}  # fmt: skip


class _Completed(click.ParamType[Any]):
    """A type whose values are completed; those of options may be lists between commas."""

    def __init__(self, plain: click.ParamType[Any], words: Words) -> None:
        self.name = plain.name
        self._plain, self._words = plain, words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._plain.convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        begun, comma, last = incomplete.rpartition(",") if isinstance(param, click.Option) else ("", "", incomplete)
        given = ctx.find_root().params
        session = Session.of(given["state"], given["url"], given["token_file"], given["tls_ca"])
        found = [one for one in self._words(session, last) if _TYPEABLE.fullmatch(one.word)]
        return [CompletionItem(begun + comma + one.word, help=visible(one.text) or None) for one in found]


class _Files(click.ParamType[Any]):
    """A command line of the user's own: the shell completes its files."""

    def __init__(self, plain: click.ParamType[Any]) -> None:
        self.name = plain.name
        self._plain = plain

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._plain.convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]
