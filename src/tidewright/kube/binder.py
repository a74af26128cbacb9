"""The bind verb: reserve, annotate, bind; and what to do when any of the three has no answer.

No two pods can get one GPU: a choice is made and reserved in one step of the event loop, before anything is awaited, and
only by the replica that holds the Lease. The binding carries the resourceVersion that our own annotation produced, so
whoever takes the annotations off again (a successor, or we) makes a binding that is still on its way fail.
Source: Kubernetes ``BindingREST`` honours ``metadata.uid`` and ``metadata.resourceVersion`` as preconditions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..base.errors import TideError, UsageError
from .api import STRATEGIC, ApiError, NoAnswer
from .ask import Json, bound_to, holding_of
from .shapes import Pod, shaped
from .site import Site, current_pod, pod_path, strip
from .verbs import Decision, pick

PATIENCE_S = 5.0
"""Within kube-scheduler's time limit for an extender (5 s by default, 10 s in our manifests)."""
PAUSE_S = 0.3
TRIES = 3
"""Somebody else's change of the pod (a label, a status) between annotating and binding makes the binding fail once."""


class Binder:
    """``may_act``: whether this replica still leads, asked before every write."""

    def __init__(self, site: Site, may_act: Callable[[], bool], now_ns: Callable[[], int] = time.time_ns) -> None:
        self.site, self.may_act, self.now_ns = site, may_act, now_ns

    async def bind(self, args: Json) -> str:
        """Empty when the pod is bound, else why not, for ExtenderBindingResult. Raises UsageError for a senseless body."""
        name, namespace, uid, node = (_word(args, key) for key in ("PodName", "PodNamespace", "PodUID", "Node"))
        path = pod_path(namespace, name)
        try:
            pod = await self._pod(path, uid)
            if there := bound_to(pod):
                return "" if there == node else f"the pod is bound to {there}"
            self._check_leading()
            decision = self.site.desk.decide(pod, node, self.site.clock(), self.now_ns())
        except UsageError as error:
            return error.message
        except TideError as error:
            return str(error)
        self.site.binding.add(uid)
        try:
            return await self._carry_out(path, uid, node, decision)
        finally:
            self.site.binding.discard(uid)

    async def _carry_out(self, path: str, uid: str, node: str, decision: Decision) -> str:
        try:
            marked = await self._annotate(path, uid, decision)
            bound = bound_to(marked)
            if not bound:
                await self._bind(path, uid, node, marked)
            elif bound != node:
                raise UsageError(f"the pod was bound to {bound} meanwhile")
        except NoAnswer as error:
            return await self._after_silence(path, uid, node, str(error))
        except ApiError as error:
            return await self._after_refusal(path, uid, error)
        except UsageError as error:
            self.site.desk.chooser.pool.release(uid)
            return error.message
        return ""

    async def _pod(self, path: str, uid: str) -> Json:
        known = self.site.pod(uid) or await current_pod(self.site.api, path, uid)
        if known is None:
            raise UsageError("the pod is gone, or another has its name")
        return shaped(known, Pod)

    async def _annotate(self, path: str, uid: str, decision: Decision) -> dict[str, Any]:
        """Writing the same marks twice does no harm, so a server that is away for a moment is asked again."""
        body = {"metadata": {"uid": uid, "annotations": dict(decision.notes)}}
        until = time.monotonic() + PATIENCE_S
        while True:
            self._check_leading()
            try:
                return await self.site.api.patch(path, body, STRATEGIC)
            except TideError as error:
                passing = isinstance(error, NoAnswer) or (
                    isinstance(error, ApiError) and error.status in (429, 500, 503, 504)
                )
                if not passing or time.monotonic() > until:
                    raise
            await asyncio.sleep(PAUSE_S)

    async def _bind(self, path: str, uid: str, node: str, marked: dict[str, Any]) -> None:
        for left in reversed(range(TRIES)):
            self._check_leading()
            meta = {key: marked["metadata"].get(key) for key in ("name", "namespace", "uid", "resourceVersion")}
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
            try:
                await self.site.api.post(f"{path}/binding", body)
                return
            except ApiError as error:
                if error.status != 409:
                    raise
                marked = await self.site.api.get(path)
                if marked["metadata"].get("uid") == uid and bound_to(marked) == node:
                    return
                if not left or not self._still_marked(marked, uid):
                    raise

    def _still_marked(self, pod: dict[str, Any], uid: str) -> bool:
        """Whether the pod still shows what is reserved for it, and is still to be bound."""
        held = holding_of(pod)
        ours = self.site.desk.chooser.pool.held.get(uid)
        return bool(
            held and ours and not held.bound and (held.uid, held.node, held.units) == (uid, ours.node, dict(ours.units))
        )

    async def _after_silence(self, path: str, uid: str, node: str, why: str) -> str:
        """It may have happened. The GPU stays reserved until the pod tells; the scheduler's next try gets the same one."""
        with suppress(TideError):
            found = await current_pod(self.site.api, path, uid)
            if found is not None and bound_to(found) == node:
                return ""
        return f"{why}; the GPU stays reserved for the next try"

    async def _after_refusal(self, path: str, uid: str, error: ApiError) -> str:
        """It did not happen. The GPU is free again once the marks are off the pod; else the sweep takes them off later."""
        try:
            found = await current_pod(self.site.api, path, uid)
            if found is not None and bound_to(found):
                return str(error)
            if found is not None:
                await strip(self.site.api, path, found)
        except TideError as second:
            if not (isinstance(second, ApiError) and second.status == 404):
                return str(error)
        self.site.desk.chooser.pool.release(uid)
        return str(error)

    def _check_leading(self) -> None:
        if not self.may_act():
            raise UsageError("this replica does not lead (any more)", "the scheduler tries again")


def _word(args: Json, key: str) -> str:
    found = pick(args, key)
    if not isinstance(found, str) or not found or "/" in found:
        raise UsageError(f"{key} is {found!r}", "send what kube-scheduler sends")
    return found
