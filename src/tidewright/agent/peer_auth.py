"""Mutual authentication of agents to each other, and of each request and answer. The cluster token is never sent.

Both sides send a fresh nonce; the session key is an HMAC of both under the token, so a recorded session opens no other.
Each side proves that it has the key before the other one says anything else, and every request and answer carries an
HMAC over its direction, its number on the connection and its bytes. The scheme is that of ISO/IEC 9798-4 (three pass
mutual authentication) with HMAC-SHA256 (RFC 2104). Contents are authenticated, not encrypted.

Bytes of files that follow an answer carry no HMAC of their own: images are checked against hashes that were received
in authenticated answers, or are sealed by their store.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

NONCE_BYTES = 32
HELLO = b"TIDEPEER/2 "
"""How a connection of this protocol begins, from both sides. There is no other version that is accepted."""
HEAD_BYTES = 64 + 1 + 8 + 1
"""Of a frame: HMAC (hex), length of the payload (hex)."""
LONGEST_HELLO = 512
_CLIENT_HELLO = re.compile(re.escape(HELLO) + rb"([0-9a-f]{64})\n")
_SERVER_HELLO = re.compile(re.escape(HELLO) + rb"([0-9a-f]{64}) ([0-9a-f]{64})\n")
_PROOF = re.compile(rb"([0-9a-f]{64})\n")
_HEAD = re.compile(rb"([0-9a-f]{64}) ([0-9a-f]{8})\n")


class NotAuthentic(Exception):
    """The other side does not know the token, or what it sent was altered, repeated or of another protocol."""


def nonce() -> bytes:
    """Fresh for each connection and side."""
    return secrets.token_bytes(NONCE_BYTES)


def client_hello(ours: bytes) -> bytes:
    """The first line of a connection."""
    return HELLO + ours.hex().encode() + b"\n"


def read_client_hello(line: bytes) -> bytes:
    """The client's nonce. Raises NotAuthentic for any other line, those of older versions among them."""
    return bytes.fromhex(_matched(_CLIENT_HELLO, line)[1].decode())


def read_server_hello(line: bytes, token: str, ours: bytes) -> PeerSession:
    """The session that a server's answer opens, once it has shown that it knows the token. Raises NotAuthentic."""
    found = _matched(_SERVER_HELLO, line)
    session = PeerSession(token, ours, bytes.fromhex(found[1].decode()))
    if not hmac.compare_digest(session.proof(b"server"), found[2]):
        raise NotAuthentic("a wrong token")
    return session


def _matched(pattern: re.Pattern[bytes], line: bytes) -> re.Match[bytes]:
    found = pattern.fullmatch(line)
    if found is None:
        raise NotAuthentic("not this protocol")
    return found


class PeerSession:
    """The key of one connection, and the number of the request that is under way on it."""

    def __init__(self, token: str, client: bytes, server: bytes) -> None:
        self._key = hmac.digest(token.encode(), b"tidewright peer 2\0" + client + server, hashlib.sha256)
        self._server = server
        self.number = 0

    def proof(self, side: bytes) -> bytes:
        """What only a holder of the token can send, as ``server`` or as ``client``; hex."""
        return self._mac(b"proof " + side, b"")

    def server_hello(self) -> bytes:
        """The server's first line."""
        return HELLO + self._server.hex().encode() + b" " + self.proof(b"server") + b"\n"

    def client_proof(self) -> bytes:
        """The client's second line."""
        return self.proof(b"client") + b"\n"

    def check_client(self, line: bytes) -> None:
        """Raise NotAuthentic unless this is the client's second line."""
        if not hmac.compare_digest(self.proof(b"client"), _matched(_PROOF, line)[1]):
            raise NotAuthentic("a wrong token")

    def frame(self, direction: bytes, payload: bytes) -> bytes:
        """A payload as it is sent: ``direction`` is ``request`` or ``answer``."""
        return self._mac(direction, payload) + b" %08x\n" % len(payload) + payload

    def check(self, direction: bytes, mac: bytes, payload: bytes) -> None:
        """Raise NotAuthentic unless the other side made this payload for this request of this connection."""
        if not hmac.compare_digest(self._mac(direction, payload), mac):
            raise NotAuthentic("altered or repeated on its way")

    def pad(self, data: bytes) -> bytes:
        """Encrypt or decrypt a short secret inside the answer under way: HMAC in counter mode, a key and number for each."""
        blocks = range(0, len(data), hashlib.sha256().digest_size)
        stream = b"".join(bytes.fromhex(self._mac(b"pad %d" % at, b"").decode()) for at in blocks)
        return bytes(one ^ other for one, other in zip(data, stream, strict=False))

    def _mac(self, label: bytes, payload: bytes) -> bytes:
        head = b"%s %d %d\0" % (label, self.number, len(payload))
        return hmac.new(self._key, head + payload, hashlib.sha256).hexdigest().encode()


def read_head(head: bytes, longest: int) -> tuple[bytes, int]:
    """HMAC and length of a frame's payload. Raises NotAuthentic."""
    found = _matched(_HEAD, head)
    size = int(found[2], 16)
    if size > longest:
        raise NotAuthentic(f"{size} bytes announced; {longest} at most")
    return found[1], size
