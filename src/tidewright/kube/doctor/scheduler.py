"""Who should be running: the extender, the device plugin, and a scheduler that asks the extender. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...base.units import counted
from ..objects import names
from ..objects.metadata import Json, bound_to, labels_of, phase
from .elections import EXTENDER_LEASE, holder_of, in_use
from .extender_target import Problem, target_problems
from .facts import BAD, NOTE, OK, SYSTEM, CheckResult, ClusterFacts, is_extender, is_ours, is_ready, some
from .nodes import LABEL
from .scheduler_config import (
    V1,
    Configuration,
    asked_about_memory,
    configurations,
    managed_resources,
    misnamed,
    only_scores,
)


def extender(facts: ClusterFacts) -> Iterator[CheckResult]:
    """One ready replica: the others stand by and are not ready."""
    found = [pod for pod in facts.pods if is_extender(labels_of(pod)) and _is_there(pod)]
    ready = [pod for pod in found if is_ready(pod)]
    if not found and (off := _scaled_to_nothing(facts)):
        remedy = f"kubectl -n {SYSTEM} scale deployment {off} --replicas=2 (1 for gpushare's)"
        yield CheckResult("extender", BAD, f"Deployment {SYSTEM}/{off} is scaled to 0", remedy)
    elif not found and (holder := holder_of(facts, EXTENDER_LEASE)):
        yield CheckResult("extender", OK, f"one runs outside of the cluster's pods and leads: {holder}")
    elif not found:
        remedy = "kubectl apply -k deploy/kubernetes/overlays/…, or run tide kube extender elsewhere"
        yield CheckResult("extender", BAD, "no pod of an extender in the cluster", remedy)
    elif not ready:
        text = f"{counted(len(found), 'pod')}, none ready: none leads"
        yield CheckResult("extender", BAD, text, "kubectl -n kube-system logs shows what each of them waits for")
    else:
        yield CheckResult(
            "extender", OK, f"{len(ready)} of {counted(len(found), 'pod')} ready (one leads, the others stand by)"
        )
    if found and facts.services is not None and not any(_selects(service, found) for service in facts.services):
        remedy = "apply the overlay again; without it no scheduler finds the one that leads"
        yield CheckResult("extender", BAD, "no Service selects the extender's pods", remedy)


def plugin(facts: ClusterFacts) -> Iterator[CheckResult]:
    """One on every labelled node."""
    found = [pod for pod in facts.pods if _is_plugin(labels_of(pod)) and _is_there(pod)]
    wanted = [str(node["metadata"]["name"]) for node in facts.nodes if labels_of(node).get(LABEL) == "true"]
    missing = [name for name in wanted if not any(bound_to(pod) == name and phase(pod) == "Running" for pod in found)]
    if missing:
        remedy = "kubectl -n kube-system describe daemonset shows why it has no pod there"
        yield CheckResult("plugin", BAD, f"no device plugin runs on {some(missing)}", remedy)
    elif wanted:
        yield CheckResult("plugin", OK, f"runs on {counted(len(wanted), 'node')}, all with {LABEL}=true")
    for name in wanted:
        if sum(bound_to(pod) == name and phase(pod) == "Running" for pod in found) > 1:
            text = f"two device plugins offer {names.MEM} on {name}: the kubelet listens to the one that came last"
            yield CheckResult("plugin", BAD, text, f"take one of the DaemonSets off {name}")


def scheduler(facts: ClusterFacts) -> Iterator[CheckResult]:
    """A scheduler with the extender, as far as its configuration can be read from here."""
    configs = in_use(facts)
    yield from _left_over(facts, configs)
    entries = [
        (config, one) for config in configs for one in config.extenders() if asked_about_memory(one) or misnamed(one)
    ]
    # Two entries with one urlPrefix have its problems once.
    yield from dict.fromkeys(finding for config, one in entries for finding in _entry(facts, config, one))
    if any(not only_scores(one) for _, one in entries):
        return
    files = sorted({path for pod in facts.pods for path in _config_files(pod)})
    if files:
        text = f"a kube-scheduler reads {some(files)}, which cannot be read from here"
        yield CheckResult("scheduler", NOTE, text, f"look there for an extender with managedResources {names.MEM}")
    elif any(labels_of(pod).get("component") == "kube-scheduler" for pod in facts.pods):
        remedy = "docs/kubernetes-install.md: give it the extender, or run a second scheduler"
        yield CheckResult("scheduler", BAD, "kube-scheduler runs without --config, so without the extender", remedy)
    else:
        text = "no scheduler's configuration can be seen from here (a managed control plane hides it)"
        remedy = "if pods are bypassed below, run the second scheduler: deploy/kubernetes/overlays/second-scheduler"
        yield CheckResult("scheduler", NOTE, text, remedy)


def _entry(facts: ClusterFacts, config: Configuration, extender: Json) -> Iterator[CheckResult]:
    problems = [*_problems(config.text, extender), *target_problems(facts, str(extender.get("urlPrefix") or ""))]
    for level, text, remedy in problems:
        yield CheckResult("scheduler", level, f"{config.where}: {text}", remedy)
    if not any(level == BAD for level, _, _ in problems):
        yield CheckResult("scheduler", OK, f"{config.where} asks {extender.get('urlPrefix', 'an extender')}")


def _problems(config: Json, extender: Json) -> Iterator[Problem]:
    if config.get("apiVersion") != V1:
        yield BAD, f"apiVersion {config.get('apiVersion')} is gone", f"write {V1}"
    if misnamed(extender):
        text = f"the extender is asked about {some(managed_resources(extender))}, never about {names.MEM}"
        yield BAD, text, f"write managedResources: [{{name: {names.MEM}}}]"
    for verb in ("filterVerb", "bindVerb") if not only_scores(extender) else ():
        if not extender.get(verb):
            yield BAD, f"the extender has no {verb}", f"add {verb}: {verb.removesuffix('Verb')}"
    if extender.get("ignorable") and not only_scores(extender):
        yield NOTE, "ignorable: true binds pods without a GPU while no extender answers", "set ignorable: false"
    if extender.get("prioritizeVerb") and not extender.get("weight"):
        yield BAD, "prioritizeVerb without a weight", "add weight: 5"


def _left_over(facts: ClusterFacts, used: list[Configuration]) -> Iterator[CheckResult]:
    """Each change of a generated ConfigMap makes a new one, and the old one is not removed."""
    kept = {config.source for config in used}
    old = [config for config in configurations(facts.maps) if config.source not in kept]
    if found := sorted({config.source for config in old if any(map(asked_about_memory, config.extenders()))}):
        text = f"no pod reads ConfigMap {some(found)}: left over from an older configuration"
        yield CheckResult("scheduler", NOTE, text, f"kubectl -n {SYSTEM} delete configmap {' '.join(found)}")


def _config_files(pod: Json) -> Iterator[str]:
    """``--config`` of a kube-scheduler."""
    for container in (pod.get("spec") or {}).get("containers") or ():
        words = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
        if words and "kube-scheduler" in words[0]:
            for at, word in enumerate(words):
                if word.startswith("--config="):
                    yield word.removeprefix("--config=")
                elif word == "--config" and at + 1 < len(words):
                    yield words[at + 1]


def _scaled_to_nothing(facts: ClusterFacts) -> str:
    """The name of the extender's Deployment, when no pod is wanted of it."""
    for found in facts.deployments:
        template = (found["spec"].get("template") or {}).get("metadata") or {}
        if is_extender(template.get("labels") or {}) and found["spec"].get("replicas", 1) == 0:
            return str(found["metadata"]["name"])
    return ""


def _selects(service: Json, pods: list[Json]) -> bool:
    chosen = ((service.get("spec") or {}).get("selector") or {}).items()
    return bool(chosen) and any(chosen <= labels_of(pod).items() for pod in pods)


def _is_plugin(marks: Mapping[str, str]) -> bool:
    """Ours or gpushare's."""
    theirs = marks.get("app") == "gpushare" and marks.get("component") == "gpushare-device-plugin"
    return theirs or is_ours(marks, "plugin")


def _is_there(pod: Json) -> bool:
    """Those of a Deployment that ended do not count."""
    return phase(pod) in ("Running", "Pending")
