"""Random shares of a device, for jobs of the swarm."""

from __future__ import annotations

import random
from typing import Any


def share_fields(rng: random.Random) -> dict[str, Any]:
    """Fields of a job that asks for a share of a device, in one of the ways there are."""
    fields: dict[str, Any] = {"gpu_memory": rng.randrange(1, 50) * 2**30}
    if rng.random() < 0.3:
        fields = {"gpu_share": rng.randrange(1, 1001)}
    elif rng.random() < 0.3:
        fields["gpu_milli"] = rng.randrange(1, 1000)
    return {**fields, "share_class": "be", "tier": "basic"} if rng.random() < 0.3 else fields
