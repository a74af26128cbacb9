"""Who asks, and which cluster: kubeconfigs in several files, plugins that give tokens and certificates, client certificates."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.kube.extending import until
from tests.kube.test_command import kubeconfig
from tidewright.base.errors import UsageError
from tidewright.kube.client import credentials
from tidewright.kube.client.api import NODES, ApiError, KubeClient, NoAnswer
from tidewright.kube.client.credentials import Cluster, find_cluster, from_kubeconfig

pytestmark = pytest.mark.processes
V1 = "client.authentication.k8s.io/v1"
Asked = tuple[str, str]
"""Common name of the client's certificate and its bearer token; empty: none."""
MAKE_CERTIFICATES = """
make() { openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" -keyout $1.key -out $1.csr
  openssl x509 -req -in $1.csr -CA $2.crt -CAkey $2.key -days 2 -out $1.crt -extfile names; }
authority() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=$1" \
  -keyout $1.key -out $1.crt; }
echo subjectAltName=IP:127.0.0.1 > names
authority ca; authority elsewhere
make server ca; make one ca; make two ca; make stranger elsewhere
openssl ec -in one.key -aes128 -passout pass:abcd -out locked.key
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates with keys: ca's server, one and two; stranger, of another authority."""
    folder = tmp_path_factory.mktemp("certificates")
    subprocess.run(["sh", "-euc", MAKE_CERTIFICATES], cwd=folder, check=True, capture_output=True)
    return folder


@dataclass
class Server:
    """Answers every path, once it has written down who asked. ``admits``: whom it does not answer 401."""

    admits: Callable[[Asked], bool] = lambda asked: True
    url: str = ""
    asked: list[Asked] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        seen = request.transport.get_extra_info("peercert") if request.transport else None
        names = dict(pair for part in (seen or {}).get("subject", ()) for pair in part)
        who = names.get("commonName", ""), request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.asked.append(who)
        if not self.admits(who):
            return web.json_response({"kind": "Status", "reason": "Unauthorized", "code": 401}, status=401)
        if "watch" in request.query:
            return web.Response(text='{"type": "BOOKMARK", "object": {}}\n')
        return web.json_response({"method": request.method})


@asynccontextmanager
async def serving(
    made: Path | None = None, admits: Callable[[Asked], bool] = lambda who: True
) -> AsyncIterator[Server]:
    """With certificates: TLS that lets in only who has one of the same authority."""
    server, tls = Server(admits), None
    if made:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(made / "ca.crt"))
        tls.load_cert_chain(made / "server.crt", made / "server.key")
        tls.verify_mode = ssl.CERT_REQUIRED
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        cluster_cache = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await cluster_cache.start()
        host, port = runner.addresses[0]
        server.url = f"{'https' if tls else 'http'}://{host}:{port}"
        yield server
    finally:
        await runner.cleanup()


def plugin(folder: Path, body: str) -> dict[str, Any]:
    """An exec plugin: Python with ``status``, ``run`` (how often it was run, from 1) and ``folder`` at hand."""
    script = folder / "login"
    script.write_text(
        f"#!{sys.executable}\nimport json, os, pathlib, sys, time\nstatus = {{}}\n"
        f"folder = pathlib.Path({str(folder)!r})\nrun = len(list(folder.glob('run-*'))) + 1\n"
        f"(folder / f'run-{{run}}').touch()\n{body}\nprint(json.dumps({{'status': status}}))\n"
    )
    script.chmod(0o700)
    return {"apiVersion": V1, "command": str(script)}


def runs(folder: Path) -> int:
    return len(list(folder.glob("run-*")))


def stamp(in_s: float) -> str:
    return datetime.fromtimestamp(time.time() + in_s, UTC).isoformat()


async def token(cluster: Cluster) -> str:
    return (await cluster.proof()).token


def test_a_plugin_is_run_again_when_its_token_has_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "SHORTEST_S", 0.3)
    body = (
        "asked = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "assert asked['kind'] == 'ExecCredential' and os.environ['EXTRA'] == 'yes' and not sys.stdin.read()\n"
        "status = {'token': str(run), 'expirationTimestamp': '2000-01-01T00:00:00Z'}"
    )
    made = {**plugin(tmp_path, body), "env": [{"name": "EXTRA", "value": "yes"}]}

    async def main() -> None:
        cluster = from_kubeconfig(kubeconfig(tmp_path / "config", "http://x", exec=made))
        assert [await token(cluster), await token(cluster)] == ["1", "1"], "kept for a moment"
        await asyncio.sleep(0.35)
        assert await token(cluster) == "2"

    asyncio.run(main())


def test_a_plugin_that_takes_its_time_holds_up_nothing_and_is_run_once_for_all(tmp_path: Path) -> None:
    made = plugin(tmp_path, "time.sleep(0.5)\nstatus = {'token': 'slow'}")

    async def main() -> None:
        cluster = Cluster("http://x", plugin=made)
        asking = [asyncio.create_task(token(cluster)) for _ in range(5)]
        longest_s, before_s = 0.0, time.monotonic()
        while not all(one.done() for one in asking):
            await asyncio.sleep(0.005)
            asking[0].cancel()
            longest_s, before_s = max(longest_s, time.monotonic() - before_s), time.monotonic()
        assert longest_s < 0.3, "the event loop stood still"
        assert [one.result() for one in asking[1:]] == ["slow"] * 4, "who gives up takes it from nobody"
        assert runs(tmp_path) == 1

    asyncio.run(main())


def test_a_token_is_used_while_the_next_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "RETRY_S", 0.0)
    body = (
        "if run > 1:\n    time.sleep(0.3)\nassert run != 2, 'out of order'\n"
        f"status = {{'token': str(run), 'expirationTimestamp': {stamp(3600)!r}}}"
    )
    made = plugin(tmp_path, body)

    async def main() -> None:
        cluster = Cluster("http://x", plugin=made)
        assert await token(cluster) == "1"
        cluster._fresh_s = 0.0
        assert await token(cluster) == "1", "it is valid, nobody waits"
        await until(lambda: cluster._renewing is not None and cluster._renewing.done())
        assert await token(cluster) == "1", "a renewal that fails ahead of time harms nobody"
        await until(lambda: cluster._renewing is not None and cluster._renewing.done())
        assert [await token(cluster), runs(tmp_path)] == ["3", 3]
        assert cluster._valid_s - cluster._fresh_s == pytest.approx(credentials.MARGIN_S)

    asyncio.run(main())


def test_a_program_ends_while_its_plugin_hangs(tmp_path: Path) -> None:
    made = plugin(tmp_path, "(folder / 'pid').write_text(str(os.getpid()))\ntime.sleep(60)")

    async def main() -> None:
        waiting = asyncio.create_task(Cluster("http://x", plugin=made).proof())
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
        waiting.cancel()

    begun_s = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - begun_s < 20

    async def gone() -> None:
        await until(lambda: not Path("/proc", (tmp_path / "pid").read_text(), "exe").exists())

    asyncio.run(gone())


@pytest.mark.parametrize("method", ["GET", "POST", "WATCH"])
def test_a_token_that_is_refused_is_asked_for_once_more(tmp_path: Path, method: str) -> None:
    made = plugin(tmp_path, "status = {'token': str(run)}")

    async def ask(api: KubeClient) -> None:
        if method == "WATCH":
            assert [event["type"] async for event in api.watch(NODES, "1", 1)] == ["BOOKMARK"]
        else:
            assert await (api.get(NODES) if method == "GET" else api.post(NODES, {})) == {"method": method}

    async def main() -> None:
        async with (
            serving(admits=lambda who: who[1] == "2") as server,
            KubeClient(Cluster(server.url, plugin=made)) as api,
        ):
            await ask(api)
            assert server.asked == [("", "1"), ("", "2")]
            server.admits = lambda who: who[1] == "9"
            with pytest.raises(ApiError, match="401"):
                await ask(api)
            assert server.asked[2:] == [("", "2"), ("", "3")], "once, not until it works"

    asyncio.run(main())


def test_many_refusals_at_a_time_run_the_plugin_once(tmp_path: Path) -> None:
    made = plugin(tmp_path, "status = {'token': str(run)}")

    async def main() -> None:
        async with (
            serving(admits=lambda who: who[1] == "2") as server,
            KubeClient(Cluster(server.url, plugin=made)) as api,
        ):
            await asyncio.gather(*(api.get(NODES) for _ in range(20)))
            assert runs(tmp_path) == 2

    asyncio.run(main())


def test_a_token_file_is_read_again_when_its_token_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old\n")

    async def main() -> None:
        async with serving() as server, KubeClient(Cluster(server.url, token_file=path)) as api:
            server.admits = lambda who: who[1] == "new"
            with pytest.raises(ApiError, match="401"):
                await api.get(NODES)
            assert len(server.asked) == 1, "the same again would be refused again"
            path.write_text("new\n")
            await api.get(NODES)
            path.unlink()
            server.admits = lambda who: False
            with pytest.raises(NoAnswer, match="is not asked: the token cannot be read"):
                await api.get(NODES)

    asyncio.run(main())


FAULTS = [
    ("sys.exit('who are you?')", "failed: who are you"),
    ("print('x')", "cannot be used"),
    ("status = 5", "cannot be used"),
    ("", "neither a token nor a certificate"),
    ("status = {'token': 'a', 'expirationTimestamp': 'soon'}", "cannot be used"),
    ("time.sleep(30)", "did not end in 0.5 s"),
]


@pytest.mark.parametrize(("body", "words"), FAULTS)
def test_a_plugin_that_fails_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: str) -> None:
    monkeypatch.setattr(credentials, "EXEC_LIMIT_S", 0.5 if "sleep" in body else 30.0)
    with pytest.raises(UsageError, match=words):
        asyncio.run(Cluster("http://x", plugin=plugin(tmp_path, body)).proof())


def test_a_plugin_that_is_not_there_is_named_with_its_hint(tmp_path: Path) -> None:
    made = {"command": "/no/such/plugin", "installHint": "install it first"}
    cluster = from_kubeconfig(kubeconfig(tmp_path / "config", "http://x", exec=made))
    with pytest.raises(UsageError, match="/no/such/plugin") as caught:
        asyncio.run(cluster.proof())
    assert caught.value.remedy == "install it first"


def test_client_certificates_of_a_kubeconfig(made: Path, tmp_path: Path) -> None:
    def data(name: str) -> str:
        return base64.b64encode((made / name).read_bytes()).decode()

    users = (
        {"client-certificate-data": data("one.crt"), "client-key-data": data("one.key")},
        {"client-certificate": os.path.relpath(made / "two.crt", tmp_path), "client-key": str(made / "two.key")},
    )

    async def main() -> None:
        async with serving(made) as server:
            for user in users:
                path = kubeconfig(tmp_path / "config", server.url, **user)
                config = json.loads(path.read_text())
                config["clusters"][0]["cluster"]["certificate-authority"] = str(made / "ca.crt")
                path.write_text(json.dumps(config))
                async with KubeClient(from_kubeconfig(path)) as api:
                    assert await api.get(NODES) == {"method": "GET"}
            assert server.asked == [("one", ""), ("two", "")]

    asyncio.run(main())


def cluster_of(made: Path, url: str, certificate: str = "", key: str = "", authority: str = "ca.crt") -> Cluster:
    found = [(made / name).read_bytes() if name else b"" for name in (authority, certificate, key)]
    return Cluster(url, authority=found[0], certificate=found[1], key=found[2])


@contextmanager
def refusing(made: Path) -> Iterator[str]:
    """A server that requires a certificate and, as OpenSSL and Go do, sends the alert before it hangs up; asyncio's does not."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(made / "ca.crt"))
    tls.load_cert_chain(made / "server.crt", made / "server.key")
    tls.verify_mode = ssl.CERT_REQUIRED

    def serve() -> None:
        with suppress(OSError):
            while True:
                plain, _ = listening.accept()
                raw = plain.dup()
                with suppress(ssl.SSLError):
                    tls.wrap_socket(plain, server_side=True)
                raw.shutdown(socket.SHUT_WR)
                while raw.recv(
                    65536
                ):  # closing with something unread would reset the connection, and the alert is lost
                    pass
                raw.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def test_a_certificate_that_the_server_does_not_accept_is_a_clear_error(made: Path) -> None:
    async def main(url: str) -> None:
        strange = cluster_of(made, url, "stranger.crt", "stranger.key")
        for cluster in (strange, cluster_of(made, url)):
            async with KubeClient(cluster) as api:
                with pytest.raises(NoAnswer, match="GET /api/v1/nodes: the server wants another client certificate"):
                    await api.get(NODES)
                with pytest.raises(NoAnswer, match="broke off: the server wants another client certificate"):
                    [event async for event in api.watch(NODES, "1", 1)]
        other = cluster_of(made, url, "one.crt", "one.key", authority="elsewhere.crt")
        async with KubeClient(other) as api:
            with pytest.raises(NoAnswer, match="certificate verify failed"):
                await api.get(NODES)

    with refusing(made) as url:
        asyncio.run(main(url))


def test_a_certificate_that_the_api_server_does_not_know_is_answered_401(made: Path) -> None:
    async def main() -> None:
        async with serving(made) as server, KubeClient(cluster_of(made, server.url, "two.crt", "two.key")) as api:
            server.admits = lambda who: who[0] == "one"
            with pytest.raises(ApiError, match="401 Unauthorized"):
                await api.get(NODES)
            assert server.asked == [("two", "")], "the same again would be refused again"

    asyncio.run(main())


@pytest.mark.parametrize("key", ["two.key", "one.crt", "locked.key"])
def test_a_certificate_with_a_key_that_does_not_serve_ends_it_at_the_start(made: Path, key: str) -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match="certificates for https://x cannot be used"):
            async with KubeClient(cluster_of(made, "https://x", "one.crt", key)):
                pass

    asyncio.run(main())


def test_a_certificate_that_a_plugin_renews_takes_effect(made: Path, tmp_path: Path) -> None:
    body = (
        f"name, made = ('one', 'two', 'stranger')[min(run, 3) - 1], pathlib.Path({str(made)!r})\n"
        "text = {kind: (made / f'{name}.{kind}').read_text() for kind in ('crt', 'key')}\n"
        "key = 'none' if (folder / 'broken').exists() else text['key']\n"
        "status = {'clientCertificateData': text['crt'], 'clientKeyData': key}"
    )
    exec_plugin = plugin(tmp_path, body)

    async def main() -> None:
        async with serving(made) as server:
            cluster = Cluster(server.url, authority=(made / "ca.crt").read_bytes(), plugin=exec_plugin)
            async with KubeClient(cluster) as api:
                for _ in range(3):
                    await api.get(NODES)
                assert server.asked == [("one", "")] * 3
                cluster._valid_s = 0.0
                await api.get(NODES)
                assert server.asked[3:] == [("two", "")], "not by the old connection"
                (tmp_path / "broken").touch()
                cluster._fresh_s = 0.0
                await api.get(NODES)
                await until(lambda: cluster._renewing is not None and cluster._renewing.done())
                await api.get(NODES)
                assert [server.asked[4:], runs(tmp_path)] == [[("two", "")] * 2, 3], "what cannot be used is not"
                server.admits = lambda who: False
                with pytest.raises(NoAnswer, match=r"is not asked: certificates for .* cannot be used"):
                    await api.get(NODES)

    asyncio.run(main())


def config_file(path: Path, current: str = "", **kinds: dict[str, Any]) -> str:
    """``kinds``: of contexts, clusters and users what is in them by name."""
    path.parent.mkdir(exist_ok=True)
    listed = {
        kind: [{"name": name, kind.removesuffix("s"): inner} for name, inner in found.items()]
        for kind, found in kinds.items()
    }
    path.write_text(json.dumps({**listed, **({"current-context": current} if current else {})}))
    return str(path)


def test_several_kubeconfigs_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    first = config_file(here / "config", clusters={"c": {"server": "http://first"}}, users={"red": {"token": "1"}})
    second = config_file(
        there / "config", "far", contexts={"far": {"cluster": "d", "user": "blue"}, "near": {"cluster": "c", "user": "red"}},
        clusters={"c": {"server": "http://second", "certificate-authority": "ca.crt"},
                  "d": {"server": "https://d", "certificate-authority": "ca.crt"}},
        users={"red": {"token": "2", "client-key": "no-such-file"}, "blue": {"exec": {"command": "./login"}}},
    )  # fmt: skip
    third = config_file(tmp_path / "third", "near", contexts={"far": {"cluster": "c", "user": "red"}})
    (there / "ca.crt").write_text("PEM")
    (tmp_path / "empty").touch()
    listed = ["", str(tmp_path / "none"), first, str(tmp_path / "empty"), second, third]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(listed))
    far = find_cluster()
    assert (far.server, far.authority, far.fixed_token) == ("https://d", b"PEM", ""), "by the first that has a context"
    assert far.plugin == {"command": str(there / "login")}
    near = find_cluster(context="near")
    assert (near.server, near.authority, near.fixed_token, near.key) == ("http://first", b"", "1", b"")
    with pytest.raises(UsageError, match="has no context 'none'") as caught:
        find_cluster(context="none")
    assert (caught.value.remedy, first in str(caught.value)) == ("known: far, near", True)
    with pytest.raises(UsageError, match="no context"):
        find_cluster(first)
    (tmp_path / "third").write_text("[")
    with pytest.raises(UsageError, match="third cannot be read"):
        find_cluster()
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([str(tmp_path / "none"), str(tmp_path / "nothing")]))
    with pytest.raises(UsageError, match="none cannot be read"):
        find_cluster()
