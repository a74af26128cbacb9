"""Devices kept free for jobs whose promise cannot wait until another job has been saved and has released its own.

See docs/why/headroom.md for what they cost and what they are good for.
"""

from __future__ import annotations

from msgspec import structs

from ..base.units import HOUR, SECOND
from ..estimate.cost import LAUNCH_US
from ..model.board import whole
from ..model.cause import Code
from ..model.node import Allocation, Part, bits, device_count
from ..model.table import Column
from ..model.view import View
from ..placement.find import lowest, place
from ..plan.reasons import Blocked, Reason
from .compose import Composer
from .preferences import median, suspendable
from .promise import LOOSE, Promise

SHORT_SAVE_US = 10 * SECOND
"""Where running jobs release their devices sooner, fewer are kept free: a third."""
_NO_SAVE_US = SECOND // 2
"""Where they release them this soon, none: a launch takes longer."""
REMEMBERED_US = 4 * HOUR
"""None are kept free of a kind on which no job that could not have waited has ended for so long."""
_MARGIN_US = 5 * SECOND
"""Between the last moment at which a promise could be kept and the one at which its job gets a kept device."""


class Headroom:
    """At most ``share`` of the devices of each kind, for one plan."""

    def __init__(self, view: View, judged: Promise, share: float) -> None:
        self.view, self.judged = view, judged
        self.kept: Allocation = ()
        rows = suspendable(view).nonzero()[0]
        save_us = median(view.jobs.save_us[rows]) if share else 0.0
        slow = save_us > SHORT_SAVE_US
        self._needs_us = int(save_us) + LAUNCH_US + (_MARGIN_US if slow else 0)
        """How long a row waits whose devices have to be released first."""
        part = share if slow else share / 3
        self._wanted = self._most(part) if save_us > _NO_SAVE_US else {}

    def _most(self, share: float) -> dict[int, int]:
        """Devices to keep by kind, of those kinds on which jobs end that cannot wait."""
        layout = self.view.layout
        most = {kind: int(share * devices) for kind, devices in enumerate(layout.kind_devices)}
        return {
            kind: count for kind, count in most.items() if count and self._until(layout.kinds[kind]) > self.view.now
        }

    def _until(self, kind: str) -> int:
        """Until when they are kept, if no other such job ends. Absolute microseconds."""
        ended = self.view.tolerances.get(kind, {})
        brief = [at for spare, at in ended.items() if (1 << spare >> 1) * SECOND < self._needs_us]
        return max(brief, default=-REMEMBERED_US) + REMEMBERED_US

    def open(self, composer: Composer) -> None:
        """Place the rows that cannot wait, on any free devices; then take off the board what is kept from the others."""
        if not self._wanted:
            return
        judged = self.judged
        urgent = (
            composer.preferences.waiting & ~LOOSE[judged.cls] & (judged.slack <= self._needs_us) & ~composer.touched
        )
        composer.fill(urgent.nonzero()[0])
        self.kept = tuple(self._parts(composer))
        composer.board.acquire(self.kept)

    def _parts(self, composer: Composer) -> list[Part]:
        """Of the nodes with the fewest free devices first, so that gangs find whole nodes."""
        board, jobs, waiting = composer.board, self.view.jobs, self.view.jobs.waiting
        pinned = jobs.pinned_node[waiting]
        taken = {int(node) for node in pinned[pinned >= 0].tolist()}
        gang = bool((jobs.floor[waiting] > 1).any())
        parts = []
        for kind, wanted in self._wanted.items():
            for count, nodes in enumerate(board.buckets[kind]):
                for node in bits(nodes) if count and wanted else ():
                    if not wanted or node in taken or (gang and count == board.layout.node_size[node]):
                        continue
                    parts.append(whole(node, lowest(board.free[node], min(count, wanted))))
                    wanted -= min(count, wanted)
        return parts

    def opens_at(self) -> int:
        """When the next waiting row cannot wait any longer, or nothing is kept any more; 0 for never. Absolute microseconds."""
        if not self.kept:
            return 0
        jobs, judged, now = self.view.jobs, self.judged, self.view.now
        patient = jobs.waiting & ~LOOSE[judged.cls] & (judged.slack > self._needs_us)
        spare: Column = judged.slack[patient]
        times = [self._until(self.view.layout.kinds[kind]) for kind in self._wanted]
        return min([*times, now + int(spare.min()) - self._needs_us + 1] if len(spare) else times)

    def explained(self, composer: Composer, blocked: Blocked) -> Blocked:
        """What keeps a row from starting, if that is what is kept free."""
        if not self.kept:
            return blocked
        board, row = composer.board, self.view.jobs.row[blocked.job]
        mark = board.mark()
        board.release(self.kept)
        fits = place(board, composer.request(row)) is not None
        board.undo(mark)
        if not fits:
            return blocked
        why = Code.HEADROOM(device_count(self.kept))
        return structs.replace(blocked, reason=Reason.RESERVED, why=why, free=blocked.free + device_count(self.kept))
