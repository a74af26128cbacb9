"""The measured table: who is admitted, and whose table is refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.errors import UsageError
from tidewright.runtime.padding.slowdown import (
    DeviceFingerprint,
    PairSlowdown,
    SlowdownTable,
    dump_table,
    load_table,
)

from ...sizes import examples

HERE = DeviceFingerprint("NVIDIA H200", 132, "580.95", (("torch", "2.11.0"), ("triton", "3.6.0")))
TABLE = SlowdownTable(
    HERE,
    (
        PairSlowdown("vgg", "bert", 8, 0.004, 20),
        PairSlowdown("vgg", "bert", 16, 0.019, 20),
        PairSlowdown("vgg", "bert", 32, 0.021, 20),
        PairSlowdown("resnet", "bert", 8, -0.001, 20),
        PairSlowdown("resnet", "bert", 16, 0.05, 20),
    ),
)


def test_admitted_up_to_the_bound() -> None:
    assert TABLE.admits("vgg", "bert", 16)
    assert not TABLE.admits("vgg", "bert", 32)
    assert TABLE.admits("vgg", "bert", 32, bound=0.021)


def test_what_was_not_measured_is_not_admitted() -> None:
    assert not TABLE.admits("vgg", "bert", 24)
    assert not TABLE.admits("bert", "vgg", 8)
    assert TABLE.best_share(("vgg", "other"), "bert") == 0
    assert TABLE.best_share((), "bert") == 0


def test_the_best_share_suits_every_real_time_model() -> None:
    assert TABLE.best_share(("vgg",), "bert") == 16
    assert TABLE.best_share(("vgg", "resnet"), "bert") == 8


def test_of_several_figures_the_worst_counts() -> None:
    twice = SlowdownTable(HERE, (*TABLE.pairs, PairSlowdown("vgg", "bert", 16, 0.03, 5)))
    assert twice.slowdown("vgg", "bert", 16) == 0.03
    assert twice.best_share(("vgg",), "bert") == 8


@pytest.mark.parametrize(
    "other",
    [
        {"device": "NVIDIA H100"},
        {"sms": 114},
        {"driver": "590.10"},
        {"software": (("torch", "2.12.0"), ("triton", "3.6.0"))},
    ],
)
def test_the_table_of_another_device_is_refused(other: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        load_table(dump_table(TABLE), msgspec.structs.replace(HERE, **other))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"fingerprint": {}}', dump_table(TABLE).replace(b'"format": 1', b'"format": 2')]
)
def test_what_is_no_table_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError):
        load_table(data, HERE)


pairs = st.lists(
    st.builds(
        PairSlowdown,
        st.sampled_from("abc"),
        st.sampled_from("abc"),
        st.sampled_from((8, 16, 32)),
        st.floats(-0.05, 0.5),
        st.integers(1, 9),
    ),
    max_size=12,
    unique_by=lambda pair: (pair.rt, pair.be, pair.share_sms),
)


@settings(derandomize=True, max_examples=examples(60))
@given(pairs)
def test_a_table_survives_its_file_in_any_order(found: list[PairSlowdown]) -> None:
    table = load_table(dump_table(SlowdownTable(HERE, tuple(found))), HERE)
    assert sorted(map(str, table.pairs)) == sorted(map(str, found))
    assert dump_table(SlowdownTable(HERE, tuple(reversed(found)))) == dump_table(table)
    share = table.best_share(("a", "b"), "c")
    assert share == 0 or (table.admits("a", "c", share) and table.admits("b", "c", share))
