"""The bind verb: reserve, then mark and bind; and what to do when the API server has no answer.

No two pods can get one GPU: a choice is made and reserved in one step of the event loop, before anything is awaited, and
only by the replica that holds the Lease. Where the node's device plugin binds late, marks and node go in one call: the API
server copies a Binding's annotations to the pod. Where it matches, the marks are patched first and one pod after the other
is bound, as the plugin tells pods apart by that order alone (docs/why/kube.md). A binding carries the resourceVersion that
was read, so the first change of the pod (by a successor, or by us) makes one that is still in flight fail.
Source: Kubernetes ``BindingREST``: ``metadata.uid`` and ``metadata.resourceVersion`` are preconditions, annotations are
copied when the node is set.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakValueDictionary

from ...base.errors import TideError, UsageError, WorldError
from ..client.api import STRATEGIC, TIMEOUT_S, ApiError, NoAnswer
from ..client.pods import current_pod, pod_path
from ..objects.metadata import Json, annotations_of, bound_to
from ..objects.pod_request import GpuAssignment, read_gpu_assignment, read_pod_request
from ..objects.schema import Pod, validated
from .cluster_cache import ClusterCache, strip
from .handler import Decision, pick

PATIENCE_S = 5.0
"""Within kube-scheduler's time limit for an extender (5 s by default, 10 s in our manifests)."""
PAUSE_S = 0.3
TRIES = 3
"""A change of the pod by another client (a label, a status) after it was read makes the binding fail once."""
DEFINITE = (400, 401, 403, 404, 405, 409, 410, 413, 415, 422)
"""Answers that mean that nothing was done. All others may come from something in between, and it was done all the same."""


class BindOutcomeUnknown(WorldError):
    """It was asked for, and perhaps done."""


class Binder:
    """``may_act``: whether this replica still leads, asked before every write. ``within_s``: so long after that it may still
    act, so a binding that takes longer is given up here and by the server."""

    def __init__(
        self, cluster_cache: ClusterCache, may_act: Callable[[], bool], now_ns: Callable[[], int] = time.time_ns,
        within_s: float = TIMEOUT_S,
    ) -> None:  # fmt: skip
        self.cluster_cache, self.may_act, self.now_ns, self.within_s = cluster_cache, may_act, now_ns, within_s
        self._last_ns = 0
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def bind(self, args: Json) -> str:
        """Empty when the pod is bound, else why not, for ExtenderBindingResult. Raises UsageError for a senseless body."""
        name, namespace, uid, node = (_word(args, key) for key in ("PodName", "PodNamespace", "PodUID", "Node"))
        if uid in self.cluster_cache.binding:
            return "a bind of this pod is still under way"
        path = pod_path(namespace, name)
        self.cluster_cache.binding.add(uid)
        try:
            pod = await self._pod(path, uid)
            if there := bound_to(pod):
                return "" if there == node else f"the pod is bound to {there}"
            self._check_leading()
            decision = self.cluster_cache.handler.decide(pod, node, self.cluster_cache.clock(), self._stamp_ns())
            return await self._carry_out(path, pod, decision)
        except UsageError as error:
            return error.message
        except TideError as error:
            return str(error)
        finally:
            self.cluster_cache.binding.discard(uid)

    def _stamp_ns(self) -> int:
        """Later than any before, as plugins that match go by it; clocks may be set back."""
        self._last_ns = max(self.now_ns(), self._last_ns + 1)
        return self._last_ns

    async def _pod(self, path: str, uid: str) -> Json:
        """As known, or read where it is not. An earlier bind whose outcome is not known must have come to nothing first."""
        known, pool = self.cluster_cache.pod(uid), self.cluster_cache.handler.chooser.pool
        before = pool.reserved.get(uid)
        if known is None or (before is not None and before.decided):
            known = await current_pod(self.cluster_cache.api, path, uid)
            if known is not None and not bound_to(known) and before is not None and before.decided:
                self._check_leading()
                known = await strip(self.cluster_cache.api, path, known)
                pool.release(uid)
        if known is None:
            raise UsageError("the pod is gone, or another has its name")
        return validated(known, Pod)

    async def _carry_out(self, path: str, pod: Json, decision: Decision) -> str:
        held = decision.assignment
        try:
            if self.cluster_cache.heartbeats.late(held.node) and not _brings(pod, decision):
                await self._bind(path, pod, decision, decision.notes)
            else:
                async with self._turn(held.node):
                    marked = await self._annotate(path, decision)
                    await self._bind(path, marked, decision, {})
        except (ApiError, NoAnswer, BindOutcomeUnknown) as error:
            return await self._after(path, held, error)
        except UsageError as error:
            self.cluster_cache.handler.chooser.pool.release(held.uid)
            return error.message
        return ""

    def _turn(self, node: str) -> asyncio.Lock:
        """Of a node, first come first served."""
        return self._turns.setdefault(node, asyncio.Lock())

    async def _annotate(self, path: str, decision: Decision) -> dict[str, Any]:
        """Writing the same marks twice does no harm, so a server that is away for a moment is asked again."""
        body = {"metadata": {"uid": decision.ask.uid, "annotations": dict(decision.notes)}}
        until = time.monotonic() + PATIENCE_S
        while True:
            self._check_leading()
            try:
                return await self.cluster_cache.api.patch(path, body, STRATEGIC)
            except (ApiError, NoAnswer) as error:
                if not _passes(error) or time.monotonic() > until:
                    raise
            await asyncio.sleep(PAUSE_S)

    async def _bind(self, path: str, pod: Json, decision: Decision, notes: Mapping[str, str | None]) -> None:
        """Returns when the pod is bound as decided. Raises Unsure when the outcome is not known, else what prevents it."""
        until, left, unsure = time.monotonic() + PATIENCE_S, TRIES, False
        while True:
            try:
                self._check_leading()
                body = _binding(pod, decision.assignment.node, notes)
                await self.cluster_cache.api.post(f"{path}/binding", body, self.within_s)
                return
            except UsageError as error:
                raise (BindOutcomeUnknown(error.message) if unsure else error) from error
            except (ApiError, NoAnswer) as error:
                conflict = isinstance(error, ApiError) and error.status == 409
                unsure = unsure or _passes(error)
                left -= conflict
                if not left or not (conflict or _passes(error)) or time.monotonic() > until:
                    raise (BindOutcomeUnknown(str(error)) if unsure else error) from error
            if conflict:
                if (found := await self._read_again(path, decision, bool(notes))) is None:
                    return
                pod = found
            else:
                await asyncio.sleep(PAUSE_S)

    async def _read_again(self, path: str, decision: Decision, unmarked: bool) -> Json | None:
        """The pod as it is now, None when it is bound as decided. ``unmarked``: it must have no marks yet. Raises Unsure when it
        is not as it was decided on, UsageError when it is gone."""
        held = decision.assignment
        try:
            found = await current_pod(self.cluster_cache.api, path, held.uid)
            says = None if found is None else read_gpu_assignment(validated(found, Pod))
            same = found is not None and _wants(found) == (decision.ask.units, decision.ask.count)
        except TideError as error:
            raise BindOutcomeUnknown(str(error)) from error
        if found is None:
            raise UsageError("the pod is gone, or another has its name")
        ours = _agree(says, held)
        if there := bound_to(found):
            self.cluster_cache.settle_read(held.uid, says)
            if ours:
                return None
            raise BindOutcomeUnknown(f"the pod was bound to {there} by another program")
        if not same or (_brings(found, decision) if unmarked else not ours):
            raise BindOutcomeUnknown("the pod's annotations or requests were changed meanwhile")
        return found

    async def _after(self, path: str, held: GpuAssignment, error: TideError) -> str:
        """It did not happen, or that is not known: then the pod is touched, so that what is still on its way fails. The GPU is
        free again once that is done; else it stays reserved until the sweep has seen to it."""
        stays = f"{error}; the GPU stays reserved for the next try"
        try:
            found = await current_pod(self.cluster_cache.api, path, held.uid)
            if found is not None and bound_to(found):
                says = read_gpu_assignment(validated(found, Pod))
                self.cluster_cache.settle_read(held.uid, says)
                return "" if _agree(says, held) else str(error)
            if found is not None and (_unknown(error) or read_gpu_assignment(validated(found, Pod)) is not None):
                if not self.may_act():
                    return stays  # the marks may be those of the replica that leads now
                await strip(self.cluster_cache.api, path, found)
        except TideError as second:
            if not (isinstance(second, ApiError) and second.status == 404):
                return stays
        self.cluster_cache.handler.chooser.pool.release(held.uid)
        return str(error)

    def _check_leading(self) -> None:
        if not self.may_act():
            raise UsageError("this replica does not lead (any more)", "the scheduler tries again")


def _binding(pod: Json, node: str, notes: Mapping[str, str | None]) -> dict[str, Any]:
    """``notes`` that are None are left out: a binding can only add."""
    meta = {key: pod["metadata"].get(key) for key in ("name", "namespace", "uid", "resourceVersion")}
    if notes:
        meta["annotations"] = {key: text for key, text in notes.items() if text is not None}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}


def _brings(pod: Json, decision: Decision) -> bool:
    """Whether the pod has marks already, its own or of a bind that failed: they are written over by a patch, which can take
    some away, too."""
    return any(key in annotations_of(pod) for key in decision.notes)


def _agree(says: GpuAssignment | None, held: GpuAssignment) -> bool:
    """Whether a pod's annotations are what was decided for it."""
    return says is not None and (says.node, says.units) == (held.node, held.units)


def _passes(error: TideError) -> bool:
    """Whether it may be done, or will be when it is asked again."""
    return isinstance(error, NoAnswer) or (isinstance(error, ApiError) and error.status not in DEFINITE)


def _unknown(error: TideError) -> bool:
    return isinstance(error, BindOutcomeUnknown) or _passes(error)


def _wants(pod: Json) -> tuple[int, int]:
    """Units per GPU, and GPUs. Raises UsageError."""
    ask = read_pod_request(validated(pod, Pod))
    return ask.units, ask.count


def _word(args: Json, key: str) -> str:
    found = pick(args, key)
    if not isinstance(found, str) or not found or "/" in found:
        raise UsageError(f"{key} is {found!r}", "send what kube-scheduler sends")
    return found
