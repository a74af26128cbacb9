"""One service at the gateway: its requests, its replicas, and the router that brings them together.

Runs on one event loop; every method is called from it. Time is microseconds of a monotonic clock, which steps of the wall
clock do not touch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ...base.errors import NotFound, UsageError, WorldError
from ...base.units import SECOND
from ..admission import AdmissionRule
from ..lane import ServedModel
from ..profile import BatchProfile
from ..protocol.datatypes import Tensor
from ..protocol.signature import ModelSignature
from ..replica.link import BatchDone, Leaving, ReplicaHello, RequestResult, packed, unpacked
from ..request import NO_DEADLINE, BatchDispatch, InferenceRequest, RefusalCode, RequestRefusal
from ..routing import PoolSettings, Router
from .measures import ServiceMeasures
from .replica_link import ReplicaLink

log = logging.getLogger("tidewright.gateway")
UNKNOWN_LATENCY_US = 1000
"""Of a batch of one of a model that was not warmed up, until batches have been measured."""
MAX_QUEUE = 10_000
"""Requests that wait for one service, of each class."""
OVERHEAD_US = 1000
"""What a batch takes besides the model: messages, and the turns of two processes."""
PROBE_US = 10 * SECOND
"""Deadline of a request that is let through to correct predictions."""
_PREDICTED = (RefusalCode.DEADLINE, RefusalCode.OVERLOAD)
OVERDUE = 20
"""A batch that takes so many times what was predicted, and more than ``OVERDUE_US``, hangs."""
OVERDUE_US = 30 * SECOND


class Unavailable(WorldError):
    """503: the request was not run, or not to its end. ``retry_after_s``: whole seconds."""

    def __init__(self, text: str, code: str, retry_after_s: int) -> None:
        super().__init__(text)
        self.code, self.retry_after_s = code, retry_after_s


class ModelError(WorldError):
    """500: the model raised."""


class ClientGone(WorldError):
    """The client has closed its connection: there is none to answer."""

    def __init__(self) -> None:
        super().__init__("the client has closed its connection")


@dataclass(slots=True)
class PendingRequest:
    """A request that was admitted, until it is answered. ``tries``: replicas that were lost while they ran it."""

    request: InferenceRequest
    answer: asyncio.Future[dict[str, Tensor]]
    inputs: dict[str, Tensor] = field(default_factory=dict)
    tries: int = 0


class ServicePool:
    """``hung`` is called with the job of a replica whose batch is long overdue: it is to be ended."""

    def __init__(
        self, name: str, clock: Callable[[], int], measures: ServiceMeasures, hung: Callable[[int], None]
    ) -> None:
        self.name, self._clock, self._measures, self._hung = name, clock, measures, hung
        self.router: Router | None = None
        self.hello: ReplicaHello | None = None
        self.awaiting_first = 0
        """Requests that wait for a first replica."""
        self._first = asyncio.Event()
        self._deleted = False
        self._numbers: dict[ReplicaLink, int] = {}
        self._links: dict[int, ReplicaLink] = {}
        self._batches: dict[int, BatchDispatch] = {}
        self._pending: dict[int, PendingRequest] = {}
        self._next_request = self._next_replica = 0
        self._timer: asyncio.TimerHandle | None = None
        self.arrivals: Callable[[int, bool, int], None] = lambda now_us, refused, items: None
        """Called with every real-time request: when it came, whether it was refused, and its items (the autoscaler)."""

    @property
    def signature(self) -> ModelSignature:
        """What the model takes. Raises Unavailable before its first replica."""
        return self._first_hello().signature

    def _first_hello(self) -> ReplicaHello:
        if self.hello is None:
            raise Unavailable(f"service {self.name} has no replica yet", "no_replica", 1)
        return self.hello

    @property
    def replicas(self) -> int:
        """Replicas that are ready."""
        return len(self._links)

    @property
    def is_empty(self) -> bool:
        """Whether it has neither replicas nor requests."""
        return not self._numbers and not self._pending and not self.awaiting_first

    @property
    def requests(self) -> dict[str, int]:
        """Requests so far, by how they ended: ``ok``, the code of a refusal, ``model``, ``lost``."""
        return dict(self._measures.counts)

    def attempt_of(self, job: int) -> int | None:
        """The attempt of a replica that is ready here; None where none of the job is."""
        return next((link.hello.attempt for link in self._links.values() if link.hello.job == job), None)

    def waiting(self) -> int:
        """Requests that wait."""
        return sum(self.router.waiting(self.name)) if self.router else 0

    def waiting_items(self) -> int:
        """Items of the requests that wait."""
        return self.router.waiting_items(self.name) if self.router else 0

    async def first_replica(self, within_s: float) -> None:
        """Wait for a replica where there is none. Raises Unavailable after so long, NotFound once the service is deleted."""
        if not self.awaiting_first and not self._links:
            self._first.clear()
            self._deleted = False
        self.awaiting_first += 1
        try:
            await asyncio.wait_for(self._first.wait(), within_s)
        except TimeoutError:
            raise Unavailable(f"service {self.name} is starting its first replica", "no_replica", 10) from None
        finally:
            self.awaiting_first -= 1
        if self._deleted and not self._links:
            raise NotFound(f"no model {self.name!r}: its service was deleted")

    def deleted(self) -> None:
        """Its service was deleted: no first replica will come."""
        if self.awaiting_first:
            self._deleted = True
            self._first.set()

    # -- requests ---------------------------------------------------------------------------------------------------

    def admit(self, items: int, nbytes: int, timeout_us: int = 0, best_effort: bool = False) -> PendingRequest:
        """Decide on a request whose inputs have not been read; the caller starts it before it awaits anything, and ends it in any
        case. ``timeout_us``: from now; 0: the service's objective. Raises Unavailable."""
        hello, router = self._first_hello(), self.router
        assert router is not None  # made with the first replica
        now, self._next_request = self._clock(), self._next_request + 1
        deadline = NO_DEADLINE if best_effort else now + (timeout_us or hello.options.objective_us)
        request = InferenceRequest(self._next_request, self.name, now, deadline, best_effort, nbytes, items)
        refusal = router.arrive(now, request)
        if refusal is not None and refusal.code in _PREDICTED and self._rests(items):
            # Only what is predicted of it alone is in the way, and only another batch can correct it.
            request = replace(request, deadline_us=now + PROBE_US)
            refusal = router.arrive(now, request)
        if not best_effort:
            self.arrivals(now, refusal is not None, items)
        if refusal is not None:
            raise self._unavailable(refusal)
        pending = self._pending[request.id] = PendingRequest(request, asyncio.get_running_loop().create_future())
        return pending

    def start(self, pending: PendingRequest, inputs: dict[str, Tensor]) -> None:
        """Have it run; its outputs come as ``pending.answer``: or Unavailable, ModelError, ClientGone."""
        pending.inputs = inputs
        self._pump()

    def client_gone(self, pending: PendingRequest) -> None:
        """Its client has left: it is not run, unless it is in a batch already."""
        if not pending.answer.done():
            self._measures.failed("gone")
            pending.answer.set_exception(ClientGone())

    def end(self, pending: PendingRequest) -> None:
        """The request is answered, or nothing awaits its answer any more."""
        request = pending.request
        if self._pending.pop(request.id, None) is not None and self.router is not None:
            self.router.cancel(request)
        self._measures.latency.observe((self._clock() - request.arrived_us) / SECOND)

    def _rests(self, items: int) -> bool:
        """Whether there is a replica and nothing for it to do, since nothing is predicted to meet the objective."""
        if self.router is None or self.hello is None or not self._links or self._batches or self.waiting():
            return False
        return self.router.predicted_us(self.name, items) > self.hello.options.objective_us

    def _unavailable(self, refusal: RequestRefusal) -> Unavailable:
        self._measures.refused(refusal.code.value)
        return Unavailable(f"refused: {_WHY[refusal.code.value]}", refusal.code.value, refusal.retry_after_s)

    # -- replicas ---------------------------------------------------------------------------------------------------

    def join(self, link: ReplicaLink) -> None:
        """A replica is ready. Raises UsageError where it serves something else than those before it."""
        router = self._router_with(link.hello)
        self._next_replica += 1
        self._numbers[link], self._links[self._next_replica] = self._next_replica, link
        router.add_replica(self._clock(), self._next_replica)
        self._first.set()
        self._measures.replicas.set(len(self._links))
        log.info("%s: job %d is ready; %d replicas", self.name, link.hello.job, len(self._links))
        self._pump()

    def _router_with(self, hello: ReplicaHello) -> Router:
        """The router, which serves as the newest replica says: that of the highest job, since services make jobs in turn."""
        known = self.hello
        if self.router is None or known is None or (hello.signature != known.signature and not self._numbers):
            self.router, self.hello = Router([served_model(hello)], PoolSettings(AdmissionRule.DEADLINE)), hello
            for request in list(self._pending):
                self._fail(
                    request, Unavailable("the model was replaced by another one while it waited", "no_replica", 1)
                )
        elif hello.signature != known.signature:
            raise UsageError(
                f"a replica of {self.name} has another signature than the running ones",
                "deploy it as a service of another name, and delete the old one afterwards",
            )
        elif not self._links or hello.job >= known.job:
            if hello.options != known.options:
                self.router.update(served_model(hello))
            self.hello = hello
        return self.router

    def said(self, link: ReplicaLink, message: BatchDone | Leaving) -> None:
        """A replica has answered a batch, or is leaving."""
        number = self._numbers.get(link)
        if number is None or self.router is None:
            return
        if isinstance(message, Leaving):
            if self.router.remove_replica(number):
                self._drop(number, link)
                link.close()
            else:
                self._drop(number, link, busy=True)
        else:
            self._answered(number, link, message)
        self._pump()

    def _answered(self, number: int, link: ReplicaLink, done: BatchDone) -> None:
        batch = self._batches.pop(number, None)
        if batch is None or self.router is None or len(done.results) != len(batch.requests):
            raise WorldError(f"a replica of {self.name} answered a batch that it was not given")
        self.router.completed(self._clock(), number)
        self._measures.batch.observe(batch.items)
        for request, result in zip(batch.requests, done.results, strict=True):
            self._settle(request.id, result)
        if number not in self._links:  # it was leaving
            link.close()
            del self._numbers[link]

    def _settle(self, request: int, result: RequestResult) -> None:
        pending = self._pending.pop(request, None)
        if pending is None or pending.answer.done():
            return
        if result.error:
            self._measures.failed("model")
            pending.answer.set_exception(ModelError(f"the model failed: {result.error}"))
            return
        try:
            pending.answer.set_result(unpacked(result.outputs))
            self._measures.done()
        except UsageError as error:
            pending.answer.set_exception(ModelError(error.message))

    def lost(self, link: ReplicaLink) -> None:
        """The connection of a replica has ended. What it had in work is run once more if that is harmless, and refused else."""
        number = self._numbers.pop(link, None)
        if number is None or self.router is None:
            return
        batch = self._batches.pop(number, None)
        leaving = number not in self._links
        self._drop(number, link)
        if batch is not None or not leaving:
            self.router.replica_lost(number)
        for request in batch.requests if batch else ():
            pending = self._pending.get(request.id)
            if pending is None:
                self.router.cancel(request)
                continue
            pending.tries += 1
            if pending.tries > 1 or not link.hello.options.idempotent:
                self.router.cancel(request)
                self._fail(request.id, Unavailable("its replica was lost while it ran", "replica_lost", 1))
        log.warning("%s: job %d is lost; %d replicas", self.name, link.hello.job, len(self._links))
        self._pump()

    def _fail(self, request: int, error: Exception) -> None:
        pending = self._pending.pop(request, None)
        if pending is not None and not pending.answer.done():
            self._measures.failed("lost")
            pending.answer.set_exception(error)

    def _drop(self, number: int, link: ReplicaLink, busy: bool = False) -> None:
        self._links.pop(number, None)
        if not busy:
            self._numbers.pop(link, None)
        if not self._links:
            self._first.clear()
        self._measures.replicas.set(len(self._links))

    # -- routing ----------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Do what the router says now, and come back when it wants to be asked again."""
        if self.router is None:
            return
        now = self._clock()
        step = self.router.poll(now)
        for refusal in step.refused:
            pending = self._pending.pop(refusal.request.id, None)
            if pending is not None and not pending.answer.done():
                pending.answer.set_exception(self._unavailable(refusal))
        for batch in step.dispatches:
            self._dispatch(batch)
        overdue = [batch.started_us + _patience(batch) for batch in self._batches.values()]
        for number, batch in list(self._batches.items()):
            if now >= batch.started_us + _patience(batch) and number in self._links:
                self._end_hanging(number)
        times = [one for one in (step.wake_us, min(overdue, default=None)) if one is not None]
        self._wake(min(times) - now if times else None)

    def _end_hanging(self, number: int) -> None:
        link = self._links[number]
        log.error("%s: job %d has not answered a batch; it is ended", self.name, link.hello.job)
        self._hung(link.hello.job)
        link.close()
        self.lost(link)

    def _wake(self, in_us: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if in_us is None else loop.call_later(max(0, in_us) / SECOND, self._pump)

    def _dispatch(self, batch: BatchDispatch) -> None:
        self._batches[batch.replica] = batch
        # A request whose client has left runs all the same: it is in the batch already.
        requests = tuple(packed(self._pending[one.id].inputs) for one in batch.requests if one.id in self._pending)
        if len(requests) < len(batch.requests):
            raise WorldError(f"{self.name}: a batch holds requests that are not there")
        self._links[batch.replica].send(requests)


def _patience(batch: BatchDispatch) -> int:
    return max(OVERDUE_US, OVERDUE * (batch.predicted_us - batch.started_us))


def served_model(hello: ReplicaHello) -> ServedModel:
    """The service as the router knows it, from what its replica measured while it warmed up."""
    options, most = hello.options, max(1, hello.signature.max_batch)
    # A larger batch never takes less time: what was measured so is noise.
    points: list[tuple[int, int]] = []
    for size, us in sorted(hello.samples) or [
        (1, UNKNOWN_LATENCY_US),
        *([(most, most * UNKNOWN_LATENCY_US)] if most > 1 else []),
    ]:
        points.append((size, max(us + OVERHEAD_US, points[-1][1] if points else 1)))
    profile = BatchProfile(
        options.service, "this node", "slowest of three", "measured when the replica started", tuple(points)
    )
    return ServedModel(options.service, profile, options.objective_us, options.batching, most, MAX_QUEUE)


_WHY = {
    "deadline": "it would complete after its deadline", "overload": "the load is above what the replicas carry",
    "late": "it waited until it could no longer complete in time", "queue_full": "the queue is full",
    "queue_bytes": "the queue holds as many bytes as it may", "no_replica": "no replica is ready",
    "too_long": "best effort, and one run of the model takes longer than real-time requests can wait",
}  # fmt: skip
