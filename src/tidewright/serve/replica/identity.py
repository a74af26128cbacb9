"""Which job a process of a replica is. Its environment does not say: one that comes from an image has another replica's."""

from __future__ import annotations

import json
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path

NAME = "identity"
"""Written by the agent into the directory of each rank (``TIDE_BOX``)."""


@dataclass(frozen=True)
class ReplicaIdentity:
    """``inside``: the rank has a directory of its own, by which it would notice that it has become another job."""

    job: int
    attempt: int
    inside: bool


def read_identity() -> ReplicaIdentity:
    """As the agent says; else as the environment does; 0 without either."""
    found: dict[str, str] = {}
    box = os.environ.get("TIDE_BOX", "")
    if box:
        try:
            found = json.loads((Path(box) / NAME).read_bytes())
        except (OSError, ValueError):  # of an agent before identities
            found = {}
    job, attempt = (int(found.get(name) or os.environ.get(name) or "0") for name in ("TIDE_JOB_ID", "TIDE_ATTEMPT"))
    return ReplicaIdentity(job, attempt, bool(found))


def renew_randomness() -> None:
    """Seed the generators of Python, numpy and torch anew: replicas of one image would draw the same numbers."""
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.seed()
