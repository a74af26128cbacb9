"""Schema v2 adds to v1 and takes nothing away: readers of v1 find every field for one more release."""

from __future__ import annotations

import pytest

from tidewright.wire import api

V1 = {
    "ErrorBody": """
        error remedy code schema
    """,
    "SubmitReply": """
        ids names warnings dry_run forecast schema
    """,
    "ActionReply": """
        job node warning schema
    """,
    "StoryLine": """
        at what why
    """,
    "JobView": """
        id name state why reason team user tier kind submit start end since devices min_devices ranks held
        where memory_limit level level_why wanted images next_image between_images_us save_us restore_us
        hold_us ranks_per_device lost_us attempt preemptions exit_code failure fraction target ideal_us
        delivered_gpu_s held_gpu_s command spec story logs
    """,
    "WhyView": """
        job name state summary reason consequence need free holders ahead change details failure story now
        schema
    """,
    "WaitReply": """
        job state final exit_code why schema
    """,
    "NodeView": """
        name state kind devices free faults jobs device_memory memory cpus uuids note why busy full full_why
        level criu address images
    """,
    "JobEvent": """
        seq at job name state what why exit_code schema
    """,
}
"""Answers that have a cause since v2, and their fields in v1."""


@pytest.mark.parametrize("name", V1)
def test_every_field_of_v1_is_still_there(name: str) -> None:
    assert set(V1[name].split()) <= set(getattr(api, name).__struct_fields__)
    assert set(getattr(api, name).__struct_fields__) - set(V1[name].split()), "and one of v2"
