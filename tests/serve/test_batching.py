"""Batching policies one by one, and their registry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewright.base.errors import UsageError
from tidewright.serve.batching.aimd import AimdBatcher
from tidewright.serve.batching.registry import batchers, make_batcher
from tidewright.serve.profile import BatchProfile, affine

from .driving import POLICIES, PROFILES


@given(POLICIES, PROFILES, st.integers(0, 10**6), st.integers(-(10**5), 10**5), st.integers(1, 100))
def test_a_batch_is_within_what_waits_and_what_the_profile_knows(
    policy: str, profile: BatchProfile, now: int, slack: int, waiting: int
) -> None:
    latency = profile.table()
    size = make_batcher(policy, 50_000).size(now, now + slack, waiting, latency)
    assert 0 <= size <= min(waiting, profile.max_batch)
    if policy.startswith(("deadline", "deferred")) and size:
        assert latency.us[size] <= slack


@given(st.integers(1, 2_000), st.integers(1, 10_000), st.integers(10, 200), st.integers(1, 4))
def test_aimd_converges_to_the_largest_batch_within_the_objective(alpha: int, beta: int, best: int, step: int) -> None:
    objective_us = alpha * best + beta
    latency = affine(alpha, beta, 1_000).table()
    batcher = AimdBatcher(objective_us, step=step)
    tried = []
    for _ in range(best + 400):
        batch = batcher.size(0, 0, 10**6, latency)
        batcher.completed(batch, latency.us[batch])
        tried.append(batch)
    settled = tried[best:]
    assert max(settled) <= best + step  # it exceeds the objective by one step at most, to learn where it is
    assert min(settled) >= int(0.9 * best) - step
    assert max(size for size in settled if latency.us[size] <= objective_us) > best - step


def test_aimd_waits_for_a_full_batch_until_its_timeout() -> None:
    batcher, latency = AimdBatcher(50_000, timeout_us=2_000), affine(10, 1_000, 64).table()
    assert batcher.earliest(5_000, 4_500, 60_000, 1, latency) == 5_000
    batcher.completed(1, 1_010)
    assert batcher.earliest(5_000, 4_500, 60_000, 1, latency) == 6_500


def test_deferred_has_symphonys_window() -> None:
    batcher, latency = make_batcher("deferred", 50_000), affine(1_000, 9_000, 4).table()
    assert batcher.earliest(0, 0, 50_000, 2, latency) == 50_000 - 12_000
    assert batcher.earliest(7, 0, 50_000, 4, latency) == 7


def test_names_and_settings() -> None:
    assert batchers.names() == ["aimd", "deadline", "deferred", "eager"]
    for name in batchers:
        assert make_batcher(name, 50_000).name == name
    with pytest.raises(UsageError, match="did you mean 'deferred'"):
        make_batcher("defered", 50_000)
    with pytest.raises(UsageError, match="its settings: backoff, step, timeout"):
        make_batcher("aimd:foo=1", 50_000)
    with pytest.raises(UsageError, match="write step=NUMBER"):
        make_batcher("aimd:step=many", 50_000)
    for text in ("aimd:step=0", "aimd:backoff=1", "aimd:backoff=nan"):
        with pytest.raises(UsageError, match="backoff"):
            make_batcher(text, 50_000)
    for objective_us in (0, -1, float("nan")):
        with pytest.raises(UsageError, match="a time above 0"):
            make_batcher("eager", objective_us)  # type: ignore[arg-type]
