"""The pool and the choice of GPUs: never more than there is, whatever happens in whatever order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.kube.allocation.gpu_selection import GpuSelector, scores
from tidewright.kube.allocation.pool import NEVER, Pool
from tidewright.kube.allocation.preemption import cheapest_victims
from tidewright.kube.allocation.workload import REFRESH, Workload
from tidewright.kube.objects.gpu_inventory import GpuInfo, GpuInventory
from tidewright.kube.objects.pod_request import POLICIES, GpuAssignment, PodRequest
from tidewright.placement.scores.columns import ShareRequest

from ..sizes import examples


def inventory(name: str, *units: int, bad: int = -1, whole: tuple[int, ...] = ()) -> GpuInventory:
    return GpuInventory(
        name, tuple(GpuInfo(at, size, ok=at != bad, whole=at in whole) for at, size in enumerate(units))
    )


def assignment(uid: str, node: str, units: dict[int, int], priority: int = 0) -> GpuAssignment:
    return GpuAssignment(uid, "default", uid, node, units, bound=True, priority=priority)


def ask(units: int, count: int = 1, policy: str = "", uid: str = "u", priority: int = 0) -> PodRequest:
    return PodRequest(uid, "default", uid, units, count, policy=policy, priority=priority)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["place", "hold", "release", "node", "drop"]), st.integers(0, 5), st.integers(0, 3),
        st.integers(1, 12), st.integers(1, 3), st.sampled_from(POLICIES),
    ),
    max_size=60,
)  # fmt: skip


@given(STEPS)
@settings(max_examples=examples(300))
def test_what_is_chosen_never_overcommits(steps: list[tuple[str, int, int, int, int, str]]) -> None:
    """Others (hold) may overcommit; a choice of ours may not make any GPU fuller than it is."""
    pool = Pool()
    chooser = GpuSelector(pool)
    for what, who, where, size, count, policy in steps:
        uid, node = f"u{who}", f"n{where}"
        if what == "node":
            pool.set_node(inventory(node, *[size] * count, bad=who, whole=(1, size % 3)))
        elif what == "drop":
            pool.drop_node(node)
        elif what == "release":
            pool.release(uid)
        elif what == "hold":
            pool.hold(assignment(uid, node, {count - 1: size}))
        elif uid not in pool.held:
            before = pool.overcommitted().get(node, {})
            chooser.workload.add(ask(size, count))
            gpus = chooser.pick(ask(size, count, policy), node)
            fits = pool.row.get(node, -1) >= 0 and bool(pool.fits(ask(size, count), pool.rows([node]))[0])
            assert bool(gpus) == fits
            if gpus:
                alone = {card.index for card in pool.inventories[node].cards if card.whole} & set(gpus)
                assert not alone & {gpu for one in pool.on(node) for gpu in one.units}, "an instance has one pod"
                pool.reserve(assignment(uid, node, dict.fromkeys(gpus, size)), 0.0)
                assert pool.overcommitted().get(node, {}) == before
        check(pool)


def check(pool: Pool) -> None:
    """The matrix is what follows from the tables and the holdings."""
    for name, found in pool.inventories.items():
        for card in found.cards:
            here = [one.units[card.index] for one in pool.on(name) if card.index in one.units]
            taken = sum(max(units, card.units) if card.whole else units for units in here)
            value = pool.free[pool.row[name], card.index]
            assert value == (card.units - card.foreign - taken if card.ok else NEVER)


def test_whoever_leaves_an_instance_leaves_all_of_it() -> None:
    pool = Pool()
    pool.set_node(inventory("n", 10, 20, whole=(0, 1)))
    pool.hold(assignment("a", "n", {0: 3}))
    assert pool.free_of("n") == {0: 0, 1: 20} and pool.used("n") == {0: 3}
    free = pool.free_of("n") | {1: 0}
    assert cheapest_victims(ask(9, priority=1), free, [pool.weighed(pool.held["a"])]) == ["a"]
    pool.hold(assignment("b", "n", {0: 2}))
    assert pool.overcommitted() == {"n": {0: 10}}, "two pods were bound past us"
    pool.release("a")
    assert not pool.overcommitted() and pool.free_of("n") == {0: 0, 1: 20}


def test_a_node_that_changes_size_is_read_anew() -> None:
    pool = Pool()
    pool.set_node(inventory("n", 15))
    pool.hold(assignment("a", "n", {0: 10}))
    pool.set_node(inventory("n", 15, 40))
    assert pool.free_of("n") == {0: 5, 1: 40}
    pool.set_node(inventory("n", 8, 40))
    assert pool.free_of("n") == {0: -2, 1: 40}
    assert pool.overcommitted() == {"n": {0: 2}}


@pytest.mark.parametrize(("policy", "gpu"), [("best-fit", 1), ("spread", 0)])
def test_policies_choose_the_fullest_or_the_emptiest(policy: str, gpu: int) -> None:
    pool = Pool()
    pool.set_node(inventory("n", 16, 16, 16))
    pool.hold(assignment("a", "n", {1: 10}))
    pool.hold(assignment("b", "n", {2: 4}))
    assert GpuSelector(pool, policy).pick(ask(4), "n") == (gpu,)


def test_fgd_leaves_room_for_what_usually_comes() -> None:
    """Pods of 10 come; 6 units go beside another 6, not to the GPU where they would keep a ten out."""
    pool = Pool()
    pool.set_node(inventory("n", 16, 16))
    pool.hold(assignment("a", "n", {0: 7}))
    chooser = GpuSelector(pool, "fgd")
    chooser.workload.expect({ShareRequest(10, 1): 1})
    assert chooser.pick(ask(6), "n") == (0,)
    assert np.argmin(chooser.cost(ask(6), pool.rows(["n"]))) == 0


def test_free_gpus_without_cpu_are_of_no_use() -> None:
    """So a pod goes where its CPU is not what others will lack, and one without GPUs goes where there are none."""
    pool = Pool()
    for name in ("a", "b"):
        pool.set_node(replace(inventory(name, 16, 16), cpu=8000))
    pool.load("other", "b", 4000)
    chooser = GpuSelector(pool, "fgd")
    chooser.workload.expect({ShareRequest(16, 1, 4000): 1})
    rows = pool.rows(["a", "b", "no GPUs"])
    costs = chooser.cost(replace(ask(4), cpu=2000), rows)
    assert costs[0] < costs[1] < np.inf == costs[2]
    beside = replace(ask(0, 0), cpu=1000)
    costs = chooser.cost_beside(beside, rows)
    assert costs is not None and costs.argmin() == 2 and costs[0] < costs[1]
    assert GpuSelector(pool, "best-fit").cost_beside(beside, rows) is None


def test_cpu_is_counted_once_and_given_back() -> None:
    pool = Pool()
    pool.load("early", "n", 500)  # its node is not known yet
    pool.set_node(replace(inventory("n", 16), cpu=4000))
    row = pool.rows(["n"])
    assert pool.cpu_to("", row) == [3500]
    pool.load("p", "n", 1000)
    pool.load("p", "n", 1000)
    assert pool.cpu_to("", row) == [2500] and pool.cpu_to("p", row) == [3500]
    pool.load("p", "elsewhere", 1000)
    assert pool.cpu_to("", row) == [3500]
    pool.reserve(assignment("r", "n", {0: 4}), 1.0)
    pool.load("r", "n", 2000)
    pool.release("r")
    pool.unload("early")
    assert pool.cpu_to("", row) == [4000]


def test_scores_single_the_best_out() -> None:
    assert scores(np.array([3.0, 1.0, 1.01, np.inf, 9.0])) == [7, 10, 9, 0, 0]
    assert scores(np.array([2.0, 2.0])) == [10, 10]
    assert scores(np.array([np.inf])) == [0]


def test_typical_pods_cover_most_of_what_was_seen() -> None:
    workload = Workload()
    workload.expect({ShareRequest(4, 1): 90, ShareRequest(8, 1): 8, ShareRequest(1, 1): 2})
    assert workload.typical == ((ShareRequest(4, 1), 90), (ShareRequest(8, 1), 8))


def test_more_of_the_same_pods_change_no_score() -> None:
    """Else all nodes would be scored anew for each."""
    workload = Workload()
    for at in range(REFRESH + 2):
        workload.add(replace(ask(4), uid=str(at)))
    assert workload.edition == 1
    for at in range(2 * REFRESH):
        workload.add(replace(ask(8), uid=f"other-{at}"))
    assert workload.edition == 3


HERE = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(0, 3)), max_size=8)


@given(HERE, st.integers(1, 16))
def test_the_cheapest_victims_make_room_and_none_is_in_vain(here: list[tuple[int, int, int]], units: int) -> None:
    held = [assignment(f"v{at}", "n", {gpu: size}, priority) for at, (gpu, size, priority) in enumerate(here)]
    free = {gpu: 16 - sum(one.units.get(gpu, 0) for one in held) for gpu in range(3)}
    lower = [one for one in held if one.priority < 2]
    chosen = cheapest_victims(ask(units, priority=2), dict(free), lower)
    room = {gpu: free[gpu] + sum(one.units.get(gpu, 0) for one in lower) for gpu in free}
    assert (chosen is None) == all(value < units for value in room.values())
    if chosen:
        gone = [one for one in lower if one.uid in chosen]
        gpus = {gpu for one in gone for gpu in one.units}
        assert len(gpus) == 1, "all from the one GPU that is wanted"
        for spared in gone:
            kept = sum(one.units.get(min(gpus), 0) for one in gone if one is not spared)
            assert free[min(gpus)] + kept < units
