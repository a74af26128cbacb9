"""The load of make demo-serve: a model that takes an accelerator's time but no core, and requests at the rates of a day with a
spike, sent whether or not answers come."""

from __future__ import annotations

import asyncio
import bisect
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inference_client import InferenceConnection, connect, inference_request

from tidewright.serve.define import serves

BATCH_MS = 20
MAX_BATCH = 2
CONNECTIONS = 1000


@serves(inputs={"x": "FP32[8]"}, outputs={"y": "FP32[1]"}, max_batch=MAX_BATCH)
def detector(x: Any) -> Any:
    """A batch takes 20 ms of an accelerator, of which a sleep stands in: the cores are left to training."""
    time.sleep(BATCH_MS / 1000)
    return x.sum(axis=1, keepdims=True)


@dataclass(frozen=True, slots=True)
class Answer:
    """``sent``: seconds since the load began; ``took``: seconds; ``status`` 0: the connection was lost."""

    sent: float
    took: float
    status: int
    best_effort: bool


class Load:
    """Real-time requests of a service at ``rates`` ((seconds from the start, per second), …), and ``best_effort`` clients that
    each send the next request of batch inference when the last is answered. Runs in a thread of its own until ``stop``.
    """

    def __init__(self, address: str, service: str, rates: Sequence[tuple[float, float]], best_effort: int) -> None:
        self._address, self._service = address, service
        self._starts, self._per_second = [at for at, _ in rates], [rate for _, rate in rates]
        self._best_effort = best_effort
        self._ended = False
        self._free: list[InferenceConnection] = []
        self.answers: list[Answer] = []
        self.began = 0.0
        """``time.time()`` of its start."""
        self.late_s = 0.0
        """The most that a request was sent after its time: the client's own share of what is measured."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> None:
        self.began = time.time()
        self._thread.start()

    def stop(self) -> None:
        """Send no more, and wait for the answers that are due."""
        self._ended = True
        self._thread.join(30)

    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.time() - self.began

    def rate(self, at: float) -> float:
        """Requests per second at a moment."""
        return self._per_second[max(0, bisect.bisect_right(self._starts, at) - 1)]

    async def _ask(self, at: float, best_effort: bool) -> int:
        """Send one request; ``at``: its time, which the time it takes is counted from."""
        connection = self._free.pop() if self._free else await connect(self._address)
        if connection.transport is None:
            connection = await connect(self._address)
        status = await connection.ask(inference_request(self._service, [1.0] * 8, best_effort=best_effort))
        if status:
            self._free.append(connection)
        self.answers.append(Answer(at, self.elapsed() - at, status, best_effort))
        return status

    async def _steady(self) -> None:
        while not self._ended:
            if await self._ask(self.elapsed(), True) != 200:
                await asyncio.sleep(0.1)

    async def _run(self) -> None:
        steady = [asyncio.ensure_future(self._steady()) for _ in range(self._best_effort)]
        pending: set[asyncio.Future[int]] = set()
        due = 0.0
        while not self._ended:
            now = self.elapsed()
            while due <= now:
                self.late_s = max(self.late_s, now - due)
                if len(pending) < CONNECTIONS:
                    task = asyncio.ensure_future(self._ask(due, False))
                    pending.add(task)
                    task.add_done_callback(pending.discard)
                else:
                    self.answers.append(Answer(due, 0.0, 0, False))
                due += 1 / self.rate(due)
            await asyncio.sleep(max(0.0, min(0.01, due - self.elapsed())))
        await asyncio.gather(*pending, *steady)
