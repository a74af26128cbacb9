"""Settings on one line, and where they are read: a key that is there twice is never one of the two by chance."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewright.base.errors import UsageError
from tidewright.base.key_values import key_values
from tidewright.sim.costs import FREE, parse_costs
from tidewright.sim.faults import parse_faults
from tidewright.sim.profile import load_profile
from tidewright.sim.traces import load_trace

WORDS = st.text(st.characters(codec="ascii", exclude_characters=",=", categories=["L", "N", "P"]), min_size=1)


@given(st.dictionaries(WORDS, WORDS))
def test_what_is_written_is_read(pairs: dict[str, str]) -> None:
    text = " , ".join(f"{key} = {value}" for key, value in pairs.items())
    assert key_values(text, "here", "") == pairs
    assert list(key_values(text, "here", "")) == list(pairs)


@pytest.mark.parametrize("text", ["a", "=1", "a=", "a=1,=", "a=1, b"])
def test_half_a_setting_is_a_mistake(text: str) -> None:
    with pytest.raises(UsageError, match=r"here: .* is not key=value"):
        key_values(text, "here", "")


@pytest.mark.parametrize(
    "read",
    [
        lambda: parse_costs("save=1s,save=60s", FREE),
        lambda: parse_faults("node_mtbf=30d,rank_mtbf=1d,node_mtbf=1d"),
        lambda: load_profile("gavel:round=6m,round=3m"),
        lambda: load_trace("synthetic:jobs=10,jobs=20", 8),
        lambda: load_trace("gavel-continuous:jobs=10,jobs=20", 8),
        lambda: load_trace("helios:no-such-file,split=Venus,split=Earth", 8),
        lambda: load_trace("philly:10,20", 8),
        lambda: load_trace("philly:tiers=standard:1,tiers=basic:1", 8),
    ],
)
def test_no_reader_takes_the_last_of_two(read: Callable[[], object]) -> None:
    with pytest.raises(UsageError, match=r"there twice"):
        read()
