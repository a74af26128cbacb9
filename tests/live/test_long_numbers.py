"""Numbers of the HTTP API that no snapshot of the book can hold are refused before they come into it."""

from __future__ import annotations

import pytest

from tidewright.base.errors import UsageError
from tidewright.live.api.request_parsing import parsed
from tidewright.wire.api import ScaleRequest, SuspendRequest
from tidewright.wire.services import ScaleServiceRequest


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"devices": %d}', ScaleRequest),
        (b'{"until_us": %d}', SuspendRequest),
        (b'{"replicas": %d}', ScaleServiceRequest),
    ],
)
def test_numbers_of_more_than_64_bits(body: bytes, kind: type) -> None:
    for number in (10**30, 2**64, -(2**63) - 1):
        with pytest.raises(UsageError, match="64 bits"):
            parsed(body % number, kind)
    assert parsed(body % 2**62, kind)
