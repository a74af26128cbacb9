"""What pods hold or say they hold before they are bound: never more than there is, and never in their own way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kube.extending import extending, until
from tests.kube.objects import KINDS, placed, pod
from tidewright.base.errors import UsageError
from tidewright.kube.allocation.gpu_selection import GpuSelector
from tidewright.kube.allocation.pool import Pool
from tidewright.kube.client.api import KubeClient, NoAnswer
from tidewright.kube.client.credentials import Cluster
from tidewright.kube.extender.binder import Binder
from tidewright.kube.extender.cluster_cache import ClusterCache, resolve
from tidewright.kube.extender.handler import ExtenderHandler
from tidewright.kube.objects import names
from tidewright.kube.objects.gpu_inventory import GpuInfo, GpuInventory
from tidewright.kube.objects.pod_request import POLICIES, GpuAssignment, marks, read_gpu_assignment, read_pod_request
from tidewright.kube.objects.trimming import trim_node
from tidewright.testing.kube_api import FakeApi

from ..sizes import examples

NODES = {"n0": (15, 15), "n1": (10, 10, 10, 10), "n2": (12,)}


def cluster_cache(policy: str = "best-fit", whole: tuple[int, ...] = ()) -> ClusterCache:
    """Of a cluster that is not there, at time 0."""
    handler = ExtenderHandler(GpuSelector(Pool(), policy))
    for name, sizes in NODES.items():
        cards = tuple(GpuInfo(at, size, whole=at in whole) for at, size in enumerate(sizes))
        handler.chooser.pool.set_node(GpuInventory(name, cards))
    return ClusterCache(KubeClient(Cluster("http://nowhere")), handler, lambda line: None, lambda: 0.0)


def said(on: str, gpu: object, units: object, several: Mapping[str, Mapping[str, int]] | None = None) -> dict[str, str]:
    """Annotations that a pod brings along."""
    found = {names.IDX: str(gpu), names.POD: str(units), names.NODE: on, names.ASSIGNED: "false"}
    return found | ({names.ALLOCATION: json.dumps(several)} if several else {})


def seen(found: ClusterCache, item: dict[str, Any]) -> None:
    """The watch tells of a pod."""
    found.settle(item["metadata"]["uid"], read_gpu_assignment(item))


def test_a_pod_that_brings_a_full_gpu_along_gets_another() -> None:
    here = cluster_cache()
    seen(here, placed("full", "n0", 0, 15))
    copy = pod("copy", 8, notes=said("n0", 0, 8))
    seen(here, copy)
    assert here.handler.chooser.pool.free_of("n0") == {0: 0, 1: 15}
    assert here.handler.filter({"Pod": copy, "NodeNames": ["n0"]}, 0.0)["NodeNames"] == ["n0"]
    assert dict(here.handler.decide(copy, "n0", 0.0, 1).assignment.units) == {1: 8}


@pytest.mark.parametrize(
    "notes",
    [
        said("n0", 7, 8),
        said("n0", 0, 8, {"0": {"7": 8}}),
        said("n0", 0, 8, {"0": {"0": 4, "1": 4}}),
        said("n0", 0, 8, {"0": {"0": 8, "1": 0}}),
        said("n0", 0, 5),
        said("n0", 0, 10**9),
    ],
)
def test_what_does_not_match_is_chosen_anew(notes: dict[str, str]) -> None:
    here = cluster_cache()
    copy = pod("copy", 8, notes=notes)
    seen(here, copy)
    assert list(here.handler.decide(copy, "n0", 0.0, 1).assignment.units.values()) == [8]
    assert sum(here.handler.chooser.pool.free_of("n0").values()) == 22


def test_an_instance_that_another_pod_has_is_not_shared() -> None:
    here = cluster_cache(whole=(0,))
    seen(here, placed("first", "n2", 0, 2))
    copy = pod("copy", 2, notes=said("n2", 0, 2))
    seen(here, copy)
    with pytest.raises(UsageError, match="Insufficient"):
        here.handler.decide(copy, "n2", 0.0, 1)


def test_what_we_decided_is_not_undone_by_what_the_pod_still_shows() -> None:
    here = cluster_cache()
    copy = pod("copy", 15, notes=said("n0", 0, 15))
    seen(here, placed("full", "n0", 0, 15))
    assert dict(here.handler.decide(copy, "n0", 0.0, 1).assignment.units) == {1: 15}
    seen(here, copy)
    assert here.handler.chooser.pool.free_of("n0") == {0: 0, 1: 0}


def test_a_promise_that_the_pod_no_longer_makes_is_gone_at_once() -> None:
    here = cluster_cache()
    seen(here, pod("copy", 8, notes=said("n0", 0, 8)))
    assert here.handler.chooser.pool.free_of("n0") == {0: 7, 1: 15}
    seen(here, pod("copy", 8))
    assert here.handler.chooser.pool.free_of("n0") == {0: 15, 1: 15}


def test_a_pod_that_fits_nowhere_else_keeps_what_is_reserved_for_it() -> None:
    """Its binding to the first node may still be on its way."""
    here = cluster_cache()
    one = pod("one", 12)
    here.handler.decide(one, "n0", 0.0, 1)
    seen(here, placed("full", "n2", 0, 12))
    with pytest.raises(UsageError, match="Insufficient"):
        here.handler.decide(one, "n2", 0.0, 1)
    assert here.handler.chooser.pool.held["uid-one"].node == "n0"
    assert sum(here.handler.chooser.pool.free_of("n0").values()) == 18


def test_an_event_from_before_the_binding_undoes_nothing() -> None:
    """The API server was asked and said that the pod is bound; the watch is behind."""
    here = cluster_cache()
    before = pod("one", 8)
    bound = placed("one", "n0", 0, 8)
    held = read_gpu_assignment(bound)
    here.settle("uid-one", held)
    here._pod("put", before)
    here._pod("put", pod("one", 8, notes=said("n1", 0, 8)))
    assert here.handler.chooser.pool.held["uid-one"] == held
    here._pod("put", {**bound, "status": {"phase": "Failed"}})
    assert not here.handler.chooser.pool.held


def test_what_is_reserved_for_a_pod_that_is_just_being_bound_is_not_asked_about() -> None:
    """Its marks may not be there yet, so it would look as if it had been given up."""
    here = cluster_cache()
    held = here.handler.decide(pod("one", 8), "n0", 0.0, 1).assignment
    here.binding.add("uid-one")
    asyncio.run(resolve(here, (held,)))
    assert here.handler.chooser.pool.held["uid-one"] is held


def test_all_marks_are_ours() -> None:
    ask = read_pod_request(pod(mem=8))
    found = marks(ask, "n", {1: 8}, 15, 1)
    assert found.keys() == {
        names.IDX, names.DEV, names.POD, names.ASSIGNED, names.ASSUME_TIME, names.NODE, names.ALLOCATION,
    }  # fmt: skip
    assert found[names.ALLOCATION] is None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["decide", "decide", "promise", "bind", "gone", "node"]), st.integers(0, 7),
        st.sampled_from(sorted(NODES)), st.integers(1, 14), st.integers(1, 2), st.integers(0, 4),
    ),
    max_size=40,
)  # fmt: skip


@given(STEPS, st.sampled_from(POLICIES), st.sampled_from([(), (0,), (1, 2)]))
@settings(max_examples=examples(250), deadline=None)
def test_what_is_reserved_for_a_pod_is_offered_to_it_and_needs_no_victims(
    steps: list[tuple[str, int, str, int, int, int]], policy: str, whole: tuple[int, ...]
) -> None:
    here = cluster_cache(policy, whole)
    handler, pool = here.handler, here.handler.chooser.pool
    pods: dict[str, dict[str, Any]] = {}
    for what, who, on, units, count, gpu in steps:
        uid = f"uid-p{who}"
        held = pool.held.get(uid)
        if what == "promise" and held is None:
            pods[uid] = pod(f"p{who}", units, notes=said(on, gpu, units * count), priority=who % 3)
            seen(here, pods[uid])
        elif what == "decide" and (held is None or not held.bound):
            pods.setdefault(uid, pod(f"p{who}", units * count, count, priority=who % 3))
            decide(handler, pods[uid], on)
        elif what == "bind" and held is not None and not held.bound and pool.firm(uid):
            bound = {**pods[uid]["spec"], "nodeName": held.node}
            seen(here, {**pods[uid], "spec": bound, "metadata": marked(pods[uid], held)})
        elif what == "gone":
            pods.pop(uid, None)
            pool.release(uid)
        elif what == "node":
            inventory = pool.inventories[on]
            pool.drop_node(on)
            pool.set_node(inventory)
        check(here, pods)


def decide(handler: ExtenderHandler, item: dict[str, Any], on: str) -> None:
    """Just where the pod fits; else nothing changes."""
    uid, pool = item["metadata"]["uid"], handler.chooser.pool
    fits = bool(pool.fits(read_pod_request(item), pool.rows([on]))[0])
    before = pool.held.get(uid), pool.free.tolist()
    try:
        handler.decide(item, on, 0.0, 1)
    except UsageError:
        assert not fits and (pool.held.get(uid), pool.free.tolist()) == before
    else:
        assert fits and pool.held[uid].node == on


def marked(item: dict[str, Any], held: GpuAssignment) -> dict[str, Any]:
    """Its metadata as our patch leaves it."""
    notes = marks(read_pod_request(item), held.node, held.units, 1, 1)
    return {**item["metadata"], "annotations": {key: value for key, value in notes.items() if value is not None}}


def check(here: ClusterCache, pods: dict[str, dict[str, Any]]) -> None:
    pool = here.handler.chooser.pool
    assert not pool.overcommitted()
    for name in NODES:
        assert all(units >= 0 for units in pool.free_of(name).values()), "promises take no more than there is"
    kept = pool.free.copy()
    for name in NODES:
        pool._refill(name)
    assert (kept == pool.free).all(), "what is reckoned step by step is what follows from all that is held"
    for uid, found in pool.reserved.items():
        item, node = pods[uid], found.assignment.node
        if found.decided:
            here.handler._expect(read_pod_request(pod("other", 9)), node, 0.0)
            assert node in here.handler.filter({"Pod": item, "NodeNames": list(NODES)}, 0.0)["NodeNames"]
            asked = {"Pod": item, "NodeNameToMetaVictims": {node: {"Pods": [], "NumPDBViolations": 0}}}
            assert here.handler.preempt(asked)["NodeNameToMetaVictims"][node]["Pods"] == []


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pod_is_offered_its_own_gpu_when_all_else_is_full(policy: str) -> None:
    here = cluster_cache(policy)
    for at, name in enumerate(NODES):
        for gpu, units in enumerate(NODES[name]):
            if (name, gpu) != ("n0", 1):
                seen(here, placed(f"full{at}{gpu}", name, gpu, units))
    own = pod("own", 15, priority=9)
    here.handler.decide(own, "n0", 0.0, 1)
    body = {"Pod": own, "NodeNames": list(NODES)}
    assert here.handler.filter(body, 0.0)["NodeNames"] == ["n0"]
    assert {one["Host"]: one["Score"] for one in here.handler.prioritize(body, 0.0)} == {"n0": 10, "n1": 0, "n2": 0}
    assert dict(here.handler.decide(own, "n0", 0.0, 1).assignment.units) == {1: 15}


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
def test_marks_brought_along_neither_share_a_full_gpu_nor_outlive_the_bind(kind: str) -> None:
    async def main() -> None:
        async with FakeApi().served() as api:
            await api.create("nodes", KINDS[kind]("n"))
            await api.create("pods", placed("full", "n", 0, 15))
            async with extending(api) as extender:
                stale = {"0": {"0": 4, "1": 4}}
                copies = [said("n", 0, 8), said("n", 7, 3), said("n", 0, 3, stale)]
                for at, (mem, notes) in enumerate(zip((8, 3, 3), copies, strict=True)):
                    copy = await api.create("pods", pod(f"copy{at}", mem, notes=notes))
                    await until(lambda uid=f"uid-copy{at}": uid in extender.pool.held)
                    assert (await extender.filter(copy, ["n"]))["NodeNames"] == ["n"]
                    assert await extender.bind(copy, "n") == ""
                    bound = api.store.objects["pods", "default", f"copy{at}"]
                    assert names.ALLOCATION not in bound["metadata"]["annotations"]
                    held = read_gpu_assignment(bound)
                    assert held is not None and dict(held.units) == {1: mem}

    asyncio.run(main())


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
def test_a_bind_without_an_answer_is_filtered_again_to_the_same_node(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = ["binding"]
    bind = Binder._bind

    async def main() -> None:
        async with FakeApi().served() as api:

            async def once(*given: Any) -> None:
                api.mischief.down = bool(lost)
                if lost:
                    raise NoAnswer(lost.pop())
                await bind(*given)

            monkeypatch.setattr(Binder, "_bind", once)
            await api.create("nodes", KINDS[kind]("n", 15, 1))
            async with extending(api) as extender:
                made = await api.create("pods", pod("a", 15))
                assert "stays reserved" in await extender.bind(made, "n")
                api.mischief.down = False
                assert (await extender.filter(made, ["n"]))["NodeNames"] == ["n"]
                assert await extender.bind(made, "n") == ""

    asyncio.run(main())


@pytest.mark.parametrize(("kind", "follows"), [("late", False), ("match", True)])
@pytest.mark.parametrize("change", [{names.IDX: "1"}, {names.IDX: "99"}, {names.POD: "1"}, None])
def test_what_a_bound_pod_holds_changes_only_where_annotations_are_corrected(
    kind: str, follows: bool, change: dict[str, str] | None
) -> None:
    """The owner of a pod edits its annotations, or takes them off: its share is not given to another pod."""
    here = cluster_cache()
    here._node("put", trim_node(KINDS[kind]("n")))
    item = placed("p", "n", 0, 12)
    here._pod("put", item)
    edited = {**item, "metadata": {**item["metadata"], "annotations": {}}}
    if change is not None:
        edited["metadata"]["annotations"] = item["metadata"]["annotations"] | change
    here._pod("put", edited)
    free = here.handler.chooser.pool.free_of("n")
    assert (free == {0: 3, 1: 15}) == (not follows or change == {names.POD: "1"})
    here._pod("put", {**edited, "status": {"phase": "Succeeded"}})
    assert here.handler.chooser.pool.free_of("n") == {0: 15, 1: 15}
