"""What a controller may be asked to listen on: nothing that hands root, or a token in clear, to the network."""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import stat
from pathlib import Path

from ...base.errors import UsageError


def check(listen: str, tls: tuple[str, str], run_as: str) -> ssl.SSLContext | None:
    """The context of ``tls`` (certificate chain and key, PEM files; empty: none) for ``listen`` (HOST:PORT; empty: no TCP).

    Raises UsageError for what would be unsafe or cannot work.
    """
    if not listen:
        return None
    if os.geteuid() == 0 and not run_as:
        raise UsageError(
            f"--listen {listen} by root would let holders of the token run programs as root",
            "name an account for jobs with --jobs-as USER, or run the controller as a user without rights",
        )
    if any(tls):
        return context(*tls)
    if not loopback(listen):
        raise UsageError(
            f"--listen {listen} without TLS would send the token over the network in clear",
            "give --tls-cert and --tls-key, or listen on 127.0.0.1 and use an SSH tunnel",
        )
    return None


def loopback(listen: str) -> bool:
    """Whether HOST:PORT can be reached from this machine only. Raises UsageError for a host that has no address."""
    host = listen.rpartition(":")[0].strip("[]")
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise UsageError(
            f"cannot listen on {listen}: {error.strerror or error}", "give an address of this machine"
        ) from None
    return all(ipaddress.ip_address(str(one).partition("%")[0]).is_loopback for one in found)


def context(certificate: str, key: str) -> ssl.SSLContext:
    """TLS 1.2 or newer with this certificate. Raises UsageError for files that are missing, unfit or readable by others."""
    if not certificate or not key:
        raise UsageError("TLS takes a certificate and its key", "give both --tls-cert and --tls-key")
    private(Path(key))
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        made.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"{certificate} and {key} cannot be used for TLS: {error.strerror or error}",
            "give a certificate chain and its unencrypted key as PEM files",
        ) from None
    return made


def private(key: Path) -> None:
    """Raise UsageError for a key that others can read or replace."""
    try:
        found = key.stat()
    except OSError as error:
        raise UsageError(f"the key {key} cannot be read: {error.strerror}", "check --tls-key") from None
    if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_uid not in (0, os.geteuid()):
        raise UsageError(f"others can read or replace the key {key}", f"chmod 600 {key}, as its owner")
