"""The extender over HTTP against a fake API server: gpushare's answers, recorded questions, bad input, lost answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kube.extending import Extending, extending, until
from tests.kube.objects import node, placed, pod
from tidewright.kube import names
from tidewright.testing.kube_api import FakeApi

pytestmark = pytest.mark.processes
RECORDED = Path(__file__).parent / "recorded"


def served(test: Callable[[FakeApi, Extending], Awaitable[None]], **settings: Any) -> None:
    """Two nodes of 2 GPUs x 15 and one of 1 x 8, as in the recordings."""

    async def main() -> None:
        async with FakeApi().served() as api:
            for name, mem, count in (("gpu-a", 30, 2), ("gpu-b", 30, 2), ("gpu-c", 8, 1)):
                await api.create("nodes", node(name, mem, count))
            async with extending(api, **settings) as extender:
                await test(api, extender)

    asyncio.run(main())


def test_filter_and_bind_do_what_gpushare_does() -> None:
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

    served(test)


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


def test_two_binds_at_once_never_share_what_is_there_once() -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        made = [await api.create("pods", pod(f"p{at}", 8)) for at in range(8)]
        answers = await asyncio.gather(*(extender.bind(one, "gpu-a") for one in made))
        assert sorted(map(bool, answers)) == [False] * 2 + [True] * 6
        assert await extender.bind(made[answers.index("")], "gpu-a") == "", "asked twice, it is still bound"

    served(test)


QUESTIONS = sorted(RECORDED.glob("*/*.request.json"))


@pytest.mark.parametrize("folder", sorted({path.parent.name for path in QUESTIONS}))
def test_every_recorded_question_is_answered(folder: str) -> None:
    """What a real kube-scheduler 1.36 sent, in its order; answers have the form that it decodes."""

    async def test(api: FakeApi, extender: Extending) -> None:
        for path in [path for path in QUESTIONS if path.parent.name == folder]:
            body, verb = json.loads(path.read_text()), path.name.split(".")[0].rsplit("-", 1)[1]
            if verb == "bind" and ("pods", "default", body["PodName"]) not in api.store.objects:
                await api.create("pods", pod(body["PodName"], 1, uid=body["PodUID"]))
            found = await extender.ask(verb, path.read_bytes())
            asked = body.get("NodeNames") or [
                one["metadata"]["name"] for one in (body.get("Nodes") or {}).get("items", ())
            ]
            check_answer(verb, asked, found)

    served(test)


def check_answer(verb: str, asked: list[str], found: Any) -> None:
    if verb == "filter":
        assert found["Error"] == ""
        kept = (
            found["NodeNames"]
            if found["NodeNames"] is not None
            else [one["metadata"]["name"] for one in found["Nodes"]["items"]]
        )
        assert set(kept) <= set(asked)
        assert set(kept) | found["FailedNodes"].keys() | found["FailedAndUnresolvableNodes"].keys() == set(asked)
    elif verb == "prioritize":
        assert [one["Host"] for one in found] == asked
        assert all(0 <= one["Score"] <= 10 for one in found)
    elif verb == "preempt":
        assert set(found) == {"NodeNameToMetaVictims"}
    else:
        assert set(found) == {"Error"}


BAD = [
    b"", b"{", b"[]", b"null", b"3", b'"x"', b'{"Pod": 3, "NodeNames": []}', b'{"Pod": {"metadata": {}}, "NodeNames": []}',
    b'{"Pod": {"metadata": {"name": "x"}}, "NodeNames": "gpu-a"}', b'{"NodeNames": [1]}', b'{"Pod": {"metadata": {"name": "x"}}}',
    b"[" * 100_000, b"\xff\xfe",
]  # fmt: skip


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind"])
def test_a_malformed_body_is_400_with_a_reason(verb: str) -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        for body in BAD:
            if verb != "preempt" or b"Pod" not in body:
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


def test_a_pod_deleted_on_its_way_holds_nothing() -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        made = await api.create("pods", pod("a", 15))
        await extender.filter(made, ["gpu-a"])
        await api.remove("pods", "default", "a")
        assert "gone" in await extender.bind(made, "gpu-a") or "not found" in await extender.bind(made, "gpu-a")
        again = await api.create("pods", pod("a", 15, uid="another"))
        assert await extender.bind(made, "gpu-a") != ""
        assert await extender.bind(again, "gpu-a") == ""
        await until(lambda: set(extender.pool.held) == {"another"})

    served(test)


@pytest.mark.parametrize("fate", ["before", "after"])
@pytest.mark.parametrize("part", ["/pods/a", "/binding"])
def test_a_lost_answer_neither_loses_nor_doubles(part: str, fate: str) -> None:
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

    served(test)


def test_a_restarted_extender_reaches_the_same_state() -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        for at in range(6):
            await extender.bind(await api.create("pods", pod(f"p{at}", 4, 2 if at % 2 else 1)), "gpu-a")
        await until(lambda: not extender.pool.reserved)
        async with extending(api, lead="off") as second:
            assert second.pool.held == extender.pool.held
            assert second.pool.free_of("gpu-a") == extender.pool.free_of("gpu-a")

    served(test, lead="off")


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
                assert any("one replica" in line for line in extender.said)
                assert await extender.bind(await api.create("pods", pod("a", 4)), "n") == ""

    asyncio.run(main())


def test_with_a_token_nobody_else_is_answered() -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        await extender.ask("filter", {}, status=401)
        assert (await extender.get("/gpushare-scheduler/inspect"))[0] == 401
        assert (await extender.get("/healthz"))[0] == 200

    served(test, token="secret")
