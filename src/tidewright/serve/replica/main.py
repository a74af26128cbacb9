"""The process of a replica: ``python -m tidewright.serve.replica.main``. Loads the model, connects to the gateway, runs batches.

The gateway may come later and may be restarted: the replica connects again. SIGTERM: it takes no further batch, answers the
one it has, and ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import sys
from pathlib import Path
from types import FrameType

import msgspec
from msgspec.structs import replace

from ...base.errors import UsageError, WorldError
from ...wire.trust import connect_unix, refuse_stranger
from .identity import read_identity, renew_randomness
from .link import (
    GATEWAY,
    HEAD,
    OPTIONS,
    BatchDone,
    BecomeImage,
    Leaving,
    ReplicaHello,
    RequestResult,
    RunBatch,
    ServingOptions,
    frame,
    from_gateway,
    length_of,
    packed,
    unpacked,
)
from .model import ReplicaModel, load

log = logging.getLogger("tidewright.replica")
RETRY_S = 0.2
SAVED_POLL_S, SAVED_POLLS = 0.02, 50
"""How often a replica that is to be saved looks for what came of it, and how many times until it asks the gateway again."""


class ReplicaProcess:
    """One model on one connection at a time. SIGTERM wakes what waits through a pipe of its own, so that no message is torn."""

    def __init__(
        self, path: Path, options: ServingOptions, model: ReplicaModel, samples: tuple[tuple[int, int], ...]
    ) -> None:
        self._path, self._model = path, model
        self._identity = read_identity()
        offers = options.from_image and self._identity.inside
        self._hello = ReplicaHello(
            self._identity.job, self._identity.attempt, options, model.signature, samples, offers_image=offers
        )
        self._leaving = False
        self._woken, self._wakes = socket.socketpair()

    def stop(self, signum: int, stack: FrameType | None) -> None:
        """SIGTERM."""
        self._leaving = True
        self._wakes.send(b".")

    def serve(self) -> None:
        """Until it is to end. Raises UsageError where another user's process listens in the gateway's place."""
        waits = False
        while not self._leaving:
            with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
                try:
                    connect_unix(connection, self._path)
                except OSError as error:
                    if not waits:
                        log.info("waiting for the gateway at %s: %s", self._path, error.strerror)
                    waits = True
                    select.select([self._woken], [], [], RETRY_S)
                    continue
                waits = False
                refuse_stranger(connection, self._path)
                try:
                    to_be_saved = self._exchange(connection)
                except (OSError, WorldError) as error:
                    log.warning("the gateway at %s: %s; connecting again", self._path, error)
                    continue
            if to_be_saved:
                self._wait_to_be_saved()

    def _wait_to_be_saved(self) -> None:
        """Without any connection, until the process goes on as another replica, or has run for so long that no image was made."""
        log.info("waiting to be saved as the image of further replicas")
        for _ in range(SAVED_POLLS):  # counted, not timed: it stands still while it is saved
            if select.select([self._woken], [], [], SAVED_POLL_S)[0]:
                return
            found = read_identity()
            if found != self._identity:
                self._identity = found
                self._hello = replace(self._hello, job=found.job, attempt=found.attempt, offers_image=False)
                renew_randomness()
                log.info("started from an image, as job %d", found.job)
                return

    def _exchange(self, connection: socket.socket) -> bool:
        """Run batches until the gateway closes the connection. True: the process is to be saved."""
        connection.sendall(frame(self._hello))
        said = False
        while True:
            if self._leaving and not said:
                connection.sendall(frame(Leaving()))
                said = True
            ready, _, _ = select.select([connection, *([] if said else [self._woken])], [], [])
            if connection not in ready:
                continue
            data = _receive(connection)
            if data is None:
                return False
            message = from_gateway(data)
            if isinstance(message, BecomeImage):
                return True
            connection.sendall(frame(self._run(message)))

    def _run(self, batch: RunBatch) -> BatchDone:
        return BatchDone(tuple(map(_result, self._model.run([unpacked(one) for one in batch.requests]))))


def _result(found: object) -> RequestResult:
    if isinstance(found, str):
        return RequestResult(error=found[:2000])
    try:
        return RequestResult(packed(found))  # type: ignore[arg-type]
    except UsageError as error:
        return RequestResult(error=error.message)


def _receive(connection: socket.socket) -> bytes | None:
    """The next message; None when the gateway has closed the connection between two."""
    head = _exactly(connection, HEAD.size)
    return None if head is None else _exactly(connection, length_of(head)) or b""


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    """So many bytes; None when there is no further one."""
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            if parts:
                raise WorldError("the gateway closed the connection within a message")
            return None
        parts += part
    return bytes(parts)


def main() -> int:
    """Run until SIGTERM. 2 for options or a model that cannot be used."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        options = msgspec.json.decode(os.environ[OPTIONS], type=ServingOptions)
        path = Path(os.environ[GATEWAY])
        sys.path.insert(0, os.getcwd())
        definition = load(options.model)
        model = ReplicaModel(definition)
        samples = model.warm_up() if definition.warm_up else ()
    except (KeyError, msgspec.MsgspecError) as error:
        log.error("not started by tide serve deploy: %s", error)
        return 2
    except UsageError as error:
        log.error("%s; %s", error.message, error.remedy)
        return 2
    log.info(
        "%s is ready%s", options.model, f"; a batch of {samples[-1][0]} takes {samples[-1][1]} us" if samples else ""
    )
    replica = ReplicaProcess(path, options, model, samples)
    signal.signal(signal.SIGTERM, replica.stop)
    try:
        replica.serve()
    except UsageError as error:
        log.error("%s; %s", error.message, error.remedy)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
