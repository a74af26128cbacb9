"""Queues and replicas of a pool, in which every replica can run every model: what to dispatch where, whom to refuse.

Matchmaking after Symphony (arXiv 2308.07470): each model has one candidate batch with the window in which it may start; a
free replica takes, of the candidates whose window is open, the one whose latest start comes first, and a candidate takes the
lowest numbered free replica. Best-effort requests are dispatched to replicas that real-time ones do not need, for a bounded
time.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..base.errors import Bug, NotFound, UsageError
from ..base.units import SECOND
from .admission import AdmissionRule, retry_after_s, target_batch, verdict
from .lane import ModelLane, ServedModel
from .lookahead import Lookahead
from .request import BatchDispatch, InferenceRequest, RefusalCode, RequestRefusal, RoutingStep


@dataclass(frozen=True)
class PoolSettings:
    """``best_effort_us``: how long a best-effort batch may hold a replica; None: half of the smallest objective.

    ``cold_start_us``: what a replica takes to start, for the answer while there is none.
    """

    admission: AdmissionRule = AdmissionRule.DEADLINE
    best_effort_us: int | None = None
    cold_start_us: int = 10 * SECOND

    def __post_init__(self) -> None:
        if self.cold_start_us < 0 or (self.best_effort_us is not None and self.best_effort_us < 0):
            raise UsageError("a time of the pool is negative", "give cold_start_us and best_effort_us of 0 or more")


@dataclass(slots=True)
class _Replica:
    running: BatchDispatch | None = None
    leaving: bool = False


@dataclass(slots=True)
class RouterCounts:
    """Since the start: requests admitted, refused by code, completed; batches completed."""

    admitted: int = 0
    completed: int = 0
    batches: int = 0
    refused: dict[RefusalCode, int] = field(default_factory=dict)


class Router:
    """Tell it what happens, in the order of time; after each call, or several at one time, ask ``poll`` what to do."""

    def __init__(self, models: Sequence[ServedModel], settings: PoolSettings | None = None) -> None:
        self._settings = settings or PoolSettings()
        rule = self._settings.admission
        self._lanes = {model.name: ModelLane(model, rule is not AdmissionRule.NONE) for model in models}
        if not models or len(self._lanes) != len(models):
            raise UsageError("a pool needs models with different names", "name each model once")
        self._best_effort_us = self._bound_of_best_effort()
        self._order = tuple(self._lanes.values())
        self._replicas: dict[int, _Replica] = {}
        self._idle: list[int] = []
        self._starting: list[tuple[int, int]] = []
        self._free_us: dict[int, int] = {}
        self._lookahead = Lookahead(self._order, self._free_us)
        self.counts = RouterCounts()

    # What the caller reports.

    def arrive(self, now_us: int, request: InferenceRequest) -> RequestRefusal | None:
        """A request came. None: it waits, and ``poll`` dispatches or refuses it. Raises NotFound for an unknown model, UsageError
        for one with more items than a batch."""
        lane = self._lane(request.model)
        if not 1 <= request.items < len(lane.us):
            raise UsageError(f"a request of {request.items} items", f"give 1 to {len(lane.us) - 1}, the largest batch")
        if not request.best_effort and lane.rate.add(now_us, request.items):
            self._retarget()
        queue = lane.best_effort if request.best_effort else lane.queue
        code = queue.refuses(request) or (
            self._too_long(lane, request) if request.best_effort else self._admit(now_us, lane, request)
        )
        if code is not None:
            return self._refuse(now_us, lane, request, code)
        queue.push(request)
        self.counts.admitted += 1
        return None

    def completed(self, now_us: int, replica: int) -> BatchDispatch:
        """The batch of a replica completed; what was measured corrects predictions. Returns the batch."""
        batch = self._running(replica)
        lane = self._lane(batch.model)
        lane.predictor.observed(batch.items, now_us - batch.started_us, now_us)
        lane.batcher.completed(batch.items, now_us - batch.started_us)
        self.counts.completed += len(batch.requests)
        self.counts.batches += 1
        self._replicas[replica].running = None
        if self._replicas[replica].leaving:
            del self._replicas[replica]
        else:
            self._free_us[replica] = now_us
            insort(self._idle, replica)
        self._lookahead.invalidate()
        return batch

    def cancel(self, request: InferenceRequest) -> bool:
        """The client is gone. False when the request does not wait (any more)."""
        lane = self._lane(request.model)
        self._lookahead.invalidate()
        return (lane.best_effort if request.best_effort else lane.queue).remove(request)

    def add_replica(self, now_us: int, replica: int, ready_us: int | None = None) -> None:
        """A replica is ready, or will be at ``ready_us``. Its number is its rank: the lowest free one is used first."""
        if replica in self._replicas:
            raise UsageError(f"replica {replica} exists", "give each replica its own number")
        ready_us = now_us if ready_us is None else max(now_us, ready_us)
        self._replicas[replica] = _Replica()
        self._free_us[replica] = ready_us
        insort(self._starting, (ready_us, replica))
        self._retarget()
        self._lookahead.invalidate()

    def remove_replica(self, replica: int) -> bool:
        """The replica gets no further batch. Returns whether it is gone; otherwise it is once its batch completes."""
        found = self._replicas[replica]
        self._forget(replica)
        if found.running is None:
            del self._replicas[replica]
            return True
        found.leaving = True
        return False

    def replica_lost(self, replica: int) -> None:
        """The replica failed. The requests of its batch wait again, in their old order, bounds or not."""
        found = self._replicas.pop(replica)
        self._forget(replica)
        if found.running is not None:
            lane = self._lane(found.running.model)
            for request in found.running.requests:
                (lane.best_effort if request.best_effort else lane.queue).push(request)

    def update(self, model: ServedModel) -> None:
        """A model has another objective, policy or profile from now on. Raises NotFound, UsageError where its largest batch is
        another one: requests that wait may be as large."""
        lane = self._lane(model.name)
        if model.profile.table(model.max_batch).max_batch != lane.predictor.table.max_batch:
            raise UsageError(f"{model.name} takes batches of another size", "serve it in a pool of its own")
        lane.serve_as(model)
        self._best_effort_us = self._bound_of_best_effort()
        self._retarget()
        self._lookahead.invalidate()

    # What the caller asks.

    def poll(self, now_us: int) -> RoutingStep:
        """What to do now. Each dispatch and each refusal is said once."""
        while self._starting and self._starting[0][0] <= now_us:
            insort(self._idle, self._starting.pop(0)[1])
        refused = self._refuse_late(now_us)
        dispatches: list[BatchDispatch] = []
        wake_us = self._match(now_us, dispatches, refused) if self._idle else None
        if self._idle:
            self._fill_gaps(now_us, wake_us, dispatches)
        return RoutingStep(tuple(dispatches), tuple(refused), self._wake(wake_us))

    def waiting(self, model: str) -> tuple[int, int]:
        """(real-time, best-effort) requests that wait."""
        lane = self._lane(model)
        return len(lane.queue), len(lane.best_effort)

    def replicas(self) -> tuple[int, ...]:
        """Numbers of the replicas that are ready or starting, not leaving; rising."""
        return tuple(sorted(self._free_us))

    def waiting_items(self, model: str) -> int:
        """Items of all requests that wait."""
        lane = self._lane(model)
        return lane.queue.items + lane.best_effort.items

    def predicted_us(self, model: str, items: int) -> int:
        """What a batch of so many items is predicted to take."""
        return self._lane(model).us[items]

    def waited_us(self, now_us: int) -> int:
        """How long the first of the real-time requests has waited, over all models."""
        heads = [lane.queue.at(0).arrived_us for lane in self._order if len(lane.queue)]
        return now_us - min(heads) if heads else 0

    # How it is decided.

    def _admit(self, now_us: int, lane: ModelLane, request: InferenceRequest) -> RefusalCode | None:
        if self._settings.admission is not AdmissionRule.DEADLINE:
            self._lookahead.invalidate()
            return None
        if not self._free_us:
            return RefusalCode.NO_REPLICA
        place = self._lookahead.place(now_us, lane, request)
        code = verdict(
            place, now_us, request.deadline_us, lane.us[min(max(lane.target, request.items), len(lane.us) - 1)]
        )
        if code is None:
            self._lookahead.append(now_us, lane, request, place)
        return code

    def _bound_of_best_effort(self) -> int:
        if self._settings.best_effort_us is not None:
            return self._settings.best_effort_us
        return min(lane.served.objective_us for lane in self._lanes.values()) // 2

    def _too_long(self, lane: ModelLane, request: InferenceRequest) -> RefusalCode | None:
        return RefusalCode.TOO_LONG if lane.us[request.items] > self._best_effort_us else None

    def _refuse(
        self, now_us: int, lane: ModelLane, request: InferenceRequest, code: RefusalCode, start_us: int | None = None
    ) -> RequestRefusal:
        """``start_us``: when a batch behind all others starts, where that is known."""
        self.counts.refused[code] = self.counts.refused.get(code, 0) + 1
        if start_us is None:
            start_us = self._behind_all(now_us)
        objective_us = lane.served.objective_us
        return RequestRefusal(request, code, retry_after_s(start_us, now_us, lane.us[request.items], objective_us))

    def _refuse_late(self, now_us: int) -> list[RequestRefusal]:
        if self._settings.admission is AdmissionRule.NONE:
            return []
        late: list[tuple[ModelLane, InferenceRequest]] = []
        for lane in self._order:
            while len(lane.queue) and self._is_late(now_us, lane):
                late.append((lane, lane.queue.pop(1)[0]))
        if not late:
            return []
        self._lookahead.invalidate()
        start_us = self._behind_all(now_us)
        return [self._refuse(now_us, lane, request, RefusalCode.LATE, start_us) for lane, request in late]

    @staticmethod
    def _is_late(now_us: int, lane: ModelLane) -> bool:
        first = lane.queue.at(0)
        return not lane.size(now_us, first.deadline_us, lane.queue.items, first.items)

    def _behind_all(self, now_us: int) -> int:
        """When a batch behind all that wait would start: as planned or, where nothing bounds the plan, by its work."""
        if not self._free_us:
            return now_us + self._settings.cold_start_us
        if self._settings.admission is AdmissionRule.DEADLINE:
            return self._lookahead.next_start(now_us)
        work_us = sum(lane.queue.items * lane.us[-1] // lane.predictor.table.max_batch for lane in self._order)
        return max(now_us, min(self._free_us.values())) + work_us // len(self._free_us)

    def _match(self, now_us: int, dispatches: list[BatchDispatch], refused: list[RequestRefusal]) -> int | None:
        """Dispatch candidates to free replicas. Returns when the next window opens, if one is waited for."""
        while self._idle:
            found = sorted(
                (latest_us, index, count, earliest_us)
                for index, lane in enumerate(self._order)
                if len(lane.queue)
                for count, earliest_us, latest_us in (lane.window(now_us),)
            )
            if not found:
                return None
            wake_us = min(earliest_us for _, _, _, earliest_us in found)
            chosen = found[0]
            if len(found) <= len(self._idle):  # one for each: all of them may wait for their windows
                if wake_us > now_us:
                    return wake_us
                chosen = next(candidate for candidate in found if candidate[3] <= now_us)
            elif wake_us > now_us and self._lookahead.late(wake_us) <= self._lookahead.late(now_us):
                return wake_us
            dispatches.append(self._dispatch(now_us, self._order[chosen[1]], chosen[2], best_effort=False))
            refused += self._refuse_late(now_us)  # with more items than those before it, the next one may be late alone
        return None

    def _fill_gaps(self, now_us: int, wake_us: int | None, dispatches: list[BatchDispatch]) -> None:
        """Best effort on replicas that no candidate waits for, or until the first window opens."""
        reserved = sum(1 for lane in self._order if len(lane.queue))
        while self._idle:
            budget_us = self._best_effort_us
            if len(self._idle) <= reserved and wake_us is not None:
                budget_us = min(budget_us, wake_us - now_us)
            fitting = [
                (lane.best_effort.at(0).id, index)
                for index, lane in enumerate(self._order)
                if len(lane.best_effort) and lane.us[lane.best_effort.at(0).items] <= budget_us
            ]
            if not fitting:
                return
            lane = self._order[min(fitting)[1]]
            count, _ = lane.best_effort.fitting(lane.predictor.table.largest(budget_us))
            dispatches.append(self._dispatch(now_us, lane, count, best_effort=True))

    def _dispatch(self, now_us: int, lane: ModelLane, count: int, *, best_effort: bool) -> BatchDispatch:
        replica = self._idle.pop(0)
        requests = tuple((lane.best_effort if best_effort else lane.queue).pop(count))
        end_us = now_us + lane.us[sum(request.items for request in requests)]
        batch = BatchDispatch(replica, lane.served.name, requests, now_us, end_us, best_effort)
        self._replicas[replica].running = batch
        self._free_us[replica] = batch.predicted_us
        self._lookahead.invalidate()
        return batch

    def _wake(self, window_us: int | None) -> int | None:
        """The next window, the first request that will be late, the first replica that will be ready."""
        times = [] if window_us is None else [window_us]
        if self._settings.admission is not AdmissionRule.NONE:
            firsts = [(lane, lane.queue.at(0)) for lane in self._order if len(lane.queue)]
            times += [first.deadline_us - lane.us[first.items] + 1 for lane, first in firsts]
        if self._starting:
            times.append(self._starting[0][0])
        return min(times) if times else None

    def _retarget(self) -> None:
        """The batch that the load of each model needs, on its part of the replicas by work."""
        work = [
            lane.rate.per_second / lane.predictor.table.per_second(lane.predictor.table.max_batch)
            for lane in self._order
        ]
        total = sum(work)
        for lane, part in zip(self._order, work, strict=True):
            replicas = len(self._free_us) * (part / total if total else 1)
            lane.target = target_batch(lane.predictor.table, replicas, lane.rate.per_second, lane.served.objective_us)

    def _forget(self, replica: int) -> None:
        self._free_us.pop(replica, None)
        if replica in self._idle:
            self._idle.remove(replica)
        self._starting = [entry for entry in self._starting if entry[1] != replica]
        self._lookahead.invalidate()

    def _running(self, replica: int) -> BatchDispatch:
        found = self._replicas.get(replica)
        if found is None or found.running is None:
            raise Bug(f"replica {replica} completed a batch that it was not given")
        return found.running

    def _lane(self, model: str) -> ModelLane:
        if model not in self._lanes:
            raise NotFound(f"no model {model!r} in this pool", f"its models: {', '.join(self._lanes)}")
        return self._lanes[model]
