"""Units, names, random streams, the registry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewright.base.errors import UsageError
from tidewright.base.ids import valid_name
from tidewright.base.registry import Registry
from tidewright.base.rng import stream, stream_seed
from tidewright.base.units import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    agreeing,
    counted,
    format_bytes,
    format_duration,
    parse_bytes,
    parse_duration,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("90", 90 * SECOND),
        ("1.5s", 1_500_000),
        ("1h30m", 90 * MINUTE),
        ("2d", 2 * DAY),
        ("250ms", 250_000),
        ("30:00", 30 * MINUTE),
        ("1:30:00", 90 * MINUTE),
        ("1-02:03:04", DAY + 2 * HOUR + 3 * MINUTE + 4 * SECOND),
        ("1-12", DAY + 12 * HOUR),
        (7, 7 * SECOND),
    ],
)
def test_durations(text, us: int) -> None:
    assert parse_duration(text) == us


@given(st.text(max_size=20))
def test_a_duration_is_a_number_or_a_usage_error(text: str) -> None:
    try:
        assert parse_duration(text) >= 0
    except UsageError as error:
        assert "90s" in error.remedy


@pytest.mark.parametrize("text", ["", "-5s", "5 parsecs", "1h30", "99999999d", "nan", "1:2:3:4", "0x10"])
def test_nonsense_durations_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=400 * DAY))
def test_a_printed_duration_reads_back_within_its_precision(us: int) -> None:
    again = parse_duration(format_duration(us))
    assert abs(again - us) <= max(1000, us // 10)


@pytest.mark.parametrize(
    ("text", "count"), [("12GiB", 12 * 2**30), ("500MB", 5 * 10**8), ("1.5Gi", 3 * 2**29), ("42", 42), ("0", 0)]
)
def test_bytes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@given(st.text(max_size=20))
def test_memory_is_a_number_or_a_usage_error(text: str) -> None:
    try:
        assert 0 <= parse_bytes(text) < 2**63
    except UsageError as error:
        assert "12GiB" in error.remedy


def test_numbers_and_verbs_agree() -> None:
    assert [counted(number, "job") for number in (0, 1, 2, 1200)] == ["0 jobs", "1 job", "2 jobs", "1,200 jobs"]
    assert agreeing(1, "is", "are") == "is" and agreeing(0, "is", "are") == "are"


def test_bytes_print_in_binary_units() -> None:
    assert [format_bytes(n) for n in (512, 3 * 2**30, 2**41)] == ["512B", "3.0GiB", "2.0TiB"]


@pytest.mark.parametrize(
    ("name", "ok"), [("train-3", True), ("a[7]", True), ("", False), ("-x", False), ("a b", False), ("a" * 129, False)]
)
def test_names(name: str, ok: bool) -> None:
    assert valid_name(name) is ok


def test_streams_are_fixed_for_ever_and_independent() -> None:
    assert stream_seed(7, "faults", 3) == 15401285352695938555
    assert stream(7, "a").random() != stream(7, "b").random()


def test_a_registry_names_the_nearest() -> None:
    registry = Registry("policy", "tidewright.none", {"fifo": "tidewright.base.units:SECOND"})
    assert registry.get("fifo") == SECOND
    assert list(registry) == ["fifo"]
    with pytest.raises(UsageError) as caught:
        registry.get("fido")
    assert "did you mean 'fifo'" in caught.value.remedy
