"""Who should be running: the extender, the device plugin, and a scheduler that asks the extender. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from . import names
from .ask import Json, bound_to, phase
from .doctor_facts import BAD, NOTE, OK, Facts, Finding, is_ready, labels, some
from .doctor_nodes import LABEL

OURS = "app.kubernetes.io/component"
KIND = "KubeSchedulerConfiguration"
V1 = "kubescheduler.config.k8s.io/v1"


def extender(facts: Facts) -> Iterator[Finding]:
    """One ready replica: the others stand by and are not ready."""
    found = _pods(facts, "extender", "gpushare-schd-extender")
    ready = [pod for pod in found if is_ready(pod)]
    if not found:
        remedy = "kubectl apply -k deploy/kubernetes/overlays/…, or run tide kube extender elsewhere"
        yield Finding("extender", BAD, "no pod of an extender in the cluster", remedy)
    elif not ready:
        text = f"{len(found)} pods, none of them ready: nobody leads"
        yield Finding("extender", BAD, text, "kubectl -n kube-system logs shows what each of them waits for")
    else:
        yield Finding("extender", OK, f"{len(ready)} of {len(found)} pods ready (one leads, the others stand by)")


def plugin(facts: Facts) -> Iterator[Finding]:
    """One on every labelled node."""
    found = _pods(facts, "plugin", "gpushare-device-plugin")
    wanted = [str(node["metadata"]["name"]) for node in facts.nodes if labels(node).get(LABEL) == "true"]
    missing = [name for name in wanted if not any(bound_to(pod) == name and phase(pod) == "Running" for pod in found)]
    if missing:
        remedy = "kubectl -n kube-system describe daemonset shows why it has no pod there"
        yield Finding("plugin", BAD, f"no device plugin runs on {some(missing)}", remedy)
    elif wanted:
        yield Finding("plugin", OK, f"runs on all {len(wanted)} nodes with {LABEL}=true")
    for name in wanted:
        if sum(bound_to(pod) == name and phase(pod) == "Running" for pod in found) > 1:
            text = f"two device plugins offer {names.MEM} on {name}: the kubelet listens to the one that came last"
            yield Finding("plugin", BAD, text, f"take one of the DaemonSets off {name}")


def scheduler(facts: Facts) -> Iterator[Finding]:
    """A scheduler with the extender, as far as its configuration can be read from here."""
    configured = [(where, config, found) for where, config in _configurations(facts) for found in _extenders(config)]
    for where, config, found in configured:
        problems = list(_problems(config, found))
        yield from (Finding("scheduler", level, f"{where}: {text}", remedy) for level, text, remedy in problems)
        if not any(level == BAD for level, _, _ in problems):
            yield Finding("scheduler", OK, f"{where} asks {found.get('urlPrefix', 'an extender')}")
    if any(not _only_scores(found) for _, _, found in configured):
        return
    files = sorted({path for pod in facts.pods for path in _config_files(pod)})
    if files:
        text = f"a kube-scheduler reads {some(files)}, which cannot be read from here"
        yield Finding("scheduler", NOTE, text, f"look there for an extender with managedResources {names.MEM}")
    elif any(labels(pod).get("component") == "kube-scheduler" for pod in facts.pods):
        remedy = "docs/kubernetes-install.md: give it the extender, or run a second scheduler"
        yield Finding("scheduler", BAD, "kube-scheduler runs without --config, so without the extender", remedy)
    else:
        text = "no scheduler's configuration can be seen from here (a managed control plane hides it)"
        remedy = "if pods are bypassed below, run the second scheduler: deploy/kubernetes/overlays/second-scheduler"
        yield Finding("scheduler", NOTE, text, remedy)


def _problems(config: Json, extender: Json) -> Iterator[tuple[str, str, str]]:
    """(level, what, remedy)."""
    if config.get("apiVersion") != V1:
        yield BAD, f"apiVersion {config.get('apiVersion')} is gone", f"write {V1}"
    for verb in ("filterVerb", "bindVerb") if not _only_scores(extender) else ():
        if not extender.get(verb):
            yield BAD, f"the extender has no {verb}", f"add {verb}: {verb.removesuffix('Verb')}"
    if extender.get("ignorable") and not _only_scores(extender):
        yield NOTE, "ignorable: true binds pods without a GPU while no extender answers", "set ignorable: false"
    if extender.get("prioritizeVerb") and not extender.get("weight"):
        yield BAD, "prioritizeVerb without a weight", "add weight: 5"


def _only_scores(extender: Json) -> bool:
    """The second entry of policy fgd: about every pod, it chooses none."""
    return bool(extender.get("prioritizeVerb")) and not any(
        extender.get(key) for key in ("filterVerb", "bindVerb", "managedResources")
    )


def _extenders(config: Json) -> list[Json]:
    """Those that are asked about gpu-mem; without managedResources an extender is asked about every pod."""
    found = [one for one in config.get("extenders") or () if isinstance(one, dict)]
    return [one for one in found if not (managed := one.get("managedResources")) or names.MEM in _resources(managed)]


def _resources(managed: Any) -> list[str]:
    return [str(one.get("name")) for one in managed if isinstance(one, dict)] if isinstance(managed, list) else []


def _configurations(facts: Facts) -> Iterator[tuple[str, Json]]:
    """(where, KubeSchedulerConfiguration) out of ConfigMaps."""
    for found in facts.maps:
        for text in (found.get("data") or {}).values():
            if KIND not in text:
                continue
            try:
                documents = list(yaml.safe_load_all(text))
            except yaml.YAMLError:
                continue
            for config in documents:
                if isinstance(config, dict) and config.get("kind") == KIND:
                    yield f"ConfigMap {found['metadata']['name']}", config


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


def _pods(facts: Facts, component: str, original: str) -> list[Json]:
    """Ours or gpushare's; those of a Deployment that ended do not count."""
    found = []
    for pod in facts.pods:
        marks = labels(pod)
        ours = marks.get("app.kubernetes.io/name") == "tidewright" and marks.get(OURS) == component
        theirs = marks.get("app") == "gpushare" and marks.get("component") == original
        if (ours or theirs) and phase(pod) in ("Running", "Pending"):
            found.append(pod)
    return found
