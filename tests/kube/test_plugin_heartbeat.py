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
from tidewright.kube.objects import names
from tidewright.kube.objects.gpu_inventory import GpuInfo, publish, read_gpu_inventory
from tidewright.kube.objects.heartbeat import SILENT_BEATS, HeartbeatMonitor, PluginHeartbeat, read, written
from tidewright.testing.kube_api import FakeApi
from tidewright.testing.kubelet import kubelet_in

pytestmark = pytest.mark.processes

CARDS = (GpuInfo(0, 15), GpuInfo(1, 15))


def ours(heartbeat: PluginHeartbeat | None, name: str = "n", boot: str = "") -> dict[str, Any]:
    """A node that our plugin serves; no ``beat``: it never said so."""
    found = node(name)
    found["metadata"]["annotations"] = {names.TABLE: publish(CARDS)} | (
        {names.PLUGIN: written(heartbeat)} if heartbeat else {}
    )
    found["status"]["nodeInfo"] = {"bootID": boot}
    return found


def with_readiness(item: dict[str, Any], now_s: float = 0.0) -> tuple[bool, str]:
    """Seen at 0, asked at ``now_s``."""
    heartbeats = HeartbeatMonitor()
    heartbeats.see("n", item, 0.0)
    inventory = heartbeats.with_readiness(read_gpu_inventory(item), item, now_s)
    return inventory.ready, inventory.reason


@settings(deadline=None)
@given(st.builds(PluginHeartbeat, st.booleans(), st.text(), st.floats(1, 3600), st.text()))
def test_a_heartbeat_survives_its_annotation(heartbeat: PluginHeartbeat) -> None:
    assert read(written(heartbeat)) == heartbeat


@settings(deadline=None)
@given(st.text() | st.sampled_from(["{}", "[]", "null", '{"registered":true,"at":"x","every_s":"soon"}']))
def test_what_is_no_heartbeat_is_not_taken_for_one(text: str) -> None:
    assert read(text) is None


def test_only_nodes_with_our_table_and_a_heartbeat_are_judged() -> None:
    assert with_readiness(node("n"))[0]
    assert with_readiness(ours(None))[0]
    assert with_readiness(ours(PluginHeartbeat(True, "t")))[0]
    assert with_readiness(ours(PluginHeartbeat(False, "t"))) == (
        False,
        "its device plugin is not registered with the kubelet",
    )
    broken = ours(None)
    broken["metadata"]["annotations"][names.PLUGIN] = "?"
    assert not with_readiness(broken)[0]


def test_a_plugin_from_before_a_reboot_does_not_count() -> None:
    assert with_readiness(ours(PluginHeartbeat(True, "t", boot="a"), boot="a"))[0]
    assert with_readiness(ours(PluginHeartbeat(True, "t", boot=""), boot="a"))[0]
    assert "since the node was started" in with_readiness(ours(PluginHeartbeat(True, "t", boot="a"), boot="b"))[1]


def test_silence_is_counted_by_our_own_clock_and_not_while_we_are_deaf() -> None:
    item, limit = ours(PluginHeartbeat(True, "1970-01-01", every_s=10.0)), SILENT_BEATS * 10.0
    assert with_readiness(item, limit)[0]
    assert with_readiness(item, limit + 1) == (False, "its device plugin has been silent since 1970-01-01")
    heartbeats = HeartbeatMonitor()
    heartbeats.see("n", item, 0.0)
    assert heartbeats.silent(limit + 1) == ("n",)
    heartbeats.see("n", item, limit + 1)
    assert heartbeats.silent(limit + 1) == ("n",), "the same words again are not a heartbeat"
    heartbeats.excuse(limit + 1)
    assert heartbeats.silent(limit + 2) == ()
    heartbeats.see("n", ours(PluginHeartbeat(True, "later", every_s=10.0)), 2 * limit)
    assert heartbeats.silent(3 * limit) == ()
    heartbeats.forget("n")
    assert heartbeats.silent(1e9) == ()


def test_the_extender_binds_only_where_the_plugin_is_registered() -> None:
    async def scene() -> None:
        async with FakeApi().served() as api:
            await api.create("nodes", ours(PluginHeartbeat(False, "t"), "down"))
            await api.create("nodes", ours(PluginHeartbeat(True, "t"), "up"))
            await api.create("nodes", node("theirs"))
            async with extending(api) as found:
                one = await api.create("pods", pod("p", 4))
                answer = await found.filter(one, ["down", "up", "theirs"])
                assert answer["NodeNames"] == ["up", "theirs"]
                assert "not registered" in answer["FailedAndUnresolvableNodes"]["down"]
                assert "not registered" in await found.bind(one, "down")
                assert await found.bind(one, "up") == ""
                again = {"metadata": {"annotations": {names.PLUGIN: written(PluginHeartbeat(True, "u"))}}}
                await api.change("nodes", "", "down", again)
                await until(lambda: found.pool.inventories["down"].ready)
                two = await api.create("pods", pod("q", 4))
                assert await found.bind(two, "down") == ""

    asyncio.run(scene())


def test_a_plugin_that_falls_silent_is_noticed_without_any_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidewright.kube.extender.cluster_cache.LISTEN_S", 0.05)
    monkeypatch.setattr("tidewright.kube.objects.heartbeat.SILENT_BEATS", 0.5)

    async def scene() -> None:
        async with FakeApi().served() as api:
            await api.create("nodes", ours(PluginHeartbeat(True, "t", every_s=1.0)))
            async with extending(api) as found:
                assert found.pool.inventories["n"].ready
                await until(lambda: not found.pool.inventories["n"].ready)
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
                heartbeat = read(api.store.objects["nodes", "", "n1"]["metadata"]["annotations"][names.PLUGIN])
                assert heartbeat is not None and not heartbeat.registered

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
