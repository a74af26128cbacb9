"""What preemptive baselines have in common: the pool goes to the rows with the smallest keys, and nothing else is weighed."""

from __future__ import annotations

from ...model.view import View
from ...plan.plan import Plan, Wake
from ..compose import Composer
from ..preferences import Preferences, next_settled


def preemptive_plan(view: View, preferences: Preferences, min_run_us: int) -> Plan:
    """The plan by these preferences; the next one when another running row has run for ``min_run_us``."""
    composer = compose(view, preferences)
    return composer.plan(Wake(at=next_settled(view, min_run_us) if composer.unplaced else 0))


def compose(view: View, preferences: Preferences) -> Composer:
    """Preempt, fill what is free, and let elastic rows have what is left."""
    composer = Composer(view, preferences)
    composer.rearrange()
    composer.fill()
    composer.grow()
    return composer
