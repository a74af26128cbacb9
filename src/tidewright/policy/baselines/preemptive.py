"""What preemptive baselines have in common: the pool goes to the rows with the smallest keys, and nothing else is weighed."""

from __future__ import annotations

import numpy as np

from ...model.view import View
from ...plan.plan import Plan, Wake
from ..compose import Composer
from ..preferences import Preferences
from ..wakes import preemption_wake


def preemptive_plan(view: View, preferences: Preferences, min_run_us: int) -> Plan:
    """The plan by these preferences; the next one when another running row has run for ``min_run_us``."""
    composer = compose(view, preferences)
    return composer.plan(preemptive_wake(view, preferences, composer, min_run_us))


def preemptive_wake(view: View, preferences: Preferences, composer: Composer, min_run_us: int, at: int = 0) -> Wake:
    """A wake for when another row can be preempted, where one waits that wants its devices; ``at``, if that is earlier."""
    waits = preferences.waiting.copy()
    waits[composer.started] = False
    if not np.count_nonzero(waits):
        return Wake(at=at)
    least = preferences.key[waits].min().item()
    wake = preemption_wake(composer, np.ones(view.jobs.n, bool), least, min_run_us, min_run_us)
    return Wake(at=min((one for one in (at, wake.at) if one > view.now), default=0), after_run=wake.after_run)


def compose(view: View, preferences: Preferences) -> Composer:
    """Preempt, fill what is free, and let elastic rows have what is left."""
    composer = Composer(view, preferences)
    composer.rearrange()
    composer.fill()
    composer.grow()
    return composer
