"""States as users write them."""

from __future__ import annotations

import pytest

from tidewright.base.errors import UsageError
from tidewright.model.job import State
from tidewright.wire.states import SLURM, STATES, states_of


def test_our_names_in_any_case_in_the_order_of_a_life() -> None:
    assert states_of("failed, Running,QUEUED,running") == ("queued", "running", "failed")
    assert states_of("") == states_of(" , ") == ()
    assert [state.name.lower() for state in State] == list(STATES)


@pytest.mark.parametrize(
    ("slurm", "ours"),
    [
        ("PD", "held queued"), ("r", "running"), ("CG", "stopping"), ("CD", "completed"), ("F", "failed"), ("TO", "timeout"),
        ("S", "suspended"), ("CA", "cancelled"), ("CF", "starting"), ("PENDING", "held queued"), ("COMPLETING", "stopping"),
    ],
)  # fmt: skip
def test_slurms_names(slurm: str, ours: str) -> None:
    assert states_of(slurm) == tuple(ours.split())


def test_no_name_of_slurm_is_one_of_ours() -> None:
    assert not set(SLURM) & set(STATES)


def test_another_word_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'gone' is not one of held, queued"):
        states_of("running,gone")
