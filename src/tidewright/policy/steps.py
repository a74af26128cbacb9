"""One start of a plan with all that it needs: who is preempted, shrunk or migrated for it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ..model.cause import Cause, Code, given
from ..model.job import State
from ..model.node import Allocation
from ..model.view import View
from ..placement.locality import in_rank_order, locality_note
from ..plan.moves import Migrate, Move, Resize, Resume, Start, Suspend
from ..plan.request import Request

_SUSPENDED = int(State.SUSPENDED)


class PlanStep(Struct):
    """``row`` is placed on ``allocation``; other rows are suspended for it, keep fewer devices, or go elsewhere."""

    row: int
    allocation: Allocation
    suspended: tuple[int, ...] = ()
    shrunk: tuple[tuple[int, Allocation], ...] = ()
    migrated: tuple[tuple[int, Allocation], ...] = ()
    within_us: int = 0
    """Within so long the suspended rows are to release their devices; 0: no matter."""

    @property
    def displaces(self) -> bool:
        """Whether others have to move for it."""
        return bool(self.suspended or self.shrunk or self.migrated)

    @property
    def others(self) -> tuple[int, ...]:
        """Rows that move for it."""
        return (*self.suspended, *(row for row, _ in (*self.shrunk, *self.migrated)))


def step_moves(
    view: View,
    step: PlanStep,
    image_nodes: tuple[int, ...],
    why: Cause | str,
    replan: Mapping[int, bool],
    request: Request | None,
) -> list[Move]:
    """The moves of a step, those that release devices first; they land together.

    ``image_nodes``: where the image lies that the row comes back from, in rank order, and ``request`` what it then asks for;
    ``replan``: suspended rows to be planned for again as soon as their devices are free.
    """
    ids, why = view.jobs.id, given(why)
    job = ids.item(step.row)
    parting, aside = Code.PREEMPTED_FOR(job, why), Code.MIGRATED_FOR(job, why)
    moves: list[Move] = [
        Suspend(ids.item(row), parting, replan.get(row, False), step.within_us) for row in step.suspended
    ]
    moves.extend(Resize(ids.item(row), kept, parting) for row, kept in step.shrunk)
    moves.extend(Migrate(ids.item(row), elsewhere, aside) for row, elsewhere in step.migrated)
    resumes, allocation = view.jobs.state.item(step.row) == _SUSPENDED, step.allocation
    if image_nodes and request is not None:
        note = locality_note(view.layout, allocation, image_nodes)
        allocation = request.with_resources(in_rank_order(allocation, image_nodes), view.layout)
        why = Code.WITH(why, note)
    moves.append(Resume(job, allocation, why) if resumes else Start(job, allocation, why))
    return moves
