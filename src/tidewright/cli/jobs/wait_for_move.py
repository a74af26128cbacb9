"""Waiting until a job that was moved or resized runs again as it should, or until it is clear that it will not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...base.errors import Conflict
from ...wire.api import FINAL_STATES, JobView
from .. import output as out
from ..progress import progress

if TYPE_CHECKING:
    from ...wire.client import Client

POLL_S = 0.1


def until(
    client: Client, job: int, before: JobView, right: Callable[[JobView], bool], timeout: float | None
) -> JobView | None:
    """The job once it runs as it should; None when time is up first. Raises Conflict when it will not."""
    deadline = None if timeout is None else time.monotonic() + timeout
    with progress(f"job {job}") as bar:
        while True:
            view = client.job(job)
            if view.state == "running" and right(view):
                return view
            _look(job, before, view)
            if deadline is not None and time.monotonic() > deadline:
                out.note(f"job {job} is still {view.state}: {view.why}")
                return None
            bar.update()
            time.sleep(POLL_S)


def _look(job: int, before: JobView, view: JobView) -> None:
    if view.state in FINAL_STATES:
        raise Conflict(f"job {job} has ended meanwhile ({view.state}: {view.why})", f"see tide show {job}")
    if view.state == "running" and view.since > before.since:
        raise Conflict(
            f"job {job} runs, but not as asked: {view.why}", f"see its story with tide show {job}, try again"
        )
