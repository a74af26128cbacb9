"""The device plugin behind its proxy: either may end at any moment, and what the kubelet and the heartbeat make of it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.kube.extending import until
from tests.kube.objects import node
from tests.kube.proxying import proxied
from tests.kube.test_command import TIDE, kubeconfig
from tests.kube.test_plugin_pure import assumed
from tests.kube.test_plugin_served import OLD
from tests.rooms.imports import loaded_by
from tidewright.kube.node.cdi import name_of, qualified
from tidewright.kube.node.kubelet import OURS, PRIVATE, KubeletFolder, listen_private
from tidewright.kube.node.v1beta1 import messages
from tidewright.kube.objects import names
from tidewright.kube.objects.heartbeat import read
from tidewright.kube.plugin import plugin_client
from tidewright.kube.plugin import service as plugin_service
from tidewright.kube.plugin.plugin_proxy import PluginProxy, ProxySettings
from tidewright.testing.kube_api import FakeApi
from tidewright.testing.kubelet import PRE_START_S, kubelet_in

pytestmark = pytest.mark.processes


def run(scene: Callable[[], Any]) -> None:
    asyncio.run(scene())


def test_a_burst_around_a_killed_plugin_loses_no_pod_and_every_container_gets_its_own_gpu() -> None:
    async def scene() -> None:
        async with proxied() as found:
            gpus = {await found.admitted(f"p{at}", at % 2): at % 2 for at in range(3)}
            await found.kill_plugin()
            assert len(found.kubelet.health) == 30, "the kubelet notices nothing"
            gpus |= {await found.admitted(f"p{at}", at % 2): at % 2 for at in range(3, 10)}
            starting = {uid: asyncio.create_task(found.started(uid)) for uid in gpus}
            await asyncio.sleep(0)
            found.start_plugin()
            for uid, gpu in gpus.items():
                env = await starting[uid]
                assert (env[names.IDX], env[names.VISIBLE]) == (str(gpu), f"GPU-fake-000{gpu}")
            assert found.kubelet.registrations == 1
            await until(found.registered)

    run(scene)


def test_a_plugin_that_comes_back_has_never_been_unregistered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_service, "RECONNECT_S", 600.0)  # a busy machine may need more than the default

    async def scene() -> None:
        async with proxied() as found:
            await found.kill_plugin()
            heartbeats: list[bool] = []
            before = found.node["metadata"]["annotations"][names.PLUGIN]
            found.start_plugin()
            found.api.mischief.decide = lambda method, path: heartbeats.append(found.registered()) or ""
            await until(lambda: found.node["metadata"]["annotations"][names.PLUGIN] != before)
            assert all(heartbeats) and found.registered()
            assert found.kubelet.registrations == 1

    run(scene)


def test_the_heartbeat_says_whether_the_kubelet_listens_not_whether_the_proxy_does() -> None:
    async def scene() -> None:
        async with proxied(ready=False) as found:
            await until(lambda: any("serves its proxy" in line for line in found.logged))
            for times in (1, 2):
                await found.kubelet.start()
                await until(lambda times=times: found.kubelet.registrations == times and found.registered())
                await until(lambda: len(found.kubelet.health) == 30)
                await found.kubelet.crash()
                await until(lambda: not found.registered())

    run(scene)


def test_a_kubelet_that_goes_while_options_are_read_is_seen_to_be_gone() -> None:
    async def scene() -> None:
        async with proxied() as found:
            reading = asyncio.Event()

            async def hang() -> None:
                reading.set()
                await asyncio.sleep(3600)

            found.proxy._read_options = hang  # type: ignore[method-assign]
            found.gpus.sick = {1: "XID 79"}
            await reading.wait()
            await found.kubelet.crash()
            await until(lambda: not found.registered())

    run(scene)


def test_a_kubelet_that_restarts_while_the_plugin_is_away_gets_the_last_devices() -> None:
    async def scene() -> None:
        async with proxied() as found:
            await found.kill_plugin()
            await found.kubelet.crash()
            await found.kubelet.start()
            await until(lambda: len(found.kubelet.health) == 30)
            uid = await found.admitted("p", 1)
            found.start_plugin()
            assert (await found.started(uid))[names.IDX] == "1"

    run(scene)


def test_a_proxy_that_is_killed_is_told_at_once_and_comes_back() -> None:
    async def scene() -> None:
        async with proxied() as found:
            await found.kill_proxy()
            await until(lambda: not found.registered())
            await until(lambda: not found.kubelet.health)
            found.start_proxy()
            await until(lambda: len(found.kubelet.health) == 30 and found.registered())
            assert found.kubelet.registrations == 2

    run(scene)


def test_a_proxy_that_is_stopped_leaves_the_kubelet_after_the_heartbeat() -> None:
    """And so does one that is stopped together with its plugin."""

    async def scene(both: bool) -> None:
        async with proxied() as found:
            await found.restart_proxy(linger_s=3600.0)
            found.proxy.stop()
            if both:
                await found.stop_plugin()
            await until(lambda: not found.registered())
            assert len(found.kubelet.health) == 30
            await found.admitted("bound-before", 0)
            assert found.proxy_task is not None
            found.proxy_task.cancel()
            await until(lambda: not found.kubelet.health)

    run(lambda: scene(both=False))
    run(lambda: scene(both=True))


def test_a_plugin_that_is_stopped_says_so_and_the_kubelet_keeps_its_devices() -> None:
    async def scene() -> None:
        async with proxied() as found:
            await found.stop_plugin()
            assert not found.registered()
            assert len(found.kubelet.health) == 30
            assert not (found.folder / PRIVATE).parent.exists()
            found.start_plugin()
            await until(found.registered)
            assert found.kubelet.registrations == 1

    run(scene)


def test_other_devices_and_sick_ones_reach_the_kubelet() -> None:
    async def scene() -> None:
        async with proxied() as found:
            found.gpus.sick = {1: "XID 79"}
            await until(lambda: sum(health == "Unhealthy" for health in found.kubelet.health.values()) == 15)
            await found.kill_plugin()
            found.start_plugin("1x20")
            await until(lambda: len(found.kubelet.health) == 20)
            assert set(found.kubelet.health.values()) == {"Healthy"}
            assert found.kubelet.registrations == 1
            sent = [call for call in found.kubelet.calls if call[0] == "ListAndWatch.send"]
            assert len(sent) == 3, "the same devices are not sent twice"

    run(scene)


def test_a_plugin_that_comes_back_with_another_binding_is_registered_anew() -> None:
    async def scene() -> None:
        async with proxied() as found:
            assert found.kubelet.options.pre_start_required
            await found.kill_plugin()
            found.start_plugin(binding="match")
            await until(lambda: not found.kubelet.options.pre_start_required)
            await until(lambda: found.kubelet.registrations == 2 and len(found.kubelet.health) == 30)
            await until(found.registered)
            await found.admitted("p", 1)
            assert found.kubelet.made[-1].env[names.IDX] == "1"

    run(scene)


def test_a_node_that_shows_its_runtime_late_is_registered_anew_through_the_proxy() -> None:
    async def scene() -> None:
        async with proxied(info=OLD, ready=False, beat_s=0.05) as found:
            found.api.mischief.down = True
            await found.kubelet.start()
            await until(lambda: found.kubelet.options is not None and found.kubelet.options.pre_start_required)
            found.api.mischief.down = False
            await until(lambda: not found.kubelet.options.pre_start_required and found.registered())

    run(scene)


def test_matching_waits_for_the_plugin_and_ends_with_words_when_it_does_not_come() -> None:
    async def scene() -> None:
        async with proxied(binding="match") as found:
            await found.kill_plugin()
            one = assumed("p", 2, at=1, gpu=1)
            await found.api.create("pods", one)
            admitting = asyncio.create_task(found.kubelet.admit(one))
            await until(lambda: "Allocate" in [name for name, _ in found.kubelet.calls])
            found.start_plugin(binding="match")
            await admitting
            assert found.kubelet.made[-1].env[names.IDX] == "1"
            await found.restart_proxy(allocate_s=0.2)
            await found.kill_plugin()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await found.admitted("q", 0)
            assert "gave no answer for 0.2 s" in str(caught.value.details())
            assert "recreate the pod" in str(caught.value.details())

    run(scene)


def test_a_start_waits_for_the_plugin_and_then_says_who_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidewright.kube.plugin.service.RECONNECT_S", 0.2)

    async def scene() -> None:
        async with proxied() as found:
            uid = await found.admitted("p", 1)
            await found.restart_proxy(start_s=0.2)
            await found.kill_plugin()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await found.started(uid)
            text = str(caught.value.details())
            assert "kubectl -n kube-system logs" in text and "the kubelet tries the container again" in text
            found.start_plugin()
            await found.restart_proxy()
            assert (await found.started(uid))[names.IDX] == "1"

    run(scene)


def test_a_plugin_is_told_how_long_a_start_may_take() -> None:
    async def scene() -> None:
        left: list[float | None] = []

        async def look(request: Any, context: Any) -> Any:
            left.append(context.time_remaining())
            return messages().PreStartContainerResponse()

        async with proxied() as found:
            await found.kill_plugin()
            found.plugin_service.plugin._pre_start = look  # type: ignore[method-assign]
            methods = found.plugin_service.plugin.methods()
            server = await listen_private(KubeletFolder(found.folder), methods)
            try:
                uid = await found.admitted("p", 1)
                await found.kubelet.start_container(uid, "c0")
            finally:
                await server.stop(0)
            assert left[0] is not None and left[0] < PRE_START_S - 2
            found.start_plugin()

    run(scene)


@pytest.mark.parametrize("method", ["PreStartContainer", "Allocate"])
def test_the_error_of_a_plugin_that_fails_is_in_the_answer(method: str) -> None:
    async def fail(request: Any, context: Any) -> Any:
        raise ZeroDivisionError("4 by 0")

    async def scene() -> None:
        async with proxied(binding="late" if method == "PreStartContainer" else "match") as found:
            await found.restart_proxy(start_s=1.5, allocate_s=1.5)
            await found.kill_plugin()
            methods = found.plugin_service.plugin.methods() | {method: fail}
            server = await listen_private(KubeletFolder(found.folder), methods)
            try:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    uid = await found.admitted("p", 1)
                    await found.started(uid)
                text = str(caught.value.details())
                assert "gave no answer for 1.5 s" in text and "ZeroDivisionError" in text and "4 by 0" in text
                assert any("4 by 0" in line for line in found.proxy_log)
            finally:
                await server.stop(0)
            found.start_plugin()

    run(scene)


def test_what_the_plugin_refuses_is_refused() -> None:
    async def scene() -> None:
        async with proxied() as found:
            uid = await found.admitted("p", 7)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await found.started(uid)
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert "GPU 7 was chosen" in str(caught.value.details())

    run(scene)


def test_a_plugin_that_hangs_holds_up_no_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_client, "AT_ONCE_S", 0.1)
    asked: list[Any] = []

    async def hang(request: Any, context: Any) -> Any:
        asked.append(request)
        await asyncio.sleep(3600)

    async def scene() -> None:
        async with proxied() as found:
            await found.kill_plugin()
            hanging = dict.fromkeys(found.plugin_service.plugin.methods(), hang)
            server = await listen_private(KubeletFolder(found.folder), hanging)
            try:
                await until(lambda: asked)
                for name in ("a", "b", "c"):
                    await found.admitted(name, 0)
                assert [made.cdi for made in found.kubelet.made] == [
                    [qualified(name_of(made.ids))] for made in found.kubelet.made
                ]
                kinds = messages()
                allocated = [
                    one for one in asked if isinstance(one, kinds.AllocateRequest | kinds.PreferredAllocationRequest)
                ]
                assert len(allocated) == 1, "not asked again for a while"
            finally:
                await server.stop(0)
            found.start_plugin()

    run(scene)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_of_the_node_cannot_connect_to_the_plugin() -> None:
    def tried(path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as client:
            os.seteuid(65534)
            try:
                client.connect(str(path))
            finally:
                os.seteuid(0)

    async def scene() -> None:
        async with proxied() as found:
            found.folder.chmod(0o755)
            for path in (found.folder / PRIVATE, found.folder / OURS):
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
                with pytest.raises(PermissionError):
                    tried(path)
            assert stat.S_IMODE((found.folder / PRIVATE).parent.stat().st_mode) == 0o700

    run(scene)


def test_the_private_socket_is_made_anew_and_its_folder_closed() -> None:
    async def scene() -> None:
        async with proxied() as found:
            await found.kill_plugin()
            (found.folder / PRIVATE).parent.mkdir(mode=0o755)
            found.start_plugin()
            await until(found.registered)
            await until(lambda: (found.folder / PRIVATE).exists())
            (found.folder / PRIVATE).unlink()
            await until(lambda: (found.folder / PRIVATE).exists())
            assert stat.S_IMODE((found.folder / PRIVATE).parent.stat().st_mode) == 0o700
            await until(lambda: found.kubelet.health and found.registered())

    run(scene)


def test_the_proxy_loads_neither_a_client_nor_numbers() -> None:
    loaded = loaded_by(["tidewright.cli.kube.plugin_proxy", "tidewright.app.kube.plugin_proxy"])
    assert not loaded & {"numpy", "aiohttp", "yaml", "uvloop"}


async def _spawn(*words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(TIDE, "kube", *words, stderr=asyncio.subprocess.DEVNULL)


def child_of(pid: int) -> int:
    """The one process that runs the plugin (``--respawn``)."""
    [found] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found)


def test_real_processes_one_frozen_and_killed_in_the_middle_of_a_burst(tmp_path: Path) -> None:
    async def scene() -> None:
        with tempfile.TemporaryDirectory(prefix="tide-") as name:
            async with FakeApi().served() as api, kubelet_in(Path(name)) as kubelet:
                await api.create("nodes", node("n"))
                await kubelet.start()
                config = str(kubeconfig(tmp_path / "config", api.url))
                words = (
                    "device-plugin",
                    "--kubeconfig",
                    config,
                    "--node",
                    "n",
                    "--fake-gpus",
                    "2x15",
                    "--behind-proxy",
                    "--respawn",
                )
                folders = ("--kubelet-dir", name, "--cdi-dir", f"{name}/cdi")

                def registered() -> bool:
                    notes = api.store.objects["nodes", "", "n"]["metadata"].get("annotations") or {}
                    heartbeat = read(notes.get(names.PLUGIN, ""))
                    return heartbeat is not None and heartbeat.registered

                async def burst(first: int) -> None:
                    for at in range(first, first + 3):
                        one = assumed(f"p{at}", 2, at=at, gpu=at % 2)
                        await api.create("pods", one)
                        await kubelet.admit(one)

                proxy = await _spawn("plugin-proxy", "--kubelet-dir", name)
                plugin = await _spawn(*words, *folders)
                try:
                    await until(lambda: len(kubelet.health) == 30 and registered())
                    serving = child_of(plugin.pid)
                    os.kill(serving, signal.SIGSTOP)
                    await burst(0)
                    os.kill(serving, signal.SIGKILL)
                    await burst(3)
                    starts = [asyncio.create_task(kubelet.start_container(f"uid-p{at}", "c0")) for at in range(6)]
                    for at, made in enumerate(await asyncio.gather(*starts)):
                        file = Path(name, "cdi", f"tidewright-gpushare-{made.cdi[0].partition('=')[2]}.json")
                        assert f"GPU-fake-000{at % 2}" in file.read_text()
                    proxy.kill()
                    await proxy.wait()
                    await until(lambda: not registered())
                finally:
                    for process in (plugin, proxy):
                        if process.returncode is None:
                            process.kill()
                        await process.wait()

    run(scene)


def test_a_path_too_long_for_a_socket_is_refused() -> None:
    with pytest.raises(Exception, match="too long"):
        PluginProxy(ProxySettings(Path("/" + "x" * 120)), print)
