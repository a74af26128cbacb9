"""Names with settings."""

import pytest

from tidewright.base.errors import UsageError
from tidewright.base.units import HOUR, MINUTE, WHOLE_DEVICE
from tidewright.policy.registry import make, policies


def test_settings_are_read_with_their_units():
    las = make("las:round=6m,thresholds=1h+10m")
    assert las.round_us == 6 * MINUTE
    assert las.thresholds.tolist() == [10 * MINUTE * WHOLE_DEVICE, HOUR * WHOLE_DEVICE]
    assert make("fifo-backfill:depth=7").depth == 7
    assert make("sla:pressing=0.25").pressing == 0.25


@pytest.mark.parametrize("name", ["fifo:x=1", "las:round", "nope", "fifo-backfill:depth=many", "las:round=soon"])
def test_mistakes_name_what_is_known(name):
    with pytest.raises(UsageError) as failure:
        make(name)
    assert failure.value.remedy


@pytest.mark.parametrize(
    ("name", "said", "todo"),
    [
        (
            "sjf:skip=on",
            "policy sjf, setting skip: 'on' is neither yes nor no",
            "skip=yes or skip=no; true, false, 1 and 0",
        ),
        (
            "sjf:skip=",
            "policy sjf, setting skip: '' is neither yes nor no",
            "skip=yes or skip=no; true, false, 1 and 0",
        ),
        ("sjf:skip", "policy sjf, setting skip: it has no value", "write sjf:skip=VALUE"),
        ("sla:quantum=1h,quantum=2h", "policy sla: setting quantum is there twice", "write quantum= once"),
        ("sla:quantum=1h,quantum_us=1h", "policy sla: setting quantum is there twice", "write quantum= once"),
    ],
)
def test_settings_that_say_nothing_are_named(name, said, todo):
    with pytest.raises(UsageError) as failure:
        make(name)
    assert failure.value.message == said and todo in failure.value.remedy


@pytest.mark.parametrize(
    ("word", "meant"), [("yes", True), ("no", False), ("true", True), ("False", False), ("1", True), ("0", False)]
)
def test_a_setting_that_is_true_or_false(word, meant):
    assert make(f"sjf:skip={word}").skip is meant


def test_every_name_can_be_made():
    assert {make(name).name for name in policies} >= {"sla", "fifo", "fifo-backfill", "srtf", "las", "static"}
