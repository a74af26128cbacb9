"""What a shell completes: jobs, nodes, teams and the like, asked of the controller. Quick, and silent whatever goes wrong.

Which words a parameter takes goes by its name, so that a new command's JOB is completed as every other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

from ..base.errors import TideError
from ..model.notify import KINDS
from ..wire.api import FINAL_STATES
from ..wire.calls.completion import Word, WordKind
from ..wire.states import STATES
from .session import Session
from .visible import visible

ANSWER_S = 1.0
"""How long a controller is waited for: a shell stands still meanwhile."""
_TYPEABLE = re.compile(r"[\w.@+/,\[\]-]+")
"""Words that a shell takes as they are, or with brackets that it is given quoted. Others are not offered: a name with ``$(...)``
would be run."""
_ENDED_TOO = frozenset({"show", "logs", "why", "eta", "wait", "requeue"})
"""Commands whose JOB may have ended."""
_NEW_NAME = frozenset({"run", "submit", "update", "runtime up", "serve deploy"})
"""Commands whose --name is a new one."""
Words = Callable[[Session, str], Iterable[Word]]
_ASSIGNMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)
_BASH = r"""
%(complete_func)s() {
    local line=${COMP_LINE:0:COMP_POINT} type value
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
        dir) compopt -o dirnames ;;
        file) compopt -o default ;;
        plain) COMPREPLY+=("$value") ;;
        esac
    done < <(env COMP_WORDS="$line" COMP_CWORD= %(complete_var)s=bash_complete "${1/#\~/$HOME}" 2>/dev/null)
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""
_FISH = r"""
function %(complete_func)s
    set -l line (commandline -cp | string collect)
    for completion in (env %(complete_var)s=fish_complete COMP_WORDS=$line COMP_CWORD= %(prog_name)s 2>/dev/null)
        set -l found (string split -m 1 "," -- $completion)
        switch $found[1]
            case dir
                __fish_complete_directories (commandline -ct)
            case file
                __fish_complete_path (commandline -ct)
            case plain
                printf "%%s\n" $found[2]
        end
    end
end

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


def complete(tide: click.Group) -> int:
    """Answer the shell's question, which stands in the environment. Returns the exit code."""
    for kind in shells().values():
        add_completion_class(kind)
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
    if param.name == "state":
        return lambda session, prefix: _beginning(_STATES_OF.get(path, STATES), prefix.lower())
    if path == "submit" and not argument:
        return next((_OF_SUBMIT[name[2:]] for name in param.opts if name[2:] in _OF_SUBMIT), None)
    return _BY_NAME.get(param.name or "")


def _of_pool(kind: WordKind) -> Words:
    return lambda session, prefix: session.client(timeout=ANSWER_S).words(kind, prefix)


def _policies(session: Session, prefix: str) -> list[Word]:
    from ..app.completion import policy_names

    return _beginning(policy_names(), prefix)


def _runtimes(session: Session, prefix: str) -> list[Word]:
    from ..app.completion import runtime_names

    return _beginning(runtime_names(session.state), prefix)


def _beginning(words: Iterable[str], prefix: str) -> list[Word]:
    return [Word(word) for word in words if word.startswith(prefix)]


def _of(*words: str) -> Words:
    return lambda session, prefix: _beginning(words, prefix)


_LIVE = tuple(state for state in STATES if state not in FINAL_STATES)
_STATES_OF: dict[str, tuple[str, ...]] = {
    "cancel": _LIVE, "hold": ("queued", "suspended"), "release": tuple(state for state in _LIVE if state != "queued"),
    "requeue": ("starting", "running", "suspending", "suspended", "resuming"),
}  # fmt: skip
"""States in which such a command does something; other commands take all."""
_BY_NAME: dict[str, Words] = {
    "node": _of_pool("nodes"), "nodes": _of_pool("nodes"), "team": _of_pool("teams"), "user": _of_pool("users"),
    "policy": _policies, "policies": _policies, "runtime": _runtimes, "mail_type": _of("all", "none", *KINDS),
}  # fmt: skip
_TIERS = _of("premium", "standard", "basic")
_OF_SUBMIT = _BY_NAME | {
    "sla": _TIERS, "qos": _TIERS, "level": _of("auto", "full", "freeze", "cooperative", "requeue", "none"),
    "class": _of("rt", "be"), "mail-type": _BY_NAME["mail_type"], "placement": _of("consolidate", "one-node", "any"),
}  # fmt: skip
"""By option: those of tide submit are texts, since a file's values are read elsewhere."""


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


def shells() -> dict[str, type[ShellComplete]]:
    """The shells, with our scripts."""
    return {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


def typed(line: str) -> tuple[list[str], str]:
    """(words of the command before the last, the last that is being typed) of a line up to the cursor, which begins with the
    command or with assignments to variables; those to ours count, as they will for the command."""
    words = split_arg_string(line)
    if not words or len(split_arg_string(line + "x")) > len(words):
        words.append("")
    while (assignment := _ASSIGNMENT.fullmatch(words[0])) and len(words) > 1:
        if assignment[1].startswith("TIDE_"):
            os.environ[assignment[1]] = assignment[2]
        del words[0]
    return words[1:-1], words[-1] if len(words) > 1 else ""


def _handed_over(given: Callable[[], tuple[list[str], str]]) -> tuple[list[str], str]:
    """The line of our script; of an earlier version's, which says at which word the cursor is, what click reads."""
    return given() if os.environ["COMP_CWORD"] else typed(os.environ["COMP_WORDS"])


class _Bash(BashComplete):
    source_template = _BASH

    @staticmethod
    def _check_version() -> None:
        """Nothing: click asks the installed bash for its version before it prints; any bash of this decade will do."""

    def get_completion_args(self) -> tuple[list[str], str]:
        return _handed_over(super().get_completion_args)


class _Fish(FishComplete):
    source_template = _FISH
    _option = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        before, last = _handed_over(super().get_completion_args)
        self._option = _of_option(last)
        return before, last

    def format_completion(self, item: CompletionItem[str]) -> str:
        return super().format_completion(_behind(self._option, item))


class _Zsh(ZshComplete):
    source_template = ZshComplete.source_template.replace(
        "_complete %(prog_name)s)", "_complete %(prog_name)s 2>/dev/null)"
    )
    _option = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        before, last = super().get_completion_args()
        self._option = _of_option(last)
        return before, last

    def format_completion(self, item: CompletionItem[str]) -> str:
        return super().format_completion(_behind(self._option, item))


def _of_option(word: str) -> str:
    """``--state=`` of ``--state=run``: bash leaves it in the line, other shells replace it with what is offered."""
    name, equals, _ = word.partition("=")
    return name + equals if equals and name.startswith("--") else ""


def _behind(option: str, item: CompletionItem[str]) -> CompletionItem[str]:
    return CompletionItem(option + item.value, item.type, item.help) if item.type == "plain" else item
