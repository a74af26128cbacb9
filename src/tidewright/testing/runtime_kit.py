"""What a device runtime must do whatever its device is: run these on a runtime that listens on ``path``.

Each function raises AssertionError, and takes the factories of its models so that a device can bring its own.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..runtime.client import RemoteModel, RuntimeClient, TaskCancelled
from ..runtime.scheduler.tasks import TaskState
from ..runtime.transport.messages import ModelSource

MODELS = "tidewright.testing.runtime_models"
SIZE = 2000


class RealTimeNoise:
    """A real-time client of its own that interrupts best-effort work at random moments, in a thread."""

    def __init__(self, path: Path | str, tasks: int, gap_s: float, seed: int = 1) -> None:
        self.path, self.tasks, self.gap_s, self.dice = path, tasks, gap_s, random.Random(seed)
        self.over = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> RealTimeNoise:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            with RuntimeClient(self.path, "rt", name="noise") as client:
                model = client.load(f"{MODELS}:double", [("float32", (8,))])
                for number in range(self.tasks):
                    (given,) = model.infer(np.full(8, number, np.float32))
                    assert np.array_equal(given, np.full(8, 2 * number, np.float32)), (
                        "a real-time task gave another's output"
                    )
                    self.over.wait(self.dice.random() * 2 * self.gap_s)
        except BaseException as error:
            self.error = error
        finally:
            self.over.set()


def exact_under_preemption(
    path: Path | str, preemptions: int, *, queues: int = 2, operators: int = 40, gap_s: float = 0.0005
) -> int:
    """Best-effort tasks of several queues, interrupted all the time, give the same bits as without a runtime. Returns how often
    they were stopped, at least ``preemptions``."""
    from .runtime_models import chain_result

    clients = [RuntimeClient(path, "be", name=f"exact {number}") for number in range(queues)]
    before = clients[0].stats()["preemptions"]
    stopped = 0
    try:
        models = [_chain(client, operators) for client in clients]
        inputs = [np.linspace(number, number + 1, SIZE) for number in range(5)]
        expected = [chain_result(x, operators).tobytes() for x in inputs]
        seed = 0
        while stopped < preemptions:
            seed += 1
            with RealTimeNoise(path, max(50, preemptions - stopped), gap_s, seed) as noise:
                while not noise.over.is_set():
                    pending = [(k, model.submit(inputs[k])) for model in models for k in (0, 1, 2, 3, 4)[:2]]
                    for k, task in pending:
                        (output,) = task.result(60)
                        assert output.tobytes() == expected[k], (
                            f"task {task.key} gave other bits than without a runtime"
                        )
            stopped = clients[0].stats()["preemptions"] - before
    finally:
        for client in clients:
            client.close()
    return stopped


def _chain(client: RuntimeClient, operators: int) -> RemoteModel:
    return client.load(f"{MODELS}:chain", [("float64", (SIZE,))], arguments={"operators": operators}, slots=4)


def none_lost_or_doubled(path: Path | str, folder: Path, tasks: int, seed: int = 1) -> None:
    """Each task runs once, or not at all where it was cancelled before it began, under interruptions and cancels."""
    dice = random.Random(seed)
    file = folder / "runs.txt"
    file.write_text("")
    with RuntimeClient(path, "be", name="counting") as client, RealTimeNoise(path, tasks, 0.001, seed):
        model = client.load(f"{MODELS}:counter", [("float64", (1,))], arguments={"path": str(file)}, slots=16)
        file.write_text("")  # those of loading do not count
        busy = client.load(f"{MODELS}:busy", [("float64", (1,))], arguments={"seconds": 0.02}, slots=tasks // 20 + 1)
        pending, ahead = {}, []
        for number in range(tasks):
            if (
                number % 20 == 0
            ):  # what is submitted behind it has not begun when it is cancelled, however quick the machine
                ahead.append(busy.submit(np.array([1.0])))
            pending[number] = model.submit(np.array([float(number)]))
            if number % 20 == 1:
                pending[number].cancel()
            if dice.random() < 0.3:
                pending[dice.randrange(number + 1)].cancel()
        ran, cancelled = [], []
        for number, task in pending.items():
            try:
                (output,) = task.result(60)
                assert output[0] == number, f"task {number} gave the output of task {output[0]:.0f}"
                ran.append(number)
            except TaskCancelled:
                cancelled.append(number)
    lines = [int(line) for line in file.read_text().split()]
    assert sorted(lines) == ran, "tasks ran twice, or were lost, or ran though they were reported cancelled"
    assert lines == sorted(lines), "tasks of one queue ran out of order"
    assert cancelled, "nothing was cancelled: the test shows nothing"


def real_time_goes_first(path: Path | str, folder: Path, tasks: int) -> None:
    """A real-time task that comes while a best-effort task runs ends before it."""
    hold = folder / "hold"
    with RuntimeClient(path, "be", name="long") as slow, RuntimeClient(path, "rt", name="short") as quick:
        source = held_model(hold)
        long = slow.load(source.factory, [("float64", (1,))], arguments=source.arguments, slots=2)
        short = quick.load(f"{MODELS}:double", [("float32", (8,))])
        for _ in range(tasks):
            hold.touch()
            behind = long.submit(np.zeros(1))
            _until(lambda: _entry(slow)["stream"] == "running")
            task = short.submit(np.zeros(8, np.float32))
            task.result(60)
            hold.unlink()
            behind.result(60)
            assert task.completion is not None and behind.completion is not None
            assert task.completion.ended_ns < behind.completion.ended_ns, "real-time work waited for best-effort work"
            assert behind.completion.preemptions >= 1, "best-effort work was not stopped"


ADMITTED = ModelSource(f"{MODELS}:chain", {"operators": 30})
"""The model of ``only_what_is_admitted_goes_on`` that may run beside the held one; nothing else may."""


def held_model(hold: Path) -> ModelSource:
    """A model that runs for as long as there is a file ``hold``: however slow the machine, it is there to be met."""
    return ModelSource(f"{MODELS}:held", {"path": str(hold)})


def only_what_is_admitted_goes_on(
    path: Path | str,
    hold: Path,
    rounds: int = 1,
    between: Callable[[RuntimeClient, RemoteModel], None] = lambda rt, inside: None,
) -> list[int]:
    """Beside ``held_model(hold)`` as real-time work an admitted model runs to its end, another waits. ``between`` two rounds gets
    the real-time client and the admitted model. Returns how many tasks had run beside real-time work after each round."""
    padded = []
    with (
        RuntimeClient(path, "rt") as rt,
        RuntimeClient(path, "be") as good,
        RuntimeClient(path, "be") as bad,
    ):
        source = held_model(hold)
        long = rt.load(source.factory, [("float64", (1,))], arguments=source.arguments)
        inside = good.load(ADMITTED.factory, [("float64", (100,))], arguments=ADMITTED.arguments, slots=8)
        outside = bad.load(ADMITTED.factory, [("float64", (100,))], arguments={"operators": 31}, slots=8)
        for number in range(rounds):
            if number:
                between(rt, inside)
            hold.touch()
            task = long.submit(np.array([1.0]))
            _until(lambda: _entry(rt)["outstanding"] == 1)
            second, first = outside.submit(np.zeros(100)), inside.submit(np.zeros(100))
            first.result(30)
            hold.unlink()
            second.result(30), task.result(30)
            ends = [one.completion.ended_ns for one in (first, task, second)]  # type: ignore[union-attr]
            assert ends == sorted(ends), "what was admitted waited, or what was not admitted ran"
            padded.append(good.stats()["padded"])
    return padded


def shares_follow_weights(path: Path | str, weights: tuple[int, ...], seconds: float) -> list[float]:
    """Device time of busy best-effort queues over their weights. The runtime has one stream at once (``--streams 1``)."""
    clients = [RuntimeClient(path, "be", name=f"weight {weight}", weight=weight) for weight in weights]
    try:
        # Milliseconds each, four outstanding: a queue must not run empty because its feeder waits for a processor.
        models = [_chain(client, 200 * (number + 1)) for number, client in enumerate(clients)]
        over = threading.Event()
        threads = [threading.Thread(target=_keep_busy, args=(model, over)) for model in models]
        for thread in threads:
            thread.start()
        over.wait(seconds)
        served = {entry["queue"]: entry["device_s"] for entry in clients[0].stats()["clients"]}
        over.set()
        for thread in threads:
            thread.join()
        return [served[client.queue] / weight for client, weight in zip(clients, weights, strict=True)]
    finally:
        for client in clients:
            client.close()


def _keep_busy(model: RemoteModel, over: threading.Event) -> None:
    pending: list[Any] = []
    while not over.is_set():
        pending.append(model.submit(np.zeros(SIZE)))
        if len(pending) >= 4:
            pending.pop(0).result(60)
    for task in pending:
        task.result(60)


def cancelled_before_it_began(path: Path | str) -> None:
    """Of tasks behind a long one, those that are cancelled never run; the long one does."""
    with RuntimeClient(path, "be", name="cancel") as client:
        model = client.load(f"{MODELS}:chain", [("float64", (SIZE,))], arguments={"operators": 2000}, slots=6)
        tasks = [model.submit(np.zeros(SIZE)) for _ in range(6)]
        for task in tasks[1:]:
            task.cancel()
        tasks[0].result(60)
        states = []
        for task in tasks[1:]:
            with contextlib.suppress(TaskCancelled):
                task.result(60)
            assert task.completion is not None
            states.append(task.completion.state)
        assert states[1:] == [TaskState.CANCELLED] * 4, f"cancelled tasks ended as {states}"


def _until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends, f"what was waited for did not come in {timeout_s:g} s"
        time.sleep(0.002)


def _entry(client: RuntimeClient) -> dict[str, Any]:
    """What the runtime says of this client."""
    return next(entry for entry in client.stats()["clients"] if entry["queue"] == client.queue)
