"""The device plugin's heartbeat as the extender heeds it, and the command as a user types it."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kube.extending import extending, until
from tests.kube.objects import node, pod
from tests.kube.test_command import TIDE, kubeconfig, tide
from tidewright.kube import names
from tidewright.kube.beat import SILENT_BEATS, Beat, Beats, read, written
from tidewright.kube.cards import Card, publish, table_of
from tidewright.testing.kube_api import FakeApi
from tidewright.testing.kubelet import kubelet_in

pytestmark = pytest.mark.processes

CARDS = (Card(0, 15), Card(1, 15))


def ours(beat: Beat | None, name: str = "n", boot: str = "") -> dict[str, Any]:
    """A node that our plugin serves; no ``beat``: it never said so."""
    found = node(name)
    found["metadata"]["annotations"] = {names.TABLE: publish(CARDS)} | ({names.PLUGIN: written(beat)} if beat else {})
    found["status"]["nodeInfo"] = {"bootID": boot}
    return found


def heeded(item: dict[str, Any], now_s: float = 0.0) -> tuple[bool, str]:
    """Seen at 0, asked at ``now_s``."""
    beats = Beats()
    beats.see("n", item, 0.0)
    table = beats.heeded(table_of(item), item, now_s)
    return table.ready, table.note


@settings(deadline=None)
@given(st.builds(Beat, st.booleans(), st.text(), st.floats(1, 3600), st.text()))
def test_a_heartbeat_survives_its_annotation(beat: Beat) -> None:
    assert read(written(beat)) == beat


@settings(deadline=None)
@given(st.text() | st.sampled_from(["{}", "[]", "null", '{"registered":true,"at":"x","every_s":"soon"}']))
def test_what_is_no_heartbeat_is_not_taken_for_one(text: str) -> None:
    assert read(text) is None


def test_only_nodes_with_our_table_and_a_heartbeat_are_judged() -> None:
    assert heeded(node("n"))[0]
    assert heeded(ours(None))[0]
    assert heeded(ours(Beat(True, "t")))[0]
    assert heeded(ours(Beat(False, "t"))) == (False, "its device plugin is not registered with the kubelet")
    broken = ours(None)
    broken["metadata"]["annotations"][names.PLUGIN] = "?"
    assert not heeded(broken)[0]


def test_a_plugin_from_before_a_reboot_does_not_count() -> None:
    assert heeded(ours(Beat(True, "t", boot="a"), boot="a"))[0]
    assert heeded(ours(Beat(True, "t", boot=""), boot="a"))[0]
    assert "since the node was started" in heeded(ours(Beat(True, "t", boot="a"), boot="b"))[1]


def test_silence_is_counted_by_our_own_clock_and_not_while_we_are_deaf() -> None:
    item, limit = ours(Beat(True, "1970-01-01", every_s=10.0)), SILENT_BEATS * 10.0
    assert heeded(item, limit)[0]
    assert heeded(item, limit + 1) == (False, "its device plugin has been silent since 1970-01-01")
    beats = Beats()
    beats.see("n", item, 0.0)
    assert beats.silent(limit + 1) == ("n",)
    beats.see("n", item, limit + 1)
    assert beats.silent(limit + 1) == ("n",), "the same words again are not a heartbeat"
    beats.excuse(limit + 1)
    assert beats.silent(limit + 2) == ()
    beats.see("n", ours(Beat(True, "later", every_s=10.0)), 2 * limit)
    assert beats.silent(3 * limit) == ()
    beats.forget("n")
    assert beats.silent(1e9) == ()


def test_the_extender_binds_only_where_the_plugin_is_registered() -> None:
    async def scene() -> None:
        async with FakeApi().served() as api:
            await api.create("nodes", ours(Beat(False, "t"), "down"))
            await api.create("nodes", ours(Beat(True, "t"), "up"))
            await api.create("nodes", node("theirs"))
            async with extending(api) as found:
                one = await api.create("pods", pod("p", 4))
                answer = await found.filter(one, ["down", "up", "theirs"])
                assert answer["NodeNames"] == ["up", "theirs"]
                assert "not registered" in answer["FailedAndUnresolvableNodes"]["down"]
                assert "not registered" in await found.bind(one, "down")
                assert await found.bind(one, "up") == ""
                again = {"metadata": {"annotations": {names.PLUGIN: written(Beat(True, "u"))}}}
                await api.change("nodes", "", "down", again)
                await until(lambda: found.pool.tables["down"].ready)
                two = await api.create("pods", pod("q", 4))
                assert await found.bind(two, "down") == ""

    asyncio.run(scene())


def test_a_plugin_that_falls_silent_is_noticed_without_any_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidewright.kube.site.LISTEN_S", 0.05)
    monkeypatch.setattr("tidewright.kube.beat.SILENT_BEATS", 0.5)

    async def scene() -> None:
        async with FakeApi().served() as api:
            await api.create("nodes", ours(Beat(True, "t", every_s=1.0)))
            async with extending(api) as found:
                assert found.pool.tables["n"].ready
                await until(lambda: not found.pool.tables["n"].ready)
                one = await api.create("pods", pod("p", 4))
                assert "silent since t" in await found.bind(one, "n")

    asyncio.run(scene())


@pytest.mark.processes
def test_the_command_serves_a_node_without_gpus(tmp_path: Path) -> None:
    async def scene() -> None:
        with tempfile.TemporaryDirectory(prefix="tide-") as name:
            async with FakeApi().served() as api, kubelet_in(Path(name)) as kubelet:
                await api.create("nodes", node("n1"))
                await kubelet.start()
                config = str(kubeconfig(tmp_path / "config", api.url))
                words = ["kube", "device-plugin", "--kubeconfig", config, "--node", "n1", "--fake-gpus", "2x15"]
                words += [
                    "--kubelet-dir",
                    name,
                    "--cdi-dir",
                    f"{name}/cdi",
                    "--mps",
                    "--timeout=5",
                    "--memory-unit=GiB",
                ]
                process = await asyncio.create_subprocess_exec(TIDE, *words, stderr=asyncio.subprocess.PIPE)
                await until(lambda: len(kubelet.health) == 30)
                process.send_signal(signal.SIGTERM)
                _, err = await process.communicate()
                assert process.returncode == 0, err
                assert err.count(b"has no effect") == 2 and b"registered with the kubelet" in err
                beat = read(api.store.objects["nodes", "", "n1"]["metadata"]["annotations"][names.PLUGIN])
                assert beat is not None and not beat.registered

    asyncio.run(scene())


@pytest.mark.processes
def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    async def scene() -> None:
        config = str(kubeconfig(tmp_path / "config", "http://127.0.0.1:1"))
        plugin = ("kube", "device-plugin", "--kubeconfig", config)
        code, _, err = await tide(*plugin, "--node", "", "--fake-gpus", "1x1")
        assert code == 2 and "NODE_NAME" in err
        code, _, err = await tide(*plugin, "--node", "n", "--fake-gpus", "8x140", "--memory-unit", "MiB")
        assert code == 2 and "--chunk 8" in err
        code, _, err = await tide(*plugin, "--node", "n", "--fake-gpus", "lots")
        assert code == 2 and "NUMBERxGIB" in err

    asyncio.run(scene())
