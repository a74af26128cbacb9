"""The mark that a pod has its GPUs is written in the end, however long the API server is away and whoever restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.kube.extending import until
from tests.kube.test_plugin_pure import assumed
from tests.kube.test_plugin_served import plugged
from tidewright.kube.objects import names
from tidewright.kube.plugin import assigned_marker
from tidewright.kube.plugin.assigned_marker import AssignedMarker

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assigned_marker, "BACKOFF_S", (0.02, 0.1))


def run(scene: Callable[[], Any]) -> None:
    asyncio.run(scene())


def refuses(method: str, path: str) -> str:
    return "before" if method == "PATCH" and "/pods/" in path else ""


@pytest.mark.parametrize("binding", ["late", "match"])
def test_a_mark_that_failed_is_written_when_the_api_server_is_back(binding: str) -> None:
    async def scene() -> None:
        async with plugged(binding=binding) as found:
            await found.ready()
            one, gone = assumed("p", 2, at=1), assumed("gone", 2, at=2)
            for each in (one, gone):
                await found.create(each)
            found.api.mischief.decide = refuses
            for each in (one, gone):
                await found.kubelet.admit(each)
                await found.kubelet.start_container(each["metadata"]["uid"], "c0")
            await until(lambda: any("mark of pod default/p" in line for line in found.logged))
            assert found.notes("p")[names.ASSIGNED] == "false" and names.LEVEL not in found.notes("p")
            await found.api.remove("pods", "default", "gone")
            found.api.mischief.decide = lambda method, path: ""
            await until(lambda: found.notes("p")[names.ASSIGNED] == "true")
            assert found.notes("p")[names.LEVEL] == "L1 cooperative"
            await until(lambda: not found.plugin_service.plugin.marker.pending)
            assert sum("mark of pod default/p" in line for line in found.logged) == 1

    run(scene)


@pytest.mark.parametrize("recorded", [True, False])
def test_what_an_earlier_run_could_not_mark_is_marked_at_the_start(recorded: bool) -> None:
    async def scene() -> None:
        async with plugged() as found:
            await found.ready()
            found.api.mischief.decide = refuses
            for name in ("has", "waits"):
                one = assumed(name, 2, at=1)
                await found.create(one)
                await found.kubelet.admit(one)
            await found.kubelet.start_container("uid-has", "c0")
            plugin = found.plugin_service.plugin
            plugin.marker.pending.clear()
            await found.api.change("pods", "default", "has", {"status": {"phase": "Running"}}, status=True)
            await until(lambda: plugin.pods.reflector.objects["uid-has"]["status"]["phase"] == "Running")
            found.api.mischief.decide = lambda method, path: ""
            allocated = plugin.admission.allocated if recorded else {}
            again = AssignedMarker(
                plugin.pods, plugin.node_api, plugin._level, lambda: allocated, found.plugin_service.folder
            )
            keeping = asyncio.create_task(again.run(lambda: True))
            await until(lambda: found.notes("has")[names.ASSIGNED] == "true")
            keeping.cancel()
            assert found.notes("waits")[names.ASSIGNED] == "false", "it stands in the checkpoint, and has no GPU yet"

    run(scene)


def test_an_api_server_that_does_not_answer_holds_up_no_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assigned_marker, "PATIENCE_S", 0.05)

    async def scene() -> None:
        async with plugged() as found:
            await found.ready()
            one, hanging = assumed("p", 2, at=1), asyncio.Event()
            await found.create(one)
            await found.kubelet.admit(one)
            told = found.plugin_service.plugin.node_api.assigned

            async def hangs(*args: Any) -> bool:
                await hanging.wait()
                return await told(*args)

            monkeypatch.setattr(found.plugin_service.plugin.node_api, "assigned", hangs)
            await found.kubelet.start_container("uid-p", "c0")
            assert found.notes("p")[names.ASSIGNED] == "false"
            hanging.set()
            await until(lambda: found.notes("p")[names.ASSIGNED] == "true")

    run(scene)
