"""The submitter's side of a job: what of their environment travels, and what can be checked before anything is sent."""

from __future__ import annotations

import getpass
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath

import msgspec
from msgspec.structs import replace

from ...base.errors import NotFound, UsageError
from ...launch.environment import submitted_environment
from ...model.job import JobSpec
from ...wire.api import MAX_BODY, MAX_SPECS
from ...wire.calls.submit_request import common_env, spec_bytes, without
from .loaded import Submitter

_PYTHON = re.compile(r"(python(\d+(\.\d+)*)?|pypy3?)")
_SHELL = re.compile(r"(ba|da|k|z)?sh")
_LAUNCHER = re.compile(r"(torchrun|accelerate|deepspeed)")
_TAKES_VALUE = frozenset({"-X", "-W", "--check-hash-based-pycs", "-o", "-O"})
"""Options whose value is the next word (python(1), bash(1))."""

MOST_BYTES = MAX_BODY * 3 // 4
"""Of the specs in one request; what else it says has room beside them."""


def submitter() -> Submitter:
    """This process's user, directory and environment, less what is not theirs to pass on."""
    environ = submitted_environment(os.environ)
    left_out = no_text(environ)
    return Submitter({name: environ[name] for name in environ if name not in left_out}, str(Path.cwd()), _user())


def no_text(environ: Mapping[str, str]) -> list[str]:
    """Names of variables that hold bytes that are no UTF-8 text, as those of another locale may: none is sent with a job."""
    return sorted(name for name, value in environ.items() if not _sendable(name + value))


def _sendable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def check_program(spec: JobSpec) -> None:
    """Raise NotFound or UsageError when the program, its script or the working directory is not there.

    For controllers that share this machine's files; the agent has the last word when it starts the job.
    """
    folder = Path(spec.workdir or ".")
    if not folder.is_dir():
        raise NotFound(f"no such directory: {folder}", "give an existing one with --workdir (workdir: in a spec)")
    program = spec.command[0]
    if "/" in program:
        _check_file(folder / program, runnable=True)
    elif shutil.which(program, path=spec.env.get("PATH", os.defpath)) is None:
        raise NotFound(f"no such program: {program}", "check the spelling; it is looked for on PATH")
    script = script_of(spec.command)
    if script is not None:
        _check_file(folder / script, runnable=False)


def folder_to_be_made(spec: JobSpec) -> Path | None:
    """The directory of the job's output file where there is none yet; None too where its name is not known before the start.

    For controllers that share this machine's files, like ``check_program``.
    """
    folder = Path(spec.workdir or ".", spec.output).parent
    return folder if spec.output and "%" not in str(folder) and not folder.exists() else None


def script_of(command: Sequence[str]) -> str | None:
    """The script that a command has an interpreter or launcher run; None when it names none."""
    program = PurePath(command[0]).name
    if _LAUNCHER.fullmatch(program):
        return next((word for word in command[1:] if word.endswith(".py")), None)
    if _PYTHON.fullmatch(program):
        return _first_operand(command[1:], "cm")
    return _first_operand(command[1:], "cs") if _SHELL.fullmatch(program) else None


def _first_operand(words: Sequence[str], elsewhere: str) -> str | None:
    """The first word that is no option. The letters ``elsewhere`` are options after which no file is named: code, a
    module or stdin follows."""
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word == "-" or re.fullmatch(rf"-[a-zA-Z]*[{elsewhere}]", word):
            return None
        elif word.startswith("-"):
            skip = word in _TAKES_VALUE
        else:
            return word
    return None


def _check_file(path: Path, runnable: bool) -> None:
    if not path.exists():
        raise NotFound(f"no such file: {path}", "check the path; it is taken from the working directory of the job")
    if path.is_dir() and runnable:
        raise UsageError(f"{path} is a directory", "name a program in it")
    if runnable and not os.access(path, os.X_OK):
        raise UsageError(f"{path} may not be executed", f"chmod +x {path}, or name its interpreter: python {path.name}")


def batches(specs: Sequence[JobSpec]) -> Iterator[tuple[JobSpec, ...]]:
    """The specs in runs that each fit one request: nearly always all of them, for what their environments have in common
    travels once."""
    if not specs:
        return
    shared = common_env(specs) if len(specs) > 1 else {}
    limit = MOST_BYTES - len(msgspec.json.encode(shared))
    batch: list[JobSpec] = []
    size = 0
    for spec in specs:
        length = spec_bytes(without(spec, shared))
        if length > limit:
            raise UsageError(
                f"job {spec.name or spec.command[0]}: its spec is larger than {MOST_BYTES} bytes", "shorten it"
            )
        if batch and (size + length > limit or len(batch) == MAX_SPECS):
            yield tuple(batch)
            batch, size = [], 0
        batch.append(spec)
        size += length
    if batch:
        yield tuple(batch)


def joined(batch: Sequence[JobSpec], array: int) -> tuple[JobSpec, ...]:
    """The specs as further members of an array that is submitted in several requests; ``array`` 0: the first of them."""
    if not array:
        return tuple(batch)
    return tuple(replace(spec, array=replace(spec.array, job=array)) if spec.array else spec for spec in batch)


def with_variables(environ: Mapping[str, str], given: Sequence[tuple[str, str]]) -> dict[str, str]:
    """``environ`` with the variables named on the command line, the last of a name winning."""
    return {**environ, **dict(given)}
