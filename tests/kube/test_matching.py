"""Matching containers by their size against a model of the kubelet: whatever the orders, no GPU gets more than it has."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kube.objects import pod
from tests.kube.test_matching_served import BURST
from tests.kube.test_plugin_pure import assumed
from tidewright.base.errors import TideError
from tidewright.kube.allocation.container_lookup import CheckpointEntry
from tidewright.kube.allocation.corrections import corrections
from tidewright.kube.allocation.pod_usage import Allocated, PodUse, uses, written
from tidewright.kube.allocation.slot_records import SlotRecords
from tidewright.kube.allocation.slots import Capacity, Slots
from tidewright.kube.node.allocate_response import allocated
from tidewright.kube.node.v1beta1 import messages
from tidewright.kube.objects import names
from tidewright.kube.objects.metadata import Json
from tidewright.kube.objects.pod_request import marks, read_gpu_assignment, read_pod_request

from ..sizes import examples, seeds

SIZE = 15


@dataclass
class World:
    """The books as the extender keeps them, a kubelet that allocates for one pod after the other in an order of its own, and
    the plugin's view of both. ``order``: whether the plugin knows in which order pods were bound."""

    gpus: int = 2
    units: int = SIZE
    ordered: bool = False
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    given: dict[tuple[str, str], Allocated] = field(default_factory=dict)
    turn: int = 0
    records: SlotRecords = field(default_factory=SlotRecords)

    @property
    def capacity(self) -> Capacity:
        return Capacity(dict.fromkeys(range(self.gpus), self.units))

    def uses(self) -> tuple[PodUse, ...]:
        order = {uid: at for at, uid in enumerate(self.pods)} if self.ordered else {}
        return uses(self.pods.values(), self.given.values(), order, self.capacity.units, self.records.applied)

    def restart(self) -> None:
        """The plugin, which takes annotations as it finds them."""
        self.records = SlotRecords()
        for one in self.pods.values():
            self.records.see(one)

    def booked(self) -> Counter[int]:
        """As the extender reckons, by annotations."""
        found: Counter[int] = Counter()
        for one in self.pods.values():
            if (held := read_gpu_assignment(one)) is not None:
                found.update(held.units)
        return found

    def real(self) -> Counter[int]:
        """As the GPUs see it."""
        found: Counter[int] = Counter()
        for use in self.uses():
            found.update(use.taken())
        return found

    def bind(self, one: dict[str, Any], at: int) -> bool:
        """To the fullest GPUs that have room, as the extender does."""
        ask = read_pod_request(one)
        free = {gpu: self.units - self.booked()[gpu] for gpu in range(self.gpus)}
        chosen = [gpu for gpu in sorted(free, key=lambda gpu: (free[gpu], gpu)) if free[gpu] >= ask.units][: ask.count]
        if len(chosen) < ask.count:
            return False
        notes = marks(ask, "n", dict.fromkeys(chosen, ask.units), self.units, at)
        one["metadata"]["annotations"] = {key: text for key, text in notes.items() if text is not None}
        self.pods[ask.uid] = one
        self.records.see(one)
        self.waiting.append(ask.uid)
        return True

    def admit(self, uid: str) -> None:
        """All containers of a pod; init containers hand their ids on."""
        self.waiting.remove(uid)
        ask, reusable = read_pod_request(self.pods[uid]), list[str]()
        for part in ask.parts:
            ids = reusable[: part.units]
            self.turn += 1
            ids += [f"{uid}-{self.turn}-{at}" for at in range(part.units - len(ids))]
            found = Slots(self.capacity, self.uses()).choose(part.units, ids)
            assert found.units is not None
            self.given[uid, part.name] = Allocated(uid, part.name, frozenset(ids), found.units)
            reusable = [*dict.fromkeys([*reusable, *ids])] if part.init else [one for one in reusable if one not in ids]
            assert max(self.real().values()) <= self.units

    def correct(self, steps: int = 1000) -> None:
        """Carries out corrections; ``steps``: of which the last one is followed by a kill of the plugin."""
        for ring in corrections(Slots(self.capacity, self.uses())):
            shown = [self.booked()]
            for step in ring:
                if not steps:
                    return
                steps -= 1
                self.write(step.use.ask.uid, step.notes)
                self.records.wrote(step.use.ask.uid, step.notes)
                shown.append(self.booked())
            self.check_books(shown)

    def write(self, uid: str, notes: Mapping[str, str | None]) -> None:
        annotations = self.pods[uid]["metadata"]["annotations"] = dict(self.pods[uid]["metadata"]["annotations"])
        for key, text in notes.items():
            if text is None:
                annotations.pop(key, None)
            else:
                annotations[key] = text

    def check_books(self, shown: list[Counter[int]]) -> None:
        """While annotations are being written nobody may see room that there is not: on no GPU is less booked than before the
        first step and after the last one."""
        for gpu in range(self.gpus):
            assert min(books[gpu] for books in shown) >= min(shown[0][gpu], shown[-1][gpu])

    def delete(self, uid: str) -> None:
        del self.pods[uid]
        self.records.forget(uid)
        self.waiting = [one for one in self.waiting if one != uid]
        self.given = {key: one for key, one in self.given.items() if key[0] != uid}

    def check_true(self) -> None:
        """Annotations of pods that have their GPUs name these, and there is nothing more to correct."""
        assert not corrections(Slots(self.capacity, self.uses()))
        for use in self.uses():
            if use.has and use.complete():
                assert use.taken().keys() == use.shown.keys(), use.ask.name

    def check_promises(self) -> None:
        """Nobody was promised a GPU that is full."""
        assert all(count <= self.units for count in self.booked().values())


SHAPES = st.one_of(
    st.tuples(st.lists(st.integers(1, 5), min_size=1, max_size=1), st.just(())),
    st.tuples(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.lists(st.integers(1, 5), max_size=2).map(tuple)),
)


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.integers(1, 6), min_size=1, max_size=40), st.booleans(), st.randoms(use_true_random=False))
def test_every_pod_of_a_valid_book_gets_a_slot_whatever_the_orders(sizes: list[int], ordered: bool, rng: Any) -> None:
    """Pods of one container: bound, admitted, deleted and corrected in any order, restarts at any moment (there is nothing to
    remember). The books are true whenever the extender looks at them."""
    world = World(rng.choice([2, 3]), ordered=ordered)
    for at, size in enumerate(sizes):
        world.bind(assumed(f"p{at}", size, at=0), rng.randrange(1000))
        while world.waiting and rng.random() < 0.6:
            world.admit(rng.choice(world.waiting))
            assert world.real() <= world.booked(), "no slot is given twice"
        world.correct()
        world.check_true()
        world.check_promises()
        if world.pods and rng.random() < 0.2:
            world.delete(rng.choice(sorted(world.pods)))
    while world.waiting:
        world.admit(rng.choice(world.waiting))
    world.correct()
    world.check_true()
    assert world.real() == world.booked()


@pytest.mark.parametrize("seed", seeds(5))
def test_few_pods_are_refused_though_corrections_are_late(seed: int) -> None:
    """A matcher that refuses to be safe would over-commit nothing, and be of no use."""
    rng = random.Random(seed)
    world, admitted, refused = World(2), 0, 0
    for at in range(150):
        sizes = [rng.randint(1, 4) for _ in range(rng.choice([1, 1, 2]))]
        world.bind(assumed(f"p{at}", *sizes, at=0), at)
        while world.waiting and rng.random() < 0.5:
            uid = rng.choice(world.waiting)
            try:
                world.admit(uid)
                admitted += 1
            except TideError:
                refused += 1
                world.delete(uid)
            world.correct(rng.randrange(6))
        if world.pods and rng.random() < 0.6:
            world.delete(rng.choice(sorted(world.pods)))
    assert admitted > 50 and refused <= admitted // 20


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(SHAPES, min_size=1, max_size=25), st.randoms(use_true_random=False))
def test_no_gpu_gets_more_than_it_has_though_corrections_are_late(shapes: list[Any], rng: Any) -> None:
    """Pods of several containers and init containers, deletions while annotations are wrong, kills in the middle of a
    correction. A pod may then be refused, as an exception; a GPU is never given twice."""
    world = World(2)
    for at, (sizes, init) in enumerate(shapes):
        world.bind(assumed(f"p{at}", *sizes, at=0, init=init), rng.randrange(1000))
        while world.waiting and rng.random() < 0.5:
            uid = rng.choice(world.waiting)
            try:
                world.admit(uid)
            except TideError:
                world.delete(uid)
            if rng.random() < 0.5:
                world.correct(rng.randrange(4))
        if world.pods and rng.random() < 0.2:
            world.delete(rng.choice(sorted(world.pods)))
    for _ in range(3):
        world.correct()
    world.check_true()


@settings(deadline=None, max_examples=examples(100))
@given(st.integers(2, 12), st.randoms(use_true_random=False))
def test_pods_on_several_gpus_swap_among_themselves(count: int, rng: Any) -> None:
    world = World(4)
    for at in range(count):
        one = pod(f"p{at}", 4, 2, uid=f"uid-p{at}")
        world.bind(one, rng.randrange(1000))
    while world.waiting:
        world.admit(rng.choice(world.waiting))
    world.correct()
    world.check_true()
    assert world.real() == world.booked()


def test_a_recorded_burst_fills_both_gpus_and_the_books_follow() -> None:
    world = World(2)
    for place in range(30):
        world.bind(assumed(f"p{place}", 1, at=0), at=place)
    for place in BURST:
        world.admit(f"uid-p{place}")
    assert world.real() == {0: 15, 1: 15}
    world.correct()
    world.check_true()


def test_a_killed_plugin_takes_a_half_written_correction_up_again() -> None:
    for steps in range(4):
        world = World(2, units=1)
        for name in ("a", "b"):
            assert world.bind(assumed(name, 1, at=0), at=0)
        world.admit("uid-b")
        world.admit("uid-a")
        world.correct(steps)
        assert all(units >= 1 for units in (world.booked()[0], world.booked()[1])), "no room is shown that there is not"
        world.correct()
        world.check_true()
        assert world.booked() == {0: 1, 1: 1}


@settings(deadline=None, max_examples=examples(100))
@given(st.integers(2, 3), st.integers(1, 3), st.booleans(), st.randoms(use_true_random=False))
def test_corrections_that_break_off_anywhere_are_taken_up_again(
    units: int, size: int, restarts: bool, rng: Any
) -> None:
    """A plugin is killed in the middle, or a write fails, again and again: in the end nobody is promised a full GPU."""
    world = World(3, units=units * size)
    world.check_books = lambda shown: None  # type: ignore[method-assign]
    for at in range(3 * units):
        world.bind(assumed(f"p{at}", size, at=0), at)
        while world.waiting and rng.random() < 0.5:
            world.admit(rng.choice(world.waiting))
        if rng.random() < 0.5:
            world.correct(rng.randrange(1, 6))
            if restarts:
                world.restart()
    for _ in range(6):
        world.correct()
    world.check_true()
    world.check_promises()


@pytest.mark.parametrize("steps", range(1, 5))
def test_a_chain_that_broke_off_hands_its_slot_to_the_pod_that_waits(steps: int) -> None:
    world = World(3, units=2)
    for at in range(2):
        world.bind(assumed(f"p{at}", 2, at=0), at)
    world.admit("uid-p1")
    world.bind(assumed("p2", 2, at=0), 2)
    world.admit("uid-p0")
    world.correct(steps)
    for _ in range(3):
        world.correct()
    world.check_promises()
    assert world.booked() == {0: 2, 1: 2, 2: 2}


def test_a_slot_that_two_pods_passed_on_is_promised_to_the_one_that_waits() -> None:
    """Not the slot of the pod in the middle of that chain, which the first one has."""
    world = World(3, units=2, ordered=True)
    for at in range(3):
        world.bind(assumed(f"p{at}", 2, at=0), at)
    for name in ("p2", "p0"):
        world.admit(f"uid-{name}")
    world.correct()
    world.check_promises()
    assert world.booked() == {0: 2, 1: 2, 2: 2}


def test_a_slot_that_another_pod_took_is_promised_to_the_one_that_waits() -> None:
    world = World(2, units=1)
    for name in ("a", "b"):
        world.bind(assumed(name, 1, at=0), at=0)
    world.admit("uid-b")
    world.correct()
    world.delete("uid-b")
    assert [use.marked() for use in world.uses()] == [{1: 1}]
    world.bind(assumed("c", 1, at=0), at=2)
    for name in ("c", "a"):
        world.admit(f"uid-{name}")
    world.correct()
    assert world.booked() == world.real() == {0: 1, 1: 1}


def test_a_pod_past_the_extender_that_was_taken_for_another_is_booked() -> None:
    world = World(2, units=2)
    world.bind(assumed("own", 1, at=0), at=0)
    bare = pod("bare", 1, node="n")
    world.pods["uid-bare"] = bare
    world.waiting.append("uid-bare")
    world.admit("uid-bare")
    world.correct()
    world.admit("uid-own")
    world.correct()
    world.check_true()
    assert world.booked() == world.real()


def answer(env: dict[str, str], cdi: str = "", **notes: str) -> bytes:
    kinds = messages()
    devices = [kinds.CDIDevice(name=cdi)] if cdi else []
    found = kinds.ContainerAllocateResponse(envs=env, cdi_devices=devices, annotations=notes)
    return bytes(found.SerializeToString())


@pytest.mark.parametrize(("told", "units"), [
    (answer({names.VISIBLE: "GPU-b"}), {1: 3}),
    (answer({names.VISIBLE: "1", names.IDX: "1"}), {1: 3}),
    (answer({names.VISIBLE: "GPU-gone", names.IDX: "0"}), {0: 3}),
    (answer({names.VISIBLE: "GPU-a,GPU-b"}), {0: 2, 1: 1}),
    (answer({names.VISIBLE: "GPU-a,GPU-b"}, **{names.UNITS: "0=1,1=2"}), {0: 1, 1: 2}),
    (answer({names.IDX: "0"}, cdi="tidewright.io/gpushare=g"), {}),
    (answer({names.VISIBLE: "no-gpu-has-3GiB-to-run", names.IDX: "-1"}), {}),
    (b"", {}), (b"\xff\xff", {}),
], ids=range(9))  # fmt: skip
def test_what_a_container_has_is_read_from_the_answer_that_the_kubelet_keeps(told: bytes, units: Json) -> None:
    """Ours, of any version, and gpushare's own."""
    entry = CheckpointEntry("u", "c", frozenset({"0-0", "0-1", "0-2"}), told)
    assert allocated(entry, {"GPU-a": 0, "GPU-b": 1}).units == units


@given(st.dictionaries(st.integers(0, 127), st.integers(1, 1 << 20), min_size=1))
def test_units_survive_their_annotation(units: dict[int, int]) -> None:
    entry = CheckpointEntry("u", "c", frozenset(), answer({}, **{names.UNITS: written(units)}))
    assert allocated(entry, {}).units == units


def test_ids_name_the_pod_of_an_init_container_and_show_that_their_last_owner_is_over() -> None:
    world = World(2, units=4)
    world.bind(assumed("a", 1, at=0, init=(4,)), at=0)
    world.bind(assumed("b", 4, at=0), at=1)
    done = Allocated("uid-a", "i0", frozenset("wxyz"), {1: 4})
    found = uses(world.pods.values(), [done], {}, world.capacity.units)
    slots = Slots(world.capacity, found)
    assert slots.choose(1, "w").units == {1: 1}, "on the GPU of its init container, whatever its annotation says"
    assert slots.choose(4, "abcd").units == {0: 4}
    with pytest.raises(TideError, match="being deleted"):
        leaving = assumed("c", 2, at=0, deletionTimestamp="2026-01-01T00:00:00Z")
        Slots(world.capacity, uses([leaving], [], {}, world.capacity.units)).choose(2)


def test_a_sick_gpu_is_for_those_alone_who_were_promised_it() -> None:
    full = Allocated("uid-a", "c0", frozenset("z"), {0: 2})
    found = uses([assumed("a", 2, at=1, gpu=0), assumed("b", 2, at=2, gpu=0)], [full], {}, {0: 2, 1: 2})
    assert Slots(Capacity({0: 2, 1: 2}), found).choose(2).units == {1: 2}
    with pytest.raises(TideError, match="no GPU has room"):
        Slots(Capacity({0: 2, 1: 2}), found, sick=(1,)).choose(2)
    found = uses([assumed("c", 2, at=1, gpu=1)], [], {}, {0: 2, 1: 2})
    assert Slots(Capacity({0: 2, 1: 2}), found, sick=(1,)).choose(2).units == {1: 2}


def test_a_refusal_says_how_full_the_gpus_are() -> None:
    stray = Allocated("gone", "c", frozenset("z"), {0: 14})
    found = uses([assumed("p", 2, at=1)], [], {}, {0: 15})
    with pytest.raises(TideError, match="GPU 0 14 of 15"):
        Slots(Capacity({0: 15}), found, [stray]).choose(2)
