"""The look-ahead: its short cut for the usual arrival finds what planning anew finds, and what it says comes true."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidewright.serve.lane import ModelLane
from tidewright.serve.lookahead import Lookahead
from tidewright.serve.profile import BatchProfile
from tidewright.serve.request import InferenceRequest

from .driving import POLICIES, PROFILES, served


@given(PROFILES, POLICIES, st.lists(st.integers(0, 30_000), min_size=1, max_size=5),
       st.lists(st.tuples(st.integers(0, 4_000), st.integers(0, 60_000), st.integers(1, 5)), max_size=60))  # fmt: skip
def test_the_short_cut_finds_what_planning_anew_finds(
    profile: BatchProfile, policy: str, free: list[int], arrivals: list[tuple[int, int, int]]
) -> None:
    lane, free_us = ModelLane(served(profile, 40_000, policy), True), dict(enumerate(free))
    kept, now_us = Lookahead([lane], free_us), 0
    for number, (gap_us, objective_us, items) in enumerate(arrivals):
        now_us += gap_us
        request = InferenceRequest(number, "m", now_us, now_us + objective_us, items=min(items, profile.max_batch))
        anew = Lookahead([lane], free_us)
        place = kept.place(now_us, lane, request)
        assert place == anew.place(now_us, lane, request)
        assert kept.next_start(now_us) == anew.next_start(now_us)
        if place.in_time:
            late = anew.late(now_us)
            kept.append(now_us, lane, request, place)
            lane.queue.push(request)
            assert anew.late(now_us) <= late


def test_it_says_when_a_request_would_run_and_whether_in_time() -> None:
    lane = ModelLane(served(BatchProfile("m", "d", "mean", "", ((1, 10_000), (2, 12_000))), 50_000, "deadline"), True)
    look = Lookahead([lane], {0: 5_000})
    for number, (start_us, first) in enumerate(
        [(5_000, True), (5_000, False), (17_000, True), (17_000, False), (29_000, True)]
    ):
        request = InferenceRequest(number, "m", 0, 40_000)
        place = look.place(0, lane, request)
        assert (place.start_us, place.first, place.in_time) == (start_us, first, True)
        look.append(0, lane, request, place)
        lane.queue.push(request)
    assert not look.place(
        0, lane, InferenceRequest(9, "m", 0, 40_000)
    ).in_time  # with it the last batch would end at 41 ms
    assert look.next_start(0) == 39_000
