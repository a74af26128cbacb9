"""The reports of all nodes of one attempt, aggregated into one event for the engine, or into none while they differ."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from ...engine.events import Event, Exited, Resumed, Started, StartFailed, Suspended
from ...model.cause import Code
from ...model.failure import RankFailure
from ...model.job import State
from ...wire import agent as wire

GONE = ("exited", "failed")
"""Phases after which nothing of an attempt is left on a node."""


def failed(report: wire.JobReport, verb: str) -> bool:
    """Whether the request was refused or failed there, with the ranks as they were."""
    return report.verb == verb and bool(report.error) and report.state not in GONE


def torn(reports: Collection[wire.JobReport]) -> bool:
    """Whether a suspension cannot succeed on all nodes: one refused it, or some of the ranks have ended normally."""
    if all(one.state in GONE for one in reports):
        return False
    return any(failed(one, "suspend") or (one.state == "exited" and not dead(one)) for one in reports)


def stays(report: wire.JobReport) -> bool:
    """Whether ranks run that were to be suspended: the suspension failed, or was undone."""
    return report.state == "running" and report.verb in ("suspend", "resume")


def stopped_before(report: wire.JobReport) -> bool:
    """Whether what an attempt had there was stopped, and no rank of it had failed: its resumption had failed elsewhere."""
    return report.state in GONE and report.verb == "stop" and report.first_failure is None and not report.lost


def dead(report: wire.JobReport) -> bool:
    """Whether a rank there has ended in a way after which the others cannot continue."""
    if report.first_failure is not None or report.state == "failed":
        return True
    return report.state == "exited" and bool(report.code or report.lost)


def aggregate(
    report: wire.JobReport, reports: list[wire.JobReport], state: State, serial: int, ranks: int
) -> Event | None:
    """The event that all nodes' reports together amount to, or None while some differ."""
    job, attempt = report.job, report.attempt
    states = {one.state for one in reports}
    took = max(one.took_us for one in reports)
    unstarted = [one for one in reports if one.state == "failed"]
    if states == {"failed"} or (unstarted and states <= {"exited", "failed"} and state is State.STARTING):
        first = next((one for one in unstarted if one.fault == "user"), unstarted[0])
        lost = any(one.image is not None and one.image.lost for one in unstarted)
        why = first.error or first.why or Code.NOT_STARTED()
        return StartFailed(job, attempt, why, first.fault or "world", lost)
    if states <= {"exited", "failed"}:
        return _exited(job, attempt, reports, ranks)
    if states == {"suspended"} and state is State.SUSPENDING:
        return _suspended(job, attempt, reports, took, serial)
    if states == {"running"}:
        if state is State.RESUMING:
            return Resumed(job, attempt, took)
        return Started(job, attempt) if state is State.STARTING else None
    return None


def _exited(job: int, attempt: int, reports: list[wire.JobReport], ranks: int) -> Exited:
    """What a rank did of itself counts, not what was done to the others for it; of several, the first."""
    ended = next((one for one in reports if one.fault == "user" and one.state == "exited"), None)
    if ended is not None:
        return Exited(job, attempt, ended.code, why=ended.why, own=True)
    first = cause(reports)
    if first is not None and not any(one.lost for one in reports):
        why = Code.OUT_OF_MEMORY(first.rank, first.memory_limit) if first.memory_limit else None
        return Exited(job, attempt, first.code, why=why or in_words(first, ranks, len(reports)), failure=first)
    worst = max(reports, key=lambda one: (one.lost, one.first_failure is not None, one.code))
    code = worst.code or (127 if any(one.state == "failed" for one in reports) else 0)
    return Exited(job, attempt, code, any(one.lost for one in reports), worst.why or worst.error, first)


def in_words(failure: RankFailure, ranks: int, nodes: int) -> str:
    """How a rank failed, as far as it takes to say which."""
    where = f" on {failure.node}" if failure.node and nodes > 1 else ""
    return f"rank {failure.rank}{where}: {failure.why}" if ranks > 1 else failure.why


def cause(reports: Iterable[wire.JobReport]) -> RankFailure | None:
    """The rank that failed first, over all nodes."""
    failures = [one.first_failure for one in reports if one.first_failure is not None]
    return min(failures, key=lambda one: one.ended or math.inf, default=None)


def _suspended(job: int, attempt: int, reports: list[wire.JobReport], took: int, serial: int) -> Suspended | None:
    images = [one.image for one in reports if one.image is not None]
    if not serial:
        return Suspended(job, attempt, took)
    if any(image.serial != serial for image in images):
        return None
    return Suspended(job, attempt, took, serial, sum(image.size_bytes for image in images))


def node_to_blame(event: StartFailed, reports: Mapping[str, wire.JobReport]) -> str:
    """The node that an attempt could not be started on."""
    unstarted = [
        node for node, one in reports.items() if one.state == "failed" and (one.fault or "world") == event.fault
    ]
    return unstarted[0] if unstarted else ""


class ReportedLimits(NamedTuple):
    """How far a job is held to its shares of a device's memory and compute, and its ranks to those of their hosts, in words."""

    memory: str = ""
    share: str = ""
    host: str = ""


def limits_of(reports: list[wire.JobReport]) -> ReportedLimits:
    """Of one attempt's reports, a node each: of what several agents say of their hosts the longest."""
    memory = next((one.memory_limit for one in reports if one.memory_limit), "")
    share = next((one.share_limits for one in reports if one.share_limits), "")
    return ReportedLimits(memory, share, max((one.host_limits for one in reports), key=len, default=""))
