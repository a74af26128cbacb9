"""The reference of the gate: each CTA exactly once, under any interleaving; known-wrong gates are caught."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.runtime.cuda.control import (
    CLOSED,
    MARKS,
    RT_ACTIVE,
    START,
    ControlBlock,
    CtaDecision,
    decide,
    gate_steps,
    words_needed,
)

from ...sizes import examples
from .chains import Chain, marks_again, not_sticky, whole_kernels

GRIDS = st.lists(st.integers(1, 7), min_size=1, max_size=6)


@settings(max_examples=examples(150))
@given(GRIDS, st.integers(0, 2**32), st.sampled_from([0.01, 0.05, 0.2, 0.5]), st.integers(1, 6))
def test_each_cta_runs_exactly_once_in_order(grids: list[int], seed: int, toggle: float, width: int) -> None:
    chain = Chain(grids, seed, toggle_chance=toggle, width=width)
    chain.finish()
    assert chain.exact
    assert not any(chain.block.words[MARKS:]), "no mark outlives its chain"


@settings(max_examples=examples(40))
@given(st.integers(0, 2**32))
def test_chains_of_one_queue_follow_each_other(seed: int) -> None:
    first = Chain([3, 5], seed, toggle_chance=0.2)
    first.finish()
    second = Chain([5, 2, 4], seed + 1, toggle_chance=0.2)
    second.block = first.block
    second.block.relaunch(0)
    second.finish()
    assert second.exact


@pytest.mark.parametrize("wrong", [not_sticky, whole_kernels, marks_again])
def test_known_wrong_gates_are_caught(wrong: object) -> None:
    chains = [Chain([4, 6, 5, 3], seed, gate=wrong, toggle_chance=0.1) for seed in range(60)]  # type: ignore[arg-type]
    for chain in chains:
        chain.finish()
    assert not all(chain.exact for chain in chains)


def test_the_chains_of_these_tests_are_preempted_in_the_middle_of_kernels() -> None:
    chains = [Chain([4, 6, 5, 3], seed, toggle_chance=0.1) for seed in range(60)]
    for chain in chains:
        chain.finish()
    assert all(chain.exact for chain in chains)
    assert sum(chain.partial for chain in chains) > 30


def test_all_interleavings_of_two_ctas_and_a_short_request() -> None:
    """Every order of the steps of two CTAs, with real-time work beginning and ending anywhere, then a resumption without any."""
    paths = 0
    for order in _orders():
        paths += 1
        block = ControlBlock(2)
        runs = {0: 0, 1: 0}
        for kernel, steps in ((1, order), (2, "aaaaabbbbb")):
            gates = {"a": gate_steps(block.words, kernel, 0), "b": gate_steps(block.words, kernel, 1)}
            second = [0, 0]
            _play(block, gates, steps, second)
            if kernel == 1:
                runs = {0: second[0], 1: second[1]}
            else:
                assert not any(second) or all(runs.values()), "kernel 2 ran after half of kernel 1"
        if not block.completed:
            block.resume()
            for cta in (0, 1):
                runs[cta] += decide(block.words, 1, cta) is CtaDecision.RUN
        assert runs == {0: 1, 1: 1}, order
    assert paths > 500


def _orders() -> list[str]:
    """Merges of the two CTAs' steps, with the two events of real-time work put in at every pair of places."""
    merges = [
        "".join("b" if at in places else "a" for at in range(6)) for places in itertools.combinations(range(6), 3)
    ]
    return [
        f"{merge[:on]}+{merge[on:off]}-{merge[off:]}aabb"
        for merge in merges
        for on in range(len(merge) + 1)
        for off in range(on, len(merge) + 1)
    ]


def _play(block: ControlBlock, gates: dict[str, object], steps: str, runs: list[int]) -> None:
    for step in steps + "aaaaabbbbb":
        if step == "+":
            block.preempt()
        elif step == "-":
            block.release()
        elif step in gates:
            try:
                next(gates[step])  # type: ignore[call-overload]
            except StopIteration as done:
                del gates[step]
                runs["ab".index(step)] += done.value is CtaDecision.RUN


def test_a_cancelled_chain_leaves_no_marks() -> None:
    block = ControlBlock(4)
    assert decide(block.words, 1, 0) is CtaDecision.RUN
    block.preempt()
    assert decide(block.words, 1, 1) is CtaDecision.ABORT
    block.release()
    block.discard()
    assert not any(block.words[MARKS:])
    assert decide(block.words, 1, 1) is CtaDecision.RUN


def test_a_relaunch_while_real_time_work_is_active_aborts_and_keeps_the_place() -> None:
    block = ControlBlock(2)
    block.preempt()
    for _ in range(3):
        assert {decide(block.words, 1, cta) for cta in (0, 1)} == {CtaDecision.ABORT}
        assert block.resume_index == 1
        block.resume()
    block.release()
    assert [decide(block.words, 1, cta) for cta in (0, 1)] == [CtaDecision.RUN] * 2
    assert block.completed


def test_two_requests_that_overlap_are_both_waited_for() -> None:
    block = ControlBlock(1)
    block.preempt()
    block.preempt()
    block.release()
    assert block.words[RT_ACTIVE] == 1
    assert decide(block.words, 1, 0) is CtaDecision.ABORT


def test_only_the_first_aborted_kernel_marks_its_ctas() -> None:
    block = ControlBlock(3)
    block.preempt()
    for kernel in (2, 3):
        for cta in range(3):
            decide(block.words, kernel, cta)
    assert block.words[MARKS:] == [1, 1, 1]
    assert block.resume_index == 2
    block.resume()
    assert block.words[START] == 2


def test_what_cannot_be_resumed_says_so() -> None:
    block = ControlBlock(1)
    assert block.completed and block.resume_index == CLOSED
    with pytest.raises(ValueError):
        block.resume()
    with pytest.raises(ValueError):
        words_needed(0)
