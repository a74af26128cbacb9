"""CPU that pods request, and pods that ask for no GPU: they count only where they keep GPUs from being used."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kube.objects import node, placed, pod
from tidewright.base.errors import UsageError
from tidewright.kube.allocation.gpu_selection import GpuSelector
from tidewright.kube.allocation.pool import Pool
from tidewright.kube.client.api import KubeClient
from tidewright.kube.client.credentials import Cluster
from tidewright.kube.extender.cluster_cache import ClusterCache
from tidewright.kube.extender.handler import ExtenderHandler
from tidewright.kube.objects.pod_request import cpu_of
from tidewright.kube.objects.quantity import millicores
from tidewright.kube.objects.trimming import trim_node, trim_pod
from tidewright.placement.scores.columns import ShareRequest


def cluster_cache(policy: str = "fgd") -> ClusterCache:
    """Two nodes of two GPUs and 8 CPUs."""
    found = ClusterCache(
        KubeClient(Cluster("http://nowhere")), ExtenderHandler(GpuSelector(Pool(), policy)), pytest.fail, lambda: 0.0
    )  # what is noted is a failure
    for name in ("a", "b"):
        one = node(name, 30, 2)
        one["status"]["allocatable"]["cpu"] = "8"
        found._node("put", trim_node(one))
    return found


def plain(name: str, cpu: str, **more: Any) -> dict[str, Any]:
    """A pod without GPUs."""
    found = pod(name, **more)
    found["spec"]["containers"] = [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]
    return found


def busy(item: dict[str, Any], cpu: str) -> dict[str, Any]:
    """With so much CPU requested, too."""
    item["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
    return item


def left(found: ClusterCache) -> list[int]:
    pool = found.handler.chooser.pool
    return [int(one) for one in pool.cpu[pool.rows(["a", "b"])]]


def see(found: ClusterCache, item: dict[str, Any]) -> None:
    """The watch tells of a pod, trimmed as the reflector does."""
    kept = trim_pod(item)
    found._pod("gone" if kept is None else "put", item if kept is None else kept)


@pytest.mark.parametrize(
    ("text", "value"), [("2", 2000), ("1.5", 1500), ("250m", 250), ("100u", 1), (3, 3000), ("0", 0)]
)
def test_amounts_of_cpu(text: object, value: int) -> None:
    assert millicores(text, "cpu") == value


@pytest.mark.parametrize("text", ["-1", "abc", None, True, "9" * 30, [], ""])
def test_amounts_that_are_none(text: object) -> None:
    with pytest.raises(UsageError, match="no amount of CPU"):
        millicores(text, "cpu")


def test_what_containers_request_together() -> None:
    """As kube-scheduler counts (KEP-753); a limit alone is a request."""
    found = plain("p", "1")
    found["spec"]["containers"].append({"name": "d", "resources": {"limits": {"cpu": "500m"}}})
    assert cpu_of(found) == 1500
    found["spec"]["initContainers"] = [
        {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
        {"name": "i", "resources": {"requests": {"cpu": "3"}}},
    ]
    assert cpu_of(found) == 4000
    assert cpu_of(pod()) == 0


def test_cpu_counts_from_the_binding_to_the_end() -> None:
    here = cluster_cache()
    see(here, plain("p", "2"))
    assert left(here) == [8000, 8000]
    see(here, plain("p", "2", node="b", phase="Running"))
    see(here, plain("p", "2", node="b", phase="Running"))
    assert left(here) == [8000, 6000]
    see(here, plain("p", "2", node="b", phase="Succeeded"))
    assert left(here) == [8000, 8000]
    see(here, plain("p", "what", node="b", phase="Running"))
    assert left(here) == [8000, 8000]


def test_a_pod_with_gpus_takes_its_cpu_too() -> None:
    here = cluster_cache()
    here.handler.decide(busy(pod("p", 4), "3"), "a", 0.0, 1)
    assert left(here) == [5000, 8000]
    running = busy(placed("p", "a", 0, 4), "3")
    see(here, running)
    assert left(here) == [5000, 8000]
    here._pod("gone", running)
    assert left(here) == [8000, 8000]


def test_a_binding_that_fails_gives_the_cpu_back() -> None:
    here = cluster_cache()
    here.handler.decide(busy(pod("p", 4), "3"), "a", 0.0, 1)
    here.handler.chooser.pool.release("uid-p")
    assert left(here) == [8000, 8000]


def scores(found: ClusterCache, item: dict[str, Any], *nodes: str) -> list[int]:
    return [one["Score"] for one in found.handler.prioritize({"Pod": item, "NodeNames": list(nodes)}, 0.0)]


def test_a_pod_without_gpus_goes_where_it_keeps_none_from_being_used() -> None:
    here = cluster_cache()
    here.handler.chooser.workload.expect({ShareRequest(15, 1, 4000): 1})
    see(here, plain("old", "4", node="a", phase="Running"))
    found = scores(here, plain("p", "1"), "a", "b", "no GPUs")
    assert found[2] == 10 and found[0] < found[1]
    assert scores(cluster_cache("best-fit"), plain("p", "1"), "a", "b") == [0, 0]


def test_a_pod_is_read_alike_whole_and_trimmed() -> None:
    """And nobody can say his CPU in a place of our own."""
    whole = busy(pod("p", 4), "3") | {"tidewright.io/millicores": "x"}
    kept = trim_pod(whole)
    assert kept is not None and cpu_of(whole) == cpu_of(kept) == 3000


def test_no_node_is_refused_to_a_pod_without_gpus() -> None:
    answer = cluster_cache().handler.filter({"Pod": plain("p", "1"), "NodeNames": ["a", "b", "no GPUs"]}, 0.0)
    assert answer["NodeNames"] == ["a", "b", "no GPUs"] and not answer["FailedAndUnresolvableNodes"]
