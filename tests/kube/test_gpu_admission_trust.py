"""GPU admission where it is raced, misled by what a pod's owner wrote, or overtaken by a pod's end."""

from __future__ import annotations

import asyncio
import errno
import json
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from tests.kube.test_gpu_admission import quick, refused, run, started
from tests.kube.test_gpu_admission_model import Node
from tests.kube.test_plugin_pure import assumed
from tests.kube.test_plugin_served import Plugged, plugged
from tidewright.base.errors import UsageError, WorldError
from tidewright.kube.allocation.container_lookup import CheckpointEntry
from tidewright.kube.node.cgroups import BUSY, IDLE
from tidewright.kube.objects import names
from tidewright.kube.plugin import allocation_file
from tidewright.kube.plugin.allocation_file import PodAllocation
from tidewright.kube.plugin.gpu_admission import POLL_S, PodGone


@pytest.fixture
def here() -> Iterator[Node]:
    """A node with two GPUs of 15 units and nothing on it."""
    node = Node()
    yield node
    node.teardown()


def edited(node: Node, uid: str, **notes: str) -> None:
    """The owner of a pod writes into its annotations."""
    node.objects[uid]["metadata"]["annotations"] |= notes


def test_a_pod_counts_as_what_it_asks_for_whatever_its_owner_writes(here: Node) -> None:
    here.bind(15, 0)
    edited(here, "u1", **{names.POD: "1"})
    here.start_container("u1")
    assert here.admission.allocated["u1"].units == {0: 15}
    here.bind(14, 0)
    here.start_container("u2")
    assert here.running.keys() == {"u1"}


@pytest.mark.parametrize("limit", [True, False])
def test_a_pod_that_claims_all_gpus_keeps_nobody_waiting(here: Node, limit: bool) -> None:
    here.bind(1, 0)
    wide = json.dumps({"0": {"0": 9999, "1": 9999}})
    edited(here, "u1", **{names.ASSIGNED: "true", names.ALLOCATION: wide})
    if not limit:
        here.objects["u1"]["spec"]["containers"] = [{"name": "c"}]
    here.objects["u1"]["status"]["phase"] = "Running"
    here.bind(14, 0)
    here.bind(15, 1)
    here.start_container("u2")
    here.start_container("u3")
    assert here.running.keys() == {"u2", "u3"}


def test_a_pod_that_runs_keeps_the_gpu_it_was_admitted_to(here: Node) -> None:
    here.bind(2, 0)
    here.start_container("u1")
    for edit in ({names.IDX: "1"}, {names.ALLOCATION: json.dumps({"0": {"0": 1, "1": 1}})}):
        edited(here, "u1", **edit)
        with pytest.raises(UsageError, match="was admitted to 2 units of GPU 0"):
            here.runner.run(here.admission.admit(here.assignment("u1"), here.now_s))
        here.admission = here.started()
    here.bind(15, 1)
    here.start_container("u2")
    assert "u2" in here.running


def test_the_record_follows_annotations_only_where_we_correct_them(here: Node) -> None:
    here.bind(2, 0)
    here.start_container("u1")
    edited(here, "u1", **{names.IDX: "1"})
    here.runner.run(here.admission.refresh())
    assert here.admission.allocated["u1"].units == {0: 2}
    here.runner.run(here.admission.refresh(follow=True))
    assert here.admission.allocated["u1"].units == here.started().allocated["u1"].units == {1: 2}


def orphaned(node: Node) -> None:
    """A deleted pod runs on with 15 units of GPU 0, and the plugin comes back without its record."""
    node.bind(15, 0)
    node.start_container("u1")
    del node.objects["u1"]
    node.bind(8, 0)
    node.bind(8, 0)
    node.admission.file.path.unlink()


def test_all_that_come_while_orphans_are_looked_for_wait_for_what_is_found(here: Node) -> None:
    orphaned(here)
    here.admission = here.started()

    def slow(uid: str) -> str:
        time.sleep(0.05)
        return here.cgroups.get(uid, BUSY)

    here.admission.cgroups.state = slow  # type: ignore[method-assign]
    found = here.runner.run(here.admitted(["u2", "u3"]))
    assert all(isinstance(error, WorldError) and "15 of 15" in str(error) for error in found), found


def test_orphans_are_looked_for_until_the_kubelets_checkpoint_can_be_read(here: Node) -> None:
    orphaned(here)
    read, fails = here.checkpoint, 3

    def checkpoint() -> Any:
        nonlocal fails
        fails -= 1
        if fails >= 0:
            raise WorldError("the kubelet's checkpoint cannot be read")
        return read()

    here.checkpoint = checkpoint  # type: ignore[method-assign]
    here.admission = here.started()
    here.runner.run(here.admission.refresh())
    for why in ("checkpoint cannot be read", "15 of 15"):
        with pytest.raises(WorldError, match=why):
            here.runner.run(here.admission.admit(here.assignment("u2"), here.now_s))


@pytest.mark.parametrize("lose", ["remove", "damage"])
def test_an_orphan_is_known_to_the_run_after_the_one_that_found_no_record(here: Node, lose: str) -> None:
    """The first of them ends before the API server has shown it the pods, and meanwhile the kubelet forgets the orphan."""
    here.bind(15, 0)
    here.bind(8, 0)
    here.bind(2, 1)
    here.start_container("u1")
    here.start_container("u3")
    del here.objects["u1"]
    here.restart_plugin(lose=lose)
    here.admission.pods.reflector.synced.is_set = lambda: False  # type: ignore[method-assign]
    here.start_container("u2")
    here.kubelet_allocates()
    here.restart_plugin(lose="")
    here.refresh()
    assert here.admission.orphans["u1"].units == {0: 15}
    here.start_container("u2")
    assert "u2" not in here.running
    record = here.admission.file.load()
    assert record.allocated == here.admission.allocated and not record.candidates


def test_a_pod_of_the_checkpoint_that_is_not_deleted_is_no_orphan(here: Node) -> None:
    """Nor one that has exited; and what such a pod has is read from its object, not from its device ids."""
    for gpu in (0, 0, 1):
        here.bind(5, gpu)
        here.start_container(f"u{here.count}")
    del here.objects["u1"]
    here.restart_plugin(lose="remove")
    assert here.admission.file.load().candidates.keys() == {"u1", "u2", "u3"} and not here.admission.allocated
    del here.running["u1"]
    here.cgroups["u1"] = IDLE
    here.restart_plugin(lose="")
    edited(here, "u3", **{names.IDX: "0"})
    here.refresh()
    assert {uid: one.units for uid, one in here.started().allocated.items()} == {"u2": {0: 5}, "u3": {0: 5}}
    assert not here.admission.orphans and not here.admission.file.load().candidates


def test_what_an_orphan_was_admitted_with_counts_more_than_its_device_ids(here: Node) -> None:
    admitted, by_ids = (PodAllocation("u1", "default/p1", {gpu: 5}) for gpu in (1, 0))
    here.admission.file.save([admitted], [by_ids])
    here.cgroups["u1"] = BUSY
    here.restart_plugin(lose="")
    here.refresh()
    assert here.admission.orphans == here.admission.file.load().allocated == {"u1": admitted}


def test_ids_of_another_plugin_leave_the_record_readable(here: Node) -> None:
    here.checkpoint = lambda: (CheckpointEntry("old", "c", frozenset({"GPU-8f6a-_-0", "1-0"})),)  # type: ignore[method-assign]
    here.cgroups["old"] = BUSY
    for _ in range(2):
        here.admission = here.started()
        here.runner.run(here.admission.refresh())
        assert here.admission.file.load().allocated["old"].units == here.admission.orphans["old"].units == {1: 1}


def test_a_record_that_cannot_be_written_at_the_start_is_written_later(
    here: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphaned(here)
    with monkeypatch.context() as full:
        full.setattr(allocation_file, "write_whole", Mock(side_effect=OSError(errno.ENOSPC, "full")))
        here.admission = here.started()
        here.runner.run(here.admission.refresh())
        assert not here.admission.file.path.exists()
    here.refresh()
    assert here.admission.file.load().allocated["u1"].units == {0: 15}


def test_a_mark_counts_from_when_it_is_seen(here: Node) -> None:
    """Also of a pod that another plugin gave its GPU to since the last look."""
    here.bind(1, 1)
    here.bind(15, 0)
    here.bind(15, 0)
    here.start_container("u1")
    edited(here, "u2", **{names.ASSIGNED: "true"})
    with pytest.raises(WorldError, match="15 of 15 are allocated to default/p2"):
        here.runner.run(here.admission.admit(here.assignment("u3"), here.now_s))


@pytest.mark.parametrize("forced", [True, False])
def test_a_pod_that_is_deleted_while_it_waits_is_let_go(here: Node, forced: bool) -> None:
    here.bind(15, 0)
    here.bind(15, 0)
    here.start_container("u1")

    async def scene() -> None:
        waiting = asyncio.create_task(here.admission.admit(here.assignment("u2"), here.now_s + 1000))
        await asyncio.sleep(POLL_S / 10)
        if forced:
            del here.objects["u2"]
        else:
            here.objects["u2"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        del here.running["u1"], here.objects["u1"], here.cgroups["u1"]
        with pytest.raises(PodGone):
            await waiting

    here.runner.run(scene())
    assert "u2" not in here.admission.allocated


pod_processes = pytest.mark.processes


async def edit(found: Plugged, name: str, notes: dict[str, str]) -> None:
    await found.api.change("pods", "default", name, {"metadata": {"annotations": notes}})
    objects = found.plugin_service.plugin.pods.reflector.objects
    async with asyncio.timeout(10):
        while not objects[f"uid-{name}"]["metadata"]["annotations"].items() >= notes.items():
            await asyncio.sleep(0.01)


@pod_processes
def test_annotations_that_do_not_fit_the_limits_are_refused_with_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)

    async def scene() -> None:
        async with plugged() as found:
            await found.ready()
            one = assumed("liar", 15, at=1)
            await found.create(one)
            await found.kubelet.admit(one)
            await edit(found, "liar", {names.POD: "1"})
            why = await refused(found, "liar")
            assert "(1 on GPU 0) than its limits ask for (15 on 1 GPU)" in why
            assert [event["message"] for event in found.warnings()] == [why]
            assert not list(found.plugin_service.settings.cdi.glob("*.json"))

    run(scene)


@pod_processes
def test_a_restarted_container_gets_no_other_gpu_than_its_pod_was_admitted_to(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)

    async def scene() -> None:
        async with plugged() as found:
            await found.ready()
            await started(found, "runs", 2)
            await found.api.change("pods", "default", "runs", {"status": {"phase": "Running"}}, status=True)
            await edit(found, "runs", {names.IDX: "1"})
            with pytest.raises(grpc.aio.AioRpcError, match="was admitted to 2 units of GPU 0"):
                await found.kubelet.start_container("uid-runs", "c0")
            await edit(found, "runs", {names.IDX: "0"})
            made = await found.kubelet.start_container("uid-runs", "c0")
            assert found.env(made.cdi[0])[names.VISIBLE] == "GPU-fake-0000"

    run(scene)
