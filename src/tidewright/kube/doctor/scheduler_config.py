"""The configurations of kube-scheduler that lie in ConfigMaps, and what they say of extenders, Lease and names. Pure.

Source: kubescheduler.config.k8s.io/v1 with its defaults. The API server does not read the text, so nothing in it need have the
type that it should.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import yaml

from ..extender.http import PREFIX
from ..objects import names
from ..objects.metadata import Json

KIND = "KubeSchedulerConfiguration"
V1 = "kubescheduler.config.k8s.io/v1"
DEFAULT_SCHEDULER = "default-scheduler"
OWN_LEASE = (names.UNHEALTHY_NAMESPACE, "kube-scheduler")
"""Namespace and name of the Lease by which the cluster's own scheduler leads."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """``source``: the ConfigMap's name; ``text``: the parsed document."""

    source: str
    text: Json

    @property
    def where(self) -> str:
        """For a message."""
        return f"ConfigMap {self.source}"

    def extenders(self) -> list[Json]:
        """Every entry that is one."""
        return [one for one in _list(self.text.get("extenders")) if isinstance(one, dict)]

    def lease(self) -> tuple[str, str] | None:
        """Namespace and name of the Lease by which it leads; None without leader election."""
        election = self.text.get("leaderElection")
        found = election if isinstance(election, dict) else {}
        if found.get("leaderElect", True) is False:
            return None
        return str(found.get("resourceNamespace") or OWN_LEASE[0]), str(found.get("resourceName") or OWN_LEASE[1])

    def schedulers(self) -> list[str]:
        """The names that pods choose it by."""
        profiles = [one for one in _list(self.text.get("profiles")) if isinstance(one, dict)]
        return [str(one.get("schedulerName") or DEFAULT_SCHEDULER) for one in profiles] or [DEFAULT_SCHEDULER]


def configurations(maps: Iterable[Json]) -> Iterator[Configuration]:
    """All that can be read, whatever they say."""
    for found in maps:
        for text in (found.get("data") or {}).values():
            if KIND not in text:
                continue
            try:
                documents = list(yaml.safe_load_all(text))
            except yaml.YAMLError:
                continue
            for config in documents:
                if isinstance(config, dict) and config.get("kind") == KIND:
                    yield Configuration(str(found["metadata"]["name"]), config)


def asked_about_memory(extender: Json) -> bool:
    """Without managedResources an extender is asked about every pod."""
    managed = extender.get("managedResources")
    return not managed or names.MEM in managed_resources(extender)


def misnamed(extender: Json) -> bool:
    """It is ours by its path or by a resource that is nearly called gpu-mem, and is never asked about gpu-mem."""
    if asked_about_memory(extender):
        return False
    return points_to_us(extender) or any(_nearly(name) for name in managed_resources(extender))


def only_scores(extender: Json) -> bool:
    """The second entry of policy fgd: about every pod, it chooses none."""
    choosing = any(extender.get(key) for key in ("filterVerb", "bindVerb", "managedResources"))
    return bool(extender.get("prioritizeVerb")) and not choosing


def points_to_us(extender: Json) -> bool:
    """By the path of gpushare, which no other extender has."""
    try:
        return urlsplit(str(extender.get("urlPrefix", ""))).path.rstrip("/") == PREFIX
    except ValueError:
        return False


def managed_resources(extender: Json) -> list[str]:
    """Their names."""
    return [str(one.get("name")) for one in _list(extender.get("managedResources")) if isinstance(one, dict)]


def mounted_maps(things: Iterable[Json]) -> set[str]:
    """Names of the ConfigMaps that pods, or the pods of Deployments, read as files."""
    found = set()
    for thing in things:
        spec = thing.get("spec") or {}
        inner = (spec.get("template") or {}).get("spec") or spec
        for volume in inner.get("volumes") or ():
            if name := (volume.get("configMap") or {}).get("name"):
                found.add(str(name))
    return found


def _nearly(name: str) -> bool:
    """``gpu_mem``, ``aliyun.com/gpumem``; HAMi's ``nvidia.com/gpumem`` is another thing."""
    domain, _, last = name.lower().rpartition("/")
    return re.sub(r"[^a-z]", "", last).startswith("gpumem") and (not domain or domain.startswith("aliyun"))


def _list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []
