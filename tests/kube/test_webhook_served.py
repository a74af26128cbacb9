"""The webhook over real HTTPS, against an API server: what it makes, what it refuses, and certificates that change."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kube.extending import until
from tests.kube.test_command import TIDE, kubeconfig
from tests.kube.test_webhook import MALFORMED, applied, container, pod, review
from tidewright.app.kube.cluster import ClusterTarget
from tidewright.app.kube.webhook import serve_webhook
from tidewright.base.errors import UsageError
from tidewright.kube.client.credentials import Cluster
from tidewright.kube.objects import names
from tidewright.kube.webhook.conversion import MADE_BY, ConvertedRequest, template_of
from tidewright.kube.webhook.server import LONGEST_BODY, CertificatePair, WebhookService, WebhookSettings, key_fault
from tidewright.testing.kube_api import FakeApi

pytestmark = pytest.mark.processes
NAME = "tidewright-webhook.kube-system.svc"
DOCS = Path(__file__).parents[2] / "docs" / "kubernetes-webhook.md"
KIND = "resourceclaimtemplates"
Object = dict[str, Any]


def make_pair(folder: Path) -> Path:
    """By the commands of the docs: ca.crt, tls.crt and tls.key."""
    folder.mkdir()
    [commands] = [one for one in re.findall(r"```sh\n(.*?)```", DOCS.read_text(), re.DOTALL) if "openssl" in one]
    subprocess.run(["sh", "-euc", commands], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two authorities with a certificate each."""
    folder = tmp_path_factory.mktemp("pairs")
    return make_pair(folder / "one"), make_pair(folder / "two")


class Caller:
    """As the API server: verifies the certificate for the service's name."""

    def __init__(self, service: WebhookService, authority: Path) -> None:
        self.url = f"https://127.0.0.1:{service.address[1]}"
        self.tls = ssl.create_default_context(cafile=str(authority / "ca.crt"))

    async def send(self, body: bytes, path: str = "/mutate", method: str = "POST") -> tuple[int, bytes]:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path, data=body, ssl=self.tls, server_hostname=NAME) as answer,
        ):
            return answer.status, await answer.read()

    async def review(self, found: Object, **more: Any) -> Object:
        status, text = await self.send(review(found, **more))
        assert status == 200, text
        response: Object = json.loads(text)["response"]
        return response


@asynccontextmanager
async def webhook(
    api: FakeApi, pair: Path, said: list[str] | None = None, **more: Any
) -> AsyncIterator[tuple[WebhookService, Caller]]:
    settings = WebhookSettings(pair / "tls.crt", pair / "tls.key", port=0, **{"reread_s": 0.05, **more})
    service = WebhookService(Cluster(api.url), settings, (said if said is not None else []).append)
    running = asyncio.create_task(service.run())
    await asyncio.wait(
        {running, listening := asyncio.create_task(service.listening.wait())}, return_when="FIRST_COMPLETED"
    )
    listening.cancel()
    if running.done():
        running.result()
    try:
        yield service, Caller(service, pair)
    finally:
        service.stop()
        await running


def templates(api: FakeApi) -> dict[tuple[str, str], Object]:
    return {key[1:]: item for key, item in api.store.objects.items() if key[0] == KIND}


def patched(found: Object, response: Object) -> Object:
    assert response["allowed"]
    assert response["patchType"] == "JSONPatch"
    new: Object = applied(found, json.loads(base64.b64decode(response["patch"])))
    return new


def serving(pair: Path, check: Callable[[FakeApi, Caller], Any], **more: Any) -> None:
    async def main() -> None:
        async with FakeApi().served() as api, webhook(api, pair, **more) as (_, caller):
            await check(api, caller)

    asyncio.run(main())


def test_a_pod_is_converted_and_its_template_made_once(pairs: tuple[Path, Path]) -> None:
    async def check(api: FakeApi, caller: Caller) -> None:
        answers = await asyncio.gather(*(caller.review(pod(container("a", "8")), uid=f"u{at}") for at in range(8)))
        assert [one["uid"] for one in answers] == [f"u{at}" for at in range(8)]
        assert all(one["allowed"] for one in answers)
        [((namespace, name), made)] = templates(api).items()
        assert (namespace, made["metadata"]["labels"]) == ("ns", MADE_BY)
        new = patched(pod(container("a", "8")), answers[0])
        assert new["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == name
        posts = len(api.requests)
        await caller.review(pod(container("other", "8")))
        assert len(api.requests) == posts, "one that is there is found"
        await caller.review(pod(container("a", "8")), namespace="elsewhere")
        assert {key[0] for key in templates(api)} == {"ns", "elsewhere"}
        await api.remove(KIND, "ns", name)
        await caller.review(pod(container("a", "8")))
        assert len(templates(api)) == 2, "one that was deleted is made again"

    serving(pairs[0], check)


def test_a_dry_run_makes_nothing(pairs: tuple[Path, Path]) -> None:
    async def check(api: FakeApi, caller: Caller) -> None:
        response = await caller.review(pod(container("a", "8")), dryRun=True)
        assert patched(pod(container("a", "8")), response)["spec"]["resourceClaims"]
        assert not api.requests
        assert not templates(api)

    serving(pairs[0], check)


def test_what_is_no_new_pod_passes_unchanged(pairs: tuple[Path, Path]) -> None:
    async def check(api: FakeApi, caller: Caller) -> None:
        asked = pod(container("a", "8"))
        deployments = {"group": "apps", "version": "v1", "resource": "deployments"}
        for more in ({"operation": "UPDATE"}, {"subResource": "eviction"}, {"resource": deployments, "object": None}):
            assert await caller.review(asked, **more) == {"uid": "u1", "allowed": True}
        assert await caller.review(pod(container("a"))) == {"uid": "u1", "allowed": True}
        assert not api.asked

    serving(pairs[0], check)


def test_an_ask_that_makes_no_sense_is_denied(pairs: tuple[Path, Path]) -> None:
    said: list[str] = []

    async def check(api: FakeApi, caller: Caller) -> None:
        response = await caller.review(pod(container("a", "1Gi")))
        assert (response["uid"], response["allowed"], response["status"]["code"]) == ("u1", False, 403)
        assert "units are counted, not bytes" in response["status"]["message"]
        assert "patch" not in response
        assert [line for line in said if "pod ns/web-… is denied" in line]
        assert not api.asked

    serving(pairs[0], check, said=said)


def test_bodies_that_are_no_review(pairs: tuple[Path, Path]) -> None:
    async def check(api: FakeApi, caller: Caller) -> None:
        for body in MALFORMED:
            status, text = await caller.send(body)
            assert status == 400, body[:80]
            assert text
            assert b"Traceback" not in text
        status, text = await caller.send(b" " * (LONGEST_BODY + 1))
        assert (status, str(LONGEST_BODY) in text.decode()) == (413, True)
        assert (await caller.send(b"", method="GET"))[0] == 405
        assert (await caller.send(b"", "/other"))[0] == 404
        for path in ("/healthz", "/readyz"):
            assert await caller.send(b"", path, "GET") == (200, b"ok")
        assert not api.asked

    serving(pairs[0], check)


def test_a_template_of_somebody_else(pairs: tuple[Path, Path]) -> None:
    async def check(api: FakeApi, caller: Caller) -> None:
        await caller.review(pod(container("a", "8")))
        [((_, name), made)] = templates(api).items()
        capacity = made["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]
        capacity["memory"] = "80Gi"
        for dry in (False, True):
            response = await caller.review(pod(container("a", "8")), dryRun=dry)
            assert not response["allowed"]
            assert f"delete resourceclaimtemplate {name}" in response["status"]["message"]
        capacity["memory"] = "8Gi"
        made["metadata"]["labels"] = {}
        assert (await caller.review(pod(container("a", "8"))))["allowed"], "whoever made it: it asks for the same"

    serving(pairs[0], check)


@pytest.mark.parametrize(("memory", "passes"), [("8Gi", True), ("80Gi", False)])
def test_another_replica_was_quicker(pairs: tuple[Path, Path], memory: str, passes: bool) -> None:
    async def check(api: FakeApi, caller: Caller) -> None:
        def quicker(method: str, path: str) -> str:
            made = dict(template_of(ConvertedRequest(8192, 1, 100), "ns"))
            made["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["memory"] = memory
            api.store.put(KIND, made, "ADDED")
            return ""

        api.mischief.decide = quicker
        assert (await caller.review(pod(container("a", "8"))))["allowed"] == passes
        assert len(api.requests) == 1

    serving(pairs[0], check)


def test_an_answer_that_was_lost_makes_no_second_template(pairs: tuple[Path, Path]) -> None:
    async def check(api: FakeApi, caller: Caller) -> None:
        api.mischief.decide = lambda method, path: "after"
        status, text = await caller.send(review(pod(container("a", "8"))))
        assert (status, b"no answer to POST" in text) == (503, True), "its failurePolicy decides"
        api.mischief.decide = lambda method, path: ""
        assert (await caller.review(pod(container("a", "8"))))["allowed"]
        assert len(templates(api)) == 1

    serving(pairs[0], check)


def test_an_api_server_that_says_no_or_nothing(pairs: tuple[Path, Path]) -> None:
    async def check(api: FakeApi, caller: Caller) -> None:
        api.mischief.forbidden = (KIND,)
        response = await caller.review(pod(container("a", "8")))
        assert not response["allowed"]
        assert "403 Forbidden" in response["status"]["message"]
        api.mischief.down = True
        status, text = await caller.send(review(pod(container("a", "8"))))
        assert (status, b"503" in text) == (503, True)
        assert (await caller.review(pod(container("a"))))["allowed"], "others do not need it"

    serving(pairs[0], check)


def test_units_and_class_are_the_clusters(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeApi().served() as api:
            config = str(kubeconfig(tmp_path / "config", api.url))
            pair = ["--tls-cert", str(pairs[0] / "tls.crt"), "--tls-key", str(pairs[0] / "tls.key")]
            words = ["kube", "webhook", "--kubeconfig", config, "--port", "0", *pair]
            process = await asyncio.create_subprocess_exec(
                TIDE,
                *words,
                "--memory-unit",
                "MiB",
                "--chunk",
                "256",
                "--device-class",
                "x.y",
                "--sm-percent",
                "5",
                stderr=asyncio.subprocess.PIPE,
            )
            assert process.stderr is not None
            service = WebhookService(Cluster(""), WebhookSettings(Path(), Path()), print)
            service.address = ("", int(re.findall(rb":(\d+)/mutate", await process.stderr.readline())[0]))
            assert (await Caller(service, pairs[0]).review(pod(container("a", "3"))))["allowed"]
            [made] = templates(api).values()
            assert made["spec"]["spec"]["devices"]["requests"][0]["exactly"] == {
                "deviceClassName": "x.y", "allocationMode": "ExactCount", "count": 1,
                "capacity": {"requests": {"memory": "768Mi", "smPercent": "5"}},
            }  # fmt: skip
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
            with pytest.raises(UsageError, match="a chunk is a number of MiB"):
                serve_webhook(ClusterTarget(config), "GiB", 4, "x.y", None, certificate=Path(), key=Path())

    asyncio.run(main())


async def serial(caller: Caller) -> bytes:
    """The certificate that a new connection sees."""
    relaxed = ssl.create_default_context()
    relaxed.check_hostname, relaxed.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", int(caller.url.rpartition(":")[2]), ssl=relaxed)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    assert isinstance(found, bytes)
    return found


def test_a_new_certificate_is_taken_up_and_a_wrong_one_is_not(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    one, two = pairs
    live = Path(shutil.copytree(one, tmp_path / "live"))

    async def main() -> None:
        said: list[str] = []
        async with FakeApi().served() as api, webhook(api, live, said) as (service, caller):
            first = await serial(caller)
            shutil.copy(two / "tls.crt", live / "tls.crt")
            await until(lambda: any("keeps the old certificate" in line for line in said))
            assert await serial(caller) == first, "a certificate without its key"
            assert (await caller.review(pod(container("a", "8"))))["allowed"]
            shutil.copy(two / "tls.key", live / "tls.key")
            await until(lambda: "took up a new certificate" in said)
            assert await serial(caller) != first
            assert (await Caller(service, two).review(pod(container("a", "8"))))["allowed"]
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await Caller(service, one).review(pod(container("a", "8")))
            (live / "tls.crt").unlink()
            await until(lambda: said[-1].startswith("keeps the old certificate"))
            assert (await Caller(service, two).review(pod(container("a", "8"))))["allowed"]

    asyncio.run(main())


def test_plain_http_is_not_answered(pairs: tuple[Path, Path]) -> None:
    async def check(api: FakeApi, caller: Caller) -> None:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.get(caller.url.replace("https", "http") + "/healthz")

    serving(pairs[0], check)


def test_keys_that_others_may_read_are_refused(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    live = Path(shutil.copytree(pairs[0], tmp_path / "live"))
    for mode in (0o640, 0o604, 0o620):
        os.chmod(live / "tls.key", mode)
        with pytest.raises(UsageError, match="is readable by others"):
            CertificatePair(live / "tls.crt", live / "tls.key").load()
    os.chmod(live / "tls.key", 0o600)
    assert CertificatePair(live / "tls.crt", live / "tls.key").load()
    me, root = 65532, 0
    assert not key_fault(0o440, root, me), "a Secret's file, read by the group of the pod"
    assert key_fault(0o440, me, me)
    assert key_fault(0o444, root, me)
    assert key_fault(0o460, root, me)


def test_a_pair_that_does_not_serve_ends_it_at_the_start(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    live = Path(shutil.copytree(pairs[0], tmp_path / "live"))
    good = CertificatePair(live / "tls.crt", live / "tls.key")
    assert good.load()
    assert not good.load(), "nothing changed"
    shutil.copy(pairs[1] / "tls.crt", live / "tls.crt")
    with pytest.raises(UsageError, match="cannot be used"):
        good.load()
    words = "openssl ec -in tls.key -aes128 -passout pass:abcd -out locked.key"
    subprocess.run(words.split(), cwd=live, check=True, capture_output=True)
    for key in ("locked.key", "none.key"):
        with pytest.raises(UsageError, match="without a password"):
            CertificatePair(pairs[0] / "tls.crt", live / key).load()


def test_names_are_those_of_the_docs() -> None:
    text = DOCS.read_text()
    for word in (names.MEM, names.COUNT, names.SM_PERCENT, names.POLICY, NAME, "tidewright-webhook-tls"):
        assert word in text
    [label] = [f"{key}={value}" for key, value in MADE_BY.items()]
    assert f"-l {label}" in text
