"""Every fact of a job belongs to one group, and ends with it."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import fields

from tidewright.model.cause import Code
from tidewright.model.job import JobSpec
from tidewright.model.job_record import (
    ATTEMPT_GROUPS,
    GROUPS,
    Cooldown,
    Ending,
    FieldGroup,
    HoldRetry,
    JobRecord,
    LevelCap,
    Saving,
    fresh,
)
from tidewright.model.node import Part

PARTS = (Part(0, 1, 1000),)
WHY = Code.CANCELLED()
SAID = {
    "ending": Ending(1, WHY), "level_cap": LevelCap(1, WHY), "hold_retry": HoldRetry(1, 1, WHY), "checkpoint_failures": 1,
    "suspend_cooldown": Cooldown(1, 1), "checkpoint_at": 1, "saving": Saving(1, 1, 1), "replan_on_release": True,
    "suspended_as": "image", "held_in_place": True, "allocation": PARTS, "held_since": 1, "leaving": True, "reservation": PARTS,
}  # fmt: skip


def test_each_field_is_in_exactly_one_group() -> None:
    assert Counter(name for names in GROUPS.values() for name in names) == Counter(
        one.name for one in fields(JobRecord)
    )
    assert set(GROUPS) == set(FieldGroup)


@pytest.mark.parametrize("group", [group for group in FieldGroup if group is not FieldGroup.JOB])
def test_a_reset_ends_the_facts_of_its_group_and_no_others(group: FieldGroup) -> None:
    new, record = JobRecord(JobSpec()), JobRecord(JobSpec(), **SAID)
    record.reset(fresh(group))
    for name, said in SAID.items():
        assert getattr(record, name) == (getattr(new, name) if name in GROUPS[group] else said), name


def test_a_new_attempt_begins_without_the_facts_of_the_last_one() -> None:
    new, record = JobRecord(JobSpec()), JobRecord(JobSpec(), **SAID)
    record.reset(fresh(*ATTEMPT_GROUPS))
    left = {name for name in SAID if getattr(record, name) != getattr(new, name)}
    assert left == {"held_in_place", "allocation", "held_since", "leaving", "reservation"}


def test_no_two_records_share_a_history() -> None:
    assert JobRecord(JobSpec()).history is not JobRecord(JobSpec()).history
