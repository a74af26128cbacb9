"""A static split of the pool by tier, first in, first out in each part: what sites without a shared pool do. A baseline."""

from __future__ import annotations

import numpy as np

from ...base.errors import UsageError
from ...model.board import ALL_NODES, Layout
from ...model.cause import Code
from ...model.job import Tier
from ...model.view import View
from ...placement.facts import facts
from ...placement.find import place
from ...plan.factories import Proportion
from ...plan.order import QueueOrder
from ...plan.plan import Plan, Wake
from ..compose import Composer
from ..preferences import Preferences

_ANY = 1 << 62
"""Behind every job."""


class Static:
    """``premium``, ``standard`` and ``basic`` are the parts' sizes; only their proportions matter."""

    name = "static"
    reads_estimates = False

    def __init__(self, *, premium: Proportion = 0.25, standard: Proportion = 0.35, basic: Proportion = 0.4) -> None:
        if not premium + standard + basic:
            raise UsageError(
                "the parts of the pool are all 0", "give one of premium, standard and basic a size above 0"
            )
        self.parts = {Tier.PREMIUM: premium, Tier.STANDARD: standard, Tier.BASIC: basic}

    def plan(self, view: View) -> Plan:
        """Each tier fills its own nodes; a job no part of its tier could ever hold may use the whole pool."""
        jobs = view.jobs
        parts = split_nodes(view.layout, list(self.parts.values()))
        preferences = Preferences(
            key=jobs.id, waiting=jobs.waiting, why=lambda row: Code.FIRST_IN_TIER(Tier(int(jobs.tier[row])).name.lower()),
            strict=True,
        )  # fmt: skip
        composer = Composer(view, preferences)
        for tier, part in zip(self.parts, parts, strict=True):
            rows = np.flatnonzero(preferences.waiting & (jobs.tier == int(tier)))
            composer.fill(rows, part)
            while composer.unplaced and composer.unplaced[-1] in rows:
                head = composer.unplaced[-1]
                if place(facts(view.layout).empty, composer.request(head), part) is not None:
                    break
                if not composer.start(head, ALL_NODES):
                    break
                composer.unplaced.pop()
                composer.fill(rows[~composer.touched[rows]], part)
        # Jobs behind the head of a tier have not been looked at: they are when it leaves the queue.
        return composer.plan(Wake(behind=_ANY) if composer.unplaced else Wake())

    def order(self, view: View) -> QueueOrder:
        """By submission in each tier."""
        return QueueOrder(queue=view.jobs.tier)


def split_nodes(layout: Layout, shares: list[float]) -> list[int]:
    """Sets of consecutive nodes whose devices are in these proportions, as near as whole nodes allow."""
    total, whole = sum(shares), sum(layout.node_size)
    parts, node, given, due = [], 0, 0, 0.0
    for share in shares:
        due += share / total * whole
        part = 0
        while node < len(layout.node_size) and given + layout.node_size[node] / 2 <= due:
            part |= 1 << node
            given += layout.node_size[node]
            node += 1
        parts.append(part)
    return parts
