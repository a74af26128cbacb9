"""How arrays, members and dependencies are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewright.base.errors import UsageError
from tidewright.wire.array_refs import indices, member_ref, members_of, ranges
from tidewright.wire.dependencies import JobDependency, parse_dependencies


@given(st.sets(st.integers(0, 10**6), min_size=1, max_size=50))
def test_indices_are_read_as_they_are_shown(found: set[int]) -> None:
    assert indices(ranges(found)) == (tuple(sorted(found)), 0)
    assert members_of(f"12_[{ranges(found)}%4]") == (12, tuple(sorted(found)))


def test_references() -> None:
    assert members_of(member_ref(12, 3)) == (12, (3,)) and members_of("12_[3-7:2]") == (12, (3, 5, 7))
    for other in ("12", "12_", "12_x", "a_3", "12_3_4", "12_[a]", "_3", "१२_३", "12_३"):
        assert members_of(other) is None
    for wrong in ("12_[]", "12_[7-3]", "12_[0-999999999]", "12_[1,1]", "12_[1%0]", "12_[0-9:0]"):
        with pytest.raises(UsageError):
            members_of(wrong)


def test_what_is_wrong_with_indices_is_named() -> None:
    with pytest.raises(UsageError, match="a step of 0"):
        indices("0-9:0")
    with pytest.raises(UsageError, match="not a list of array indices"):
        indices("०-३")


def test_dependencies() -> None:
    assert parse_dependencies("17") == (JobDependency("afterok", "17"),)
    assert parse_dependencies("prep") == (JobDependency("afterok", "prep"),)
    assert parse_dependencies("afterany:12_[3,5-7]:name[3],aftercorr:9") == (
        JobDependency("afterany", "12_[3,5-7]"), JobDependency("afterany", "name[3]"), JobDependency("aftercorr", "9"),
    )  # fmt: skip
    assert parse_dependencies("afterok:1,afterok:1") == (JobDependency("afterok", "1"),)
    for wrong in (
        "",
        "afterok",
        "afterok:",
        "after:17",
        "singleton:",
        "afterok:a/b",
        "afterok:1?afterok:2",
        "17:18",
        ",",
    ):
        with pytest.raises(UsageError, match="not a dependency"):
            parse_dependencies(wrong)
