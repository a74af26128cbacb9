"""One call where order does not matter, two in their turn where it does; and no binding that comes late does harm."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.kube.extending import Extending, extending, until
from tests.kube.objects import KINDS, pod
from tidewright.kube.client.api import ApiError, KubeClient, NoAnswer
from tidewright.kube.client.credentials import ApiCredentials, Cluster
from tidewright.kube.extender import binder, cluster_cache
from tidewright.kube.extender import handler as verbs
from tidewright.kube.objects import names
from tidewright.kube.objects.pod_request import read_gpu_assignment
from tidewright.kube.objects.trimming import trim_pod
from tidewright.testing.kube_api import FakeApi
from tidewright.testing.kube_store import ApiRefused

pytestmark = pytest.mark.processes


def served(kind: str, test: Callable[[FakeApi, Extending], Awaitable[None]]) -> None:
    """Two nodes of 2 GPUs x 15."""

    async def main() -> None:
        async with FakeApi().served() as api:
            for name in ("n", "m"):
                await api.create("nodes", KINDS[kind](name))
            async with extending(api) as extender:
                await test(api, extender)

    asyncio.run(main())


def about(api: FakeApi) -> list[str]:
    """What was asked about pods, in its order."""
    return [f"{method} {path.rpartition('/pods/')[2]}" for method, path, _ in api.requests if "/pods/" in path]


def now(api: FakeApi, name: str = "a") -> dict[str, Any]:
    return api.store.objects["pods", "default", name]


def test_late_binding_takes_one_call_and_the_marks_come_with_the_node() -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        before = await api.create("pods", pod("a", 8))
        await extender.heard(before)
        assert await extender.bind(before, "n") == ""
        assert about(api) == ["POST a/binding"]
        [(_, _, body)] = [one for one in api.requests if one[1].endswith("/binding")]
        assert body["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
        held = read_gpu_assignment(now(api))
        assert held is not None and (held.node, held.bound, dict(held.units)) == ("n", True, {0: 8})
        notes = now(api)["metadata"]["annotations"]
        assert (notes[names.ASSIGNED], notes[names.POD], notes[names.DEV]) == ("false", "8", "15")

    served("late", test)


def test_where_the_plugin_matches_one_pod_after_the_other_is_marked_and_bound() -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        made = [await api.create("pods", pod(f"p{at}", 1)) for at in range(30)]
        await extender.heard(*made)
        assert set(await asyncio.gather(*(extender.bind(one, "n") for one in made))) == {""}
        asked = about(api)
        assert [line.split()[0] for line in asked] == ["PATCH", "POST"] * 30
        assert all(first.split()[1] == second.split()[1].removesuffix("/binding")
                   for first, second in zip(asked[::2], asked[1::2], strict=True))  # fmt: skip
        order = [line.split()[1].removesuffix("/binding") for line in asked[1::2]]
        timestamps = [int(now(api, name)["metadata"]["annotations"][names.ASSUME_TIME]) for name in order]
        assert timestamps == sorted(set(timestamps)), "in the order of the binds, none twice"

    served("match", test)


def test_nodes_take_their_turns_apart() -> None:
    """A node whose bind has no answer holds up no other."""

    async def test(api: FakeApi, extender: Extending) -> None:
        slow, quick = [await api.create("pods", pod(name, 1)) for name in ("slow", "quick")]
        await extender.heard(slow, quick)
        api.mischief.decide = lambda method, path: "before" if "/slow" in path else ""
        waiting = asyncio.create_task(extender.bind(slow, "n"))
        await until(lambda: "uid-slow" in extender.pool.reserved)
        assert await extender.bind(quick, "m") == ""
        assert not waiting.done()
        api.mischief.decide = lambda method, path: ""
        assert await waiting == ""

    served("match", test)


def test_time_that_goes_back_does_not_turn_the_order_round() -> None:
    times = iter([1000, 900, 900])
    found = binder.Binder(None, lambda: True, lambda: next(times))  # type: ignore[arg-type]
    assert [found._stamp_ns() for _ in range(3)] == [1000, 1001, 1002]


@pytest.mark.parametrize("kind", KINDS)
def test_a_pod_that_somebody_changed_meanwhile_is_bound_all_the_same(kind: str) -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        made = await api.create("pods", pod("a", 8))
        await extender.heard(made)
        extender.cluster_cache.pods.objects["uid-a"]["metadata"]["resourceVersion"] = "1"  # what was heard is old
        assert await extender.bind(made, "n") == ""
        assert now(api)["spec"]["nodeName"] == "n"

    served(kind, test)


def test_the_same_pod_is_not_bound_twice_at_once() -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        made = await api.create("pods", pod("a", 8))
        await extender.heard(made)
        answers = await asyncio.gather(extender.bind(made, "n"), extender.bind(made, "m"))
        assert sorted(answers) == ["", "a bind of this pod is still under way"]

    served("late", test)


def test_a_pod_that_another_leader_bound_counts_where_it_is() -> None:
    """Its binding came first; ours must not make the GPU free that it took."""

    async def test(api: FakeApi, extender: Extending) -> None:
        made = await api.create("pods", pod("a", 8))
        await extender.heard(made)
        extender.cluster_cache.pods.on_change = lambda what, item: None  # what the other did is not heard of
        extender.cluster_cache.pod = lambda uid: made  # type: ignore[method-assign]
        theirs = {names.IDX: "1", names.POD: "8", names.NODE: "n", names.ASSIGNED: "false"}
        await api.bind("default", "a", {"metadata": {"name": "a", "annotations": theirs}, "target": {"name": "n"}})
        assert "by another program" in await extender.bind(made, "n")
        assert extender.pool.free_of("n") == {0: 15, 1: 7}

    served("late", test)


async def bind_of(api: FakeApi, old: dict[str, Any], node: str) -> None:
    """A binding that was on its way for long: of the pod as it was then."""
    meta = {key: old["metadata"][key] for key in ("name", "uid", "resourceVersion")}
    await api.bind("default", old["metadata"]["name"], {"metadata": meta, "target": {"name": node}})


@pytest.mark.parametrize("how", ["at once", "by the sweep", "by a bind elsewhere"])
def test_a_binding_without_an_answer_fails_when_it_comes_after_all(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its GPU is given to anybody else the pod is touched."""
    monkeypatch.setattr(binder, "PATIENCE_S", 0.0)
    monkeypatch.setattr(verbs, "RESERVED_S", 0.2 if how == "by the sweep" else 30.0)
    monkeypatch.setattr(cluster_cache, "RESERVED_S", 0.2)

    async def test(api: FakeApi, extender: Extending) -> None:
        made = await api.create("pods", pod("a", 15))
        await extender.heard(made)
        left = ["before"] if how == "at once" else ["before"] * 2  # its binding, and the touch
        api.mischief.decide = lambda method, path: left.pop() if left and "/pods/a" in path else ""
        assert "503" in await extender.bind(made, "n")
        if how == "by a bind elsewhere":
            assert "uid-a" in extender.pool.reserved
            assert await extender.bind(made, "m") == ""
        await until(lambda: names.UNDONE in now(api)["metadata"]["annotations"])
        with pytest.raises(ApiRefused):
            await bind_of(api, made, "n")
        await until(lambda: extender.pool.free_of("n") == {0: 15, 1: 15})

    served("late", test)


def test_a_bound_pod_that_cannot_be_understood_keeps_its_gpu() -> None:
    """The answer to its binding was lost, and its annotations were spoilt before we looked."""

    async def test(api: FakeApi, extender: Extending) -> None:
        made = await api.create("pods", pod("a", 15))
        await extender.heard(made)
        extender.cluster_cache.pods.on_change = lambda what, item: None
        post = extender.service.api.post

        async def lost(path: str, body: Any, within_s: float = 0.0) -> dict[str, Any]:
            await post(path, body, within_s)
            spoilt = {**now(api), "metadata": {**now(api)["metadata"], "annotations": {names.IDX: "x", names.POD: "?"}}}
            api.store.put("pods", spoilt, "MODIFIED")
            extender.service.api.post = post  # type: ignore[method-assign]
            raise NoAnswer("lost")

        extender.service.api.post = lost  # type: ignore[method-assign]
        assert "stays reserved" in await extender.bind(made, "n")
        assert extender.pool.free_of("n") == {0: 0, 1: 15}

    served("late", test)


@pytest.mark.parametrize("change", [{names.ALLOCATION: '{"0":{"1":1}}'}, {names.COUNT: "2"}])
def test_what_a_pod_was_changed_to_while_it_was_bound_does_not_win(change: dict[str, str]) -> None:
    """A binding can only add annotations, and the GPUs were chosen for what the pod asked before."""

    async def test(api: FakeApi, extender: Extending) -> None:
        made = await api.create("pods", pod("a", 14))
        await extender.heard(made)
        extender.cluster_cache.pod = lambda uid: made  # type: ignore[method-assign]
        await api.change("pods", "default", "a", {"metadata": {"annotations": change}})
        assert "changed meanwhile" in await extender.bind(made, "n")
        assert not now(api)["spec"].get("nodeName")
        del extender.cluster_cache.pod
        await until(lambda: extender.cluster_cache.pod("uid-a") == trim_pod(now(api)))
        assert await extender.bind(now(api), "n") == ""
        held = read_gpu_assignment(now(api))
        assert held is not None and sum(held.units.values()) == 14
        await until(lambda: not extender.pool.reserved and extender.pool.held["uid-a"].units == held.units)

    served("late", test)


@pytest.mark.parametrize("status", [502, 408, 520])
def test_an_answer_from_something_in_between_is_no_refusal(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binder, "PATIENCE_S", 0.0)

    async def test(api: FakeApi, extender: Extending) -> None:
        made = await api.create("pods", pod("a", 15))
        await extender.heard(made)
        post = extender.service.api.post

        async def between(path: str, body: Any, within_s: float = 0.0) -> dict[str, Any]:
            extender.service.api.post = post  # type: ignore[method-assign]
            raise ApiError(status, "", "the proxy lost the server")

        extender.service.api.post = between  # type: ignore[method-assign]
        assert str(status) in await extender.bind(made, "n")
        with pytest.raises(ApiRefused):
            await bind_of(api, made, "n")

    served("late", test)


def test_who_does_not_lead_any_more_leaves_marks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be those of the replica that leads now."""
    monkeypatch.setattr(binder, "PATIENCE_S", 0.0)

    async def test(api: FakeApi, extender: Extending) -> None:
        made = await api.create("pods", pod("a", 15))
        await extender.heard(made)
        found = extender.service.extender.binder
        assert found is not None
        post = extender.service.api.post

        async def lost(path: str, body: Any, within_s: float = 0.0) -> dict[str, Any]:
            found.may_act = lambda: False
            extender.service.api.post = post  # type: ignore[method-assign]
            raise NoAnswer("lost")

        extender.service.api.post = lost  # type: ignore[method-assign]
        assert "stays reserved" in await extender.bind(made, "n")
        assert names.IDX in now(api)["metadata"]["annotations"]

    served("match", test)


def test_finding_a_proof_counts_towards_the_limit() -> None:
    async def main() -> None:
        async with FakeApi().served() as api, KubeClient(Cluster(api.url)) as asked:

            async def slow(refused: ApiCredentials | None) -> ApiCredentials:
                await asyncio.sleep(3600)
                raise AssertionError

            asked._proof = slow  # type: ignore[method-assign]
            with pytest.raises(NoAnswer):
                await asked.post("/api/v1/namespaces/default/pods/a/binding", {}, within_s=0.05)

    asyncio.run(main())
