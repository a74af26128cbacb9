"""The group of commands: loads each on first use, turns every failure into one message and a stable exit code."""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from ..base.errors import TideError, UsageError, WorldError
from .entry import BROKEN_PIPE, INTERRUPTED
from .session import Session
from .visible import visible

_STAYS = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EROFS)
"""What a path cannot be used for by this user: so it stays, however often it is tried."""

SECTIONS: dict[str, dict[str, str]] = {
    "Jobs": {
        "run": "Submit a command as a job.",
        "submit": "Submit jobs from a YAML spec or a batch script.",
        "ps": "List jobs.",
        "show": "Show everything about a job.",
        "logs": "Print or follow a job's output.",
        "why": "Say why a job is where it is, and what would start it.",
        "eta": "Say when a job starts and ends.",
        "wait": "Wait until jobs have ended.",
        "suspend": "Take a job's devices away until it is resumed.",
        "resume": "Let a suspended job run again.",
        "migrate": "Bring a job to other nodes, at the step where it is.",
        "scale": "Run a job on fewer or more devices.",
        "checkpoint": "Take an image of a job now; it runs on.",
        "update": "Change what a job asks for: its tier, its limit of time, its deadline and more.",
        "hold": "Keep waiting jobs from starting.",
        "release": "Let held jobs start.",
        "requeue": "End a job's run and queue it again.",
        "cancel": "End jobs.",
    },
    "Services": {
        "serve": "Keep replicas of a server running.",
    },
    "Pool": {
        "up": "Start Tidewright on this machine.",
        "down": "Stop it; jobs run on.",
        "nodes": "List nodes and what their devices do.",
        "drain": "Keep new work off a node.",
        "undrain": "Let a node take work again.",
        "top": "Watch devices and jobs live.",
        "rates": "How fast workloads run on which devices.",
        "usage": "Device-time held and delivered, by team, user or tier.",
        "images": "List, check and clean up stored images of jobs.",
        "doctor": "Check the state directory and this machine; repair what is safe.",
        "setup": "Get what this machine lacks: CRIU, for full images.",
    },
    "Devices": {
        "runtime": "Share one device between real-time and best-effort work.",
        "bench": "Measure how well a device is shared.",
    },
    "Kubernetes": {
        "kube": "Share the GPUs of a Kubernetes cluster by memory.",
    },
    "What if": {
        "simulate": "Run a trace on a cluster under one or more policies.",
        "colocate": "Training and a service in one pool, against a static split.",
        "compare": "Compare policies over loads, seeds and more.",
        "replay": "Run a recorded journal again under another policy.",
        "pack": "Fill nodes with pods by several placement scores.",
        "whatif": "Your own jobs on another pool, or under another policy.",
        "journal": "Write the journal out, redacted if wanted, for tide replay elsewhere.",
    },
    "Other": {
        "completion": "Print the completion script of a shell.",
        "version": "Print the version of the command and of the controller.",
    },
}
"""Every command with its one-line help, so that ``tide --help`` loads none of them."""
SUMMARY = {name: text for section in SECTIONS.values() for name, text in section.items()}
_PACKAGES = {"Jobs": ".jobs", "Pool": ".pool", "Services": ".serve", "Kubernetes": ".kube"}
"""Section to the sub-package of its commands; those of other sections lie in this one."""
_MODULES = {name: f"{_PACKAGES.get(section, '')}.{name}" for section, names in SECTIONS.items() for name in names}


FORMER_EXPORT = "export"
"""What ``tide journal export`` was called; it works still, and says so."""
COMPLETING = "_TIDE_COMPLETE"
"""Set by the completion of a shell, which asks what may come next."""


_SHOWN = 40
"""Characters before and behind what is no text that a message repeats."""


class PipeBroke(Exception):
    """A BrokenPipeError on its way through click, which would end the process with exit code 1."""


@contextmanager
def _past_click() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise PipeBroke(str(error)) from error


class LazyGroup(click.Group):
    """Finds the command ``NAME`` as ``command`` of the file ``NAME.py`` in its section's sub-package."""

    def make_context(self, *arguments: Any, **extra: Any) -> click.Context:
        with _past_click():
            return super().make_context(*arguments, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _past_click():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUMMARY)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == FORMER_EXPORT:
            from .journal import former

            return former
        if cmd_name not in SUMMARY:
            return None
        command: click.Command = import_module(__package__ + _MODULES[cmd_name]).command
        if COMPLETING in os.environ:
            from .complete import offer

            offer(command, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in (*SUMMARY, FORMER_EXPORT) and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], SUMMARY, n=1)
            hint = f"did you mean tide {near[0]}?" if near else "see tide --help"
            raise UsageError(f"no command {args[0]!r}", hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl(list(commands.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--state", metavar="DIR", help="State directory. Default: $TIDE_STATE, else ~/.local/state/tidewright.",
    type=click.Path(file_okay=False, readable=False),
)  # fmt: skip
@click.option(
    "--url", metavar="URL", help="Controller to speak to over TCP, e.g. http://127.0.0.1:7700. Default: $TIDE_URL."
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="Holds the token for --url. Default: $TIDE_TOKEN_FILE for $TIDE_URL, else DIR/token.",
)
@click.option(
    "--tls-ca", metavar="FILE", help="Verifies an https URL by these certificates. Default: $TIDE_CA, the system's."
)
@click.version_option(package_name="tidewright", message="tide %(version)s")
@click.pass_context
def tide(ctx: click.Context, state: str | None, url: str | None, token_file: str | None, tls_ca: str | None) -> None:
    """Tidewright: one pool, one queue; every job can be paused, and says why it waits.

    Start with `tide up`, then `tide run -- python train.py`.
    """
    if ctx.obj is None:
        ctx.obj = Session.of(state, url, token_file, tls_ca)


def run(arguments: list[str] | None = None, session: Session | None = None) -> int:
    """Run ``tide`` and return its exit code; messages are on stderr."""
    if COMPLETING in os.environ:
        from .complete import complete

        return complete(tide)
    try:
        return _answer(arguments, session)
    except (BrokenPipeError, PipeBroke) as error:
        if _drop_streams_without_reader():
            return BROKEN_PIPE
        return report(WorldError(str(error)))


def _drop_streams_without_reader() -> bool:
    """Whether the reader of stdout or stderr (head, less) left. Nothing is written there any more, not even at exit."""
    streams = select.poll()
    for number in (1, 2):
        streams.register(number, 0)  # errors are reported all the same
    left = [number for number, event in streams.poll(0) if event & (select.POLLERR | select.POLLHUP)]
    for number in left:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)
    return bool(left)


def _answer(arguments: list[str] | None, session: Session | None) -> int:
    """Run the command. Raises BrokenPipeError or PipeBroke when a pipe has no reader."""
    try:
        value = tide.main(arguments, prog_name="tide", standalone_mode=False, obj=session)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except (click.ClickException, TideError) as error:
        return report(error)
    except UnicodeEncodeError as error:
        return report(_no_text(error))
    except OSError as error:
        return report(_of_files(error))
    return value if isinstance(value, int) else 0


def _of_files(error: OSError) -> TideError:
    if error.errno not in _STAYS:
        return WorldError(str(error))
    return UsageError(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _no_text(error: UnicodeEncodeError) -> UsageError:
    """Where bytes of the command line or of a file were to be sent as text. Raises the error where it is another one."""
    if error.reason != "surrogates not allowed":
        raise error
    around = visible(error.object[max(0, error.start - _SHOWN) : error.start + _SHOWN])
    return UsageError(
        f"not UTF-8 text: '{around}'",
        "names, arguments and variables of jobs are UTF-8 text; a program can read other bytes from a file",
    )


def report(error: Exception, about: str = "") -> int:
    """Print a failure as ``error: what`` and the next thing to do; returns its exit code. ``about``: what it is about, first."""
    first = f"{about}: " if about else ""
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "tide"
        _print(error.format_message(), f"see {command} --help")
        return 2
    if isinstance(error, click.ClickException):
        _print(error.format_message(), "")
        return error.exit_code
    if isinstance(error, UsageError):
        _print(first + error.message, error.remedy)
        return error.exit_code
    assert isinstance(error, TideError)
    _print(first + str(error), "try again in a moment" if isinstance(error, WorldError) else "")
    return error.exit_code


def _print(message: str, remedy: str) -> None:
    stream: Any = sys.stderr
    styled = bool(getattr(stream, "isatty", lambda: False)()) and "NO_COLOR" not in os.environ
    click.echo(
        (click.style("error:", fg="red", bold=True) if styled else "error:") + f" {visible(message, lines=True)}",
        err=True,
    )
    if remedy:
        click.echo(f"  {visible(remedy, lines=True)}", err=True)
