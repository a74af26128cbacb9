"""Where the API server is and how to prove who asks: a kubeconfig, or what the kubelet puts into every pod.

Sources: kubeconfig (client-go ``clientcmd/api/v1``), in-cluster configuration (client-go ``rest.InClusterConfig``), exec
plugins (client.authentication.k8s.io/v1 and v1beta1).
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..base.errors import UsageError
from .stamps import seconds

IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REREAD_S = 60.0
"""Token files are replaced before they expire: the kubelet does so at 80 % of an hour."""
EXEC_LIMIT_S = 60.0


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
    _token: str = ""
    _until_s: float = field(default=-1.0)

    def tls(self) -> ssl.SSLContext | None:
        """For https; None for plain http. Raises UsageError when certificate or key cannot be used."""
        if not self.server.startswith("https://"):
            return None
        if self.plugin and not self.certificate:
            self._run_plugin()
        try:
            context = ssl.create_default_context(cadata=self.authority.decode() or None)
            if not self.verify:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if self.certificate:
                _load_pair(context, self.certificate, self.key)
        except (ssl.SSLError, ValueError) as error:
            raise UsageError(
                f"certificates for {self.server} cannot be used: {error}", "check the kubeconfig"
            ) from error
        return context

    def token(self) -> str:
        """The bearer token of this moment; empty when none is used."""
        if self.fixed_token or time.monotonic() < self._until_s:
            return self.fixed_token or self._token
        if self.token_file:
            try:
                self._token = self.token_file.read_text().strip()
            except OSError as error:
                raise UsageError(f"the token cannot be read: {error}", "check the service account's mount") from error
            self._until_s = time.monotonic() + REREAD_S
        elif self.plugin:
            self._run_plugin()
        return self._token

    def _run_plugin(self) -> None:
        """client.authentication.k8s.io: run the command, read an ExecCredential."""
        plugin = self.plugin or {}
        command = [str(plugin.get("command", "")), *map(str, plugin.get("args") or ())]
        asked = {"apiVersion": plugin.get("apiVersion"), "kind": "ExecCredential", "spec": {"interactive": False}}
        extra = {str(one["name"]): str(one["value"]) for one in plugin.get("env") or ()}
        try:
            done = subprocess.run(
                command, env={**os.environ, **extra, "KUBERNETES_EXEC_INFO": json.dumps(asked)},
                capture_output=True, text=True, timeout=EXEC_LIMIT_S, check=True,
            )  # fmt: skip
            status = json.loads(done.stdout)["status"]
        except subprocess.CalledProcessError as error:
            remedy = str(plugin.get("installHint") or "run it by hand to see what it needs")
            raise UsageError(f"{command[0]} failed: {error.stderr.strip()[-300:]}", remedy) from error
        except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
            remedy = str(plugin.get("installHint") or "check users[].user.exec of the kubeconfig")
            raise UsageError(f"the credential plugin {command[0]!r} cannot be used: {error}", remedy) from error
        self._token = str(status.get("token") or "")
        self._until_s = time.monotonic() + _lasts_s(status.get("expirationTimestamp"))
        if status.get("clientCertificateData"):
            self.certificate = status["clientCertificateData"].encode()
            self.key = str(status.get("clientKeyData", "")).encode()


def find_cluster(kubeconfig: str = "", context: str = "") -> Cluster:
    """As kubectl: the given file, ``KUBECONFIG``, the pod's own account, ``~/.kube/config``. Raises UsageError."""
    given = kubeconfig or os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    if given:
        return from_kubeconfig(Path(given), context)
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
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "point KUBECONFIG at a kubeconfig file") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} is no kubeconfig", "point KUBECONFIG at a kubeconfig file")
    chosen = context or found.get("current-context") or ""
    where = _named(found, "contexts", chosen, "context", path)
    cluster = _named(found, "clusters", where.get("cluster"), "cluster", path)
    user = _named(found, "users", where.get("user"), "user", path) if where.get("user") else {}
    if not isinstance(cluster.get("server"), str):
        raise UsageError(f"cluster {where.get('cluster')!r} in {path} names no server", "add clusters[].cluster.server")
    token_file = user.get("tokenFile")
    return Cluster(
        cluster["server"].rstrip("/"),
        authority=_data(cluster, "certificate-authority", path),
        verify=not cluster.get("insecure-skip-tls-verify", False),
        certificate=_data(user, "client-certificate", path),
        key=_data(user, "client-key", path),
        token_file=path.parent / token_file if token_file else None,
        fixed_token=str(user.get("token") or ""),
        plugin=user.get("exec"),
    )


def _named(config: Mapping[str, Any], kind: str, name: object, inner: str, path: Path) -> Mapping[str, Any]:
    for entry in config.get(kind) or ():
        if isinstance(entry, dict) and entry.get("name") == name:
            found = entry.get(inner)
            return found if isinstance(found, dict) else {}
    known = ", ".join(str(entry.get("name")) for entry in config.get(kind) or () if isinstance(entry, dict)) or "none"
    raise UsageError(f"{path} has no {inner} {name!r}", f"known: {known}")


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
        context.load_cert_chain(name)
    finally:
        with suppress(OSError):
            os.unlink(name)


def _lasts_s(stamp: object) -> float:
    if not stamp:
        return float("inf")
    return max(1.0, seconds(str(stamp)) - time.time() - 10.0)
