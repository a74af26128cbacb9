"""Adds images to the store in a separate process, so that the caller's other work need not wait.

Hashing and packing hold the interpreter's lock for a good part of a second per 250 MB, in which an agent would answer
no request and copy nothing to other nodes. The process is a little less important than others (nice(2)), so that ranks which
run on, or come back meanwhile, hardly notice. It ends when its parent does: one JSON line on its standard input is the
order, and the input's end is the parent's. The answer is one JSON line on its standard output.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ...base.errors import Conflict, TideError, UsageError, WorldError
from .errors import StoreFull
from .names import ImageName
from .quota import PutReport

NICE = 5
"""A quarter of a core that other processes want, all of an idle one (sched(7))."""
KINDS: dict[str, type[TideError]] = {kind.__name__: kind for kind in (StoreFull, Conflict, UsageError, WorldError)}


class Load(Struct, frozen=True):
    """One image: its name, the directory to add, and the metadata stored with it."""

    name: ImageName
    source: str
    meta: dict[str, Any]


class PutOrder(Struct, frozen=True):
    """What the process is to do, and with which store. ``secret`` as in ImageStore."""

    root: str
    quota_bytes: int
    secret: bytes
    loads: tuple[Load, ...]


class PutAnswer(Struct, frozen=True):
    """The images added, in order; ``kind`` and ``error`` say why the next one was not."""

    made: tuple[PutReport, ...]
    kind: str = ""
    error: str = ""


def put_in_worker(
    order: PutOrder, started: Callable[[Callable[[], object]], None] = lambda stop: None
) -> tuple[list[PutReport], TideError | None]:
    """Add images, one after the other, until one fails: the reports, and the failure, as ``ImageStore.put`` has it.

    Blocks until the process has ended; ``started`` is given what ends it early. Raises WorldError when it does not answer.
    """
    command = [sys.executable, "-P", "-m", __spec__.name]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", env=_environment()
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        started(process.kill)
        try:
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            process.stdin.flush()
            said = process.stdout.readline()
        except BrokenPipeError:
            said = b""
            with contextlib.suppress(BrokenPipeError):  # what was not written is tried once more by a close
                process.stdin.close()
    try:
        answer = msgspec.json.decode(said, type=PutAnswer)
    except msgspec.MsgspecError:
        raise WorldError(
            f"the process that adds images to the store ended with code {process.returncode}, unasked"
        ) from None
    why = KINDS[answer.kind](answer.error) if answer.error else None
    return list(answer.made), why


def _environment() -> dict[str, str]:
    """This process's, and the way to this package, wherever it was imported from."""
    place = str(Path(__file__).resolve().parents[3])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (place, os.environ.get("PYTHONPATH"))))}


def put_all(order: PutOrder) -> PutAnswer:
    """What the process does."""
    from .store import ImageStore  # numpy; an agent that only asks for this does without

    made: list[PutReport] = []
    try:
        store = ImageStore(Path(order.root), quota_bytes=order.quota_bytes, secret=order.secret)
        while len(made) < len(order.loads):
            load = order.loads[len(made)]
            made.append(store.put(load.name, Path(load.source), meta=load.meta))
    except (TideError, OSError) as error:
        kind = next(name for name, kind in KINDS.items() if isinstance(error, kind) or kind is WorldError)
        return PutAnswer(tuple(made), kind, str(error))
    return PutAnswer(tuple(made))


def _end_with_parent() -> None:
    """Wait for the end of the input. What is unfinished then is garbage that the store collects."""
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    """Serve one order."""
    os.nice(NICE)
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=PutOrder)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answer = put_all(order)
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
