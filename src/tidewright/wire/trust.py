"""Which server a client trusts: over a unix socket this user or root, over TCP the host that the certificate names.

A directory that others may write to, /tmp for one, can hold any user's socket; environments would be sent there.
"""

from __future__ import annotations

import http.client
import ipaddress
import os
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

from ..base.errors import UsageError
from .state_files import name_of

_CREDENTIALS = struct.Struct("3i")
"""struct ucred (unix(7)): pid, uid, gid."""


def peer_uid(sock: Any) -> int:
    """The user at the other end of a unix socket (or of asyncio's wrapper of one): who connected, or who listens."""
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[1]) & 0xFFFFFFFF


def connect_unix(sock: socket.socket, path: Path) -> None:
    """Connect to a socket file, also one whose path is longer than the 108 bytes of sockaddr_un (unix(7))."""
    if len(os.fsencode(path)) < 108:
        sock.connect(str(path))
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        sock.connect(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def refuse_stranger(sock: socket.socket, path: Path) -> None:
    """Raise UsageError when another user listens on the socket file; root may be anywhere."""
    uid = peer_uid(sock)
    if uid in (0, os.geteuid()):
        return
    sock.close()
    raise UsageError(
        f"what listens on {path} belongs to another user ({name_of(uid)}); nothing is sent to it",
        "choose your own directory with --state or TIDE_STATE, or ask as that user",
    )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its name alone; no other name is looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def https_connection(host: str, port: int | None, timeout: float | None, ca: str) -> http.client.HTTPSConnection:
    """A connection verified by the certificates in ``ca`` (empty: the system's). Raises UsageError for an unusable file."""
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{ca} holds no certificates: {error.strerror or error}", "give a PEM file") from None
    return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)


def untrusted(error: Exception) -> str | None:
    """What is wrong with the other side's certificate, if that is what went wrong."""
    return error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else None
