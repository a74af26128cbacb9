"""The extender over HTTP against a fake API server: gpushare's answers, recorded questions, bad input, lost answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kube.extending import Extending, extending, until
from tests.kube.objects import KINDS, node, placed, pod
from tidewright.kube.extender import binder
from tidewright.kube.objects import names
from tidewright.kube.objects.pod_request import read_gpu_assignment, read_pod_request
from tidewright.testing.kube_api import FakeApi

pytestmark = pytest.mark.processes
RECORDED = Path(__file__).parent / "recorded"


def served(test: Callable[[FakeApi, Extending], Awaitable[None]], kind: str = "match", **settings: Any) -> None:
    """Two nodes of 2 GPUs x 15 and one of 1 x 8, as in the recordings."""

    async def main() -> None:
        async with FakeApi().served() as api:
            for name, mem, count in (("gpu-a", 30, 2), ("gpu-b", 30, 2), ("gpu-c", 8, 1)):
                await api.create("nodes", KINDS[kind](name, mem, count))
            async with extending(api, **settings) as extender:
                await test(api, extender)

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_filter_and_bind_do_what_gpushare_does(kind: str) -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        made = await api.create("pods", pod("a", 9))
        found = await extender.filter(made, ["gpu-a", "gpu-b", "gpu-c", "cpu"])
        assert found["NodeNames"] == ["gpu-a", "gpu-b"]
        assert "too small" in found["FailedAndUnresolvableNodes"]["gpu-c"]
        assert "no shared GPUs" in found["FailedAndUnresolvableNodes"]["cpu"]
        assert await extender.bind(made, "gpu-a") == ""
        bound = api.store.objects["pods", "default", "a"]
        assert bound["spec"]["nodeName"] == "gpu-a"
        notes = bound["metadata"]["annotations"]
        assert (notes[names.IDX], notes[names.POD], notes[names.DEV], notes[names.ASSIGNED]) == (
            "0",
            "9",
            "15",
            "false",
        )
        status, text = await extender.get("/gpushare-scheduler/inspect/gpu-a")
        assert (status, json.loads(text)["nodes"][0]["usedGPU"]) == (200, 9)
        assert (await extender.get("/version"))[1] == "0.1.0"
        assert (await extender.get("/gpushare-scheduler/inspect/no-such-node"))[0] == 404

    served(test, kind)


def test_a_pod_that_fits_no_more_is_refused_with_what_would_fit() -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        for at in range(2):
            assert await extender.bind(await api.create("pods", pod(f"p{at}", 10)), "gpu-a") == ""
        late = await api.create("pods", pod("late", 6))
        found = await extender.filter(late, ["gpu-a"])
        assert found["NodeNames"] == []
        assert "most free on one GPU is 5" in found["FailedNodes"]["gpu-a"]
        assert "Insufficient GPU Memory in one device" in await extender.bind(late, "gpu-a")

    served(test)


def test_the_next_filter_knows_of_a_bind_that_is_on_its_way() -> None:
    """The scheduler filters pod b before it asks for the bind of pod a."""

    async def test(api: FakeApi, extender: Extending) -> None:
        first, second = [await api.create("pods", pod(name, 8)) for name in "ab"]
        assert (await extender.filter(first, ["gpu-c"]))["NodeNames"] == ["gpu-c"]
        assert (await extender.filter(second, ["gpu-a", "gpu-c"]))["NodeNames"] == ["gpu-a"]
        assert (await extender.filter(second, ["gpu-c"]))["NodeNames"] == ["gpu-c"], "with no other choice it may try"
        assert await extender.bind(first, "gpu-c") == ""
        assert "Insufficient" in await extender.bind(second, "gpu-c")

    served(test)


@pytest.mark.parametrize("kind", KINDS)
def test_two_binds_at_once_never_share_what_is_there_once(kind: str) -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        made = [await api.create("pods", pod(f"p{at}", 8)) for at in range(8)]
        answers = await asyncio.gather(*(extender.bind(one, "gpu-a") for one in made))
        assert sorted(map(bool, answers)) == [False] * 2 + [True] * 6
        assert await extender.bind(made[answers.index("")], "gpu-a") == "", "asked twice, it is still bound"

    served(test, kind)


QUESTIONS = sorted(RECORDED.glob("*/*.request.json"))


def story(path: Path) -> str:
    """The questions of one story were asked one after the other, about pods that the next one does not know."""
    return f"{path.parent.name}/{path.name.split('-')[0]}"


@pytest.mark.parametrize("name", sorted({story(path) for path in QUESTIONS}))
def test_every_recorded_question_is_answered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a real kube-scheduler 1.36 sent, in its order, and the form of what it then accepted from a stub that gave away
    whatever it was asked for; what we answer is checked against the pods that the API server has."""

    monkeypatch.setattr(binder, "PATIENCE_S", 0.0)  # one injected failure is reported, not outlived

    async def test(api: FakeApi, extender: Extending) -> None:
        await api.create("nodes", node("localhost", 16, 2))
        await until(lambda: "localhost" in extender.pool.inventories)
        replay = Replay(api, extender)
        for path in [path for path in QUESTIONS if story(path) == name]:
            recorded = json.loads(path.with_name(path.name.replace(".request.", ".meta.")).read_text())
            verb = path.name.split(".")[0].rsplit("-", 1)[1]
            await getattr(replay, verb)(path.read_bytes(), recorded["response_body"])
        assert replay.asked

    served(test)


class Replay:
    """Asks what was recorded, after making of the cluster what it then was."""

    def __init__(self, api: FakeApi, extender: Extending) -> None:
        self.api, self.extender = api, extender
        self.asked = 0
        self.victims: dict[str, list[str]] = {}

    async def filter(self, body: bytes, recorded: Any) -> None:
        asked = json.loads(body)
        await self._evict(names_of(asked))
        await self._meet(asked["Pod"])
        found = await self._ask("filter", body)
        kept = found["NodeNames"] if found["Nodes"] is None else names_of(found)
        same = {key.lower(): value for key, value in recorded.items()}
        assert {key.lower() for key in found} == set(same)
        assert (found["Nodes"] is None, found["NodeNames"] is None, found["Error"]) == (
            same["nodes"] is None, same["nodenames"] is None, "",
        )  # fmt: skip
        assert kept == [node for node in names_of(asked) if self._left(asked["Pod"], node) >= 0]
        refused = found["FailedNodes"].keys() | found["FailedAndUnresolvableNodes"].keys()
        assert refused == set(names_of(asked)) - set(kept)
        if found["Nodes"] is not None:
            assert all(node in asked["Nodes"]["items"] for node in found["Nodes"]["items"]), "as they were sent"

    async def prioritize(self, body: bytes, recorded: Any) -> None:
        asked = json.loads(body)
        found = await self._ask("prioritize", body)
        assert [one["Host"] for one in found] == names_of(asked)
        assert {one["Host"] for one in found} == {one["Host"] for one in recorded}
        left = {node: self._left(asked["Pod"], node) for node in names_of(asked)}
        tightest = min((units for units in left.values() if units >= 0), default=None)
        assert {one["Host"] for one in found if one["Score"] == 10} == {
            node for node in left if left[node] == tightest
        }, "best fit"

    async def preempt(self, body: bytes, recorded: Any) -> None:
        found = await self._ask("preempt", body)
        assert found == recorded
        self.victims = {
            node: [one["UID"] for one in chosen["Pods"]] for node, chosen in found["NodeNameToMetaVictims"].items()
        }
        assert set(self.victims) == {"gpu-a", "gpu-b"}

    async def bind(self, body: bytes, recorded: Any) -> None:
        """A bind that failed then fails now: the stub was told to fail, or the pod was gone by then."""
        asked, why = json.loads(body), {key.lower(): value for key, value in recorded.items()}["error"]
        key = ("pods", asked["PodNamespace"], asked["PodName"])
        room = self._left(self.api.store.objects[key], asked["Node"]) >= 0
        once = ["before"] if why == "injected failure" else []
        self.api.mischief.decide = lambda method, path: once.pop() if once and path.endswith("/binding") else ""
        if "not found" in why:
            await self._remove(key)
            assert "gone" in (await self._ask("bind", body))["Error"]
        elif why:
            assert "503" in (await self._ask("bind", body))["Error"]
            assert asked["PodUID"] not in self.extender.pool.held
        elif not room:
            assert "too small" in (await self._ask("bind", body))["Error"]
            assert not self.api.store.objects[key]["spec"].get("nodeName")
        else:
            assert (await self._ask("bind", body)) == {"Error": ""}
            held = read_gpu_assignment(self.api.store.objects[key])
            assert held is not None
            assert (held.node, held.bound) == (asked["Node"], True)

    async def _ask(self, verb: str, body: bytes) -> Any:
        self.asked += 1
        return await self.extender.ask(verb, body)

    async def _meet(self, pod: dict[str, Any]) -> None:
        """The pod is there, as it was sent; one that had its name before is gone."""
        meta = pod["metadata"]
        key = ("pods", meta["namespace"], meta["name"])
        if (found := self.api.store.objects.get(key)) and found["metadata"]["uid"] != meta["uid"]:
            await self._remove(key)
        if key not in self.api.store.objects:
            await self.extender.heard(await self.api.create("pods", pod))

    async def _evict(self, nodes: list[str]) -> None:
        """After a preemption the scheduler asks about the one node that it chose, when the victims are gone from there."""
        for uid in self.victims.pop(nodes[0], []) if len(nodes) == 1 else []:
            [key] = [key for key, item in self.api.store.objects.items() if item["metadata"].get("uid") == uid]
            await self._remove(key)

    async def _remove(self, key: tuple[str, ...]) -> None:
        uid = self.api.store.objects[key]["metadata"]["uid"]
        await self.api.remove(*key)
        await until(lambda: uid not in self.extender.pool.held and not self.extender.cluster_cache.pod(uid))

    def _left(self, pod: dict[str, Any], node: str) -> int:
        """Units that stay free on the tightest GPU that the pod fits on, by the API server's own pods; -1 if on none."""
        mem, count = {"gpu-a": (30, 2), "gpu-b": (30, 2), "gpu-c": (8, 1), "localhost": (16, 2)}[node]
        free = dict.fromkeys(range(count), mem // count)
        for (kind, *_), item in self.api.store.objects.items():
            held = read_gpu_assignment(item) if kind == "pods" else None
            for gpu, units in (
                held.units.items()
                if held and held.node == node and item["metadata"]["uid"] != pod["metadata"]["uid"]
                else ()
            ):
                free[gpu] -= units
        wants = read_pod_request(pod).units
        return min((units - wants for units in free.values() if units >= wants), default=-1)


def names_of(args: Any) -> list[str]:
    """Of the nodes of a question or an answer."""
    return args.get("NodeNames") or [one["metadata"]["name"] for one in (args.get("Nodes") or {}).get("items", ())]


BAD = [
    b"", b"{", b"[]", b"null", b"3", b'"x"', b'{"Pod": 3, "NodeNames": []}', b'{"Pod": {"metadata": {}}, "NodeNames": []}',
    b'{"Pod": {"metadata": {"name": "x"}}, "NodeNames": "gpu-a"}', b'{"NodeNames": [1]}', b'{"Pod": {"metadata": {"name": "x"}}}',
    b"[" * 100_000, b"\xff\xfe", b'{"Pod": {"metadata": {"name": "\xff"}}, "NodeNames": ["gpu-a"]}', b'{"Pod\xc3": 1}',
    b'{"PodName": "\xed\xa0\x80", "PodNamespace": "d", "PodUID": "u", "Node": "n"}', b'{"Pod": "\\ud800"}',
]  # fmt: skip


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind"])
def test_a_malformed_body_is_400_with_a_reason(verb: str) -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        for body in BAD:
            found = await extender.ask(verb, body, status=400)
            assert found["Error"]

    served(test)


@pytest.mark.parametrize("mem", ["-1", "9223372036854775808", "1Gi", "0", "1.5"])
def test_absurd_quantities_are_refused_for_every_node(mem: str) -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        made = await api.create("pods", pod("a", mem))
        found = await extender.filter(made, ["gpu-a", "gpu-b"])
        assert set(found["FailedAndUnresolvableNodes"]) == {"gpu-a", "gpu-b"}
        assert names.MEM in found["FailedAndUnresolvableNodes"]["gpu-a"]
        assert names.MEM in await extender.bind(made, "gpu-a")

    served(test)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pod_deleted_on_its_way_holds_nothing(kind: str) -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        made = await api.create("pods", pod("a", 15))
        await extender.filter(made, ["gpu-a"])
        await api.remove("pods", "default", "a")
        assert "gone" in await extender.bind(made, "gpu-a") or "not found" in await extender.bind(made, "gpu-a")
        again = await api.create("pods", pod("a", 15, uid="another"))
        assert await extender.bind(made, "gpu-a") != ""
        assert await extender.bind(again, "gpu-a") == ""
        await until(lambda: set(extender.pool.held) == {"another"})

    served(test, kind)


@pytest.mark.parametrize("fate", ["before", "after"])
@pytest.mark.parametrize(("kind", "part"), [("match", "/pods/a"), ("match", "/binding"), ("late", "/binding")])
def test_a_lost_answer_neither_loses_nor_doubles(kind: str, part: str, fate: str) -> None:
    """Once; the scheduler then tries again, perhaps on another node."""

    async def test(api: FakeApi, extender: Extending) -> None:
        made = await api.create("pods", pod("a", 15))
        left = [fate]
        api.mischief.decide = lambda method, path: left.pop() if left and path.endswith(part) else ""
        if await extender.bind(made, "gpu-a"):
            assert await extender.bind(made, "gpu-a") == ""
        assert api.store.objects["pods", "default", "a"]["spec"]["nodeName"] == "gpu-a"
        await until(lambda: not extender.pool.reserved)
        assert {uid: held.node for uid, held in extender.pool.held.items()} == {"uid-a": "gpu-a"}

    served(test, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_restarted_extender_reaches_the_same_state(kind: str) -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        for at in range(6):
            await extender.bind(await api.create("pods", pod(f"p{at}", 4, 2 if at % 2 else 1)), "gpu-a")
        await until(lambda: not extender.pool.reserved)
        async with extending(api, lead="off") as second:
            assert second.pool.held == extender.pool.held
            assert second.pool.free_of("gpu-a") == extender.pool.free_of("gpu-a")

    served(test, kind, lead="off")


def test_foreign_and_ended_pods_are_counted_as_they_come_and_go() -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        await api.create("pods", placed("other", "gpu-c", 0, 5))
        await until(lambda: extender.pool.free_of("gpu-c") == {0: 3})
        await api.change("pods", "default", "other", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
        await asyncio.sleep(0.1)
        assert extender.pool.free_of("gpu-c") == {0: 3}, "its containers still run"
        await api.change("pods", "default", "other", {"status": {"phase": "Failed"}}, status=True)
        await until(lambda: extender.pool.free_of("gpu-c") == {0: 8})
        await api.create(
            "configmaps",
            {"metadata": {"name": "unhealthy-gpu-gpu-c", "namespace": "kube-system"}, "data": {"gpus": "0"}},
        )
        await until(lambda: extender.pool.free_of("gpu-c") == {})
        await api.change(
            "nodes", "", "gpu-c", {"status": {"capacity": {names.MEM: "32", names.COUNT: "2"}}}, status=True
        )
        await until(lambda: extender.pool.free_of("gpu-c") == {1: 16})

    served(test)


def test_watches_that_break_or_expire_are_taken_up_again() -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        await api.cut_watches()
        await api.create("pods", placed("x", "gpu-c", 0, 2))
        await until(lambda: extender.pool.free_of("gpu-c") == {0: 6})
        api.mischief.down = True
        await api.cut_watches()
        await api.remove("pods", "default", "x")
        api.store.compact()
        found = await extender.filter(pod("a", 7), ["gpu-c"])
        assert found["NodeNames"] == [], "answered from what was known"
        api.mischief.down = False
        await until(lambda: extender.pool.free_of("gpu-c") == {0: 8})
        assert (await extender.get("/readyz"))[0] == 200

    served(test)


def test_a_standby_is_not_ready_and_takes_over() -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        async with extending(api, ready=False, who="second", lease_s=2) as standby:
            assert (await standby.get("/readyz"))[0] == 503
            assert "stands by" in await standby.bind(await api.create("pods", pod("a", 4)), "gpu-a")
            extender.service.stop()
            await standby.ready()
            assert await standby.bind(await api.create("pods", pod("b", 4)), "gpu-a") == ""

    served(test, who="first", lease_s=2)


def test_without_a_right_to_leases_it_says_so_and_works() -> None:
    async def main() -> None:
        async with FakeApi().served() as api:
            api.mischief.forbidden = ("coordination.k8s.io",)
            await api.create("nodes", node("n"))
            async with extending(api) as extender:
                assert any("one replica" in line for line in extender.logged)
                assert await extender.bind(await api.create("pods", pod("a", 4)), "n") == ""

    asyncio.run(main())


def test_with_a_token_nobody_else_is_answered() -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        await extender.ask("filter", {}, status=401)
        assert (await extender.get("/gpushare-scheduler/inspect"))[0] == 401
        assert (await extender.get("/healthz"))[0] == 200

    served(test, token="secret")
