"""The rendezvous coordinator as a machine: for which generation the keys of each job are, and whether its endpoint is open.

A *generation* is the request by which a gang's ranks start or come back from images; it is the same on all its nodes. The
node of rank 0 *hosts*: it puts the keys back (or resets them) once for each generation, and its endpoint is open for that
generation only then. What ranks on other nodes write from then on is never overwritten.

| event | when | action |
|---|---|---|
| GenerationRestored | this node hosts; not known which generation, or no node joins, or the keys are for another | LoadKeys |
| GenerationLaunched | this node hosts; the keys are for another generation | LoadKeys, none |
| GenerationAdopted | this node hosts, and ranks of it may run | OpenKeys |
| | and they have come, but the keys do not say for what | OpenKeys, NameGeneration |
| GenerationFailed | | none; its endpoint says so from now on |
| JobLeft | | CloseKeys |
| EndpointPolled | for a generation that failed | RefuseEndpoint |
| | for another generation than the keys are for | HideEndpoint |
| | else, for a node that knows the job's token alone | NameGeneration, OpenKeys, ShowEndpoint |
| | else | OpenKeys, ShowEndpoint |

Any other event has no action. Pure: what the keys are for (``held``) is an argument, because they outlive this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct


class GenerationRestored(Struct, frozen=True):
    """Ranks come back from images. ``keys``: as the image of the first has them. ``on_one_node``: no rank is on another node."""

    job: int
    generation: str
    hosts: bool
    on_one_node: bool
    held: str
    keys: str


class GenerationLaunched(Struct, frozen=True):
    """Ranks start from the beginning."""

    job: int
    generation: str
    hosts: bool
    held: str


class GenerationAdopted(Struct, frozen=True):
    """An agent has found ranks that an earlier one left. ``settled``: they neither start nor come back just now."""

    job: int
    generation: str
    hosts: bool
    present: bool
    settled: bool
    held: str


class GenerationFailed(Struct, frozen=True):
    """The ranks here could not be restored."""

    job: int
    generation: str
    reason: str


class JobLeft(Struct, frozen=True):
    """No ranks of the job are here any more."""

    job: int


class EndpointPolled(Struct, frozen=True):
    """Another node asks for the endpoint; ``generation`` is empty when any will do. ``old``: it is of a version that knows
    the token of the job alone, and ``own_token`` says that this does not open the keys."""

    job: int
    generation: str
    held: str
    old: bool = False
    own_token: bool = False


class OpenKeys(Struct, frozen=True):
    """Ranks of the job may connect."""

    job: int


class LoadKeys(Struct, frozen=True):
    """Replace the keys, by none when there are no ``keys``, and cut off ranks that are connected."""

    job: int
    generation: str
    keys: str = ""


class NameGeneration(Struct, frozen=True):
    """The keys are for this generation, and the token of the job opens them, too."""

    job: int
    generation: str


class CloseKeys(Struct, frozen=True):
    """Forget the keys."""

    job: int


class ShowEndpoint(Struct, frozen=True):
    """Answer with the port."""


class HideEndpoint(Struct, frozen=True):
    """Answer that it is not open yet."""


class RefuseEndpoint(Struct, frozen=True):
    """Answer that it will not open for this generation."""

    job: int
    reason: str


Event = GenerationRestored | GenerationLaunched | GenerationAdopted | GenerationFailed | JobLeft | EndpointPolled
Action = OpenKeys | LoadKeys | NameGeneration | CloseKeys | ShowEndpoint | HideEndpoint | RefuseEndpoint


class GenerationMachine:
    """See the table above."""

    def __init__(self) -> None:
        self._failed: dict[int, tuple[str, str]] = {}
        """Generations that this node could not prepare, and why, by job."""
        self._handlers: dict[type, Callable[[Any], tuple[Action, ...]]] = {
            GenerationRestored: self._restored,
            GenerationLaunched: self._launched,
            GenerationAdopted: self._adopted,
            GenerationFailed: self._restore_failed,
            JobLeft: self._left,
            EndpointPolled: self._polled,
        }

    def step(self, event: Event) -> tuple[Action, ...]:
        """What is to be done now, in this order."""
        return self._handlers[type(event)](event)

    def _restored(self, event: GenerationRestored) -> tuple[Action, ...]:
        # Ranks that no node joins may come back twice by one request, when an agent is killed. What they wrote in between
        # must not be there then: their requests are counted from the image on.
        again = event.generation and not event.on_one_node and event.held == event.generation
        return (LoadKeys(event.job, event.generation, event.keys),) if event.hosts and not again else ()

    def _launched(self, event: GenerationLaunched) -> tuple[Action, ...]:
        # The same request again, after an agent was killed: ranks may have written something themselves.
        return (LoadKeys(event.job, event.generation),) if event.hosts and event.held != event.generation else ()

    def _adopted(self, event: GenerationAdopted) -> tuple[Action, ...]:
        if not event.hosts or not event.present:
            return ()
        # Of what was here nothing may be known any more (a full disk). Ranks that have come back still use it.
        lost = event.settled and not event.held
        return (OpenKeys(event.job), *([NameGeneration(event.job, event.generation)] if lost else ()))

    def _restore_failed(self, event: GenerationFailed) -> tuple[Action, ...]:
        self._failed[event.job] = event.generation, event.reason
        return ()

    def _left(self, event: JobLeft) -> tuple[Action, ...]:
        self._failed.pop(event.job, None)
        return (CloseKeys(event.job),)

    def _polled(self, event: EndpointPolled) -> tuple[Action, ...]:
        failed, reason = self._failed.get(event.job, ("", ""))
        if event.generation and failed == event.generation:
            return (RefuseEndpoint(event.job, reason),)
        if event.generation and event.held != event.generation:
            return (HideEndpoint(),)
        share = (NameGeneration(event.job, event.held),) if event.old and event.own_token else ()
        return (*share, OpenKeys(event.job), ShowEndpoint())
