"""``tide kube webhook``: HTTPS for the API server, templates made before the pods that need them, certificates that change."""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...base.errors import UsageError, WorldError
from ..client.api import ApiError, KubeClient
from ..client.credentials import Cluster
from ..extender.server import listener
from ..objects.log import Log
from ..objects.metadata import Json
from . import admission_review as admission
from .conversion import ConversionSettings, convert, named, same

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates"
LONGEST_BODY = 8 << 20
"""Bytes. The API server takes no request over 3 MiB, and a review holds one object."""
API_TIMEOUT_S = 1.5
"""Of one request to the API server: three of them end before the webhook's own 5 s do."""
TRIES = 2
"""To find or to make a template; the second is for one that another replica made in between."""
PASSING = (401, 408, 429)
"""Refusals of the API server that are not the pod's fault."""


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """``port`` 0: any free one. ``reread_s``: how often the certificate's files are looked at."""

    certificate: Path
    key: Path
    host: str = "127.0.0.1"
    port: int = 9443
    terms: ConversionSettings = field(default_factory=ConversionSettings)
    reread_s: float = 10.0


def key_fault(mode: int, owner: int, me: int) -> str:
    """Why a private key cannot be trusted; empty when it can. ``mode``, ``owner``: its file's; ``me``: our user.

    The kubelet makes a Secret's files root's and lets a pod that is not root read them by its group.
    """
    allowed = 0o700 if owner == me else 0o740
    return f"mode {mode:04o} is readable by others" if mode & ~allowed & 0o777 else ""


class CertificatePair:
    """A certificate and its key, in a context that live connections share: new ones see what was loaded last."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self.certificate, self.key = certificate, key
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._loaded = b""

    def load(self) -> bool:
        """Read both files; whether they had changed. Raises UsageError when they do not serve, and keeps the old ones."""
        try:
            found = os.stat(self.key)
            if fault := key_fault(stat.S_IMODE(found.st_mode), found.st_uid, os.geteuid()):
                raise UsageError(f"{self.key}: {fault}", f"chmod 600 {self.key}")
            pem = self.certificate.read_bytes() + b"\n" + self.key.read_bytes()
            if pem == self._loaded:
                return False
            _put(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pem)
            _put(self.context, pem)
        except (OSError, ssl.SSLError) as error:
            remedy = "give a certificate (PEM) and its key, without a password"
            raise UsageError(f"{self.certificate} and {self.key} cannot be used: {error}", remedy) from error
        self._loaded = pem
        return True


def _put(context: ssl.SSLContext, pem: bytes) -> None:
    """By a file in memory: Python's ssl reads nothing else, and a key should not lie on a disk twice."""
    handle = os.memfd_create("tide-webhook", os.MFD_CLOEXEC)
    with os.fdopen(handle, "wb") as out:
        out.write(pem)
        out.flush()
        context.load_cert_chain(f"/proc/self/fd/{handle}", password=lambda: "")


class ClaimTemplates:
    """ResourceClaimTemplates as they are needed. Nothing is cached: any client may delete one at any time."""

    def __init__(self, api: KubeClient, log: Log) -> None:
        self.api, self.log = api, log

    async def ensure(self, template: Json, *, dry: bool) -> None:
        """It is there when this returns; ``dry``: it could be. Raises UsageError when that cannot be, WorldError when it
        cannot be known now."""
        meta = template["metadata"]
        path = TEMPLATES.format(namespace=meta["namespace"])
        for _ in range(TRIES):
            found = await self._found(f"{path}/{meta['name']}")
            if found is not None:
                _check(found, template)
                return
            if dry or await self._made(path, template):
                return
        raise WorldError(f"ResourceClaimTemplate {meta['namespace']}/{meta['name']} comes and goes")

    async def _found(self, path: str) -> Json | None:
        """None: not there, or soon no more."""
        try:
            found = await self.api.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise _blamed(error) from error
        return None if (found.get("metadata") or {}).get("deletionTimestamp") else found

    async def _made(self, path: str, template: Json) -> bool:
        """False: another client created one of this name."""
        try:
            await self.api.post(path, template)
        except ApiError as error:
            if error.reason == "AlreadyExists":
                return False
            raise _blamed(error) from error
        meta = template["metadata"]
        self.log(f"made ResourceClaimTemplate {meta['namespace']}/{meta['name']}")
        return True


def _check(found: Json, template: Json) -> None:
    if not same(found, template):
        name = template["metadata"]["name"]
        remedy = f"kubectl -n {template['metadata']['namespace']} delete resourceclaimtemplate {name}"
        raise UsageError(f"ResourceClaimTemplate {name} is there and asks for something else", remedy)


def _blamed(error: ApiError) -> UsageError | ApiError:
    """The pod's or its namespace's fault (a quota, a missing right, a namespace that ends), or neither's, and it passes."""
    if error.status >= 500 or error.status in PASSING:
        return error
    return UsageError(
        f"its ResourceClaimTemplate cannot be made: {error}", "see the quotas of the namespace and the webhook's rights"
    )


class Webhook:
    """Answers reviews. What is not a pod's fault is answered 503, for which the webhook's failurePolicy decides."""

    def __init__(self, templates: ClaimTemplates, terms: ConversionSettings, log: Log) -> None:
        self.templates, self.terms, self.log = templates, terms, log

    def app(self) -> Starlette:
        """The ASGI application."""
        from starlette.applications import Starlette
        from starlette.routing import Route

        return Starlette(
            routes=[
                Route("/mutate", self._mutate, methods=["POST"]),
                Route("/healthz", self._well),
                Route("/readyz", self._well),
            ]
        )

    async def _well(self, request: Request) -> Response:
        return _text("ok")

    async def _mutate(self, request: Request) -> Response:
        from starlette.requests import ClientDisconnect
        from starlette.responses import Response

        body = bytearray()
        try:
            async for chunk in request.stream():
                body += chunk
                if len(body) > LONGEST_BODY:
                    return _text(f"a body of more than {LONGEST_BODY} bytes", 413)
            answer = await self.answer(admission.read(bytes(body)))
        except ClientDisconnect:
            return _text("the body ended early", 400)
        except UsageError as error:
            return _text(_error_text(error), 400)
        except WorldError as error:
            self.log(f"a pod could not be converted: {error}")
            return _text(str(error), 503)
        return Response(msgspec.json.encode(answer), media_type="application/json")

    async def answer(self, asked: admission.AdmissionRequest) -> dict[str, Any]:
        """The review's answer. Raises WorldError."""
        if not asked.makes_pod():
            return admission.allowed(asked.uid)
        try:
            found = convert(asked.object, asked.namespace, self.terms)
            if found is None:
                return admission.allowed(asked.uid)
            await self.templates.ensure(found.template, dry=bool(asked.dry_run))
        except UsageError as error:
            self.log(f"pod {named(asked.object, asked.namespace)} is denied: {error.message}")
            return admission.denied(asked.uid, _error_text(error))
        return admission.allowed(asked.uid, found.patch, found.warnings)


class WebhookService:
    """``address`` once ``listening``; runs until ``stop`` is called."""

    def __init__(self, cluster: Cluster, settings: WebhookSettings, log: Log) -> None:
        self.settings, self.log = settings, log
        self.api = KubeClient(cluster, API_TIMEOUT_S)
        self.pair = CertificatePair(settings.certificate, settings.key)
        self.address = ("", 0)
        self.listening = asyncio.Event()
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Finish what is under way, then end."""
        self._stop.set()

    async def run(self) -> None:
        """Serve until ``stop``. Raises UsageError for a certificate or a port that cannot be used."""
        import uvicorn

        settings = self.settings
        self.pair.load()
        async with self.api as api:
            webhook = Webhook(ClaimTemplates(api, self.log), settings.terms, self.log)
            with listener(settings.host, settings.port) as listening:
                self.address = listening.getsockname()[:2]
                config = uvicorn.Config(
                    webhook.app(), log_level="warning", lifespan="off", timeout_graceful_shutdown=10, access_log=False
                )
                config.load()
                config.ssl = self.pair.context
                await self._serve(uvicorn.Server(config), [listening])

    async def _serve(self, server: Any, sockets: list[Any]) -> None:
        serving = asyncio.create_task(server.serve(sockets=sockets))
        stopping = asyncio.create_task(self._stop.wait())
        rereading = asyncio.create_task(self._reread())
        self.log(f"serves https://{self.address[0]}:{self.address[1]}/mutate")
        self.listening.set()
        await asyncio.wait({serving, stopping, rereading}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        stopping.cancel()
        rereading.cancel()
        await serving
        with suppress(asyncio.CancelledError):
            await rereading

    async def _reread(self) -> None:
        """Take up certificates as they change. A pair that does not fit is logged once and tried again."""
        last_error = ""
        while True:
            await asyncio.sleep(self.settings.reread_s)
            try:
                if self.pair.load():
                    self.log("took up a new certificate")
                last_error = ""
            except UsageError as error:
                if error.message != last_error:
                    last_error = error.message
                    self.log(f"keeps the old certificate: {last_error}")


def _error_text(error: UsageError) -> str:
    return f"{error.message}: {error.remedy}" if error.remedy else error.message


def _text(found: str, status: int = 200) -> Response:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(found, status)
