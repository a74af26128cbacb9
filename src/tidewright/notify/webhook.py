"""Webhooks: a POST that its receiver can verify, signed after the Standard Webhooks specification 1.0.

``webhook-signature: v1,BASE64(HMAC-SHA256(key, "ID.TIMESTAMP.BODY"))``. A URL is a user's, and the request comes from the
controller's machine: redirects are not followed, addresses that only this machine or its link can reach are refused, and the
connection goes to the very address that was looked at.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import ipaddress
import secrets
import socket
import ssl
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from ..base.atomic import write_atomically
from ..base.errors import UsageError
from ..wire.state_files import read_own
from .closing import MOST_S, closed_after
from .outbox import Notification

KEY_FILE = "webhook.key"
PREFIX = "whsec_"
TIMEOUT_S = 10.0
GONE = 410
MOST_ANSWER = 4096
LEAST_KEY = 24
"""Bytes, as the specification has it."""
METADATA = frozenset({"fd00:ec2::254", "100.100.100.200", "168.63.129.16"})
"""Where clouds answer for a machine, besides link-local addresses: with credentials."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class WebhookRefused(OSError):
    """The receiver did not accept it. ``retry_s``: after how long to try again, as it says; None: it does not say."""

    def __init__(self, text: str, permanent: bool = False, retry_s: float | None = None) -> None:
        super().__init__(text)
        self.permanent, self.retry_s = permanent, retry_s


def load_key(state: Path) -> bytes:
    """The key of this controller's signatures, made where there is none: STATE/webhook.key, ``whsec_`` and base64. Raises
    UsageError for a file that holds none."""
    path = state / KEY_FILE
    if not path.exists():
        text = PREFIX + base64.b64encode(secrets.token_bytes(32)).decode() + "\n"
        write_atomically(path, text.encode(), durable=True)
    try:
        key = base64.b64decode(read_own(path).decode().strip().removeprefix(PREFIX), validate=True)
    except ValueError:
        key = b""
    if len(key) < LEAST_KEY:
        raise UsageError(f"{path} holds no key", "delete it: another one is made, which receivers are to be given")
    return key


def signature(key: bytes, message: str, at: int, body: str) -> str:
    """Of a message's id, the time in seconds since 1970, and the body."""
    signed = hmac.new(key, f"{message}.{at}.{body}".encode(), hashlib.sha256)
    return f"v1,{base64.b64encode(signed.digest()).decode()}"


class WebhookSender:
    """``loopback``: whether receivers on this machine are allowed, as they are where its user is the only one."""

    def __init__(self, key: bytes, loopback: bool) -> None:
        self._key, self._loopback = key, loopback

    def send(self, message: Notification) -> None:
        """Raises OSError (WebhookRefused among them) or http.client.HTTPException."""
        parts = urlsplit(message.target)
        host, secure = parts.hostname or "", parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        connection.sock = sock = self._connected(host, port, secure)
        with contextlib.closing(connection), closed_after(lambda: sock, MOST_S):
            at, path = int(time.time()), parts.path or "/"
            headers = {
                "content-type": "application/json", "user-agent": "tidewright", "webhook-id": message.id,
                "webhook-timestamp": str(at), "webhook-signature": signature(self._key, message.id, at, message.body),
            }  # fmt: skip
            target = f"{path}?{parts.query}" if parts.query else path
            connection.request("POST", target, message.body.encode(), headers)
            answer = connection.getresponse()
            answer.read(MOST_ANSWER)
            if not 200 <= answer.status < 300:
                text = f"it answered {answer.status} {answer.reason}"[:200]
                raise WebhookRefused(text, answer.status == GONE, _retry_s(answer))

    def _connected(self, host: str, port: int, secure: bool) -> socket.socket:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        own = set() if self._loopback else _own_addresses()
        for entry in entries:
            if reason := self._forbidden(str(entry[4][0]), own):
                raise WebhookRefused(f"{host}: {entry[4][0]} {reason}", permanent=True)
        plain = _first_that_answers([str(entry[4][0]) for entry in entries], port)
        if not secure:
            return plain
        try:
            return ssl.create_default_context().wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise

    def _forbidden(self, text: str, own: set[str]) -> str:
        address = _plain(ipaddress.ip_address(text.partition("%")[0]))
        if address.is_loopback:
            return "" if self._loopback else "is this machine, which webhooks do not reach"
        if str(address) in own:
            return "is this machine, which webhooks do not reach"
        odd = address.is_link_local or address.is_multicast or address.is_unspecified or address.is_reserved
        return "is no address for webhooks" if odd or str(address) in METADATA else ""


def _plain(address: Address) -> Address:
    """The IPv4 address that one of IPv6 stands for (mapped, RFC 4291; 6to4, RFC 3056; Teredo, RFC 4380), else itself."""
    if isinstance(address, ipaddress.IPv6Address):
        teredo = address.teredo
        return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else address)
    return address


def _own_addresses() -> set[str]:
    return {one.address.partition("%")[0] for known in psutil.net_if_addrs().values() for one in known}


def _first_that_answers(addresses: list[str], port: int) -> socket.socket:
    for at, address in enumerate(addresses, 1):
        try:
            return socket.create_connection((address, port), timeout=TIMEOUT_S)
        except OSError:
            if at == len(addresses):
                raise
    raise OSError("no address")


def _retry_s(answer: http.client.HTTPResponse) -> float | None:
    value = answer.getheader("retry-after", "")
    return min(float(value), 86_400.0) if value.isdecimal() and len(value) < 9 else None
