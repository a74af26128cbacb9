"""Streams whose kernels have a share of a device's multiprocessors to themselves: green contexts of its primary context.

Sources: CUDA Driver API, "Green Contexts"; ``torch.cuda.green_contexts`` (PyTorch 2.11). A graph that is captured on such a
stream runs there.
"""

from __future__ import annotations

from typing import Any

from ...base.errors import UsageError

STREAMS = 32
"""Of one green context of PyTorch's; more are the first ones again (kStreamPerGreenContextPool)."""


class ShareStreams:
    """Streams on ``sms`` multiprocessors; the device rounds up to what it can split (8 on compute capability 9.0). They are of
    no use any more once this object is gone: the driver ends a green context's streams with it.

    Each is one user's until ``give``: a stream that one captures on must not be another's. Raises UsageError where the
    device or PyTorch has no green contexts, or not so many multiprocessors.
    """

    def __init__(self, sms: int) -> None:
        self.sms = sms
        self._contexts: list[Any] = []
        """Streams end with their context."""
        self._taken = 0
        self._free: list[Any] = []
        self._grow()

    def take(self) -> Any:
        """A stream that is in no other use."""
        if self._free:
            return self._free.pop()
        if self._taken == STREAMS * len(self._contexts):
            self._grow()
        self._taken += 1
        return self._contexts[-1].Stream()

    def give(self, stream: Any) -> None:
        """It is not used any more, and nothing is on it."""
        self._free.append(stream)

    def _grow(self) -> None:
        from torch.cuda import green_contexts

        try:
            self._contexts.append(green_contexts.GreenContext.create(num_sms=self.sms))
        except (RuntimeError, AttributeError) as error:
            raise UsageError(
                f"{self.sms} multiprocessors cannot be set apart: {str(error).strip().splitlines()[0]}",
                "leave padding out (--padding never), or use other shares and a driver with green contexts (CUDA 12.4)",
            ) from None
