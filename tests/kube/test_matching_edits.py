"""Where containers are matched, what the owner of a pod writes on it changes no other pod and no other pod's room."""

from __future__ import annotations

import json
import types
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kube.extending import until
from tests.kube.test_matching import World
from tests.kube.test_matching_served import admit, booked
from tests.kube.test_plugin_pure import assumed
from tests.kube.test_plugin_served import plugged, run
from tidewright.base.errors import TideError, WorldError
from tidewright.kube.allocation.corrections import corrections
from tidewright.kube.allocation.pod_usage import Allocated, uses
from tidewright.kube.allocation.slot_records import SlotRecords
from tidewright.kube.allocation.slots import Capacity, Slots
from tidewright.kube.node.node_api import NodeApi
from tidewright.kube.objects import names
from tidewright.kube.objects.metadata import Json
from tidewright.kube.plugin import slot_matcher as matcher

from ..sizes import examples

EDITS: dict[str, dict[str, Any]] = {
    "a GPU that is not there": {"annotations": {names.IDX: "99"}},
    "more than any GPU has": {"annotations": {names.ALLOCATION: json.dumps({"0": {"1": 1000, "2": 1000}})}},
    "a GPU that is full": {"annotations": {names.IDX: "1"}},
    "two GPUs for one": {"annotations": {names.ALLOCATION: json.dumps({"0": {"0": 2, "1": 2}})}},
    "fewer units": {"annotations": {names.POD: "1"}},
    "more units": {"annotations": {names.POD: "4"}},
    "nothing": {"annotations": dict.fromkeys((names.IDX, names.POD, names.DEV))},
    "more GPUs": {"labels": {names.COUNT: "2"}, "annotations": {names.IDX: "1"}},
    "a later bind": {"annotations": {names.ASSUME_TIME: "1", names.IDX: "1"}},
}


def victims() -> list[dict[str, Any]]:
    """GPU 0 has 2 of 4 units for one that waits, GPU 1 is full."""
    return [assumed("waits", 2, at=2, gpu=0), *(assumed(f"full{at}", 2, at=3 + at, gpu=1) for at in range(2))]


@pytest.mark.processes
@pytest.mark.parametrize("begun", [True, False], ids=["has its GPU", "waits"])
def test_edits_of_one_pod_change_no_other_and_are_written_over(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "AGAIN_S", 0.02)

    async def scene() -> None:
        async with plugged("2x4", binding="match") as found:
            await found.ready()
            liar, others = assumed("liar", 2, at=1, gpu=0, namespace="evil"), victims()
            for one in (liar, *others):
                await found.create(one)
            if begun:
                await admit(found, liar)
            before = {one["metadata"]["name"]: dict(found.notes(one["metadata"]["name"])) for one in others}
            for edit in EDITS.values():
                await found.api.change("pods", "evil", "liar", {"metadata": edit})
                await until(lambda: booked(found) == {0: 4, 1: 4})
                assert {name: found.notes(name) for name in before} == before
            await admit(found, *([] if begun else [liar]), *others)
            given = {made.uid: made.env[names.IDX] for made in found.kubelet.made}
            assert given == {"uid-liar": "0", "uid-waits": "0", "uid-full0": "1", "uid-full1": "1"}
            await until(lambda: booked(found) == {0: 4, 1: 4})

    run(scene)


def found_after_restart(edit: dict[str, Any], *others: Json) -> Slots:
    """A plugin that starts: the liar has GPU 0, and says something else."""
    liar = assumed("liar", 2, at=1, gpu=0, namespace="evil")
    for kind, notes in edit.items():
        kept = {**liar["metadata"].get(kind, {}), **notes}
        liar["metadata"][kind] = {key: text for key, text in kept.items() if text is not None}
    has = [Allocated("uid-liar", "c0", frozenset("ab"), {0: 2})]
    capacity = Capacity({0: 4, 1: 4})
    return Slots(capacity, uses([liar, *others], has, {}, capacity.units))


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_that_a_restarted_plugin_finds_changes_no_other_pod(edit: dict[str, Any]) -> None:
    steps = [step for chain in corrections(found_after_restart(edit, *victims())) for step in chain]
    assert {step.use.ask.name for step in steps} <= {"liar"}
    if names.IDX in edit["annotations"] or names.ALLOCATION in edit["annotations"]:
        assert steps, "and is written over"
    for step in steps:
        assert step.notes[names.IDX] == "0" and step.notes[names.POD] == "2" and not step.notes[names.ALLOCATION]


def test_a_slot_is_handed_on_only_where_it_has_room_and_its_gpu_is_well() -> None:
    """A swap that a killed plugin left looks like an edit: it is finished where that costs no pod anything."""
    edit = {"annotations": {names.IDX: "1"}}
    waits, beside = assumed("waits", 2, at=2, gpu=0), assumed("beside", 2, at=3, gpu=1)
    chains = corrections(found_after_restart(edit, waits, beside))
    moved = [step for chain in chains for step in chain if step.use.ask.name == "waits"]
    assert [step.notes[names.IDX] for step in moved] == ["1"]
    found = found_after_restart(edit, waits, beside)
    sick = Slots(found.capacity, found.uses, sick=(1,))
    assert {step.use.ask.name for chain in corrections(sick) for step in chain} == {"liar"}


def test_a_label_about_gpus_makes_nothing_smaller_that_a_container_has() -> None:
    """The number of GPUs is a label, which the owner may change; it divides the units."""
    edit = {"labels": {names.COUNT: "2"}, "annotations": {names.POD: "2"}}
    assert found_after_restart(edit).given == {0: 2}


def test_a_pod_whose_answer_names_no_gpu_and_whose_edit_names_none_is_left_alone() -> None:
    one = assumed("late", 2, at=1)
    one["metadata"]["annotations"][names.IDX] = "7"
    capacity = Capacity({0: 4})
    found = uses([one], [Allocated("uid-late", "c0", frozenset("ab"), {})], {}, capacity.units)
    assert not corrections(Slots(capacity, found))


@given(st.lists(st.tuples(st.sampled_from(["wrote", "saw", "forgot"]), st.integers(0, 3)), max_size=8))
def test_a_record_is_the_first_version_and_what_was_written_since(steps: list[tuple[str, int]]) -> None:
    records, expected = SlotRecords(), None
    for what, gpu in steps:
        one = assumed("p", 2, at=1, gpu=gpu)
        if what == "saw":
            records.see(one)
            expected = gpu if expected is None else expected
        elif what == "wrote" and expected is not None:
            records.wrote("uid-p", {names.IDX: str(gpu), names.ALLOCATION: None})
            expected = gpu
        elif what == "forgot":
            records.forget("uid-p")
            expected = None
    shown = records.applied(assumed("p", 2, at=1, gpu=9))["metadata"]["annotations"][names.IDX]
    assert shown == str(9 if expected is None else expected)


LIES = st.one_of(
    st.builds(lambda gpu: {names.IDX: str(gpu)}, st.integers(0, 4)),
    st.builds(lambda units: {names.POD: str(units)}, st.integers(0, 9)),
    st.builds(
        lambda units: {names.ALLOCATION: json.dumps({"0": units})},
        st.dictionaries(st.sampled_from("0123"), st.integers(0, 9), max_size=3),
    ),
    st.just({names.IDX: None, names.ALLOCATION: None}),
)


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(st.tuples(st.integers(1, 5), LIES), min_size=2, max_size=25),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_whatever_owners_write_honest_pods_get_their_room(shapes: list[Any], restarts: bool, rng: Any) -> None:
    """Half of the pods lie at any moment. Their lies are written over before the extender looks again. A plugin that restarts
    finds lies of pods that have their GPUs."""
    world = World(3)
    for at, (size, lie) in enumerate(shapes):
        world.bind(assumed(f"p{at}", size, at=0), rng.randrange(1000))
        liars = [uid for uid in world.pods if int(uid.removeprefix("uid-p")) % 2]
        if restarts:
            liars = [uid for uid in liars if uid not in world.waiting]
        if liars:
            world.write(rng.choice(sorted(liars)), lie)
        if restarts and rng.random() < 0.3:
            world.restart()
        for _ in range(2):
            for chain in corrections(Slots(world.capacity, world.uses())):
                for step in chain:
                    world.write(step.use.ask.uid, step.notes)
                    world.records.wrote(step.use.ask.uid, step.notes)
        assert all(world.booked()[gpu] <= world.units for gpu in range(3))
        while world.waiting and rng.random() < 0.6:
            world.admit(rng.choice(world.waiting))
    while world.waiting:
        world.admit(rng.choice(world.waiting))
    world.correct()
    world.check_true()
    assert world.real() == world.booked()


def test_a_pod_that_names_no_gpu_here_is_refused() -> None:
    one = assumed("odd", 2, at=1)
    one["metadata"]["annotations"][names.IDX] = "7"
    with pytest.raises(TideError, match="no pod on this node waits"):
        Slots(Capacity({0: 4}), uses([one], [], {}, {0: 4})).choose(2)


def test_writes_that_are_not_tried_again_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod is gone. While tries go on, one note is enough."""
    clock, said = [0.0], list[str]()
    monkeypatch.setattr("tidewright.kube.node.node_api.time", types.SimpleNamespace(monotonic=lambda: clock[0]))

    async def fails() -> None:
        raise WorldError("no answer")

    async def scene() -> None:
        node_api = NodeApi(None, "n", said.append)  # type: ignore[arg-type]
        for at in range(1000):
            clock[0] = at * 30.0
            await node_api._try(f"the mark of pod {at}", fails())
            await node_api._try("the node's annotations", fails())
        assert len(said) == 1001 and len(node_api._failing) < 20

    run(scene)


def test_a_pod_that_names_more_than_it_asks_for_gets_none_of_it() -> None:
    one = assumed("odd", 2, at=1)
    one["metadata"]["annotations"][names.ALLOCATION] = json.dumps({"0": {"0": 2, "1": 2}})
    units = {0: 4, 1: 4}
    with pytest.raises(TideError, match="no pod on this node waits"):
        Slots(Capacity(units), uses([one], [], {}, units)).choose(2)
