"""Device runtimes of a pool: where their sockets are, what they say of themselves, and the job that each of them is."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..base.errors import Conflict, NotFound, Unreachable, UsageError
from ..runtime.client import RuntimeClient, ask, connect
from ..runtime.cuda.compile import require_device
from ..runtime.cuda.inspection import inspect_kernels
from ..runtime.cuda.ladder import level_lines
from ..runtime.daemon.main import parse_cores
from ..runtime.embedded import Runtime
from ..runtime.ladder import StopLevel, level_name
from ..runtime.padding.calibration import ModelToMeasure, measure, measure_gpu
from ..runtime.padding.slowdown import SlowdownTable, dump_table
from ..runtime.transport.messages import GetStats, ModelSource, Shutdown
from ..runtime.transport.tensors import ITEM_BYTES, TensorSpec
from .completion import runtime_names as runtime_names

_MOST_PATH = 107
"""Bytes of a unix socket's path (unix(7), sun_path)."""
END_S = 15.0
"""How long a runtime may take to end; its workers are killed first."""
ANSWER_S = 1.0
"""How long a runtime is waited for by who only wants to see it: one that was stopped must not stop ``tide top``."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


def socket_of(state: Path, name: str) -> Path:
    """Where runtime ``name`` listens. Raises UsageError for names that are none, and paths that no socket can have."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name for a runtime", "use small letters, digits and hyphens, 40 at most")
    path = state / "runtimes" / name / "socket"
    if len(bytes(path)) > _MOST_PATH:
        raise UsageError(f"{path} is too long for a socket", "use a state directory with a shorter path (--state)")
    return path


def daemon_command(state: Path, name: str, options: Sequence[str]) -> tuple[str, ...]:
    """What the runtime's job runs. Raises Conflict where one of that name answers."""
    socket = socket_of(state, name)
    with contextlib.suppress(Unreachable):
        connect(socket).close()
        raise Conflict(f"runtime {name!r} is running", f"use it, or stop it: tide runtime down {name}")
    return (sys.executable, "-m", "tidewright.runtime.daemon", "--socket", str(socket), *options)


def stats(state: Path, name: str) -> dict[str, Any]:
    """What a runtime has done. Raises NotFound where it does not answer."""
    with _connected(state, name) as connection:
        answer, _ = ask(connection, GetStats())
        return answer.stats  # type: ignore[no-any-return]


class ClientWatch:
    """Clients of all runtimes of a state directory that answer, with what they did since the last look."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._before: dict[tuple[str, int, int], tuple[float, int]] = {}
        """(runtime, its pid, queue) to how long the client had been connected, and preempted how often."""

    def look(self) -> list[dict[str, Any]]:
        """One entry for each client, ``runtime`` and ``preemptions_per_s`` among its facts: since the last look, or since it
        connected."""
        found = []
        for name in runtime_names(self._state):
            with contextlib.suppress(NotFound, Unreachable):
                answer = stats(self._state, name)
                for client in answer["clients"]:
                    rate = self._rate((name, answer["pid"], client["queue"]), client["up_s"], client["preemptions"])
                    found.append({"runtime": name, **client, "preemptions_per_s": rate})
        return found

    def _rate(self, client: tuple[str, int, int], up_s: float, preemptions: int) -> float:
        at, count = self._before.get(client, (0.0, 0))
        self._before[client] = up_s, preemptions
        return round((preemptions - count) / (up_s - at), 3) if up_s > at else 0.0


def shut_down(state: Path, name: str) -> None:
    """Ask a runtime to end, and wait until it has: its clients get errors, its job completes. What one that was killed has left
    is removed. Raises NotFound where there is neither, Unreachable for one that does not end."""
    from ..runtime.transport.messages import send

    try:
        with _connected(state, name) as connection:
            connection.settimeout(END_S)
            send(connection, Shutdown())
            with contextlib.suppress(ConnectionError):
                connection.recv(1)
    except TimeoutError:
        raise _silent(name) from None
    except NotFound:
        left = socket_of(state, name)
        if not left.exists():
            raise
        left.unlink()


def _silent(name: str) -> Unreachable:
    return Unreachable(
        f"runtime {name!r} is there and does not answer", "end its job: tide cancel JOB (tide ps shows it)"
    )


@contextlib.contextmanager
def _connected(state: Path, name: str) -> Any:
    try:
        with connect(socket_of(state, name), ANSWER_S) as connection:
            yield connection
    except TimeoutError:
        raise _silent(name) from None
    except (Unreachable, BrokenPipeError, ConnectionResetError):  # none is there, or it ends in this moment
        raise NotFound(f"no runtime {name!r} answers here", "see tide runtime ls; start one: tide runtime up") from None


def parse_input(text: str) -> TensorSpec:
    """``float32:1x3x224x224`` as a tensor; ``float32:`` is a scalar. Raises UsageError."""
    dtype, colon, shape = text.partition(":")
    try:
        sizes = tuple(int(size) for size in shape.split("x")) if shape else ()
    except ValueError:
        sizes = (-1,)
    if not colon or dtype not in ITEM_BYTES or any(size < 0 for size in sizes):
        raise UsageError(f"{text!r} is no tensor", f"write float32:1x3x224x224, with a type of {', '.join(ITEM_BYTES)}")
    return TensorSpec(dtype, sizes)


def calibrate(
    path: Path,
    cores: str,
    rt_threads: int,
    samples: int,
    progress: Callable[[int, int], None],
    gpu_shares: Sequence[int] = (),
) -> SlowdownTable:
    """The slow-down table of the models that a file of YAML lists, on cores of this machine; with ``gpu_shares`` on its GPU, for
    each of these numbers of multiprocessors. Raises UsageError, naming the entry that is wrong."""
    import yaml

    try:
        entries = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"cannot read {path}: {error}", "give a file of YAML") from None
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{path} lists no models", "write a list of entries with factory and inputs")
    models = [_entry(entry, number) for number, entry in enumerate(entries, 1)]
    folder = Path.cwd()
    if gpu_shares:
        require_device()
        return measure_gpu(models, shares=gpu_shares, samples=samples, folder=folder, progress=progress)
    return measure(
        models, cores=parse_cores(cores), rt_threads=rt_threads, samples=samples, folder=folder, progress=progress
    )


def _entry(entry: Any, number: int) -> ModelToMeasure:
    allowed = {"factory", "inputs", "arguments", "state"}
    if not isinstance(entry, dict) or not {"factory", "inputs"} <= set(entry) <= allowed:
        raise UsageError(f"entry {number} is no model", f"give factory and inputs, of {', '.join(sorted(allowed))}")
    source = ModelSource(str(entry["factory"]), entry.get("arguments") or {}, str(entry.get("state") or ""))
    return ModelToMeasure(source, tuple(parse_input(str(text)) for text in entry["inputs"]))


def inspect(factory: str, inputs: Sequence[TensorSpec], arguments: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Load a model in a runtime of its own, both ways, and say how it can be stopped. Raises UsageError where it cannot be
    made."""
    found: dict[str, Any] = {"model": factory, "levels": []}
    for level in (StopLevel.SIGNAL, StopLevel.GATE):
        with Runtime(stop=level.value) as runtime, runtime.client("be", folder=folder) as client:
            try:
                found["levels"].append(_load(client, level, factory, inputs, arguments, found))
            except UsageError as error:
                if level is StopLevel.SIGNAL:
                    raise
                found["levels"].append({"level": level_name("cpu", level), "possible": False, "why": error.message})
    return found


def inspect_for_gpu(
    factory: str, inputs: Sequence[TensorSpec], arguments: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """Each kernel that Inductor generates for the model, how it can be stopped, and why not better. Needs Triton and no GPU.
    Raises UsageError."""
    device, levels = inspect_kernels(ModelSource(factory, arguments), inputs, str(folder))
    kernels = [
        {
            "kernel": one.kernel,
            "launches": one.launches,
            "level": one.level.code,
            "reason": one.excluded.reason.value if one.excluded else "",
            "why": one.sentence,
        }
        for one in levels
    ]
    return {"model": factory, "device": device, "kernels": kernels, "lines": list(level_lines(levels))}


def _load(
    client: RuntimeClient,
    level: StopLevel,
    factory: str,
    inputs: Sequence[TensorSpec],
    arguments: dict[str, Any],
    found: dict[str, Any],
) -> dict[str, Any]:
    model = client.load(factory, inputs, arguments=arguments)
    if level is StopLevel.SIGNAL:
        found |= {"signature": str(model.signature), "bytes": model.nbytes, "run_us": model.run_ns // 1000}
        return {
            "level": level_name("cpu", level),
            "possible": True,
            "why": "stopped anywhere, within tens of microseconds",
        }
    if model.gates > 0:
        mean_us = model.run_ns / model.gates / 1000
        why = f"{model.gates} operators, {mean_us:.0f} us each on average: a stop waits for the one that runs"
    elif model.gates < 0:
        why = "stopped where its generator yields"
    else:
        why = "one piece: a stop waits for the whole task"
    return {"level": level_name("cpu", level), "possible": True, "why": why}


__all__ = [
    "ClientWatch",
    "calibrate",
    "daemon_command",
    "dump_table",
    "inspect",
    "runtime_names",
    "parse_input",
    "shut_down",
    "socket_of",
    "stats",
]
