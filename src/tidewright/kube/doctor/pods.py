"""Pods that went a wrong way: past the extender, half of it, or into a refusal. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest

from ..client import timestamps
from ..objects import names
from ..objects.metadata import Json, annotations_of, bound_to, phase
from ..objects.pod_request import requests_memory
from .elections import in_use
from .facts import BAD, NOTE, OK, CheckResult, ClusterFacts, some, titles
from .scheduler_config import DEFAULT_SCHEDULER

STALE_S = 300.0
"""A bind takes seconds, the start of a container minutes at most."""
SILENT_S = 60.0
"""A scheduler takes up a new pod within a second."""
EXTENDER_URL = re.compile(r'(?:Post "|with extender at URL )(https?://[^\s",]+)')
"""How kube-scheduler says that an extender could not be reached, or did not answer 200."""
REFUSED = "no-gpu-has-"
"""How gpushare's plugin names the GPU of a container that it could match with no pod."""
REJECTED = "UnexpectedAdmissionError"
"""Reason of a pod that the kubelet refused because of its devices; it never starts again."""


def silent(pods: Iterable[Json], now_s: float) -> list[Json]:
    """Pending pods without a condition of a scheduler, which gives one to each pod that it fails to place."""
    return [
        pod for pod in pods
        if requests_memory(pod) and phase(pod) == "Pending" and not bound_to(pod)
        and not _tried(pod) and _since_made_s(pod, now_s) > SILENT_S
    ]  # fmt: skip


def sample(pods: Iterable[Json], most: int) -> list[Json]:
    """At most ``most`` pods, of each scheduler in turn."""
    queues = list(_by_scheduler(pods).values())
    turns = zip_longest(*queues)
    return [pod for each in turns for pod in each if pod is not None][:most]


def unscheduled(facts: ClusterFacts) -> Iterator[CheckResult]:
    """No scheduler takes them. Only pods whose events were read are judged."""
    waiting = silent(facts.pods, facts.now_s)
    unread = _by_scheduler(pod for pod in waiting if _uid(pod) not in facts.has_events)
    known = {DEFAULT_SCHEDULER, *(name for config in in_use(facts) for name in config.schedulers())}
    eventless = _by_scheduler(pod for pod in waiting if facts.has_events.get(_uid(pod)) is False)
    for name, pods in sorted(eventless.items()):
        text = f"no scheduler takes pods with schedulerName {name}, Pending for over a minute without any event: {titles(pods)}"
        if more := len(unread.get(name, ())):
            text += f" (events of {more} more not read)"
        remedy = "see leader and scheduler above: that scheduler does not run, or does not lead"
        if name not in known:
            remedy = (
                f"no scheduler seen here has this name ({some(sorted(known))} have); recreate the pods with another one"
            )
        yield CheckResult("unscheduled", BAD, text, remedy)


def unanswered(facts: ClusterFacts) -> Iterator[CheckResult]:
    """A scheduler tried them and got no answer from an extender. Also seen where its configuration cannot be read from here."""
    failed: dict[str, list[Json]] = {}
    for pod in facts.ours():
        for text in () if bound_to(pod) else _why_not(pod):
            if found := EXTENDER_URL.search(text):
                failed.setdefault(found[1], []).append(pod)
    for url, pods in sorted(failed.items()):
        remedy = "correct urlPrefix, then restart the scheduler: it reads its configuration only when it starts"
        text = f"{scheduler_of(pods[0])} got no good answer from {url}, so these wait: {titles(pods)}"
        yield CheckResult("unanswered", BAD, text, remedy)


def _by_scheduler(pods: Iterable[Json]) -> Mapping[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    for pod in pods:
        found.setdefault(scheduler_of(pod), []).append(pod)
    return found


def _uid(pod: Json) -> str:
    return str((pod.get("metadata") or {}).get("uid", ""))


def scheduler_of(pod: Json) -> str:
    """By name."""
    return str((pod.get("spec") or {}).get("schedulerName") or DEFAULT_SCHEDULER)


def bypassed(facts: ClusterFacts) -> Iterator[CheckResult]:
    """Bound without our annotations: no scheduler asked the extender, and no GPU was chosen."""
    found = [pod for pod in facts.ours() if bound_to(pod) and not _marked(pod)]
    if not found:
        yield CheckResult("bypassed", OK, "every bound pod with gpu-mem was placed by an extender")
        return
    whose = sorted({scheduler_of(pod) for pod in found})
    text = f"bound without asking the extender, by {', '.join(whose)}: {titles(found)}"
    remedy = "give that scheduler the extender, or give the pods schedulerName: tidewright; then delete and create them again"
    yield CheckResult("bypassed", BAD, text, remedy)


def stale(facts: ClusterFacts) -> Iterator[CheckResult]:
    """Annotated and never bound. Ours takes such marks off again; gpushare leaves them."""
    found = [pod for pod in facts.ours() if not bound_to(pod) and _marked(pod) and _age_s(pod, facts.now_s) > STALE_S]
    if found:
        remedy = "a leading extender takes the marks off by itself; look whether one is ready"
        yield CheckResult(
            "stale", BAD, f"annotated over {STALE_S / 60:.0f} minutes ago, never bound: {titles(found)}", remedy
        )


def handed_over(facts: ClusterFacts) -> Iterator[CheckResult]:
    """Bound, and the node's plugin has not said that it gave the GPU."""
    found = [
        pod for pod in facts.ours()
        if bound_to(pod) and _marked(pod) and annotations_of(pod).get(names.ASSIGNED) == "false"
        and _age_s(pod, facts.now_s) > STALE_S
    ]  # fmt: skip
    waiting = [pod for pod in found if phase(pod) == "Pending"]
    if waiting:
        remedy = "kubectl describe pod shows what it waits for; read the log of the device plugin on its node"
        yield CheckResult(
            "handed over", BAD, f"bound, and still without GPU after 5 minutes: {titles(waiting)}", remedy
        )
    if running := [pod for pod in found if phase(pod) == "Running"]:
        remedy = f"the plugin could not set {names.ASSIGNED} to true: look at its rights to patch pods"
        yield CheckResult("handed over", NOTE, f"run without the plugin's mark: {titles(running)}", remedy)


def stuck(facts: ClusterFacts) -> Iterator[CheckResult]:
    """Refused on the node."""
    asking = [pod for pod in facts.pods if requests_memory(pod)]
    if found := [pod for pod in asking if any(REFUSED in text for text in _messages(pod))]:
        remedy = (
            "gpushare's plugin matched them with no annotated pod; delete them, they are recreated. "
            "Our plugin knows which pod asks (docs/kubernetes-migrate.md)"
        )
        yield CheckResult("stuck", BAD, f"{REFUSED}…-to-run: {titles(found)}", remedy)
    rejected = [pod for pod in asking if (pod.get("status") or {}).get("reason") == REJECTED]
    if rejected:
        remedy = "kubectl describe pod says why; such a pod never starts again: delete it"
        yield CheckResult("stuck", BAD, f"rejected by the kubelet ({REJECTED}): {titles(rejected)}", remedy)


def _marked(pod: Json) -> bool:
    return names.IDX in annotations_of(pod) or names.ALLOCATION in annotations_of(pod)


def _age_s(pod: Json, now_s: float) -> float:
    """Since the annotations were written; endless when they do not say."""
    text = str(annotations_of(pod).get(names.ASSUME_TIME, ""))
    return now_s - int(text) / 1e9 if text.isascii() and text.isdigit() else float("inf")


def _tried(pod: Json) -> bool:
    """A scheduler could not place it, or its gates hold it back."""
    return any(True for _ in _why_not(pod))


def _why_not(pod: Json) -> Iterator[str]:
    """What a scheduler wrote."""
    for one in (pod.get("status") or {}).get("conditions") or ():
        if one.get("type") == "PodScheduled":
            yield str(one.get("message") or "")


def _since_made_s(pod: Json, now_s: float) -> float:
    """Nothing when it does not say."""
    try:
        return now_s - timestamps.seconds(str((pod.get("metadata") or {}).get("creationTimestamp") or ""))
    except ValueError:
        return 0.0


def _messages(pod: Json) -> Iterator[str]:
    """What the kubelet says of its containers."""
    status = pod.get("status") or {}
    yield str(status.get("message") or "")
    for kind in ("initContainerStatuses", "containerStatuses"):
        for one in status.get(kind) or ():
            for when in ("state", "lastState"):
                for state in (one.get(when) or {}).values():
                    yield str((state or {}).get("message") or "")
