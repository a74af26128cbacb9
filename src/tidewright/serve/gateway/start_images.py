"""Replicas that become the image from which further ones of their service start: chosen here, taken by the controller."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from ...base.units import SECOND
from ...wire.services import ServiceView
from ..replica.link import ReplicaHello
from .replica_link import ReplicaLink

log = logging.getLogger("tidewright.gateway")
ASKED_US = 5 * SECOND
"""For so long after one replica was asked no other is; the controller's list says meanwhile what came of it."""


class StartImages:
    """``known``: services as the controller last listed them. ``take`` asks the controller for the image of a replica, which must
    have no connection by then: none can be saved."""

    def __init__(
        self,
        known: Callable[[str], ServiceView | None],
        take: Callable[[ReplicaHello], Coroutine[None, None, None]],
        clock: Callable[[], int],
    ) -> None:
        self._known, self._take, self._clock = known, take, clock
        self._asked: dict[str, tuple[int, int]] = {}
        """By service: the job that was last asked, and when."""
        self._chosen: dict[ReplicaLink, bool] = {}

    def choose(self, link: ReplicaLink) -> bool:
        """Whether a replica that is ready is to become the image: it closes its connection, and is none of the pool."""
        hello = link.hello
        if not hello.offers_image or not self._wanted(hello):
            return False
        self._asked[hello.options.service] = hello.job, self._clock()
        self._chosen[link] = True
        link.become_image()
        return True

    def _wanted(self, hello: ReplicaHello) -> bool:
        name = hello.options.service
        view, (job, at) = self._known(name), self._asked.get(name, (0, 0))
        if view is not None and view.image != "wanted":
            return view.image == "making" and view.image_job == hello.job
        return not job or job == hello.job or self._clock() - at > ASKED_US

    def closed(self, link: ReplicaLink) -> bool:
        """Whether a connection that has ended was that of a chosen replica, which can be saved now."""
        if self._chosen.pop(link, None) is None:
            return False
        hello = link.hello
        view = self._known(hello.options.service)
        if view is None or view.image != "making":
            log.info("%s: job %d is to be the image that further replicas start from", hello.options.service, hello.job)
            task = asyncio.ensure_future(self._take(hello))
            task.add_done_callback(lambda done: done.exception())
        return True
