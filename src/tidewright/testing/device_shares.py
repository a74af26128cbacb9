"""The part of the device kit that is about shares: random requests to a backend, beside a model that is plain arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from ..base.errors import UsageError
from ..devices.protocol import Backend, ShareGrant, Slice

HOLDERS = st.sampled_from(("1.1", "2.1", "3.1", "4.2"))
COMPUTE = st.sampled_from((0, 1, 250, 300, 400, 700, 1000)) | st.integers(0, 1000)
QUARTERS = st.sampled_from((0, 1, 2, 3, 4, 5))
"""Of a device's memory; 5 is more than it has."""
DEVICES_USED = 2
"""So few of a node's, that requests meet."""


def check_shares(open_backend: Callable[[], Backend], examples: int = 20, steps: int = 25) -> None:
    """A backend's shares are what a list of them would be: none is lost, doubled, or too large. Raises AssertionError."""
    machine: Any = functools.partial(ShareMachine, open_backend)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, database=None, derandomize=True,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip


class ShareMachine(RuleBasedStateMachine):
    """A fresh backend, and what it ought to have."""

    def __init__(self, open_backend: Callable[[], Backend]) -> None:
        super().__init__()
        self.backend = open_backend()
        self.node = self.backend.discover()
        self.held: dict[str, Slice] = {}

    @rule(
        holder=HOLDERS, device=st.integers(0, DEVICES_USED - 1), compute=COMPUTE, quarters=QUARTERS,
        share_class=st.sampled_from(("rt", "be")), ranks=st.integers(1, 3), frozen=st.booleans(),
    )  # fmt: skip
    def share(self, holder: str, device: int, quarters: int, **more: Any) -> None:
        memory = quarters * self.node.device_memory // 4
        part = Slice(holder, device % self.node.devices, memory=memory, **more)
        if self._fits(part):
            grant = self.backend.share(part)
            check_grant(part, grant)
            self.held[holder] = part
            assert self.backend.share(part) == grant, "the same share once more is granted in another way"
        else:
            refused(self.backend, part)

    @rule(holder=HOLDERS | st.just("unknown"))
    def release(self, holder: str) -> None:
        self.backend.release(holder)
        self.backend.release(holder)
        self.held.pop(holder, None)

    @rule(
        wrong=st.sampled_from(
            ({"device": -1}, {"device": 10**6}, {"compute": -1}, {"compute": 1001}, {"memory": -1}, {"ranks": 0},
             {"holder": ""})
        ),
        holder=HOLDERS,
    )  # fmt: skip
    def nonsense(self, wrong: dict[str, Any], holder: str) -> None:
        refused(self.backend, Slice(**{"holder": holder, "device": 0, **wrong}))

    @invariant()
    def the_lists_are_one(self) -> None:
        wanted = tuple(sorted(self.held.values(), key=lambda one: (one.device, one.holder)))
        assert self.backend.shares() == wanted, f"shares: {self.backend.shares()}, and ought to be {wanted}"

    def teardown(self) -> None:
        self.backend.close()

    def _fits(self, part: Slice) -> bool:
        """Whether the device would hold the part beside those of other holders."""
        beside = [one for name, one in self.held.items() if name != part.holder and one.device == part.device]
        live = [one for one in (*beside, part) if not one.frozen]
        compute = sum(one.compute for one in live if one.share_class == "rt")
        memory = sum(one.memory for one in live)
        return compute <= 1000 and memory <= self.node.device_memory


def refused(backend: Backend, part: Slice) -> None:
    """Raises AssertionError unless the backend refuses the part."""
    try:
        backend.share(part)
    except UsageError:
        return
    raise AssertionError(f"share({part}) must raise UsageError")


def check_grant(part: Slice, grant: ShareGrant) -> None:
    """What every grant of a part has, whatever the hardware."""
    asked = {"compute": part.set_aside, "memory": part.memory, "share_class": part.share_class == "be"}
    for name, needed in asked.items():
        means = getattr(grant, name)
        assert means or not needed, f"{name}: by which means it is enforced, or that it is counted only, must be said"
        assert all(each.level and each.text and "\n" not in each.text for each in means), f"{name}: one line each"
        assert not means or not means[-1].needs, f"{name}: the last means is for hosts that offer nothing"
    assert not grant.compute or part.set_aside, "compute: nothing was set aside that could be enforced"
    assert all(isinstance(text, str) for pair in grant.env.items() for text in pair), "variables are strings"
    assert 0 <= grant.weight <= 1000 and not (grant.weight and grant.idle), "a weight is of what has CPU time set aside"
    assert not grant.idle or part.share_class == "be", "rt work does not wait for others"
