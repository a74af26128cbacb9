"""The device plugin is killed while a real kubelet has pods to admit; the proxy keeps its connection."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.kube.test_plugin_proxy import child_of
from tests.kube.test_real import IMAGE, NODE, SERVER, environment, ground, heartbeat, leading, registered
from tidewright.kube.objects import names

pytestmark = pytest.mark.processes
TIDE = str(Path(sys.executable).with_name("tide"))
PLUGIN = ("device-plugin", "--kubeconfig", SERVER, "--node", NODE, "--fake-gpus", "2x15", "--behind-proxy", "--respawn")


@contextmanager
def spawned(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """``tide kube``, ended in order unless it was killed."""
    with subprocess.Popen([TIDE, "kube", *words], stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


@pytest.mark.skipif(not (SERVER and NODE and IMAGE), reason="KUBE_TEST_NODE is not set: pods on this machine's kubelet")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("binding", ["late", "match"])
def test_a_real_kubelet_fails_no_pod_while_the_plugin_is_away(binding: str) -> None:
    """It is started again by its parent while pods are bound; matching, the kubelet stands still until it is back."""

    async def main() -> None:
        with ExitStack() as running:
            async with ground("real") as found:
                before = await heartbeat(found)
            running.enter_context(spawned("plugin-proxy"))
            plugin = running.enter_context(spawned(*PLUGIN, "--binding", binding))
            async with ground("real") as found, leading(found) as extender:
                await registered(found, extender, before)
                os.kill(child_of(plugin.pid), signal.SIGKILL)
                pods = [await found.pod(mem=5) for _ in range(5)]
                for pod in pods:
                    assert await extender.bind(pod, NODE) == ""
                for pod in pods:
                    told = await environment(found, pod)
                    gpu = int((await found.read(pod))["metadata"]["annotations"][names.IDX])
                    assert f"{names.IDX}={gpu}" in told and f"GPU-fake-{gpu:04d}" in told

    asyncio.run(main())
