"""What a review of the command line found."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from .stub import Terminal


@pytest.mark.parametrize(
    ("reason", "state", "says"),
    [
        ("NoCapacity", "queued", True),
        ("Behind", "queued", True),
        ("UserHold", "held", False),
        ("DevicesPromised", "queued", False),
        ("", "running", False),
    ],
)
def test_why_says_when_no_change_is_known(tide: Terminal, reason: str, state: Any, says: bool) -> None:
    told = replace(tide.stub.why("later"), change="", reason=reason, state=state)
    tide.stub.why = lambda ref: told  # type: ignore[method-assign]
    assert ("no single change of its request would start it now" in tide("why", "later").out) is says


def test_why_with_a_change_says_only_that(tide: Terminal) -> None:
    said = tide("why", "later").out
    assert "ask for -g 2" in said and "no single change" not in said
