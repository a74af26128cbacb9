"""One writer at a time: a Lease that is held, renewed, lost. Of several replicas one leads, the others stand by.

Source: coordination.k8s.io/v1 Lease; client-go ``leaderelection``. As there, a candidate trusts only its own clock: a lease
counts as run out when its record has not changed for its whole duration *as seen here*, whatever the times in it say. The
holder stops acting ``MARGIN`` before its term ends by its own clock, so the two terms never overlap while clocks run at
about the same pace.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ...base.errors import TideError
from . import timestamps
from .api import ApiError, KubeClient

DURATION_S = 15
RENEW_S = 3.0
MARGIN_S = 5.0
"""Before the end of the term nothing new is begun; more than the longest request that is under way may take."""


class Lease:
    """``who``: this replica. ``term``: grows with each change of holder, from ``leaseTransitions``."""

    def __init__(
        self, api: KubeClient, namespace: str, name: str, who: str, duration_s: int = DURATION_S, renew_s: float = RENEW_S,
        margin_s: float = MARGIN_S, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.api, self.who, self.duration_s, self.renew_s, self.margin_s = api, who, duration_s, renew_s, margin_s
        self.term = -1
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name, self._namespace = name, namespace
        self._clock = clock
        self._until_s = float("-inf")
        self._others = False
        self._seen: tuple[str, float] = ("", float("-inf"))

    def holds(self) -> bool:
        """Whether this replica may act now, and for ``margin_s`` more."""
        return self._clock() < self._until_s - self.margin_s

    def others(self) -> bool:
        """Whether another replica was seen to hold it."""
        return self._others

    async def run(self) -> None:
        """Acquire, hold and renew the Lease until cancelled."""
        while True:
            await self.step()
            await asyncio.sleep(self.renew_s * random.uniform(0.8, 1.0))

    async def step(self) -> None:
        """One try to take or renew it."""
        began = self._clock()
        with suppress(TideError):  # the term runs out by itself
            await self._seek(began)

    async def release(self) -> None:
        """On an orderly end, so that a standby need not wait the term out."""
        if self._clock() >= self._until_s:
            return
        self._until_s = float("-inf")
        found = await self.api.get(f"{self._folder}/{self._name}")
        if (found.get("spec") or {}).get("holderIdentity") == self.who:
            spec = {**found["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
            await self.api.put(f"{self._folder}/{self._name}", {**found, "spec": spec})

    async def _seek(self, began: float) -> None:
        try:
            found = await self.api.get(f"{self._folder}/{self._name}")
        except ApiError as error:
            if error.status != 404:
                raise
            self._mine(await self.api.post(self._folder, self._record(0, None)), began)
        else:
            await self._claim(found, began)

    async def _claim(self, found: dict[str, Any], began: float) -> None:
        spec, version = found.get("spec") or {}, str(found["metadata"].get("resourceVersion", ""))
        holder = str(spec.get("holderIdentity") or "")
        if version != self._seen[0]:
            self._seen = (version, began)
        transitions = int(spec.get("leaseTransitions") or 0)
        run_out = began - self._seen[1] >= int(spec.get("leaseDurationSeconds") or self.duration_s)
        if holder not in ("", self.who) and not run_out:
            self._until_s, self._others = float("-inf"), True
            return
        if holder != self.who:
            transitions += 1
        put = await self.api.put(f"{self._folder}/{self._name}", self._record(transitions, version))
        self._mine(put, began)

    def _mine(self, record: dict[str, Any], began: float) -> None:
        """The term runs from before the request was sent."""
        self._until_s, self._others = began + self.duration_s, False
        self.term = int((record.get("spec") or {}).get("leaseTransitions") or 0)
        self._seen = (str(record["metadata"].get("resourceVersion", "")), began)

    def _record(self, transitions: int, version: str | None) -> dict[str, Any]:
        now = timestamps.now()
        meta = {"name": self._name, "namespace": self._namespace, **({"resourceVersion": version} if version else {})}
        spec = {"holderIdentity": self.who, "leaseDurationSeconds": self.duration_s, "renewTime": now,
                "acquireTime": now, "leaseTransitions": transitions}  # fmt: skip
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
