"""A client of the gateway that costs little: for benches and demonstrations, which measure the gateway and not the client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence


class InferenceConnection(asyncio.Protocol):
    """One request at a time on one connection; knows as much of HTTP as the gateway's answers need."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        """None once the connection is lost."""
        self._answer: asyncio.Future[int] | None = None
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(0)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]) if found else 0
        if found and len(body) >= length and self._answer is not None and not self._answer.done():
            self._data = b""
            self._answer.set_result(int(head[9:12]))

    async def ask(self, request: bytes) -> int:
        """The status of the answer; 0: the connection was lost."""
        if self.transport is None:
            return 0
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._answer


async def connect(address: str) -> InferenceConnection:
    """A connection to ``HOST:PORT``. Raises OSError."""
    host, _, port = address.rpartition(":")
    return (await asyncio.get_running_loop().create_connection(InferenceConnection, host, int(port)))[1]


def inference_request(model: str, item: Sequence[float], *, best_effort: bool = False) -> bytes:
    """An inference request of one item for the input ``x``, FP32, as it stands on a connection."""
    one = {"name": "x", "shape": [1, len(item)], "datatype": "FP32", "data": list(item)}
    body = json.dumps({"inputs": [one]}).encode()
    kind = "tide-class: be\r\n" if best_effort else ""
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\n{kind}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
