"""Where the API server is and how to prove who asks: a kubeconfig, or what the kubelet puts into every pod.

Sources: kubeconfig (client-go ``clientcmd/api/v1``), in-cluster configuration (client-go ``rest.InClusterConfig``), exec
plugins (client.authentication.k8s.io/v1 and v1beta1).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
import os
import ssl
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ...base.errors import UsageError
from .timestamps import seconds

IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REREAD_S = 60.0
"""Token files are replaced before they expire: the kubelet does so at 80 % of an hour."""
EXEC_LIMIT_S = 60.0
MARGIN_S = 30.0
"""A proof is renewed so long before it expires, or when a quarter of its time is left."""
RETRY_S = 5.0
"""Until the next try when one is renewed ahead of time and that failed."""
SHORTEST_S = 1.0
"""A plugin may hand out what has expired already; it is not run for every single request."""


@dataclass(frozen=True, slots=True)
class ApiCredentials:
    """What shows for a while who asks."""

    token: str = ""
    """Empty: none is sent."""
    pair: tuple[bytes, bytes] = (b"", b"")
    """Client certificate and key, PEM; empty: none."""
    tls: ssl.SSLContext | None = None
    """None for plain http; another one whenever the pair is another."""
    lasts_s: float = math.inf


@dataclass(slots=True)
class Cluster:
    """One API server. ``server`` without a slash at the end; the rest as kubeconfig has it."""

    server: str
    authority: bytes = b""
    """PEM; empty: the system's."""
    verify: bool = True
    certificate: bytes = b""
    key: bytes = b""
    token_file: Path | None = None
    fixed_token: str = ""
    plugin: Mapping[str, Any] | None = None
    _proof: ApiCredentials = ApiCredentials()
    _fresh_s: float = -math.inf
    _valid_s: float = -math.inf
    _renewing: asyncio.Task[None] | None = None

    async def proof(self) -> ApiCredentials:
        """That of this moment. Renewed ahead of time beside the requests, which wait only for one that has expired. Raises
        UsageError when none can be had."""
        now_s = time.monotonic()
        if now_s >= min(self._fresh_s, self._valid_s):
            renewing = self._renewal()
            if now_s >= self._valid_s:
                await asyncio.shield(renewing)
        return self._proof

    async def other(self, refused: ApiCredentials) -> ApiCredentials | None:
        """After a 401: a proof that is not the one refused, asked for anew unless it has been meanwhile; None when there
        is no other. Raises UsageError."""
        if self._proof is refused and (self.plugin or self.token_file):
            await asyncio.shield(self._renewal())
        found = self._proof
        return None if (found.token, found.pair) == (refused.token, refused.pair) else found

    def _renewal(self) -> asyncio.Task[None]:
        """The one under way, or a new one: never two, and no waiting request takes it away from others by giving up."""
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew())
            # No request may be waiting: a failure to renew matters only once the old credentials expire.
            self._renewing.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._renewing

    async def _renew(self) -> None:
        try:
            made = await self._made()
        except UsageError:
            self._fresh_s = time.monotonic() + RETRY_S
            raise
        self._proof, self._valid_s = made, time.monotonic() + made.lasts_s
        self._fresh_s = self._valid_s - min(MARGIN_S, made.lasts_s / 4)

    async def _made(self) -> ApiCredentials:
        token, pair, lasts_s = self.fixed_token, (self.certificate, self.key), math.inf
        if not token and self.token_file:
            token, lasts_s = _read_token(self.token_file), REREAD_S
        elif not token and self.plugin:
            given, lasts_s = await _run(self.plugin)
            token = str(given.get("token") or "")
            if given.get("clientCertificateData"):
                pair = str(given["clientCertificateData"]).encode(), str(given.get("clientKeyData") or "").encode()
        if not self.server.startswith("https://"):
            return ApiCredentials(token, pair, None, lasts_s)
        same = self._proof.tls is not None and self._proof.pair == pair
        tls = self._proof.tls if same else await asyncio.to_thread(self._tls, *pair)
        return ApiCredentials(token, pair, tls, lasts_s)

    def _tls(self, certificate: bytes, key: bytes) -> ssl.SSLContext:
        """Raises UsageError when certificate or key cannot be used."""
        try:
            context = ssl.create_default_context(cadata=self.authority.decode() or None)
            if not self.verify:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if certificate:
                _load_pair(context, certificate, key)
        except (ssl.SSLError, ValueError) as error:
            raise UsageError(
                f"certificates for {self.server} cannot be used: {error}", "check the kubeconfig"
            ) from error
        return context


def _read_token(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise UsageError(f"the token cannot be read: {error}", "check the service account's mount") from error


async def _run(plugin: Mapping[str, Any]) -> tuple[Mapping[str, Any], float]:
    """client.authentication.k8s.io: run the command; the status of the ExecCredential that it prints, and for how many
    seconds it lasts. Raises UsageError."""
    command = [str(plugin.get("command", "")), *map(str, plugin.get("args") or ())]
    asked = {"apiVersion": plugin.get("apiVersion"), "kind": "ExecCredential", "spec": {"interactive": False}}
    hint = str(plugin.get("installHint") or "")
    try:
        extra = {str(one["name"]): str(one["value"]) for one in plugin.get("env") or ()}
        code, out, err = await _output(command, {**os.environ, **extra, "KUBERNETES_EXEC_INFO": json.dumps(asked)})
        status = {} if code else dict(json.loads(out)["status"])
        if not code and not (status.get("token") or status.get("clientCertificateData")):
            raise ValueError("it gave neither a token nor a certificate")
        lasts_s = _lasts_s(status.get("expirationTimestamp"))
    except TimeoutError as error:
        remedy = hint or "run it by hand to see what it waits for"
        raise UsageError(f"the credential plugin {command[0]!r} did not end in {EXEC_LIMIT_S:g} s", remedy) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = hint or "check users[].user.exec of the kubeconfig"
        raise UsageError(f"the credential plugin {command[0]!r} cannot be used: {error}", remedy) from error
    if code:
        text = err.decode("utf-8", "replace").strip()[-300:]
        raise UsageError(f"{command[0]} failed: {text}", hint or "run it by hand to see what it needs")
    return status, lasts_s


async def _output(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, bytes, bytes]:
    """Exit status, stdout and stderr. Not in a thread: one that waits for a plugin would hold up the end of the program."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(EXEC_LIMIT_S):
            out, err = await process.communicate()
    except BaseException:
        await _kill(process)
        raise
    return await process.wait(), out, err


async def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    # To the end of its pipes, so that they are closed; a child of its own may hold them open for longer.
    with suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            await process.communicate()


def find_cluster(kubeconfig: str = "", context: str = "") -> Cluster:
    """As kubectl: the given file, those of ``KUBECONFIG``, the pod's own account, ``~/.kube/config``. Raises UsageError."""
    if kubeconfig:
        return from_kubeconfig(Path(kubeconfig), context)
    if listed := [Path(name) for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]:
        return from_kubeconfigs(listed, context)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and (IN_POD / "token").exists():
        return in_pod(IN_POD)
    usual = Path.home() / ".kube" / "config"
    if usual.exists():
        return from_kubeconfig(usual, context)
    raise UsageError(
        "no cluster is known", "pass --kubeconfig FILE, set KUBECONFIG, or run in a pod with a service account"
    )


def in_pod(account: Path) -> Cluster:
    """The service account that the kubelet mounts."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    host = f"[{host}]" if ":" in host else host
    authority = account / "ca.crt"
    return Cluster(
        f"https://{host}:{port}",
        authority=authority.read_bytes() if authority.exists() else b"",
        token_file=account / "token",
    )


def from_kubeconfig(path: Path, context: str = "") -> Cluster:
    """One context of a kubeconfig file. Raises UsageError naming what is missing."""
    return from_kubeconfigs([path], context)


def from_kubeconfigs(paths: Sequence[Path], context: str = "") -> Cluster:
    """One context of several files: of what has the same name in two of them the first has the say, alone. Those that
    are not there are passed over, unless none is. Raises UsageError naming what is missing."""
    there = [path for path in paths if os.path.exists(path)] or paths
    files = [(path, found) for path in there if (found := _load(path)) is not None]
    where = os.pathsep.join(map(str, there))
    if not files:
        raise UsageError(f"{where} is no kubeconfig", "point KUBECONFIG at a kubeconfig file")
    chosen = context or next((one["current-context"] for _, one in files if one.get("current-context")), "")
    names, _ = _named(files, "contexts", chosen, where)
    cluster, beside = _named(files, "clusters", names.get("cluster"), where)
    user, home = _named(files, "users", names.get("user"), where) if names.get("user") else ({}, beside)
    if not isinstance(cluster.get("server"), str):
        raise UsageError(
            f"cluster {names.get('cluster')!r} in {beside} names no server", "add clusters[].cluster.server"
        )
    token_file = user.get("tokenFile")
    return Cluster(
        cluster["server"].rstrip("/"),
        authority=_data(cluster, "certificate-authority", beside),
        verify=not cluster.get("insecure-skip-tls-verify", False),
        certificate=_data(user, "client-certificate", home),
        key=_data(user, "client-key", home),
        token_file=home.parent / token_file if token_file else None,
        fixed_token=str(user.get("token") or ""),
        plugin=_placed(user.get("exec"), home),
    )


def _load(path: Path) -> Mapping[str, Any] | None:
    """None for an empty file."""
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "point KUBECONFIG at a kubeconfig file") from error
    if found is not None and not isinstance(found, dict):
        raise UsageError(f"{path} is no kubeconfig", "point KUBECONFIG at a kubeconfig file")
    return found


def _named(
    files: Sequence[tuple[Path, Mapping[str, Any]]], kind: str, name: object, where: str
) -> tuple[Mapping[str, Any], Path]:
    """What the first entry of that name has, and the file it is in."""
    inner = kind.removesuffix("s")
    lists = [(path, found[kind]) for path, found in files if isinstance(found.get(kind), list)]
    entries = [(path, one) for path, listed in lists for one in listed if isinstance(one, dict)]
    for path, entry in entries:
        if entry.get("name") == name:
            found = entry.get(inner)
            return (found if isinstance(found, dict) else {}), path
    known = ", ".join(dict.fromkeys(str(entry.get("name")) for _, entry in entries)) or "none"
    raise UsageError(f"{where} has no {inner} {name!r}", f"known: {known}")


def _placed(plugin: Any, path: Path) -> Mapping[str, Any] | None:
    """A command with a slash is meant from the kubeconfig's folder, one without is looked up in PATH."""
    if not isinstance(plugin, dict):
        return None
    command = str(plugin.get("command", ""))
    return {**plugin, "command": str(path.parent / command)} if os.sep in command else plugin


def _data(entry: Mapping[str, Any], name: str, path: Path) -> bytes:
    """``NAME-data`` in base64, or the file that ``NAME`` points to."""
    try:
        if encoded := entry.get(f"{name}-data"):
            return base64.b64decode(encoded, validate=True)
        return (path.parent / entry[name]).read_bytes() if entry.get(name) else b""
    except (OSError, binascii.Error, TypeError) as error:
        raise UsageError(f"{name} in {path} cannot be read: {error}", "check the kubeconfig") from error


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Python's ssl reads them from files only: one of ours, for the blink of an eye."""
    handle, name = tempfile.mkstemp(prefix="tide-kube-")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(certificate + b"\n" + key)
        # Without a word for it OpenSSL asks for a key's password at the terminal.
        context.load_cert_chain(name, password=lambda: "")
    finally:
        with suppress(OSError):
            os.unlink(name)


def _lasts_s(stamp: object) -> float:
    return max(SHORTEST_S, seconds(str(stamp)) - time.time()) if stamp else math.inf
