"""A controller in a thread, around an agent that the test plays."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from tidewright.base.units import MS
from tidewright.engine.settings import live_settings
from tidewright.estimate.learnt_rates import RateHistory
from tidewright.live.controller.main import Controller, ControllerSettings
from tidewright.testing.explainer import ThreadExplainer
from tidewright.wire.client import Client

from .fakes import FakeFabric, FirstFit

HASTY = msgspec.structs.replace(live_settings(), planning_retry_us=100 * MS)
"""So soon after a planner failed it is asked again."""


class Running:
    """A controller in a thread of its own, with its agent in the test."""

    def __init__(
        self, state: Path, fabric: FakeFabric, listen: str = "", policy: object = None, **more: object
    ) -> None:
        self.state, self.fabric = state, fabric
        self.error: BaseException | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        planner = policy or FirstFit()
        self.settings = ControllerSettings(
            state=state, planner=planner, explainer=lambda: ThreadExplainer(planner), fabric=lambda: fabric,  # type: ignore[arg-type]
            policy="first-fit", version="0", listen=listen, reserve_bytes=65536,
            run_as="nobody" if listen and not os.geteuid() else "", **{"rate_learner": RateHistory, "engine": HASTY, **more},  # type: ignore[arg-type]
        )  # fmt: skip
        self.controller: Controller | None = None
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        async def serve() -> None:
            self.loop = asyncio.get_running_loop()
            # Signals belong to the main thread.
            self.loop.add_signal_handler = lambda *_: None  # type: ignore[method-assign]
            self.controller = Controller(self.settings)
            task = asyncio.create_task(self.controller.serve())
            ready = asyncio.create_task(self.controller.ready.wait())
            await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self._up.set()
            ready.cancel()
            await task

        try:
            asyncio.run(serve())
        except BaseException as error:
            self.error = error
            self._up.set()

    def __enter__(self) -> Running:
        self._thread.start()
        self._up.wait(20)
        if self.error is not None:
            self._thread.join(20)
            raise self.error
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            with Client(self.state) as client:
                client.shutdown()
        self._thread.join(20)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def soon(self, work: Callable[[], object]) -> None:
        """Run in the controller's loop."""
        assert self.loop is not None
        self.loop.call_soon_threadsafe(work)

    def client(self) -> Client:
        return Client(self.state, timeout=10)
