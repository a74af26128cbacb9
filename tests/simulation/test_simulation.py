"""Everything that can happen to jobs, agents, controllers and the network at once, in virtual time.

A failure names its seed; ``Scenario(SEED).run()`` or that of another kind repeats it, action by action. The long run
goes on where it was interrupted: the seeds that passed are kept in ``.pytest_cache``.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ..sizes import matrix
from .aimed import AimedScenario
from .dense import DenseScenario
from .scenario import Scenario

QUICK, LONG, AT_ONCE = 21, 5_000, 250
"""In seven seeds each aimed story comes once."""
KINDS = [Scenario, DenseScenario, AimedScenario]
CASES = [
    ((kind, first), first == 0 or (kind, first) == (AimedScenario, 7)) for kind in KINDS for first in range(0, QUICK, 7)
]
SOURCES = Path(__file__).parents[2] / "src" / "tidewright"


@pytest.mark.parametrize(("kind", "first"), matrix(CASES))
def test_every_job_ends_once_and_nothing_is_left(first: int, kind: type[Scenario]) -> None:
    for seed in range(first, first + 7):
        kind(seed).run()


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_is_the_same_story(kind: type[Scenario]) -> None:
    stories = []
    for _ in range(2):
        scenario = kind(7)
        scenario.run()
        stories.append((scenario.log, scenario.ledger.steps, scenario.ledger.restored))
    assert stories[0] == stories[1] and stories[0][1] > 0


def code() -> str:
    """What the seeds were run on: the long run begins anew when any of it changes."""
    found = hashlib.sha256()
    for path in sorted([*SOURCES.rglob("*.py"), *Path(__file__).parent.glob("*.py")]):
        found.update(path.read_bytes())
    return found.hexdigest()


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", range(0, LONG, AT_ONCE))
def test_many_thousand_seeds(first: int, kind: type[Scenario], pytestconfig: pytest.Config) -> None:
    cache = pytestconfig.cache
    key = f"simulation/{kind.__name__}{first}"
    if cache is not None and cache.get(key, None) == code():
        return
    for seed in range(first, first + AT_ONCE):
        kind(seed).run()
    if cache is not None:
        cache.set(key, code())
