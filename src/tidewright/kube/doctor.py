"""``tide kube doctor``: every check over what was listed, in the order in which one would look. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .api import NODES, PODS
from .doctor_facts import BAD, DRA, NOTE, OK, SERVICE_ACCOUNT, Facts, Finding, role_of, some
from .doctor_leader import deployments, leaders
from .doctor_nodes import leftovers, nodes, overcommitted, units
from .doctor_pods import bypassed, handed_over, stale, stuck, unanswered, unscheduled
from .doctor_scheduler import extender, plugin, scheduler
from .stamps import CDI_FROM, release

OLDEST = (1, 26)
"""The extender's configuration v1 is in all versions from here on."""


def examine(facts: Facts) -> list[Finding]:
    """All findings. Nothing is changed. What could not be listed is not taken for empty."""
    chosen = (check for check in CHECKS if all(map(facts.listed, NEEDS.get(check, ()))))
    return [finding for check in chosen for finding in check(facts)]


def version(facts: Facts) -> Iterator[Finding]:
    """Whether the API server is new enough."""
    text = str(facts.version.get("gitVersion", ""))
    number = release(text)
    if number == (0, 0):
        yield Finding("version", NOTE, f"the API server calls itself {text!r}", "it should be 1.26 or later")
        return
    if number < OLDEST:
        yield Finding("version", BAD, f"Kubernetes {text} is too old", "upgrade to 1.26 or later")
    elif number < CDI_FROM:
        remedy = "before 1.29 the device plugin matches containers with pods by size (--binding match)"
        yield Finding("version", NOTE, f"Kubernetes {text}: the kubelet does not take CDI devices from plugins", remedy)
    else:
        yield Finding("version", OK, f"Kubernetes {text}")


def rights(facts: Facts) -> Iterator[Finding]:
    """Whether each account may do what its program does, and whether everything could be looked at."""
    for account, reviewed in facts.reviews.items():
        who = account.removeprefix(SERVICE_ACCOUNT).replace(":", "/") or "this account"
        role = role_of(account)
        missing = [str(right) for right, granted in sorted(reviewed.items()) if not granted]
        if missing:
            remedy = f"apply deploy/kubernetes/{role.manifest} again: a binding or a role is gone"
            if not account:
                remedy = f"bind the roles of deploy/kubernetes/{role.manifest} to it"
            yield Finding("rights", BAD, f"{who} may not: {some(missing, 20)}", remedy)
        elif reviewed:
            yield Finding("rights", OK, f"{who} may do all {len(reviewed)} things that {role.program} does")
    if facts.unread:
        text = f"not looked at: {some(facts.unread, 20)}"
        yield Finding("rights", NOTE, text, "run this again as an account that may read it")


def dra(facts: Facts) -> Iterator[Finding]:
    """Dynamic Resource Allocation: nothing here needs it, but it says what this cluster could do."""
    found = facts.groups.get(DRA, ())
    if "v1" in found:
        yield Finding("dra", OK, f"{DRA}/v1 is served; gpu-mem does not use it, both work side by side")
    elif found:
        yield Finding("dra", OK, f"{DRA} is served as {some(found)} only; v1 comes with Kubernetes 1.34")
    else:
        yield Finding("dra", OK, f"{DRA} is not served; gpu-mem does not need it")


CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    version, rights, dra, extender, plugin, scheduler, deployments, leaders, nodes, units, leftovers, overcommitted,
    unscheduled, unanswered, bypassed, stale, handed_over, stuck,
)  # fmt: skip
NEEDS: dict[Callable[[Facts], Iterator[Finding]], tuple[str, ...]] = {
    extender: (PODS,), plugin: (NODES, PODS), nodes: (NODES,), units: (NODES,), overcommitted: (NODES, PODS), bypassed: (PODS,),
}  # fmt: skip
"""Lists without which a check says nothing: an empty one is a finding of theirs."""
