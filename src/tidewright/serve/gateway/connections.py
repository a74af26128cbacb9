"""Bounds on clients' connections, around uvicorn's own HTTP protocols: their number, and the time for what comes and goes.

uvicorn bounds the time between requests alone. Here a request's header has to come in time and in size (slowloris), what is left
of a body that was answered early has to come in time, and a client has to read its answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from importlib import import_module
from typing import Any

from ...wire.connections import Connections, Limits, TooManyConnections, room_for

log = logging.getLogger("tidewright.gateway")
KEEP_ALIVE_S = 75
"""How long a connection without a request is kept; longer than the minute after which common proxies close theirs."""
MAX_HEADER = 64 * 1024
MAX_DRAINED = 512 * 1024 * 1024
"""Bytes of a body that are read and dropped once its request is answered (413, say); a client that is cut off may miss that."""
WRITE_S = 60.0
"""A client that has read nothing of an answer for so long is disconnected."""
_BODY = b'{"error":"too many connections; try again in a moment","code":"busy"}'
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\nretry-after: 1\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


def gateway_limits() -> Limits:
    """Half of the files that this process may open; all clients may be one proxy, so that one peer may have all."""
    total = room_for(0.5, 8192)
    return Limits(total, total)


class BoundedConnection:
    """Mixed in before a protocol of uvicorn, of which it uses ``cycle``: the request at hand, made when a header is complete."""

    cycle: Any
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._counted = connections
        self._deadline: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._unasked_bytes = 0
        """Since the last request was answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        peer = (transport.get_extra_info("peername") or ("",))[0]
        try:
            self._counted.admit(self, peer, transport.abort)
        except TooManyConnections:
            log.warning("a connection is refused: %d are open", len(self._counted))
            transport.write(_BUSY)
            transport.close()
        else:
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self.resume_writing()
        self._counted.closed(self)
        super().connection_lost(exc)  # type: ignore[misc]

    def data_received(self, data: bytes) -> None:
        super().data_received(data)  # type: ignore[misc]
        if self._at_work():
            self._disarm()
            self._unasked_bytes = 0
            self._counted.busy(self)
            return
        self._unasked_bytes += len(data)
        if self._unasked_bytes > (MAX_DRAINED if self.cycle is not None and self.cycle.more_body else MAX_HEADER):
            self._late()
        elif self._deadline is None:
            self._arm()

    def _at_work(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def on_response_complete(self) -> None:
        super().on_response_complete()  # type: ignore[misc]
        if self._at_work():  # the next request was there already
            return
        self._counted.silent(self)
        if self.cycle.more_body:
            self._arm()

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        self._await_reading(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        super().resume_writing()  # type: ignore[misc]

    def _await_reading(self, unread: int) -> None:
        self._reading = self.loop.call_later(WRITE_S, self._check_reading, unread)

    def _check_reading(self, before: int) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread < before:
            self._await_reading(unread)
        else:
            log.info("a connection is closed: its client does not read the answer")
            self.transport.abort()

    def _arm(self) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(self._counted.limits.header_s, self._late)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._disarm()
        log.info(
            "a connection is closed: no whole request came in time, or its header is larger than %d bytes", MAX_HEADER
        )
        with contextlib.suppress(OSError):
            self.transport.abort()


def bounded_protocol(limits: Limits) -> Any:
    """What makes the protocol of a connection, as ``uvicorn.Config(http=...)`` takes it: httptools' where that is installed (the
    extra ``serve``), else h11's."""
    try:
        base = import_module("uvicorn.protocols.http.httptools_impl").HttpToolsProtocol
    except ImportError:
        base = import_module("uvicorn.protocols.http.h11_impl").H11Protocol
    protocol, connections = type("BoundedHttpProtocol", (BoundedConnection, base), {}), Connections(limits)
    return lambda **given: protocol(connections, **given)
