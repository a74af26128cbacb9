"""ResourceSlices, without any server: always a valid and complete pool, and no way to take too much of a GPU."""

from __future__ import annotations

import copy
import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kube.test_plugin_pure import RECORDED
from tidewright.base.errors import UsageError
from tidewright.kube.dra.slices import bodies, device_name, owner_of, plain_spec, pool
from tidewright.kube.node.gpus import Gpu
from tidewright.kube.node.partitions import FakePartitions, MigPlacement, needs, overlap, totals
from tidewright.kube.objects.quantity import mib_of, of_mib
from tidewright.testing.kube_dra import admit

from ..sizes import examples

DRA = RECORDED.parent / "dra"


@st.composite
def nodes(draw: st.DrawFn) -> tuple[list[Gpu], list[Gpu], tuple[MigPlacement, ...], set[int]]:
    """GPUs, instances and GPUs in MIG mode, with tables of profiles that no GPU has, and sick ones among them."""
    count, parents = draw(st.integers(0, 9)), draw(st.integers(0, 10))
    gpus = [
        Gpu(at, f"MIG-{at:04d}-é.x" if at % 3 == 2 else f"GPU-{at}", draw(st.integers(512, 300_000)), "m" * 80, (), at % 3 == 2)
        for at in range(count)
    ]  # fmt: skip
    homes = [Gpu(at, f"GPU-{at}", 80 << 10, "mig", (), True, at) for at in range(count, count + parents)]
    shapes = draw(
        st.lists(st.tuples(st.integers(0, 7), st.integers(1, 8), st.integers(0, 140)), max_size=24, unique=True)
    )
    placements = tuple(
        MigPlacement(home.index, "p", at, start, size, 10 << 10, (("multiprocessors", sms), ("decoders", sms // 20)))
        for home in homes
        for at, (start, size, sms) in enumerate(shapes)
    )
    sick = draw(st.sets(st.integers(0, count + parents)))
    return gpus, homes if shapes else [], placements, sick


@settings(max_examples=examples(80), deadline=None)
@given(nodes(), st.booleans(), st.integers(1, 10**9))
def test_every_pool_is_complete_and_valid(node: Any, taints: bool, generation: int) -> None:
    gpus, homes, placements, sick = node
    found = pool("n", bodies(gpus, homes, placements, sick, taints), generation)
    for item in found.values():
        assert not admit(copy.deepcopy(item), None, set())
        about = {"name": "n", "generation": generation, "resourceSliceCount": len(found)}
        assert item["spec"]["pool"] == about
        assert bool(item["spec"].get("devices")) != bool(item["spec"].get("sharedCounters"))
    devices = {one["name"]: one for item in found.values() for one in item["spec"].get("devices") or ()}
    home = {device_name(gpu): gpu.index for gpu in gpus} | {one.name: one.gpu for one in placements}
    assert devices.keys() == {name for name, at in home.items() if taints or at not in sick}
    assert all(("taints" in device) == (home[name] in sick) for name, device in devices.items())


@settings(max_examples=examples(80), deadline=None)
@given(nodes(), st.randoms(use_true_random=False))
def test_counters_let_nobody_take_too_much(node: Any, rng: random.Random) -> None:
    """As the scheduler does: whatever it takes, in whatever order, lies apart and is there."""
    gpus, homes, placements, _ = node
    found = pool("n", bodies(gpus, homes, placements, ()), 1)
    sets = {
        one["name"]: {name: int(counter["value"]) for name, counter in one["counters"].items()}
        for item in found.values()
        for one in item["spec"].get("sharedCounters") or ()
    }
    devices = {one["name"]: one for item in found.values() for one in item["spec"].get("devices") or ()}
    assert {f"gpu-{gpu.index}" for gpu in homes} == sets.keys()
    left, taken = copy.deepcopy(sets), []
    for one in rng.sample(placements, len(placements)):
        [asked] = devices[one.name]["consumesCounters"]
        wants = {name: int(counter["value"]) for name, counter in asked["counters"].items()}
        have = left[asked["counterSet"]]
        assert all(sets[asked["counterSet"]][name] >= value for name, value in wants.items()), "alone it always fits"
        if all(have[name] >= value for name, value in wants.items()):
            left[asked["counterSet"]] = {name: value - wants.get(name, 0) for name, value in have.items()}
            taken.append(one)
    assert not any(overlap(one, other) for one, other in itertools.combinations(taken, 2))
    for at, have in totals(placements).items():
        for name, value in have.items():
            assert sum(needs(one).get(name, 0) for one in taken if one.gpu == at) <= value


def test_the_slice_that_a_real_server_took() -> None:
    """Ours of the same GPUs says the same, and a little more about them."""
    [real, _] = json.loads((DRA / "slices-classes.json").read_text())["items"]
    gpus = [Gpu(at, f"GPU-{at}", 15 << 10, "H200") for at in range(2)]
    [mine] = pool("localhost", bodies(gpus, (), (), ()), 1).values()
    assert mine["spec"]["pool"] == real["spec"]["pool"] and mine["apiVersion"] == real["apiVersion"]
    for ours, theirs in zip(mine["spec"]["devices"], real["spec"]["devices"], strict=True):
        assert theirs["attributes"].items() <= ours.pop("attributes").items()
        policy = ours["capacity"]["smPercent"]["requestPolicy"]
        assert (policy["default"], policy["validRange"]["min"]) == ("0", "0"), (
            "or none that ask for memory alone could share"
        )
        policy["default"], policy["validRange"]["min"] = "100", "1"
        assert ours == {key: value for key, value in theirs.items() if key != "attributes"}
    assert not admit(copy.deepcopy(real), None, set()), "the judge of these tests agrees with the server"


def test_owners_are_named_whole() -> None:
    """As the API server wants it; the garbage collector goes by the uid."""
    owner = owner_of({"metadata": {"name": "n", "uid": "u", "labels": {}}})
    [mine] = pool("n", bodies([Gpu(0, "GPU-0", 1024)], (), (), ()), 1, owner).values()
    assert mine["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]
    assert not admit(copy.deepcopy(mine), None, set())
    for name in ("apiVersion", "kind", "name", "uid"):
        wrong = copy.deepcopy(mine)
        wrong["metadata"]["ownerReferences"][0].pop(name)
        assert any("ownerReferences" in text for text in admit(wrong, None, set()))


def test_memory_that_is_no_multiple_of_a_step_is_offered_to_the_last_whole_one() -> None:
    [body] = bodies([Gpu(0, "GPU-0", 143_771, "H200")], (), (), ())
    memory = body["devices"][0]["capacity"]["memory"]
    assert memory["value"] == "143771Mi" and memory["requestPolicy"]["default"] == "143616Mi"


def test_parts_of_an_h100() -> None:
    made = FakePartitions("1x15+1x80mig")
    assert [gpu.index for gpu in made.found()] == [0] and [gpu.index for gpu in made.parents()] == [1]
    assert {(one.profile, one.start, one.size) for one in made.placements() if one.size == 4} == {
        ("3g.40gb", 0, 4), ("3g.40gb", 4, 4), ("4g.40gb", 0, 4),
    }  # fmt: skip
    kinds = ["sharedCounters" if "sharedCounters" in one else len(one["devices"]) for one in _bodies(made)]
    assert kinds == ["sharedCounters", 1, len(made.placements())]


def _bodies(made: FakePartitions) -> list[dict[str, Any]]:
    return bodies(made.found(), made.parents(), made.placements(), ())


def test_names_that_outlive_a_restart() -> None:
    part = Gpu(7, "MIG-5F2c0a1e-0000-0000-0000-00000000000A", 1)
    moved = Gpu(3, part.uuid, 1, whole=True)
    assert device_name(Gpu(7, part.uuid, 1, whole=True)) == device_name(moved)
    long = f"{'a.' * 126}b"
    names = list(pool(long, [{"devices": []}] * 2, 1))
    assert len(set(names)) == 2 and max(map(len, names)) <= 253
    assert names != list(pool(f"{'a.' * 126}c", [{"devices": []}] * 2, 1))


def test_what_the_server_adds_makes_no_difference() -> None:
    [sick] = pool("n", bodies([Gpu(0, "GPU-0", 1024)], (), (), [0]), 1).values()
    stored = copy.deepcopy(sick)
    assert not admit(stored, None, set()) and stored != sick
    assert plain_spec(stored) == sick["spec"]


@pytest.mark.parametrize(("text", "mib"), [
    ("7Gi", 7168), ("256Mi", 256), ("8053063680", 7680), ("7.5Gi", 7680), ("1G", 953), ("2e9", 1907), (1 << 30, 1024),
    ("1Ki", 0), ("1Ti", 1 << 20),
])  # fmt: skip
def test_quantities_of_bytes(text: object, mib: int) -> None:
    assert mib_of(text, "memory") == mib


@pytest.mark.parametrize(
    "text", ["", "seven", "-1Gi", "0", "1Gi ; rm", "9" * 40 + "Ei", None, True, 1.5, {}, "1e999", "Gi"]
)
def test_quantities_that_are_none(text: object) -> None:
    with pytest.raises(UsageError, match="memory is"):
        mib_of(text, "memory")


@given(st.integers(1, 1 << 40))
def test_a_quantity_comes_back_as_it_was(mib: int) -> None:
    assert mib_of(of_mib(mib), "memory") == mib
