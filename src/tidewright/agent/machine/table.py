"""What a request means for an attempt in each of its phases. Only this file and ``node`` decide what is done next.

::

                 launch                      suspend                     (image or memory stands for the ranks)
    (unknown) ------------> starting --> running ----------> suspending ----------> suspended
                               |           ^  |  ^  refused, failed |                 |   ^
                               |           |  |  +------------------+                 |   | failed
                               |           |  |                                resume |   |
                               |           |  |            resumed                    v   |
                               |           +--|------------------------------------ resuming
                               |              |                                       |
                               | stop         | stop, evicted                         | stop
                               v              v                                       v
                            stopping <--------+---- (suspending, suspended) ----------+
                               |
     a rank never ran          | all ranks have ended            all ranks have ended by themselves
    failed <-------------------+------------------> exited <------------------------- running, suspended, ...

    ``checkpoint`` is taken beside these, in ``running``; ``forget`` drops what has exited or failed, or has ``left``.

Requests about one attempt are carried out one after the other (``AttemptState.script_queue``): the phase changes when the
request is answered, and the operation runs afterwards. ``stop`` is recorded at once: the operation in progress sees
``record.ending``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ...wire.agent import Phase, Verb


class VerbResponse(Enum):
    """``BEGIN``: the phase changes now. ``QUEUE``: the request is handled when the operation in progress has ended.
    ``REPEAT``: the answer is the current report; the request is a repetition, or obsolete. ``EXPEDITE``: it is in progress; a
    shorter grace may be requested."""

    BEGIN = "begin"
    QUEUE = "queue"
    REPEAT = "repeat"
    EXPEDITE = "expedite"


_BEGIN, _QUEUE, _REPEAT, _EXPEDITE = VerbResponse.BEGIN, VerbResponse.QUEUE, VerbResponse.REPEAT, VerbResponse.EXPEDITE
_COLUMNS: tuple[Verb, ...] = ("launch", "suspend", "resume", "checkpoint", "stop")
_ROWS: dict[Phase, tuple[VerbResponse, ...]] = {
    "starting": (_REPEAT, _QUEUE, _REPEAT, _BEGIN, _BEGIN),
    "running": (_REPEAT, _BEGIN, _REPEAT, _BEGIN, _BEGIN),
    "suspending": (_REPEAT, _REPEAT, _QUEUE, _BEGIN, _BEGIN),
    "suspended": (_REPEAT, _REPEAT, _BEGIN, _BEGIN, _BEGIN),
    "resuming": (_REPEAT, _QUEUE, _REPEAT, _BEGIN, _BEGIN),
    "stopping": (_REPEAT, _REPEAT, _REPEAT, _BEGIN, _EXPEDITE),
    "exited": (_REPEAT, _REPEAT, _REPEAT, _REPEAT, _REPEAT),
    "failed": (_REPEAT, _REPEAT, _REPEAT, _REPEAT, _REPEAT),
}
"""A checkpoint begins in every phase: it is handled in its place in the queue, and refused by a report of its own."""

TABLE: Mapping[tuple[Phase, Verb], VerbResponse] = {
    (phase, verb): response for phase, row in _ROWS.items() for verb, response in zip(_COLUMNS, row, strict=True)
}

ON_ADOPTION: Mapping[Phase, Verb] = {
    "starting": "launch",
    "suspending": "suspend",
    "resuming": "resume",
    "stopping": "stop",
}
"""What an agent goes on with that finds an attempt of an earlier one in this phase; nothing in the others."""
