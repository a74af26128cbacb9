"""Profiles of batch latency: tables, fits, files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewright.base.errors import NotFound, UsageError
from tidewright.serve.predictor import LatencyPredictor
from tidewright.serve.profile import (
    BatchProfile,
    affine,
    fit_affine,
    measured,
    packaged_profile,
    packaged_profiles,
    parse_profile,
    read_profile,
)

POINTS = st.dictionaries(st.integers(2, 300), st.integers(1, 10**6), max_size=8).map(
    lambda later: tuple(sorted({1: 500, **later}.items()))
)


def profile(points: tuple[tuple[int, int], ...]) -> BatchProfile:
    return BatchProfile("m", "d", "mean", "a test", points)


@given(POINTS, st.integers(-5, 10**6))
def test_a_table_never_falls_and_its_largest_batch_fits(points: tuple[tuple[int, int], ...], budget: int) -> None:
    table = profile(points).table()
    assert table.us == sorted(table.us) and len(table.us) == points[-1][0] + 1
    assert all(table.us[size] >= us for size, us in points)
    size = table.largest(budget)
    assert size == max((size for size in range(1, table.max_batch + 1) if table.us[size] <= budget), default=0)


@given(st.integers(0, 5_000), st.integers(1, 50_000), st.integers(2, 500))
def test_two_points_of_an_affine_profile_say_all(alpha: int, beta: int, most: int) -> None:
    assert affine(alpha, beta, most).table().us[1:] == [alpha * size + beta for size in range(1, most + 1)]


@given(st.integers(0, 5_000), st.integers(1, 50_000), st.lists(st.integers(1, 256), min_size=2, unique=True))
def test_a_fit_finds_what_made_the_samples(alpha: int, beta: int, sizes: list[int]) -> None:
    found = fit_affine([(size, alpha * size + beta) for size in sizes])
    assert found == pytest.approx((alpha, beta), abs=1e-4)


def test_measured_takes_a_quantile_or_the_mean() -> None:
    samples = [(1, 100.0 + index) for index in range(100)] + [(4, 700.0)]
    assert measured(samples, model="m", device="d", source="s").points == ((1, 198), (4, 700))
    mean = measured(samples, model="m", device="d", source="s", quantile=None)
    assert mean.points[0] == (1, 150) and mean.statistic == "mean"


@given(POINTS)
def test_a_file_holds_a_profile(points: tuple[tuple[int, int], ...]) -> None:
    written = profile(points)
    assert parse_profile(json.loads(json.dumps(written.to_json())), "here") == written


def test_packaged_profiles_name_who_measured_them() -> None:
    assert "resnet50-v100-amp" in packaged_profiles()
    for name in packaged_profiles():
        found = packaged_profile(name)
        assert found.source and found.device and found.statistic == "p99" and found.table().max_batch == 256
    with pytest.raises(NotFound, match="known: resnet50"):
        packaged_profile("resnet-9000")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"latency_us": []}', '{"latency_us": [[2, 5]]}', '{"latency_us": [[1, 0]]}', '{"latency_us": 3}',
             '{"alpha_us": NaN, "beta_us": 1, "max_batch": 4}', '{"alpha_us": 1, "beta_us": 1, "max_batch": 0}',
             '{"latency_us": [[1, 1e400]]}', '{"latency_us": [[1, 5], [1, 6]]}', '{"latency_us": [[1, 5], [99999999, 6]]}'],
)  # fmt: skip
def test_a_file_that_is_no_profile_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(text)
    with pytest.raises(UsageError) as error:
        read_profile(file)
    assert error.value.remedy


def test_bad_samples_and_sizes_are_refused() -> None:
    for samples in ([], [(0, 5.0)], [(1, float("nan"))], [(1, -1.0)]):
        with pytest.raises(UsageError):
            measured(samples, model="m", device="d", source="s")
    for quantile in (0.0, 1.1, float("nan")):
        with pytest.raises(UsageError, match="not a quantile"):
            measured([(1, 5.0)], model="m", device="d", source="s", quantile=quantile)
    with pytest.raises(UsageError, match="two batch sizes"):
        fit_affine([(4, 5.0), (4, 6.0)])
    with pytest.raises(UsageError, match="choose 1 to 300"):
        profile(((1, 5), (300, 9))).table(301)


_SEEN = st.tuples(st.integers(1, 8), st.floats(0.2, 5.0), st.integers(0, 60))


@given(st.lists(_SEEN, min_size=1, max_size=80), st.integers(1, 20))
def test_predictions_are_the_quantile_of_what_is_recent(seen: list[tuple[int, float, int]], window: int) -> None:
    """As many ratios are left out as 0.9 leaves out of a full window; the latest ten count however old they are."""
    us = affine(1_000, 9_000, 8).table().us
    predictor = LatencyPredictor(affine(1_000, 9_000, 8), window=window, quantile=0.9, memory_us=100)
    now, ratios = 0, [(-100, 1.0)] * min(10, window)
    for batch, factor, later in seen:
        now += later
        predictor.observed(batch, round(us[batch] * factor), now)
        ratios.append((now, round(us[batch] * factor) / us[batch]))
    oldest = next(index for index, (at, _) in enumerate(ratios) if at > now - 100)
    recent = ratios[max(0, min(oldest, len(ratios) - min(10, window)), len(ratios) - window) :]
    wanted = sorted(ratio for _, ratio in recent)[-1 - (window - -(-9 * window // 10))]
    for batch in range(1, 9):
        assert us[batch] * wanted - 1 <= predictor.table.us[batch] <= us[batch] * (wanted + 0.012) + 1


def test_one_outlier_in_a_hundred_changes_nothing_and_two_do() -> None:
    predictor = LatencyPredictor(affine(1_000, 9_000, 8))
    assert not predictor.observed(1, 50_000, 0)
    assert predictor.observed(1, 20_000, 0) and predictor.table.us[1] == 20_000


def test_a_slow_spell_is_forgotten_after_seconds_and_ten_batches() -> None:
    predictor = LatencyPredictor(affine(1_000, 9_000, 8))
    for at in range(60):
        predictor.observed(1, 80_000, at * 80_000)
    assert predictor.table.us[1] == 80_000
    ended = 60 * 80_000
    for at in range(20):
        predictor.observed(1, 10_000, ended + at * 10_000)
    assert predictor.table.us[1] == 80_000  # they are 20 batches of a fifth of a second
    later = ended + 5_000_000
    predictor.observed(1, 10_000, later)
    assert predictor.table.us[1] == 10_000


def test_a_bad_window_is_refused() -> None:
    for window, quantile in ((0, 0.9), (10, 0.0), (10, float("nan"))):
        with pytest.raises(UsageError, match="window"):
            LatencyPredictor(affine(1, 1, 2), window=window, quantile=quantile)
