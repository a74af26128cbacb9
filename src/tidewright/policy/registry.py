"""Policies by name, settings included: ``las:round=6m,thresholds=1h+10h``."""

from __future__ import annotations

from ..base.registry import Registry
from ..plan.factories import build
from ..plan.plan import Planner

policies = Registry(
    "policy",
    "tidewright.policies",
    {
        "sla": "tidewright.policy.sla:Sla",
        "fifo": "tidewright.policy.baselines.fifo:Fifo",
        "fifo-backfill": "tidewright.policy.baselines.backfill:Backfill",
        "fjf": "tidewright.policy.baselines.fjf:FitJobFirst",
        "sjf": "tidewright.policy.baselines.sjf:Sjf",
        "smallest": "tidewright.policy.baselines.smallest:Smallest",
        "srsf": "tidewright.policy.baselines.srsf:Srsf",
        "srtf": "tidewright.policy.baselines.srtf:Srtf",
        "las": "tidewright.policy.baselines.las:Las",
        "static": "tidewright.policy.baselines.static:Static",
        "gavel-fifo": "tidewright.policy.baselines.gavel_fifo:GavelFifo",
    },
)
"""Third parties register a factory with keyword settings under the entry point group ``tidewright.policies``."""


def make(name: str) -> Planner:
    """The planner called ``name``, which may carry settings: ``name:key=value,key=value``.

    Times (settings ending in ``_us``, which may be left off) carry units, lists are joined by ``+``. Raises UsageError for
    unknown names and settings.
    """
    planner: Planner = build(policies, name)
    return planner
