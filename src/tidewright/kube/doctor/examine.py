"""``tide kube doctor``: every check over what was listed, in the order in which one would look. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..client.api import NODES, PODS
from ..client.timestamps import CDI_FROM, release
from .elections import deployments, leaders
from .facts import BAD, DRA, NOTE, OK, SERVICE_ACCOUNT, CheckResult, ClusterFacts, role_of, some
from .nodes import leftovers, nodes, overcommitted, units
from .pods import bypassed, handed_over, stale, stuck, unanswered, unscheduled
from .scheduler import extender, plugin, scheduler

OLDEST = (1, 26)
"""The extender's configuration v1 is in all versions from here on."""


def examine(facts: ClusterFacts) -> list[CheckResult]:
    """All findings. Nothing is changed. What could not be listed is not taken for empty."""
    chosen = (check for check in CHECKS if all(map(facts.listed, NEEDS.get(check, ()))))
    return [finding for check in chosen for finding in check(facts)]


def version(facts: ClusterFacts) -> Iterator[CheckResult]:
    """Whether the API server is new enough."""
    text = str(facts.version.get("gitVersion", ""))
    number = release(text)
    if number == (0, 0):
        yield CheckResult("version", NOTE, f"the API server calls itself {text!r}", "it should be 1.26 or later")
        return
    if number < OLDEST:
        yield CheckResult("version", BAD, f"Kubernetes {text} is too old", "upgrade to 1.26 or later")
    elif number < CDI_FROM:
        remedy = "before 1.29 the device plugin matches containers with pods by size (--binding match)"
        yield CheckResult(
            "version", NOTE, f"Kubernetes {text}: the kubelet does not take CDI devices from plugins", remedy
        )
    else:
        yield CheckResult("version", OK, f"Kubernetes {text}")


def rights(facts: ClusterFacts) -> Iterator[CheckResult]:
    """Whether each account may do what its program does, and whether everything could be looked at."""
    for account, reviewed in facts.reviews.items():
        who = account.removeprefix(SERVICE_ACCOUNT).replace(":", "/") or "this account"
        role = role_of(account)
        missing = [str(right) for right, granted in sorted(reviewed.items()) if not granted]
        if missing:
            remedy = f"apply deploy/kubernetes/{role.manifest} again: a binding or a role is gone"
            if not account:
                remedy = f"bind the roles of deploy/kubernetes/{role.manifest} to it"
            yield CheckResult("rights", BAD, f"{who} may not: {some(missing, 20)}", remedy)
        elif reviewed:
            yield CheckResult("rights", OK, f"{who} may do all {len(reviewed)} things that {role.program} does")
    if facts.unread:
        text = f"not looked at: {some(facts.unread, 20)}"
        yield CheckResult("rights", NOTE, text, "run this again as an account that may read it")


def dra(facts: ClusterFacts) -> Iterator[CheckResult]:
    """Dynamic Resource Allocation: nothing here needs it, but it says what this cluster could do."""
    found = facts.groups.get(DRA, ())
    if "v1" in found:
        yield CheckResult("dra", OK, f"{DRA}/v1 is served; gpu-mem does not use it, both work side by side")
    elif found:
        yield CheckResult("dra", OK, f"{DRA} is served as {some(found)} only; v1 comes with Kubernetes 1.34")
    else:
        yield CheckResult("dra", OK, f"{DRA} is not served; gpu-mem does not need it")


CHECKS: tuple[Callable[[ClusterFacts], Iterator[CheckResult]], ...] = (
    version, rights, dra, extender, plugin, scheduler, deployments, leaders, nodes, units, leftovers, overcommitted,
    unscheduled, unanswered, bypassed, stale, handed_over, stuck,
)  # fmt: skip
NEEDS: dict[Callable[[ClusterFacts], Iterator[CheckResult]], tuple[str, ...]] = {
    extender: (PODS,), plugin: (NODES, PODS), nodes: (NODES,), units: (NODES,), overcommitted: (NODES, PODS), bypassed: (PODS,),
}  # fmt: skip
"""Lists without which a check says nothing: an empty one is a finding of theirs."""
