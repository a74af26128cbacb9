"""Starting ranks."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from .actions import ActionFailed, SpawnRanks, WatchRanks, WriteEndpoints
from .attempt import AttemptState
from .cuts import release
from .ending import end_all
from .outcomes import RankOutcome
from .restoring import restore
from .scripts import Script

NO_IMAGES = "this node cannot restore full images"


def launch(state: AttemptState, *, images: bool) -> Script:
    """Start every rank that has not been; ``running`` is reported before any of their ends. ``images``: the node restores."""
    record = state.record
    if not state.args.image:
        yield from write_endpoints(state, record.rendezvous_generation, reset=True)
        state.outcomes.update((yield SpawnRanks()))
    elif why := (yield from restore(state)) if images else NO_IMAGES:
        state.outcomes.update(dict.fromkeys(state.numbers, RankOutcome(127, error=why, fault="world")))
    else:
        yield from release(state)
    failed = any(outcome.error for outcome in state.outcomes.values())
    if record.phase == "starting" and not failed:
        state.update(phase="running", verb="launch", whole=0)
    state.emit(WatchRanks(state.living()))
    if record.phase == "starting":
        yield from end_all(state)


def write_endpoints(state: AttemptState, generation: str = "", *, reset: bool = False) -> Generator[Any, Any, None]:
    """As ``WriteEndpoints``, for ranks that can do without each other."""
    try:
        yield WriteEndpoints(generation, reset)
    except ActionFailed as error:
        state.log("warning", f"the rendezvous is not available to its ranks: {error}")
