"""Whether each scheduler holds its Lease, and whether the Deployments of schedulers and webhook have ready pods. Pure.

Source: client-go ``leaderelection``, which renews every 2 s. A Lease's time is that of its holder's clock, so one that looks old,
or lies in the future, is looked at twice: what was renewed in between is held, whatever the clocks say.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...base.units import counted
from ..client import timestamps
from ..objects.metadata import Json
from .facts import BAD, NOTE, OK, SYSTEM, CheckResult, ClusterFacts, is_ours
from .scheduler_config import OWN_LEASE, Configuration, configurations, mounted_maps

EXTENDER_LEASE = (SYSTEM, "tidewright-extender")
"""Of the extender's pods the ready one leads; this is for an extender that runs elsewhere."""
STARTING_S = 60.0
"""A scheduler's first probe comes 10 s after its start."""
LOOK_AGAIN_S = 5.0
"""Longer than any scheduler or extender waits before it renews."""


def elections(facts: ClusterFacts) -> dict[tuple[str, str], str]:
    """Namespace and name of each Lease that matters, and who should lead by it."""
    found = {OWN_LEASE: "the cluster's own scheduler", EXTENDER_LEASE: "the extender"}
    return found | configured(facts)


def configured(facts: ClusterFacts) -> dict[tuple[str, str], str]:
    """The Leases of schedulers whose configuration is known, and who they are."""
    found = {}
    for config in in_use(facts):
        if (lease := config.lease()) is not None:
            found[lease] = f"the scheduler of {config.where}"
    return found


def in_use(facts: ClusterFacts) -> list[Configuration]:
    """Those that some pod or Deployment reads; all of them where none does, as something else may hand them on."""
    found = list(configurations(facts.maps))
    mounted = mounted_maps((*facts.pods, *facts.deployments))
    return [config for config in found if config.source in mounted] or found


def looks_old(lease: Json, now_s: float) -> bool:
    """By this machine's clock; a Lease without a holder is never old."""
    spec = lease.get("spec") or {}
    return bool(spec.get("holderIdentity")) and abs(_age_s(spec, now_s)) > _duration_s(spec)


def holder_of(facts: ClusterFacts, key: tuple[str, str]) -> str:
    """Who renews a Lease; empty when no process does."""
    lease = facts.leases.get(key)
    if lease is None or (looks_old(lease, facts.now_s) and key not in facts.renewed):
        return ""
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def leaders(facts: ClusterFacts) -> Iterator[CheckResult]:
    """One finding for each Lease that could be read."""
    for key, who in elections(facts).items():
        if key not in facts.leases or key == EXTENDER_LEASE:
            continue
        lease, title = facts.leases[key], "/".join(key)
        if lease is None:
            yield _absent(key, title, who)
            continue
        spec = lease.get("spec") or {}
        holder = str(spec.get("holderIdentity") or "").partition("_")[0]  # without client-go's random part
        if not holder:
            yield CheckResult("leader", BAD, f"no process holds Lease {title}: {who} does not lead", _remedy(key))
        elif looks_old(lease, facts.now_s) and key not in facts.renewed:
            yield CheckResult("leader", BAD, f"{who} does not lead: {_silent(spec, title, facts.now_s)}", _remedy(key))
        else:
            yield CheckResult("leader", OK, f"{who} leads: {holder} renews Lease {title}")
            yield from _clocks(spec, holder, facts.now_s)


def deployments(facts: ClusterFacts) -> Iterator[CheckResult]:
    """Schedulers and webhook: scaled to nothing, or without a ready pod."""
    maps = {config.source for config in in_use(facts)}
    for found in facts.deployments:
        marks = ((found["spec"].get("template") or {}).get("metadata") or {}).get("labels") or {}
        kind = "webhook" if is_ours(marks, "webhook") else "scheduler"
        if kind == "webhook" or is_ours(marks, "scheduler") or mounted_maps((found,)) & maps:
            yield _deployment(kind, found, facts.now_s)


def _deployment(kind: str, found: Json, now_s: float) -> CheckResult:
    name = found["metadata"]["name"]
    wanted, ready = found["spec"].get("replicas", 1), (found.get("status") or {}).get("readyReplicas") or 0
    if not wanted:
        remedy = f"kubectl -n {SYSTEM} scale deployment {name} --replicas=2"
        return CheckResult(kind, BAD, f"Deployment {SYSTEM}/{name} is scaled to 0", remedy)
    if not ready:
        remedy = f"kubectl -n {SYSTEM} describe deployment {name}, and logs deployment/{name}"
        level = NOTE if _unavailable_s(found, now_s) < STARTING_S else BAD
        return CheckResult(
            kind, level, f"none of the {counted(wanted, 'pod')} of Deployment {SYSTEM}/{name} is ready", remedy
        )
    return CheckResult(kind, OK, f"{ready} of {counted(wanted, 'pod')} of Deployment {SYSTEM}/{name} ready")


def _unavailable_s(found: Json, now_s: float) -> float:
    """Endless where it does not say since when."""
    for one in (found.get("status") or {}).get("conditions") or ():
        if one.get("type") == "Available" and one.get("status") == "False":
            return _since_s(one.get("lastTransitionTime"), now_s)
    return float("inf")


def _absent(key: tuple[str, str], title: str, who: str) -> CheckResult:
    if key == OWN_LEASE:
        text = f"no Lease {title}: the cluster's own scheduler runs without leader election, or elsewhere"
        return CheckResult("leader", NOTE, text, "nothing, as long as pods are scheduled")
    return CheckResult("leader", BAD, f"no Lease {title}: {who} has never led", _remedy(key))


def _remedy(key: tuple[str, str]) -> str:
    if key == OWN_LEASE:
        return (
            f"kubectl -n {SYSTEM} logs -l component=kube-scheduler; delete the Lease if it runs without leader election"
        )
    return f"kubectl -n {key[0]} logs of its pods; its account must be allowed to create, get and update the Lease"


def _silent(spec: Json, title: str, now_s: float) -> str:
    age = _age_s(spec, now_s)
    when = (
        "at no time that can be read"
        if age == float("inf")
        else f"{abs(age):.0f} s {'ago' if age > 0 else 'ahead'} by this machine's clock"
    )
    return f"Lease {title} was renewed {when}, and not while this was looking ({LOOK_AGAIN_S:.0f} s)"


def _clocks(spec: Json, holder: str, now_s: float) -> Iterator[CheckResult]:
    if abs(age := _age_s(spec, now_s)) > _duration_s(spec):
        text = f"the clocks of {holder} and of this machine differ by about {abs(age):.0f} s"
        yield CheckResult("leader", NOTE, text, "set the clocks; the ages in this report are by this machine's clock")


def _age_s(spec: Json, now_s: float) -> float:
    return _since_s(spec.get("renewTime"), now_s)


def _since_s(stamp: object, now_s: float) -> float:
    """Endless where it does not say."""
    try:
        return now_s - timestamps.seconds(str(stamp or ""))
    except ValueError:
        return float("inf")


def _duration_s(spec: Json) -> float:
    return float(spec.get("leaseDurationSeconds") or 15)
