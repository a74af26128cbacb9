"""Keeps the process alive that sends notifications, once a job wants some. It ends with the controller, and never holds it up."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ...base.backoff import pause_s
from ...base.errors import TideError
from ...wire.state_files import open_own
from .loop import Loop

log = logging.getLogger(__name__)
LOG = "notify.log"
LOOK_S = 1.0
PAUSES_S = (1.0, 60.0)
LASTED_S = 60.0
"""One that ran for so long is started again at once when it ends."""


@dataclass(frozen=True)
class Notifier:
    """The command line of the process (empty: there is none), and whether it can send mails."""

    argv: tuple[str, ...] = ()
    mails: bool = False
    database: str = ""
    """A file of the state directory that is there once notifications have been wanted: some may still be to be sent."""


class NotifierSupervisor:
    """``run`` until cancelled."""

    def __init__(self, state: Path, notifier: Notifier, loop: Loop) -> None:
        self._state, self._notifier, self._loop = state, notifier, loop
        self._child: subprocess.Popen[bytes] | None = None

    async def run(self) -> None:
        """Start the process when it is wanted first, and again when it has ended."""
        if not self._notifier.argv:
            return
        while not self._is_wanted():
            await asyncio.sleep(LOOK_S)
        tries = 0
        try:
            while True:
                began_s = asyncio.get_running_loop().time()
                code = await self._until_ended()
                lasted_s = asyncio.get_running_loop().time() - began_s
                tries = 0 if lasted_s > LASTED_S else tries + 1
                log.warning("the process that sends notifications ended with %s; it is started again", code)
                await asyncio.sleep(pause_s(tries, PAUSES_S))
        finally:
            self._end()

    def _is_wanted(self) -> bool:
        return self._loop.event_stream.notifies or (self._state / self._notifier.database).exists()

    async def _until_ended(self) -> int | str:
        try:
            self._start()
        except (OSError, TideError) as error:
            return str(error)
        assert self._child is not None
        while (code := self._child.poll()) is None:
            await asyncio.sleep(LOOK_S)
        return code

    def _start(self) -> None:
        with os.fdopen(open_own(self._state / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as out:
            self._child = subprocess.Popen(
                [*self._notifier.argv, "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd="/",
            )

    def _end(self) -> None:
        """It ends within a second, which is not waited for; it would also see that its parent is gone."""
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()
