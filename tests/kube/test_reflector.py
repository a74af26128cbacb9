"""How a copy is kept up when the server does not keep its word: pauses that grow, and an age that is told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tidewright.kube.client.api import KubeClient, NoAnswer
from tidewright.kube.client.credentials import Cluster
from tidewright.kube.client.reflector import BACKOFF_S, SHORT_S, Reflector
from tidewright.testing.kube_api import FakeApi


class Fickle(KubeClient):
    """Its lists are empty; its watches are as ``watches`` says, one after the other, then each ends at once.

    ``refused``: no answer; ``short``: ends at once; ``event``: ends after an event; ``long``: ends after a while; ``broken``:
    breaks off after a while."""

    def __init__(self, *watches: str) -> None:
        super().__init__(Cluster("http://nowhere"))
        self.left, self.lists, self.now_s = list(watches), 0, 0.0

    async def pages(self, path: str, size: int = 500) -> AsyncIterator[dict[str, Any]]:
        self.lists += 1
        yield {"metadata": {"resourceVersion": "7"}, "items": []}

    async def watch(
        self, path: str, version: str, for_s: int, opened: Callable[[], None] = lambda: None
    ) -> AsyncIterator[dict[str, Any]]:
        how = self.left.pop(0) if self.left else "short"
        if how == "refused":
            raise NoAnswer("refused")
        opened()
        if how == "event":
            yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "8"}}}
        if how in ("long", "broken"):
            self.now_s += SHORT_S
        if how == "broken":
            raise NoAnswer("broken")


class Enough(Exception):
    """So many pauses."""


def pauses(monkeypatch: pytest.MonkeyPatch, api: Fickle, count: int) -> tuple[list[float], list[float]]:
    """The first pauses, as long as they may be, and how old the copy was before each."""
    found: list[float] = []
    ages: list[float] = []
    one = Reflector(api, "/api/v1/pods", lambda what, item: None, rng=random.Random(1))
    monkeypatch.setattr(one._rng, "uniform", lambda low, high: high)

    async def sleep(seconds: float) -> None:
        ages.append(one.stale_s())
        found.append(seconds)
        api.now_s += seconds
        if len(found) == count:
            raise Enough

    monkeypatch.setattr("tidewright.kube.client.reflector.asyncio.sleep", sleep)
    monkeypatch.setattr("tidewright.kube.client.reflector.time.monotonic", lambda: api.now_s)
    with pytest.raises(Enough):
        asyncio.run(one.run())
    assert api.lists == 1
    return found, ages


LOW, HIGH = BACKOFF_S


@pytest.mark.parametrize("how", ["short", "refused"])
def test_watches_that_end_at_once_are_asked_for_less_and_less_often(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = pauses(monkeypatch, Fickle(*[how] * 12), 12)
    assert found == [min(HIGH, LOW * 2**at) for at in range(12)]


@pytest.mark.parametrize("how", ["event", "long"])
def test_a_watch_that_works_is_taken_up_again_at_once(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = pauses(monkeypatch, Fickle("short", "short", how, how, "short", "broken"), 4)
    assert found == [LOW, LOW * 2, LOW, LOW]


def test_while_the_server_is_away_the_copy_grows_old(monkeypatch: pytest.MonkeyPatch) -> None:
    found, ages = pauses(monkeypatch, Fickle(*["refused"] * 6, "event", "refused"), 8)
    assert ages[:6] == pytest.approx([sum(found[:at]) for at in range(6)])
    assert ages[6] == 0.0


def test_pages_of_a_list_have_each_object_once_in_any_order_of_namespaces() -> None:
    """A namespace that begins with another's name sorts before that one's objects when both are read as paths."""

    async def main() -> None:
        fake = FakeApi()
        for namespace in ("a-b", "a", "b", "a.c"):
            for name in ("x", "x-1", "y"):
                await fake.create("pods", {"metadata": {"namespace": namespace, "name": name}})
        await fake.create("nodes", {"metadata": {"name": "n"}})
        async with fake.served(), KubeClient(Cluster(fake.url)) as api:
            whole = [item["metadata"]["uid"] for item in await api.items("/api/v1/pods")]
            for size in (1, 2, 5, 12):
                pages = [page["items"] async for page in api.pages("/api/v1/pods", size)]
                paged = [item["metadata"]["uid"] for items in pages for item in items]
                assert sorted(paged) == sorted(whole) and len(set(paged)) == 12
            few = [item["metadata"]["name"] for item in await api.items("/api/v1/namespaces/a/pods")]
        assert few == ["x", "x-1", "y"]

    asyncio.run(main())
