"""The process that answers questions, seen from the controller: started with a question, ended when it is late, replaced."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable, Sequence

from ..base.errors import Busy, UsageError
from .explain_worker import LENGTH_BYTES, frame_length

log = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""How long an answer may take; then the process is ended."""
LONGEST_PAUSE_S = 60.0
"""Between two processes, where one after the other ends."""
EXIT_S = 1.0
"""How long a process that has closed its output may take to exit by itself."""
_ATTEMPTS = 2
"""Processes that a question is put to: the first may have ended by something else, such as the kernel for want of memory."""
AGAIN = "ask again; tide why JOB --no-changes answers without a search"


class ExplainProcess:
    """Content of frames to content of an answer, one question at a time. ``argv`` starts it; ``clock``: seconds, monotonic."""

    def __init__(self, argv: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._argv, self._clock = argv, clock
        self._process: asyncio.subprocess.Process | None = None
        self._deaths = 0
        """One after the other, without an answer between."""
        self._next_start = 0.0

    @property
    def pid(self) -> int | None:
        """Of the process; None where none has been started, or it has been ended."""
        return self._process.pid if self._process is not None else None

    async def exchange(self, frames: bytes) -> bytes:
        """The answer. Raises UsageError where there is none in time or two processes end over it; Busy after several of these."""
        for attempt in range(1, _ATTEMPTS + 1):
            self._refuse_pausing()
            try:
                content = await asyncio.wait_for(self._exchange(frames), PATIENCE_S)
            except TimeoutError:
                await self.close()
                self._died()
                raise UsageError(f"no answer within {PATIENCE_S:g} s", AGAIN) from None
            except (OSError, asyncio.IncompleteReadError):
                how = await self._end()
                log.warning("the process that answers questions %s", how)
                if attempt == _ATTEMPTS:
                    self._died()
                    raise UsageError(f"the process that answers this {how}", f"{AGAIN}; see controller.log") from None
            except BaseException:  # the client has gone: an answer half read would be taken for the next one's
                await self.close()
                raise
            else:
                self._deaths = 0
                return content
        raise AssertionError("the last attempt returns or raises")

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _refuse_pausing(self) -> None:
        left = self._next_start - self._clock()
        if left > 0 and (self._process is None or self._process.returncode is not None):
            text = f"the process that answers questions has ended {self._deaths} times; the next starts in {left:.0f} s"
            raise Busy(text, "see controller.log; tide why JOB --no-changes answers without it", left)

    def _died(self) -> None:
        self._deaths += 1
        if self._deaths > 1:
            self._next_start = self._clock() + min(2.0 ** (self._deaths - 1), LONGEST_PAUSE_S)

    async def _end(self) -> str:
        """How a process ended, of which nothing more can be read."""
        process = self._process
        if process is None:
            return "could not be started"
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), EXIT_S)
        code = process.returncode
        await self.close()
        if code is None:
            return "has closed its output"
        if code >= 0:
            return f"has ended with exit code {code}"
        why = " (is the machine out of memory?)" if code == -signal.SIGKILL else ""
        return f"has ended by {_signal_name(-code)}{why}"

    async def _exchange(self, frames: bytes) -> bytes:
        process = await self._running()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(frames)
        await process.stdin.drain()
        head = await process.stdout.readexactly(LENGTH_BYTES)
        return await process.stdout.readexactly(frame_length(head))

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = None
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(*self._argv, stdin=pipe, stdout=pipe)
        return self._process


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
