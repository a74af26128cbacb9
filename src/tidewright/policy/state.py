"""Policies that remember: deficits, tickets, the last allocation. What they remember travels in their plans.

A policy declares a Struct, reads it from the view (``recall``) and puts the next one into its plan (``remember``). So it is
journaled and replayed, is in every snapshot, and a fork asks the same policy with the same memory. Policies that keep anything
else on themselves answer differently after a restart; the conformance kit finds them.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from ..model.view import View
from ..plan.plan import PolicyState

S = TypeVar("S", bound=Struct)


def recall(view: View, policy: str, default: S) -> S:
    """What the policy remembered with its last plan; ``default`` at first, after another policy, and where it cannot be read."""
    name, data = view.policy_state
    if name != policy or not data:
        return default
    try:
        return msgspec.msgpack.decode(data, type=type(default))
    except (msgspec.DecodeError, msgspec.ValidationError):
        return default  # written by an earlier version of the policy


def remember(policy: str, state: Struct) -> PolicyState:
    """What the policy is to be shown with the next view."""
    return PolicyState(policy, msgspec.msgpack.encode(state))
