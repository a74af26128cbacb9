"""What pods ask and hold, read from their JSON."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kube.objects import node, placed, pod
from tidewright.base.errors import UsageError
from tidewright.kube.objects import names
from tidewright.kube.objects.gpu_inventory import GpuInfo, publish, read_gpu_inventory, unhealthy_of
from tidewright.kube.objects.pod_request import check_marks, marks, read_gpu_assignment, read_pod_request
from tidewright.kube.objects.quantity import LIMIT, whole
from tidewright.kube.objects.schema import Pod, validated


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("8", 8), ("2k", 2000), ("131M", 131_000_000), ("1e3", 1000), (7, 7), ("4.0", 4)]
)
def test_whole_numbers_as_the_api_server_writes_them(text: object, value: int) -> None:
    assert whole(text, "x") == value


@pytest.mark.parametrize(
    "text", ["-1", "9223372036854775808", "1Gi", "1.5", "500m", "", "abc", None, True, [], "1e99", "9" * 50, "٣"]
)
def test_absurd_quantities_are_refused_with_a_reason(text: object) -> None:
    with pytest.raises(UsageError, match=r"gpu-mem is"):
        whole(text, "gpu-mem")


@given(
    st.one_of(
        st.text(max_size=30), st.integers(), st.from_regex(r"[+-]?\d{1,25}(\.\d{1,5})?([numkMGTPE]|[eE]-?\d{1,3})?")
    )
)
def test_any_quantity_is_a_whole_number_or_refused(value: object) -> None:
    with suppress(UsageError):
        assert 0 <= whole(value, "x") < LIMIT


def container(mem: int, **more: object) -> dict[str, object]:
    return {"name": f"c{mem}", "resources": {"limits": {names.MEM: str(mem)}}, **more}


@pytest.mark.parametrize(
    ("init", "main", "total"),
    [
        ([], [3, 2], 5),
        ([(9, False)], [3, 2], 9),
        ([(4, False), (4, False)], [3, 2], 5),
        ([(2, True)], [3, 2], 7),
        ([(2, True), (9, False)], [3], 11),
        ([(9, False), (2, True)], [3], 9),
    ],
)
def test_init_containers_run_before_sidecars_beside(init: list[tuple[int, bool]], main: list[int], total: int) -> None:
    found = pod()
    found["spec"]["initContainers"] = [
        container(mem, **({"restartPolicy": "Always"} if side else {})) for mem, side in init
    ]
    found["spec"]["containers"] = [container(mem) for mem in main]
    assert read_pod_request(found).units == total


def test_memory_is_spread_over_the_gpus_asked_for() -> None:
    assert (read_pod_request(pod(mem=8, count=2)).units, read_pod_request(pod(mem=8, count=2)).count) == (4, 2)
    assert read_pod_request(pod(mem=8, labels={names.COUNT: "4"})).count == 4
    with pytest.raises(UsageError, match="do not divide"):
        read_pod_request(pod(mem=9, count=2))
    with pytest.raises(UsageError, match="no node has so many"):
        read_pod_request(pod(mem=9, count=10_000))


def test_a_policy_that_does_not_exist_is_named() -> None:
    assert read_pod_request(pod(notes={names.POLICY: "spread"})).policy == "spread"
    with pytest.raises(UsageError, match=names.POLICY):
        read_pod_request(pod(notes={names.POLICY: "worst"}))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_is_annotated_is_read_back(count: int) -> None:
    asking = pod(mem=12, count=count)
    ask = read_pod_request(asking)
    units = dict.fromkeys(range(1, 1 + count), ask.units)
    asking["metadata"]["annotations"] = marks(ask, "n", units, 15, 42)
    held = read_gpu_assignment(asking)
    assert held is not None
    assert (held.node, dict(held.units), held.bound, held.assigned) == ("n", units, False, False)


def test_a_container_with_an_odd_share_still_fits_its_gpus() -> None:
    """2 containers of 3 and 5 units over 2 GPUs: 4 on each, whichever container they belong to."""
    asking = pod(count=2)
    asking["spec"]["containers"] = [container(3), container(5)]
    asking["metadata"]["labels"] = {names.COUNT: "2"}
    asking["metadata"]["annotations"] = marks(read_pod_request(asking), "n", {0: 4, 1: 4}, 15, 42)
    held = read_gpu_assignment(asking)
    assert held is not None
    assert dict(held.units) == {0: 4, 1: 4}


def test_memory_is_free_only_when_containers_are_gone() -> None:
    going = placed("p", "n", 1, 4, deletionTimestamp="2026-01-01T00:00:00Z")
    assert read_gpu_assignment(going) is not None
    assert read_gpu_assignment({**going, "status": {"phase": "Failed"}}) is None


@pytest.mark.parametrize(
    "notes",
    [
        {names.IDX: "x"},
        {names.IDX: "1", names.POD: "-4"},
        {names.ALLOCATION: "[1]"},
        {names.ALLOCATION: '{"0":{"a":1}}'},
    ],
)
def test_marks_that_cannot_be_read_are_refused(notes: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        read_gpu_assignment(pod(node="n", notes=notes))


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["metadata", "spec", "status", "containers", "resources", "limits", names.MEM, "annotations", "name"]), inner
)))  # fmt: skip
def test_any_json_is_a_pod_or_refused(value: object) -> None:
    with suppress(UsageError):
        read_pod_request(validated(value, Pod))


def test_cards_come_from_our_table_or_from_gpushares_totals() -> None:
    assert [card.units for card in read_gpu_inventory(node(mem=30, count=2)).cards] == [15, 15]
    cards = (GpuInfo(0, 80, "GPU-a", "A100"), GpuInfo(3, 24, "GPU-b", "A10", ok=False, foreign=5))
    found = read_gpu_inventory(node(annotations={names.TABLE: publish(cards)}), frozenset({0}))
    assert [(card.index, card.units, card.ok) for card in found.cards] == [(0, 80, False), (3, 24, False)]
    assert found.published


def test_a_node_whose_plugin_is_not_registered_is_not_ready() -> None:
    heartbeat = node(mem=0, annotations={names.TABLE: publish((GpuInfo(0, 80),))})
    assert not read_gpu_inventory(heartbeat).ready
    assert "not registered" in read_gpu_inventory(heartbeat).reason


TWICE = json.dumps({"gpus": [{"index": 1, "units": 1}] * 2})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"gpus": 3}', '{"gpus": [{"index": -1, "units": 3}]}', TWICE])
def test_a_table_that_cannot_be_read_makes_the_node_unready(text: str) -> None:
    found = read_gpu_inventory(node(annotations={names.TABLE: text}))
    assert (found.cards, found.ready) == ((), False)
    assert "cannot be read" in found.reason or "GPU index" in found.reason


def test_unhealthy_lists_pass_over_what_is_no_index() -> None:
    assert unhealthy_of({"data": {"gpus": "0, 3,x,"}}) == {0, 3}
    assert unhealthy_of(None) == frozenset()


def marked(notes: dict[str, str], *sizes: int, init: tuple[int, ...] = (), count: object = None) -> dict[str, Any]:
    """A bound pod with a container per size and these annotations."""
    found = pod("p", 1, count, node="n", notes=notes)
    found["spec"]["containers"] = [container(size) for size in sizes]
    found["spec"]["initContainers"] = [container(size) for size in init]
    if count is not None:
        found["spec"]["containers"][0]["resources"]["limits"][names.COUNT] = str(count)
    return found


def several(units: dict[str, dict[str, int]]) -> dict[str, str]:
    return {names.IDX: "0", names.POD: "15", names.ALLOCATION: json.dumps(units)}


@pytest.mark.parametrize(
    ("item", "units"),
    [
        (marked({names.IDX: "1", names.POD: "1"}, 15), {1: 15}),
        (marked({names.IDX: "1"}, 15), {1: 15}),
        (marked({names.IDX: "1", names.POD: "0"}, 15), {1: 15}),
        (marked({names.IDX: "1", names.POD: "9999"}, 1), {1: 1}),
        (marked({names.IDX: "1", names.POD: "2"}, 1), {1: 1}),
        (marked(several({"0": {"0": 9999, "1": 9999}}), 1), {0: 1}),
        (marked(several({"0": {"0": 1, "1": 1}}), 8, count=2), {0: 4, 1: 4}),
        (marked(several({"0": {"2": 99, "3": 99}}), 8, count=2), {2: 4, 3: 4}),
        (marked({names.IDX: "0", names.POD: "4"}, 4, init=(15,)), {0: 15}),
    ],
)  # fmt: skip
def test_annotations_say_which_gpus_and_limits_how_much(item: dict[str, Any], units: dict[int, int]) -> None:
    """Whatever the owner writes there later, the pod counts as what it asks for, never as less and never as more."""
    held = read_gpu_assignment(item)
    assert held is not None and dict(held.units) == units
    with suppress(UsageError):
        check_marks(item)
        assert item["spec"]["initContainers"], "gpushare counts none"


@pytest.mark.parametrize(
    ("item", "units"),
    [
        (marked({names.IDX: "1", names.POD: "15"}, 15), {1: 15}),
        (marked(several({"0": {"0": 4, "1": 4}}), 8, count=2), {0: 4, 1: 4}),
        (marked(several({"0": {"0": 2}, "1": {"3": 2}}), 2, 2), {0: 2, 3: 2}),
        (marked(several({"0": {"0": 3}, "1": {"0": 1, "1": 4}}), 3, 5, count=2), {0: 4, 1: 4}),
    ],
)  # fmt: skip
def test_annotations_that_fit_the_limits_are_taken_as_they_are(item: dict[str, Any], units: dict[int, int]) -> None:
    check_marks(item)
    held = read_gpu_assignment(item)
    assert held is not None and dict(held.units) == units


def test_a_pod_whose_annotations_are_being_corrected_counts_on_both_gpus() -> None:
    """And cannot start late with them."""
    item = marked(several({"0": {"0": 8, "1": 8}}), 8)
    held = read_gpu_assignment(item)
    assert held is not None and dict(held.units) == {0: 8, 1: 8}
    with pytest.raises(UsageError, match=r"8 on GPU 0, 8 on GPU 1.*ask for .8 on 1 GPU"):
        check_marks(item)


@pytest.mark.parametrize("units", [{"0": 7, "1": 1}, {"0": 4, "1": 4}, {"0": 5, "1": 5}])
def test_a_container_that_asks_for_one_gpu_gets_no_two(units: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="recreate the pod"):
        check_marks(marked(several({"0": units}), 8))


def test_a_pod_without_limits_holds_what_is_annotated() -> None:
    item = marked({names.IDX: "1", names.POD: "3"}, 1)
    item["spec"]["containers"] = [{"name": "c"}]
    held = read_gpu_assignment(item)
    assert held is not None and dict(held.units) == {1: 3}


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.dictionaries(st.integers(0, 3), st.integers(0, 99), min_size=1),
)
def test_whatever_is_annotated_counts_for_no_less_than_was_asked_and_at_most_twice(sizes: Any, found: Any) -> None:
    held = read_gpu_assignment(marked(several({"0": {str(gpu): units for gpu, units in found.items()}}), *sizes))
    assert held is not None
    assert sum(sizes) <= sum(held.units.values()) <= 2 * sum(sizes)
    assert held.units.keys() <= found.keys() and max(held.units.values()) <= sum(sizes)
