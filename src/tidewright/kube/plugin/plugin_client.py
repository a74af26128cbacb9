"""Calls to a device plugin that may end, come back or hang at any moment, over its private socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ..node.kubelet import LONGEST_REQUEST
from ..node.proto import grpc_module
from ..node.v1beta1 import API, PLUGIN, messages

AGAIN_S = (0.1, 2.0)
"""First and longest pause after a call broke off before it is made again; doubled."""
AT_ONCE_S = 1.0
"""Longest for a call that need not be answered: the kubelet admits no other pod meanwhile."""
HUNG_S = 10.0
"""A plugin that let such a call wait is not asked again for so long."""
RECONNECT_MS = (100, 300)
"""First and longest pause before the next try to connect."""


class PluginClient:
    """Open inside ``async with``. Answers are the plugin's messages, refusals are raised as AioRpcError."""

    def __init__(self, path: Path) -> None:
        self._grpc, self._empty = grpc_module(), messages().Empty
        first, longest = RECONNECT_MS
        options = {
            "grpc.enable_http_proxy": 0,
            "grpc.initial_reconnect_backoff_ms": first,
            "grpc.min_reconnect_backoff_ms": first,
            "grpc.max_reconnect_backoff_ms": longest,
            "grpc.max_receive_message_length": LONGEST_REQUEST,
        }
        self._target, self._options = f"unix:{path}", list(options.items())
        self._channel: Any = None
        self._hung_until_s = 0.0

    async def __aenter__(self) -> PluginClient:
        self._channel = self._grpc.aio.insecure_channel(self._target, options=self._options)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    def stream(self, method: str, request: Any) -> Any:
        """To be iterated; waits until there is a plugin."""
        return self._call(method)(request, wait_for_ready=True)

    async def wait(self, method: str, request: Any, limit_s: float | None = None) -> Any:
        """The answer, however often the plugin ends meanwhile; each call carries the remaining time as its deadline. Raises
        TimeoutError with the text of the last call's error: gRPC reports an exception in the plugin with a code of a broken call.
        """
        pause_s, longest_s = AGAIN_S
        last = ""
        try:
            async with asyncio.timeout(limit_s) as limit:
                while True:
                    until_s = limit.when()
                    left_s = None if until_s is None else until_s - asyncio.get_running_loop().time()
                    try:
                        return await self._call(method)(request, wait_for_ready=True, timeout=left_s)
                    except self._grpc.aio.AioRpcError as error:
                        self._check_broken_off(error)
                        last = last if error.code().name == "DEADLINE_EXCEEDED" else str(error.details())
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, longest_s)
        except TimeoutError:
            raise TimeoutError(last) from None

    async def ask_at_once(self, method: str, request: Any) -> Any:
        """The answer; None from a plugin that is away or hangs."""
        now_s = asyncio.get_running_loop().time
        if now_s() < self._hung_until_s:
            return None
        try:
            async with asyncio.timeout(AT_ONCE_S):
                return await self._call(method)(request)
        except TimeoutError:
            self._hung_until_s = now_s() + HUNG_S
        except self._grpc.aio.AioRpcError as error:
            self._check_broken_off(error)
        return None

    def _check_broken_off(self, error: Any) -> None:
        """Raises ``error`` unless it says that the plugin ended in the middle of the call: gRPC has several codes for that."""
        if error.code().name not in ("UNAVAILABLE", "UNKNOWN", "CANCELLED", "INTERNAL", "DEADLINE_EXCEEDED"):
            raise error

    def _call(self, method: str) -> Any:
        return API.caller(self._channel, PLUGIN, method)
