"""What anybody may write into the API server: it is refused and said, and all else goes on. What ends, ends loudly."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kube.extending import Extending, extending, until
from tests.kube.objects import node, placed, pod
from tidewright.base.errors import UsageError
from tidewright.kube.allocation.pool import Pool
from tidewright.kube.client.credentials import Cluster
from tidewright.kube.client.lease import Lease
from tidewright.kube.extender.server import ExtenderService, ExtenderSettings
from tidewright.kube.objects import names
from tidewright.kube.objects.gpu_inventory import GpuInfo, publish, read_gpu_inventory, unhealthy_of
from tidewright.kube.objects.heartbeat import read
from tidewright.kube.objects.pod_request import MOST_UNITS, read_gpu_assignment, read_pod_request
from tidewright.testing.kube_api import FakeApi

MOST = 2**53 - 1
HUGE = json.dumps({str(at): {"0": MOST} for at in range(1100)})
MANY_DIGITS = "9" * 5000
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([MOST, "-1", "0", "k"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["0", "1", "7", "x", ""]), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
WORDS = st.sampled_from([names.IDX, names.POD, names.ALLOCATION, names.NODE, names.ASSIGNED])
TEXT = st.text(max_size=6) | JSON.map(json.dumps) | st.sampled_from(["", "0", "3", "-1", "n", "[" * 100_000, HUGE])


@given(st.dictionaries(WORDS, TEXT | JSON), st.sampled_from(["", "n"]))
def test_whatever_the_annotations_it_is_a_holding_or_refused(notes: Any, at: str) -> None:
    with suppress(UsageError):
        held = read_gpu_assignment(pod(node=at, notes=notes))
        pool = Pool()
        pool.set_node(read_gpu_inventory(node("n")))
        if held is not None:
            assert all(0 < units <= MOST_UNITS or not units for units in held.units.values())
            pool.hold(held)
            pool.release(held.uid)
        assert pool.free_of("n") == {0: 15, 1: 15}


FIELDS = st.sampled_from(
    ["nodeName", "priority", "phase", "uid", "name", "namespace", "annotations", names.IDX, names.POD]
)
OBJECT = st.dictionaries(FIELDS, JSON | st.fixed_dictionaries({names.IDX: TEXT, names.POD: TEXT}), max_size=5)


@given(JSON | st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), JSON | OBJECT))
def test_whatever_the_pod_it_is_a_holding_or_refused(value: Any) -> None:
    with suppress(UsageError):
        read_gpu_assignment(value)


@pytest.mark.parametrize(
    "notes",
    [
        {names.ALLOCATION: ""},
        {names.ALLOCATION: "", names.POD: "4"},
        {names.IDX: "", names.POD: "4"},
        {names.ALLOCATION: HUGE},
        {names.IDX: "0", names.POD: str(MOST)},
    ],
)
def test_a_gpu_that_is_not_named_or_cannot_be_is_refused(notes: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        read_gpu_assignment(pod(node="n", notes=notes))


def test_more_than_any_gpu_has_cannot_be_asked_for_or_published() -> None:
    with pytest.raises(UsageError, match="more than any GPU has"):
        read_pod_request(pod(mem=MOST_UNITS + 1))
    assert read_pod_request(pod(mem=2 * MOST_UNITS, count=2)).units == MOST_UNITS
    for absurd in (GpuInfo(0, MOST, whole=True), GpuInfo(0, 1, foreign=MOST)):
        assert not read_gpu_inventory(node(annotations={names.TABLE: publish((absurd,))})).ready
    assert not read_gpu_inventory(node(mem=MOST)).ready


def test_numbers_of_many_digits_are_passed_over() -> None:
    assert unhealthy_of({"data": {"gpus": f"1,{MANY_DIGITS}"}}) == {1}
    assert read(json.dumps({"registered": True, "at": "", "every_s": 10**400})) is None


@pytest.mark.processes
def test_one_object_that_cannot_be_read_keeps_no_other_from_being_read() -> None:
    async def main() -> None:
        async with FakeApi().served() as api:
            await api.create("nodes", node("n"))
            async with extending(api) as extender:
                for at, notes in enumerate(({names.ALLOCATION: ""}, {names.ALLOCATION: HUGE})):
                    await api.create("pods", pod(f"odd{at}", 4, node="n", notes=notes))
                heartbeat = json.dumps({"registered": True, "at": "", "every_s": 10**400})
                inventory = publish((GpuInfo(0, 15), GpuInfo(1, 15)))
                odd = {names.TABLE: inventory, names.PLUGIN: heartbeat}
                await api.create("nodes", node("odd", annotations=odd))
                meta = {"name": "unhealthy-gpu-n", "namespace": "kube-system"}
                await api.create("configmaps", {"metadata": meta, "data": {"gpus": MANY_DIGITS}})
                await api.create("pods", placed("good", "n", 0, 5))
                await api.create("nodes", node("late"))
                await until(
                    lambda: extender.pool.free_of("n") == {0: 10, 1: 15} and "late" in extender.pool.inventories
                )
                assert {line.split(":")[0] for line in extender.logged if "default/odd" in line} == {
                    "pod default/odd0", "pod default/odd1",
                }  # fmt: skip
                assert (await extender.get("/readyz"))[0] == 200

    asyncio.run(main())


@pytest.mark.processes
def test_a_reservation_whose_pod_cannot_be_read_is_kept_and_the_others_are_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidewright.kube.extender.handler.RESERVED_S", 0.3)
    monkeypatch.setattr("tidewright.kube.extender.leader_election.SWEEP_S", 0.05)
    monkeypatch.setattr("tidewright.kube.extender.binder.PATIENCE_S", 0.0)

    async def main() -> None:
        async with FakeApi().served() as api:
            await api.create("nodes", node("n"))
            async with extending(api) as extender:
                odd, lost = [await api.create("pods", pod(name, 4)) for name in ("odd", "lost")]
                api.mischief.decide = lambda method, path: "before" if path.endswith("/binding") else ""
                monkeypatch.setattr("tidewright.kube.extender.binder.Binder._after", _nothing)
                assert await extender.bind(odd, "n") and await extender.bind(lost, "n")
                await api.change("pods", "default", "odd", {"metadata": {"annotations": {names.IDX: ""}}})
                api.store.put("pods", api.store.objects["pods", "default", "odd"] | _bound_to("n"), "MODIFIED")
                await until(lambda: "uid-lost" not in extender.pool.held)
                await until(lambda: any("stays reserved" in line for line in extender.logged))
                assert "uid-odd" in extender.pool.held
                assert (await extender.get("/readyz"))[0] == 200

    asyncio.run(main())


async def _nothing(*_: object) -> str:
    return "refused"


def _bound_to(name: str) -> dict[str, Any]:
    return {"spec": {**pod(mem=4)["spec"], "nodeName": name}}


@pytest.mark.processes
@pytest.mark.parametrize(
    "part", ["extender.cluster_cache.ClusterCache._listen", "extender.leader_election._sweep", "client.lease.Lease.run"]
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_replica_of_which_a_part_ends_leads_no_more_and_fails(
    part: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``when``: it has read the cluster."""

    async def main() -> None:
        broken = asyncio.Event()
        monkeypatch.setattr(f"tidewright.kube.{part}", _breaking(part, broken))
        async with FakeApi().served() as api:
            await api.create("nodes", node("n"))
            said: list[str] = []
            service = ExtenderService(Cluster(api.url), ExtenderSettings(port=0), said.append)
            running = asyncio.create_task(service.run())
            await service.listening.wait()
            async with aiohttp.ClientSession() as session:
                if when == "before":
                    broken.set()
                else:
                    found = Extending(service, session, said)
                    await found.ready()
                    assert (await found.get("/readyz"))[0] == 200
                    broken.set()
                with pytest.raises((LookupError, ExceptionGroup)):
                    async with asyncio.timeout(20):
                        await running
            assert service.extender.cluster_cache is None
            assert any("a part of it failed" in line and "on purpose" in line for line in said)
            lease = api.store.objects.get(("leases", "kube-system", "tidewright-extender"))
            assert lease is None or lease["spec"]["holderIdentity"] == ""

    asyncio.run(main())


def _breaking(part: str, broken: asyncio.Event) -> Any:
    run = Lease.run

    async def breaks(*given: Any) -> None:
        going = asyncio.ensure_future(run(given[0]) if part == "client.lease.Lease.run" else asyncio.Event().wait())
        try:
            await broken.wait()
            raise LookupError("on purpose")
        finally:
            going.cancel()

    return breaks
