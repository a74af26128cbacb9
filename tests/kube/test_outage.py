"""The API server is away for a while, as while it is upgraded: what is asked meanwhile, and what is true afterwards."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kube.extending import Extending, extending, until
from tests.kube.objects import KINDS, node, pod
from tidewright.kube.client import reflector
from tidewright.kube.extender import binder
from tidewright.kube.extender import handler as verbs
from tidewright.kube.extender import leader_election as lead
from tidewright.kube.objects.pod_request import read_gpu_assignment
from tidewright.testing.kube_api import FakeApi

pytestmark = pytest.mark.processes
PATIENCE_S = 0.3


@pytest.fixture(autouse=True, params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All this on nodes of either kind."""
    monkeypatch.setattr(f"{__name__}.node", KINDS[request.param])


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """All waits are short."""
    monkeypatch.setattr(verbs, "STALE_S", 0.2)
    monkeypatch.setattr(reflector, "BACKOFF_S", (0.02, 0.1))
    monkeypatch.setattr(reflector, "SHORT_S", 0.05)
    monkeypatch.setattr(binder, "PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(binder, "PAUSE_S", 0.02)
    monkeypatch.setattr(lead, "SWEEP_S", 0.05)


def during(test: Callable[[FakeApi, Extending], Awaitable[None]], **settings: Any) -> None:
    """One node of 2 GPUs x 15, and of them a pod holds 12 of one."""

    async def main() -> None:
        async with FakeApi().served() as api:
            await api.create("nodes", node("n", 30, 2))
            async with extending(api, **settings) as extender:
                binding = extender.service.extender.binder
                assert binding is not None
                await until(binding.may_act)
                assert await extender.bind(await api.create("pods", pod("first", 12)), "n") == ""
                await settled(api, extender)
                await test(api, extender)
                await settled(api, extender)

    asyncio.run(main())


async def away(api: FakeApi, extender: Extending) -> None:
    """Long enough to be told."""
    api.mischief.down = True
    await api.cut_watches()
    await until(lambda: extender.cluster_cache.stale_s() > verbs.STALE_S)


async def settled(api: FakeApi, extender: Extending) -> None:
    """Nothing is reserved any more, and what the extender knows is what the API server's pods say."""

    def truth() -> dict[str, Any]:
        held = [read_gpu_assignment(item) for (kind, *_), item in api.store.objects.items() if kind == "pods"]
        return {one.uid: (one.node, one.units, one.bound) for one in held if one}

    def known() -> dict[str, Any]:
        return {uid: (one.node, one.units, one.bound) for uid, one in extender.pool.held.items()}

    await until(lambda: not extender.cluster_cache.stale_s() and not extender.pool.reserved and known() == truth())
    assert not extender.pool.overcommitted()


def test_a_filter_is_answered_from_what_was_known_and_says_how_old_that_is() -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        await away(api, extender)
        assert (await extender.filter(pod("fits", 15), ["n"]))["NodeNames"] == ["n"]
        found = await extender.filter(pod("both", 6, 2), ["n"])
        assert found["NodeNames"] == ["n"], "3 on each of 2 GPUs"
        found = await extender.filter(pod("late", 30, 2), ["n"])
        assert re.search(
            r"free on one GPU is 15 \(as of \d+ s ago: the API server does not answer\)", found["FailedNodes"]["n"]
        )
        assert (await extender.get("/readyz"))[0] == 200
        seconds = re.search(r"^tidewright_kube_stale_seconds (.*)$", (await extender.get("/metrics"))[1], re.MULTILINE)
        assert seconds and float(seconds[1]) > verbs.STALE_S
        api.mischief.down = False
        await settled(api, extender)
        assert "as of" not in (await extender.filter(pod("late", 30, 2), ["n"]))["FailedNodes"]["n"]

    during(test)


def test_a_bind_during_a_long_outage_is_refused_and_keeps_its_gpu_until_it_is_known() -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        one, two = [await api.create("pods", pod(name, 15)) for name in ("one", "two")]
        await extender.heard(one, two)
        await away(api, extender)
        began = asyncio.get_running_loop().time()
        assert "503" in await extender.bind(one, "n")
        assert asyncio.get_running_loop().time() - began >= PATIENCE_S, "it was tried again for a while"
        assert "Insufficient" in await extender.bind(two, "n"), "perhaps the first was bound after all"
        stranger = await extender.bind(pod("stranger", 1), "n")
        assert "503" in stranger
        assert not api.store.objects["pods", "default", "one"]["spec"].get("nodeName")
        api.mischief.down = False
        assert await extender.bind(one, "n") == ""
        assert "Insufficient" in await extender.bind(two, "n")
        assert extender.pool.free_of("n") == {0: 3, 1: 0}
        small = await api.create("pods", pod("small", 3))
        assert await extender.bind(small, "n") == ""

    during(test)


def test_a_bind_during_a_short_outage_is_carried_through() -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        made = await api.create("pods", pod("one", 15))
        await extender.heard(made)
        api.mischief.down = True
        await api.cut_watches()
        binding = asyncio.create_task(extender.bind(made, "n"))
        await asyncio.sleep(PATIENCE_S / 3)
        assert not binding.done()
        api.mischief.down = False
        assert await binding == ""
        assert api.store.objects["pods", "default", "one"]["spec"]["nodeName"] == "n"

    during(test)


def test_a_pod_deleted_during_an_outage_leaves_its_gpu() -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        made = await api.create("pods", pod("one", 15))
        await extender.heard(made)
        await away(api, extender)
        assert "503" in await extender.bind(made, "n")
        await api.remove("pods", "default", "one")
        await api.remove("pods", "default", "first")
        api.store.compact()
        assert extender.pool.free_of("n") == {0: 3, 1: 0}
        api.mischief.down = False
        await until(lambda: extender.pool.free_of("n") == {0: 15, 1: 15})
        assert await extender.bind(await api.create("pods", pod("next", 30, 2)), "n") == ""

    during(test, lead="off")


def test_a_lead_that_ran_out_binds_nothing_until_it_is_won_back() -> None:
    async def test(api: FakeApi, extender: Extending) -> None:
        made = await api.create("pods", pod("one", 15))
        await extender.heard(made)
        cluster_cache = extender.cluster_cache
        await away(api, extender)
        binding = extender.service.extender.binder
        assert binding is not None
        await until(lambda: not binding.may_act())
        assert "does not lead" in await extender.bind(made, "n")
        assert "uid-one" not in extender.pool.held, "nothing was tried, so nothing is kept"
        assert (await extender.filter(made, ["n"]))["NodeNames"] == ["n"], "to answer takes no lead"
        api.mischief.down = False
        await until(binding.may_act)
        assert await extender.bind(made, "n") == ""
        assert extender.service.extender.cluster_cache is cluster_cache, "nobody else led: the same term"

    during(test, lease_s=2)


def certificate(folder: Path) -> tuple[Path, Path]:
    """For 127.0.0.1, signed by itself."""
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem -days 2"
    more = ["-subj", "/CN=extender", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*words.split(), *more], cwd=folder, check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


def test_over_tls_with_a_token(tmp_path: Path) -> None:
    """As kube-scheduler asks with ``enableHTTPS: true`` and a CA file."""
    cert, key = certificate(tmp_path)
    body = {"Pod": pod("p", 4), "NodeNames": ["n", "other"]}

    async def main() -> None:
        async with FakeApi().served() as api, aiohttp.ClientSession() as session:
            await api.create("nodes", node("n"))
            async with extending(api, certificate=cert, key=key, token="secret") as extender:
                url = extender.url.replace("http:", "https:")
                trusting = ssl.create_default_context(cafile=str(cert))

                async def ask(token: str, tls: ssl.SSLContext = trusting, path: str = "filter") -> tuple[int, Any]:
                    headers = {"Authorization": f"Bearer {token}"}
                    async with session.post(
                        f"{url}/gpushare-scheduler/{path}", json=body, headers=headers, ssl=tls
                    ) as answer:
                        return answer.status, json.loads(await answer.text())

                status, found = await ask("secret")
                assert (status, found["NodeNames"]) == (200, ["n"])
                assert "other" in found["FailedAndUnresolvableNodes"]
                assert await ask("wrong") == (401, {"Error": "the bearer token is missing or wrong"})
                assert (await ask("secret", path="bind"))[0] == 400
                with pytest.raises(aiohttp.ClientConnectorCertificateError):
                    await ask("secret", ssl.create_default_context())
                with pytest.raises(aiohttp.ClientError):
                    await extender.get("/healthz")

    asyncio.run(main())
