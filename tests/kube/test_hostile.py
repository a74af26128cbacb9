"""Bodies that nobody should send: each is answered with 200 or with 400 and a reason, and none changes what is known."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kube.objects import node, pod
from tidewright.base.errors import UsageError
from tidewright.kube.allocation.gpu_selection import GpuSelector
from tidewright.kube.allocation.pool import Pool
from tidewright.kube.extender.binder import Binder
from tidewright.kube.extender.cluster_cache import ClusterCache
from tidewright.kube.extender.handler import ExtenderHandler
from tidewright.kube.extender.http import ExtenderApp
from tidewright.kube.extender.metrics import ExtenderMetrics
from tidewright.kube.objects import names
from tidewright.kube.objects.gpu_inventory import GpuInfo, publish, read_gpu_inventory
from tidewright.kube.objects.pod_request import GpuAssignment
from tidewright.kube.objects.quantity import LIMIT
from tidewright.kube.objects.trimming import trim_node, trim_pod

Object = dict[str, Any]
HALF = '{"v": 1, "ready": false, "note": "\\ud800", "gpus": [{"index": 0, "units": 8}]}'
"""Of a surrogate pair: JSON within JSON may name it, UTF-8 cannot."""


class Yes:
    """An API server that agrees to everything and has every pod that is asked for."""

    async def get(self, path: str, **query: str) -> Object:
        return pod("asked", uid="u")

    async def patch(self, path: str, body: Object, kind: str = "") -> Object:
        return pod("asked", uid="u")

    async def post(self, path: str, body: Object, within_s: float = 0.0) -> Object:
        return {}


def extender(policy: str = "best-fit") -> ExtenderApp:
    """Of a cluster of two nodes with 15 units on each of 2 GPUs; on one, ``low`` holds all of a GPU."""
    cluster_cache = ClusterCache(Yes(), ExtenderHandler(GpuSelector(Pool(), policy)), lambda line: None, lambda: 0.0)  # type: ignore[arg-type]
    for name in ("a", "b"):
        cluster_cache._node("put", trim_node(node(name)))
    notes = {names.IDX: "0", names.POD: "15"}
    for item in (pod("low", 15, node="a", notes=notes), pod("p", 4)):
        cluster_cache.pods._put(item["metadata"]["uid"], trim_pod(item) or {})
    found = ExtenderApp(ExtenderMetrics())
    found.begin(cluster_cache, Binder(cluster_cache, lambda: True, lambda: 0))
    return found


def pool_of(found: ExtenderApp) -> Pool:
    assert found.cluster_cache is not None
    return found.cluster_cache.handler.chooser.pool


async def ask(found: ExtenderApp, verb: str, body: bytes, ends: bool = True) -> tuple[int, Any]:
    """Through the application, as a server calls it: what a verb raises is raised here. ``ends``: the client stays."""
    last = {"type": "http.request", "body": body} if ends else {"type": "http.disconnect"}
    told: list[Object] = []

    async def receive() -> Object:
        return last

    async def send(message: Any) -> None:
        told.append(message)

    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": f"/gpushare-scheduler/{verb}", "headers": [],
        "query_string": b"", "scheme": "http", "server": ("x", 80), "root_path": "",
    }  # fmt: skip
    await found.app()(scope, receive, send)
    return told[0]["status"], json.loads(b"".join(one.get("body", b"") for one in told))


def asked(found: ExtenderApp, verb: str, body: Any, **more: Any) -> tuple[int, Any]:
    return asyncio.run(ask(found, verb, body if isinstance(body, bytes) else json.dumps(body).encode(), **more))


def refused(verb: str, body: Any, **more: Any) -> str:
    status, answer = asked(extender(), verb, body, **more)
    assert status == 400
    assert set(answer) == {"Error"}
    return str(answer["Error"])


LISTED = publish((GpuInfo(0, 8), GpuInfo(1, 8)))
NODES = [node("a"), node("new", 16, 2, annotations={names.TABLE: LISTED})]
WHOLE = {"Pod": pod("p", 4, 2, priority=5), "Nodes": {"metadata": {}, "items": NODES}, "NodeNames": None}
SHORT = {"Pod": pod("p", 4, 2, notes={names.POLICY: "fgd"}), "Nodes": None, "NodeNames": ["a", "b", "no such"]}
META = {"a": {"Pods": [{"UID": "uid-low"}], "NumPDBViolations": 1}, "b": None}
BODIES: dict[str, list[Object]] = {
    "filter": [WHOLE, SHORT],
    "prioritize": [WHOLE, SHORT],
    "preempt": [
        {"Pod": pod("p", 14, priority=5), "NodeNameToVictims": None, "NodeNameToMetaVictims": META},
        {"Pod": pod("p", 14), "NodeNameToVictims": {"a": {"Pods": [pod("low")]}}, "NodeNameToMetaVictims": None},
    ],
    "bind": [{"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "b"}],
}
WORDS = st.sampled_from(
    [
        "",
        "a",
        "p",
        "-1",
        "9" * 5000,
        "1e99",
        "Always",
        "fgd",
        "../x",
        "a\x00b",
        HALF,
        LISTED,
        "[" * 9999,
        "\u2028",
        "3Gi",
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | WORDS
    | st.sampled_from([2**63, 10**40]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["metadata", "name", "uid", "UID", "Pods", "items", "limits", names.MEM, names.COUNT, "a", ""]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


def places(thing: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of everything in it, itself included."""
    yield path
    inner = thing.items() if isinstance(thing, dict) else enumerate(thing) if isinstance(thing, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """A verb and a question of its shape, some of its fields replaced or left out, perhaps with one byte changed."""
    verb = draw(st.sampled_from(sorted(BODIES)))
    top: Any = {"": copy.deepcopy(draw(st.sampled_from(BODIES[verb])))}
    for _ in range(draw(st.integers(0, 3))):
        *path, last = draw(st.sampled_from(list(places(top))[1:] or [("",)]))
        holder = top
        for key in path:
            holder = holder[key]
        if isinstance(holder, dict) and last and draw(st.booleans()):
            holder.pop(last)
        else:
            holder[last] = draw(VALUES)
    text = bytearray(json.dumps(top[""], ensure_ascii=draw(st.booleans())).encode())
    if text and draw(st.integers(0, 3)) == 0:
        text[draw(st.integers(0, len(text) - 1))] = draw(st.integers(0, 255))
    return verb, bytes(text)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(bodies(), st.sampled_from(["best-fit", "spread", "fgd"]))
def test_whatever_the_body_it_is_answered_or_refused_with_a_reason(question: tuple[str, bytes], policy: str) -> None:
    verb, body = question
    found = extender(policy)
    inventories = dict(pool_of(found).inventories)
    status, answer = asked(found, verb, body)
    assert status in (200, 400)
    if status == 400:
        assert isinstance(answer["Error"], str) and answer["Error"]
    elif verb == "prioritize":
        assert all(set(one) == {"Host", "Score"} and 0 <= one["Score"] <= 10 for one in answer)
    else:
        assert {"filter": "FailedNodes", "preempt": "NodeNameToMetaVictims", "bind": "Error"}[verb] in answer
    assert pool_of(found).inventories == inventories
    assert not pool_of(found).overcommitted()


def preemption(victims: Any) -> Object:
    return {"Pod": pod("p", 14), "NodeNameToMetaVictims": {"a": victims}}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (preemption({"Pods": 5}), "Expected `array | null`, got `int` - at `$.Pods`"),
        (
            preemption({"Pods": [], "NumPDBViolations": "x"}),
            "Expected `int | null`, got `str` - at `$.NumPDBViolations`",
        ),
        (preemption({"Pods": [], "NumPDBViolations": -1}), "`int` >= 0"),
        (preemption({"Pods": [], "NumPDBViolations": 10**30}), "`int` <= 9223372036854775807"),
        (preemption({"Pods": [None]}), "got `null` - at `$.Pods[0]`"),
        (preemption({"Pods": [3]}), "got `int` - at `$.Pods[0]`"),
        (preemption({"Pods": [{"UID": 3}]}), "the uid of a victim is 3"),
        (preemption({"Pods": [{}]}), "`metadata`"),
        (preemption({"Pods": [{"metadata": "x"}]}), "at `$.metadata`"),
        (preemption({"Pods": [{"metadata": {"name": "x"}}]}), "the uid of a victim is None"),
        (preemption([]), "no object"),
        ({"Pod": pod("p"), "NodeNameToVictims": []}, "NodeNameToVictims is no object"),
        ({"Pod": pod("p")}, "neither NodeNameToMetaVictims nor NodeNameToVictims"),
        ({"Pod": {"metadata": {"name": 3}}, "NodeNameToVictims": {}}, "at `$.metadata.name`"),
        ({"Pod": {**pod("p"), "spec": {"containers": [{"resources": 1}]}}, "NodeNameToVictims": {}}, "resources"),
        (b'{"Pod": {"metadata": {"name": "\xff"}}}', "no JSON"),
    ],
)
def test_a_preemption_that_makes_no_sense_is_refused_in_words(body: Any, words: str) -> None:
    assert words in refused("preempt", body)


def test_preemption_counts_each_victim_once_and_needs_none_for_other_pods() -> None:
    found = extender()
    twice = {"Pods": [{"UID": "uid-low"}, {"uid": "uid-low"}], "NumPDBViolations": 2}
    once = {"a": {"Pods": [{"UID": "uid-low"}], "NumPDBViolations": 2}}
    both = {"Pod": pod("p", 30, 2, priority=9), "NodeNameToMetaVictims": {"a": twice}}
    assert asked(found, "preempt", both) == (200, {"NodeNameToMetaVictims": once})
    plain = {**both, "Pod": {"metadata": {"name": "plain"}, "spec": {"containers": []}}}
    assert asked(found, "preempt", plain) == (200, {"NodeNameToMetaVictims": once})
    more = {**both, "Pod": pod("p", 32, 2, priority=9)}
    assert asked(found, "preempt", more) == (200, {"NodeNameToMetaVictims": {}}), "not even all of them make room"


@pytest.mark.parametrize("verb", sorted(BODIES))
def test_a_body_that_ends_early_is_no_question(verb: str) -> None:
    assert "ended early" in refused(verb, b"", ends=False)


def test_however_deep_a_body_is_it_has_an_answer() -> None:
    """What can be read must not be too deep to be written into the answer."""
    found, seen = extender(), set()
    for depth in (*range(50, 900, 50), *range(900, 1100, 4)):
        deep = json.dumps({**WHOLE, "Nodes": {"items": [{**node("a"), "x": "@"}]}})
        status, answer = asked(found, "filter", deep.replace('"@"', "[" * depth + "]" * depth).encode())
        assert status == 200 or "recursion" in answer["Error"]
        seen.add(status)
    assert seen == {200, 400}


def test_a_note_that_cannot_be_written_in_utf8_is_told_all_the_same() -> None:
    found = extender()
    assert found.cluster_cache is not None
    found.cluster_cache._node("put", trim_node(node("odd", 8, 1, annotations={names.TABLE: HALF})))
    status, answer = asked(found, "filter", {"Pod": pod("q", 2), "NodeNames": ["odd", "a"]})
    assert (status, answer["NodeNames"]) == (200, ["a"])
    assert answer["FailedAndUnresolvableNodes"] == {"odd": "\ud800"}


@pytest.mark.parametrize("policy", ["best-fit", "fgd"])
def test_more_cpu_than_can_be_counted_is_refused(policy: str) -> None:
    """Each container asks for as much as one may, and there are too many of them for 64 bits."""
    found = extender(policy)
    many = pod("many", 4)
    many["spec"]["containers"] += [{"resources": {"requests": {"cpu": f"{LIMIT - 1}m"}}}] * 1100
    args = {"Pod": many, "NodeNames": ["a", "b"]}
    _, answer = asked(found, "filter", args)
    assert "more CPU than any node has" in answer["FailedAndUnresolvableNodes"]["a"]
    assert asked(found, "prioritize", args)[1] == [{"Host": name, "Score": 0} for name in "ab"]
    with pytest.raises(UsageError, match="more CPU"):
        found.cluster_cache.handler.decide(many, "a", 0.0, 0)  # type: ignore[union-attr]


def test_a_node_that_only_the_scheduler_knows_is_worked_out_for_one_answer() -> None:
    """Its cache may be a moment ahead of ours; but what is known comes from the API server alone."""
    found = extender()
    pool, before = pool_of(found), copy.deepcopy(pool_of(found))
    pool.hold(GpuAssignment("early", "default", "early", "new", {0: 15}, bound=True))
    before.hold(pool.held["early"])
    args = {"Pod": pod("q", 10), "Nodes": {"items": [node("new"), node("full", 8, 1), node("cpu", 0), node("a")]}}
    for _ in range(2):
        status, answer = asked(found, "filter", args)
        assert status == 200
        assert [one["metadata"]["name"] for one in answer["Nodes"]["items"]] == ["new", "a"]
        assert "too small" in answer["FailedAndUnresolvableNodes"]["full"]
        assert "no shared GPUs" in answer["FailedAndUnresolvableNodes"]["cpu"]
        _, scored = asked(found, "prioritize", args)
        assert {one["Host"]: one["Score"] for one in scored} == {"new": 10, "full": 0, "cpu": 0, "a": 10}
    two = {**args, "Pod": pod("q", 20, 2)}
    assert "new" in asked(found, "filter", two)[1]["FailedNodes"], "what pods hold there counts"
    assert (pool.row, pool.inventories, pool.free.shape) == (before.row, before.inventories, before.free.shape)
    assert (pool.free == before.free).all() and (pool.version == before.version).all()
    with pytest.raises(UsageError, match="no shared GPUs"):
        found.cluster_cache.handler.decide(pod("q", 10), "new", 0.0, 0)  # type: ignore[union-attr]
    pool.set_node(read_gpu_inventory(node("new")))
    assert found.cluster_cache.handler.decide(pod("q", 10), "new", 0.0, 0).assignment.units == {1: 10}  # type: ignore[union-attr]


def test_a_deleted_node_does_not_come_back_by_a_question() -> None:
    found = extender()
    assert found.cluster_cache is not None
    found.cluster_cache._node("gone", node("b"))
    asked(found, "filter", {"Pod": pod("q", 10), "Nodes": {"items": [node("b"), node("a")]}})
    assert set(pool_of(found).inventories) == {"a"}
