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

Requests about one attempt are carried out one after the other (``AttemptState.line``): the phase changes when the request is
answered, what it takes goes on behind. ``stop`` does not wait for its turn to be noted: what is under way sees ``record.ending``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ...wire.agent import Phase, Verb


class VerbResponse(Enum):
    """``BEGIN``: the phase changes now. ``BEHIND``: the request is judged when what is under way has come to its end.
    ``REPEAT``: the answer is how the attempt stands; it was asked before, or makes no sense any more. ``HURRY``: it is being
    done; an earlier end may be asked for."""

    BEGIN = "begin"
    BEHIND = "behind"
    REPEAT = "repeat"
    HURRY = "hurry"


_BEGIN, _BEHIND, _REPEAT, _HURRY = VerbResponse.BEGIN, VerbResponse.BEHIND, VerbResponse.REPEAT, VerbResponse.HURRY
_COLUMNS: tuple[Verb, ...] = ("launch", "suspend", "resume", "checkpoint", "stop")
_ROWS: dict[Phase, tuple[VerbResponse, ...]] = {
    "starting": (_REPEAT, _BEHIND, _REPEAT, _BEGIN, _BEGIN),
    "running": (_REPEAT, _BEGIN, _REPEAT, _BEGIN, _BEGIN),
    "suspending": (_REPEAT, _REPEAT, _BEHIND, _BEGIN, _BEGIN),
    "suspended": (_REPEAT, _REPEAT, _BEGIN, _BEGIN, _BEGIN),
    "resuming": (_REPEAT, _BEHIND, _REPEAT, _BEGIN, _BEGIN),
    "stopping": (_REPEAT, _REPEAT, _REPEAT, _BEGIN, _HURRY),
    "exited": (_REPEAT, _REPEAT, _REPEAT, _REPEAT, _REPEAT),
    "failed": (_REPEAT, _REPEAT, _REPEAT, _REPEAT, _REPEAT),
}
"""A checkpoint begins in every phase: it is judged when its turn comes, and refused by a report of its own."""

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
