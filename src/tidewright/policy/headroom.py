"""Devices kept free for jobs whose promise cannot wait until another job has been saved and has released its own.

See docs/why/headroom.md.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from ..base.units import SECOND
from ..estimate.cost import LAUNCH_US
from ..model.board import Board
from ..model.job import State
from ..model.node import bits
from ..model.table import Column
from ..model.view import View
from .compose import Composer
from .preferences import suspendable
from .promise import Class, Promise

SHORT_SAVE_US = 10 * SECOND
"""Where running jobs release their devices sooner, none are kept free."""
_NEVER_LATE = np.array([one in (Class.PREMIUM_LATE, Class.STANDARD_LATE, Class.BASIC) for one in Class])


class Headroom(Struct, frozen=True):
    share: float = 0.05

    def keep(self, view: View, composer: Composer, judged: Promise) -> int:
        jobs = view.jobs
        rows = suspendable(view).nonzero()[0]
        if not self.share or not len(rows):
            return 0
        save = int(np.partition(jobs.save_us[rows], len(rows) // 2)[len(rows) // 2])
        if save < SHORT_SAVE_US:
            return 0
        needs = save + LAUNCH_US + MARGIN
        urgent = jobs.waiting & ~_NEVER_LATE[judged.cls] & (judged.slack < needs) & ~composer.touched
        if np.count_nonzero(urgent):
            composer.fill(urgent.nonzero()[0])
        wanted = int(self.share * view.capacity)
        kept = []
        board = composer.board
        for bucket in board.buckets:
            for count, nodes in enumerate(bucket):
                if not count: continue
                for node in bits(nodes):
                    if wanted <= 0: break
                    n = min(wanted, count)
                    mask = lowest(board.free[node], n)
                    kept.append((node, mask)); wanted -= n
        for node, mask in kept:
            board.acquire((whole(node, mask),))
        later = (jobs.waiting & ~_NEVER_LATE[judged.cls] & (judged.slack >= needs)).nonzero()[0]
        if kept and len(later):
            return int((judged.slack[later] - needs).min()) + view.now + 1
        return 0
from ..placement.find import lowest
from ..model.board import whole
import os
MARGIN = int(float(os.environ.get('HM','5')) * SECOND)
