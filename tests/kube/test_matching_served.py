"""Matching by size over real sockets: a kubelet that admits in another order than pods were bound in, answers that are lost,
annotations that follow what containers have."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from typing import Any

import grpc
import pytest

from tests.kube.extending import extending, until
from tests.kube.objects import pod
from tests.kube.test_plugin_pure import assumed
from tests.kube.test_plugin_served import Plugged, plugged, run
from tidewright.kube.node.kubelet import KubeletFolder
from tidewright.kube.node.v1beta1 import messages
from tidewright.kube.objects import names
from tidewright.kube.objects.pod_request import read_gpu_assignment
from tidewright.kube.plugin import slot_matcher as matcher

pytestmark = pytest.mark.processes

BURST = (0, 1, 2, 4, 3, 5, 6, 7, 8, 10, 9, 13, 12, 11, 16, 14, 15, 17, 19, 18, 20, 21, 22, 23, 25, 24, 26, 27, 29, 28)
"""30 pods of one unit on two GPUs of 15, recorded on v1.36.2 with an extender that binds in parallel: in the order in which the
kubelet admitted them, which was that of their bindings, the place of each one's ASSUME_TIME. The first 15 were promised GPU 0."""


def indices(found: Plugged) -> dict[str, str]:
    """The GPU of each pod, by what its container was given."""
    return {made.uid.removeprefix("uid-"): made.env[names.IDX] for made in found.kubelet.made}


def shown(found: Plugged, *pods: str) -> dict[str, str]:
    """The GPU of each pod, by its annotations."""
    return {name: found.notes(name)[names.IDX] for name in pods}


def booked(found: Plugged) -> dict[int, int]:
    held = [read_gpu_assignment(item) for (kind, *_), item in found.api.store.objects.items() if kind == "pods"]
    return dict(sum((Counter(one.units) for one in held if one is not None), Counter[int]()))


def burst() -> list[dict[str, Any]]:
    return [assumed(f"p{place}", 1, at=10**18 + place, gpu=place // 15) for place in BURST]


async def bound(found: Plugged, *pods: dict[str, Any]) -> None:
    """The plugin is ready, and knows of these."""
    await found.ready()
    for one in pods:
        await found.create(one)


async def admit(found: Plugged, *pods: dict[str, Any]) -> None:
    for one in pods:
        await found.kubelet.admit(one)


@pytest.mark.parametrize("known", [True, False], ids=["in the order of bindings", "in an order that is not known"])
def test_a_recorded_burst_gets_just_what_the_books_say(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch tells in which order pods were bound. After a kubelet's restart it is no help; then only ASSUME_TIME is left."""
    if not known:
        monkeypatch.setattr("tidewright.kube.node.node_pods.version_of", lambda pod: 0)

    async def scene() -> None:
        async with plugged(binding="match") as found:
            await found.ready()
            pods = burst()
            for one in pods:
                await found.api.create("pods", one)
            await until(lambda: len(found.plugin_service.plugin.pods.reflector.objects) == 30)
            before = {one["metadata"]["name"]: one["metadata"]["annotations"][names.IDX] for one in pods}
            await admit(found, *pods)
            assert Counter(indices(found).values()) == {"0": 15, "1": 15}
            if known:
                assert indices(found) == before, "nobody got another's"
            await until(lambda: shown(found, *before) == indices(found))
            await until(lambda: booked(found) == {0: 15, 1: 15})
            assert not found.warnings()

    run(scene)


def test_pods_admitted_in_another_order_swap_and_their_annotations_follow() -> None:
    """At no moment do the books show room that there is not."""

    async def scene() -> None:
        async with plugged("3x2", binding="match") as found:
            pods = [assumed(f"p{at}", 2, at=at, gpu=at) for at in range(3)]
            await bound(found, *pods)
            promised, seen = shown(found, "p0", "p1", "p2"), list[dict[int, int]]()
            found.api.mischief.decide = lambda method, path: seen.append(booked(found)) or ""  # type: ignore[func-returns-value]
            await admit(found, pods[2], pods[0], pods[1])
            given = indices(found)
            assert sorted(given.values()) == ["0", "1", "2"] and given != promised
            await until(lambda: shown(found, *given) == given)
            assert all(count >= 2 for books in seen for count in (books[0], books[1], books[2]))
            await until(lambda: all(found.notes(name)[names.ASSIGNED] == "true" for name in given))
            await until(lambda: booked(found) == {0: 2, 1: 2, 2: 2})

    run(scene)


def test_an_answer_that_was_lost_gives_nothing_away() -> None:
    """The kubelet died with it, or failed the pod: it is not in the checkpoint when it allocates again."""

    async def scene() -> None:
        async with plugged("2x2", binding="match") as found:
            pods = [assumed(f"p{at}", 2, at=at, gpu=at) for at in range(2)]
            await bound(found, *pods)
            asked = messages().ContainerAllocateRequest(devices_ids=["0-0", "0-1"])
            for _ in range(3):
                await found.kubelet._ask("Allocate", messages().AllocateRequest(container_requests=[asked]))
            await admit(found, *pods)
            assert indices(found) == {"p0": "0", "p1": "1"}

    run(scene)


def test_marks_that_failed_are_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "AGAIN_S", 0.05)

    async def scene() -> None:
        async with plugged("2x2", binding="match") as found:
            pods = [assumed(f"p{at}", 2, at=at, gpu=at) for at in range(2)]
            await bound(found, *pods)
            found.api.mischief.decide = lambda method, path: "before" if method == "PATCH" and "/pods/" in path else ""
            await admit(found, *reversed(pods))
            found.api.mischief.decide = lambda method, path: ""
            await until(lambda: all(found.notes(name)[names.ASSIGNED] == "true" for name in ("p0", "p1")))
            await until(lambda: shown(found, "p0", "p1") == indices(found))

    run(scene)


def test_a_slot_is_free_again_when_its_pod_is_gone_though_the_checkpoint_still_names_it() -> None:
    async def scene() -> None:
        async with plugged("1x2", binding="match") as found:
            await found.ready()
            for at in range(3):
                one = assumed(f"p{at}", 2, at=at)
                await found.create(one)
                await admit(found, one)
                found.kubelet.forget(f"uid-p{at}")
                shutil.rmtree(found.kubelet.cgroup(f"uid-p{at}"))
                await found.api.remove("pods", "default", f"p{at}")

    run(scene)


def test_a_gpu_that_is_full_refuses_whatever_the_annotations_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "LOOK_S", 0.01)

    async def scene() -> None:
        async with plugged("1x2", binding="match") as found:
            pods = [assumed(name, 1, at=at) for at, name in enumerate("abc")]
            await bound(found, *pods)
            await admit(found, *pods[:2])
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await allocate(found, "0-7")
            assert "GPU 0 2 of 2" in str(caught.value.details()) and "default/c" in str(caught.value.details())
            (event,) = found.warnings()
            assert event["involvedObject"]["name"] == "c" and "GPU 0 2 of 2" in event["message"]

    run(scene)


def test_a_refusal_that_may_be_any_of_some_pods_is_an_event_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "LOOK_S", 0.01)

    async def scene() -> None:
        async with plugged("1x2", binding="match") as found:
            pods = [assumed(name, 1, at=at) for at, name in enumerate("abcd")]
            await bound(found, *pods)
            await admit(found, *pods[:2])
            with pytest.raises(grpc.aio.AioRpcError, match="one of the pods default/c, default/d"):
                await allocate(found, "0-7")
            assert {event["involvedObject"]["name"] for event in found.warnings()} == {"c", "d"}

    run(scene)


async def allocate(found: Plugged, *ids: str, limit_s: float | None = None) -> dict[str, str]:
    """A request by hand; what its container would see."""
    asked = messages().ContainerAllocateRequest(devices_ids=ids)
    answer = await found.kubelet._ask("Allocate", messages().AllocateRequest(container_requests=[asked]), limit_s)
    return dict(answer.container_responses[0].envs)


async def begun_beside_processes(found: Plugged) -> dict[str, Any]:
    """A pod that has one of its two containers, on a GPU where a deleted pod has processes. Returned: one that waits."""
    await found.ready()
    old, two, other = assumed("old", 1, at=1), assumed("two", 1, 1, at=2), assumed("other", 1, at=3)
    await found.create(old)
    await admit(found, old)
    await found.api.remove("pods", "default", "old")
    await until(lambda: "uid-old" not in found.plugin_service.plugin.pods.reflector.objects)
    found.kubelet.forget("uid-old")
    await found.create(two)
    admitting = asyncio.create_task(admit(found, two))
    await until(lambda: any(made.uid == "uid-two" for made in found.kubelet.made))
    first = next(made for made in found.kubelet.made if made.uid == "uid-two")
    admitting.cancel()
    await asyncio.gather(admitting, return_exceptions=True)
    found.kubelet.made.append(first)
    found.kubelet.save()
    await found.create(other)
    return other


def test_a_request_is_answered_before_its_caller_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what is wrong, and not with the caller's \"no answer\"."""
    monkeypatch.setattr(matcher, "LOOK_S", 0.1)
    monkeypatch.setattr(matcher, "LEAVING_GUESSES", 10**6)

    async def scene() -> None:
        async with plugged("1x2", binding="match") as found:
            await begun_beside_processes(found)
            with pytest.raises(grpc.aio.AioRpcError, match="GPU 0 2 of 2") as caught:
                await allocate(found, "0-9", limit_s=matcher.ANSWER_S + 0.5)
            assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION

    run(scene)


def test_a_request_that_its_caller_gave_up_is_over_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet has failed that pod. What it asks for next is another's."""
    monkeypatch.setattr(matcher, "LOOK_S", 0.05)
    monkeypatch.setattr(matcher, "ANSWER_S", -3600.0)
    monkeypatch.setattr(matcher, "LEAVING_GUESSES", 10**6)

    async def scene() -> None:
        async with plugged("1x2", binding="match") as found:
            await begun_beside_processes(found)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await allocate(found, "0-9", limit_s=0.5)
            assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            await until(lambda: found.plugin_service.plugin.matcher._passed)
            shutil.rmtree(found.kubelet.cgroup("uid-old"))
            assert (await allocate(found, "0-8"))[names.POD] == "1", "of the pod that waits, not of the one that failed"

    run(scene)


def test_where_no_cgroups_can_be_seen_it_is_said_that_a_deleted_pod_may_still_run() -> None:
    async def scene() -> None:
        async with plugged("1x2", binding="match") as found:
            await found.ready()
            old, new = assumed("old", 2, at=1), assumed("new", 2, at=2)
            await found.create(old)
            await admit(found, old)
            shutil.rmtree(found.plugin_service.settings.isolation.cgroups)
            found.kubelet.cgroups = None
            await found.api.remove("pods", "default", "old")
            found.kubelet.forget("uid-old")
            await found.create(new)
            await admit(found, new)
            assert sum("no cgroups of pods" in line for line in found.logged) == 1

    run(scene)


def test_a_checkpoint_that_did_not_change_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with plugged("1x2", binding="match") as found:
            await found.ready()
            one = assumed("p", 1, at=1)
            await found.create(one)
            await admit(found, one)
            await until(lambda: found.notes("p")[names.ASSIGNED] == "true")
            reads, given = list[int](), KubeletFolder.given
            monkeypatch.setattr(KubeletFolder, "given", lambda self: reads.append(1) or given(self))  # type: ignore[func-returns-value]
            for _ in range(5):
                await found.plugin_service.plugin.matcher.settle(unchanged=True)
            assert not reads
            found.kubelet.save()
            await found.plugin_service.plugin.matcher.settle(unchanged=True)
            assert len(reads) == 1

    run(scene)


def test_processes_of_a_pod_that_the_api_server_forgot_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "LOOK_S", 0.05)

    async def scene() -> None:
        async with plugged("1x2", binding="match") as found:
            await found.ready()
            old, new = assumed("old", 2, at=1), assumed("new", 2, at=2)
            await found.create(old)
            await admit(found, old)
            await found.api.remove("pods", "default", "old")
            await until(lambda: "uid-old" not in found.plugin_service.plugin.pods.reflector.objects)
            found.kubelet.forget("uid-old")
            await found.create(new)
            admitted = asyncio.create_task(admit(found, new))
            await asyncio.sleep(0.2)
            assert not admitted.done()
            shutil.rmtree(found.kubelet.cgroup("uid-old"))
            await admitted

    run(scene)


def test_a_pod_that_nobody_chose_a_gpu_for_is_refused_where_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "LOOK_S", 0.01)

    async def scene() -> None:
        async with plugged("1x2", binding="match") as found:
            await found.ready()
            bare = pod("bare", 2, node="n")
            await found.create(bare)
            with pytest.raises(grpc.aio.AioRpcError):
                await admit(found, bare)
            assert len(found.warnings()) == 1

    run(scene)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full)])
def test_extender_plugin_and_kubelet_agree_whatever_the_orders(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bursts of few sizes bound in parallel, admitted in any order, deleted when annotations are true; a plugin that
    forgets all it knows."""
    monkeypatch.setattr(matcher, "LOOK_S", 0.05)

    async def scene() -> None:
        rng = random.Random(seed)
        async with plugged(binding="match") as found, extending(found.api) as extender:
            await found.ready()
            amounts = {key: {names.MEM: "30"} for key in ("capacity", "allocatable")}
            await found.api.change("nodes", "", "n", {"status": amounts}, status=True)
            await until(lambda: extender.pool.inventories.get("n") and extender.pool.inventories["n"].ready)
            for step in range(4):
                made = [
                    await found.api.create("pods", pod(f"p{step}-{at}", rng.choice([1, 1, 2, 3]))) for at in range(12)
                ]
                answers = await asyncio.gather(*(extender.bind(one, "n") for one in made))
                bound = [one["metadata"]["name"] for one, why in zip(made, answers, strict=True) if not why]
                rng.shuffle(bound)
                for name in bound:
                    await found.kubelet.admit(found.api.store.objects["pods", "default", name])
                    use = Counter[str]()
                    for one in found.kubelet.made:
                        use[one.env[names.IDX]] += len(one.ids)
                    assert max(use.values()) <= 15, f"seed {seed}, step {step}"
                await until(lambda: shown(found, *indices(found)) == indices(found))
                await _forget_some(found, rng)
            await until(lambda: shown(found, *indices(found)) == indices(found))
            assert not found.warnings()

    run(scene)


async def _forget_some(found: Plugged, rng: random.Random) -> None:
    """Some pods are deleted, and end; the plugin knows no more than after a start."""
    for uid in rng.sample(sorted({one.uid for one in found.kubelet.made}), 5):
        found.kubelet.forget(uid)
        shutil.rmtree(found.kubelet.cgroup(uid))
        await found.api.remove("pods", "default", uid.removeprefix("uid-"))
    found.plugin_service.plugin.pods.order.clear()
    found.plugin_service.plugin.matcher._before.clear()
