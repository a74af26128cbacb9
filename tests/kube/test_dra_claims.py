"""Claims as they come, and as nobody should write them: each has its own error, and none gets more than it was given."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kube.driving import NODE, POD, claim, pod, result
from tidewright.base.errors import UsageError, WorldError
from tidewright.kube.client.api import KubeClient
from tidewright.kube.client.credentials import Cluster
from tidewright.kube.dra.claims import (
    AllocatedDevice,
    ClaimRecords,
    PreparedClaim,
    cooperates,
    given_by,
    trim_pod,
    uses,
)
from tidewright.kube.dra.preparer import KIND, PREFIX, ClaimPreparer
from tidewright.kube.dra.protocol import DRIVER, messages
from tidewright.kube.isolation.isolation_levels import Cooperative
from tidewright.kube.isolation.ladder import IsolationLadder, Tenant
from tidewright.kube.node.cdi import CdiFiles
from tidewright.kube.node.partitions import FakePartitions
from tidewright.kube.objects import names
from tidewright.testing.kube_api import FakeApi

from ..sizes import examples


@pytest.mark.parametrize(("wrong", "match"), [
    (claim("a", result("gpu-0", "1Gi"), uid="other"), "another one now"),
    ({"metadata": {"uid": "u"}, "status": {}}, "not allocated"),
    ({"metadata": {"uid": "u"}}, "not allocated"),
    (claim("a", uid="u"), "no device of gpu.tidewright.io"),
    (claim("a", result("gpu-0", "1Gi", driver="gpu.nvidia.com"), uid="u"), "no device of gpu.tidewright.io"),
    (claim("a", result("gpu-0", "1Gi", pool="elsewhere"), uid="u"), "pool elsewhere"),
    (claim("a", result("gpu-0", adminAccess=True), uid="u"), "adminAccess"),
    (claim("a", result("gpu-0", shareID="s"), uid="u"), "consumedCapacity how much memory"),
    (claim("a", result("gpu-0", "lots"), uid="u"), "no quantity"),
    (claim("a", result("gpu-0", "-1Gi"), uid="u"), "no GPU has"),
    (claim("a", result("gpu-0", "1Ki"), uid="u"), "0 MiB"),
    (claim("a", result("gpu-0", "1Gi", "101"), uid="u"), "101 %"),
    (claim("a", result("gpu-0", "1Gi", "0.5"), uid="u"), "whole number"),
    ({"metadata": {"uid": "u"}, "status": {"allocation": {"devices": {"results": ["x"]}}}}, "cannot be read"),
    ({"metadata": {"uid": "u"}, "status": {"allocation": {"devices": None}}}, "cannot be read"),
    ({"metadata": {"uid": "u"}, "status": {"allocation": "gpu-0"}}, "cannot be read"),
    (claim("a", {"driver": DRIVER}, uid="u"), "cannot be read"),
])  # fmt: skip
def test_claims_that_give_nothing(wrong: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match) as refused:
        given_by(wrong, "u", NODE)
    assert refused.value.remedy


@pytest.mark.parametrize("taken", [{"memory": "1Gi"}, {"memory": "1Gi", "smPercent": "0"}])
def test_a_claim_that_says_nothing_of_multiprocessors_has_no_limit(taken: dict[str, str]) -> None:
    given = given_by(claim("a", result("gpu-0", shareID="s", consumedCapacity=taken), uid="u"), "u", NODE)
    assert [(one.mib, one.percent) for one in given.results] == [(1024, 0)]


JUNK = st.sampled_from([
    None, True, -1, 0, 1.5, "", "x", "1Gi", [], ["memory", "smPercent"], {}, {"memory": "x"}, {"memory": [], "smPercent": 5},
])  # fmt: skip
FIELDS = st.sampled_from(["driver", "pool", "device", "request", "shareID", "consumedCapacity", "adminAccess"])


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.dictionaries(FIELDS, JUNK, max_size=3) | JUNK, max_size=3), JUNK, JUNK)
def test_whatever_a_claim_says_it_is_given_or_refused(odd: list[Any], reserved: Any, other: Any) -> None:
    results = [result("gpu-0", "1Gi") | one if isinstance(one, dict) else one for one in odd]
    for said in ({"devices": {"results": results}}, {"devices": other}, other):
        strange = {"metadata": {"uid": "u"}, "status": {"allocation": said, "reservedFor": reserved}}
        try:
            found = given_by(strange, "u", NODE)
        except UsageError:
            continue
        assert all(one.mib or not one.share for one in found.results)


def test_pods_of_a_claim_by_their_own_words() -> None:
    held = PreparedClaim("u", "default", "a", (), ())
    assert uses(pod("p", "1", "a"), held) and not uses(pod("p", "1", "b"), held)
    assert not uses({**pod("p", "1", "a"), "status": {"phase": "Succeeded"}}, held)
    assert not uses(pod("p", "1", "a"), PreparedClaim("u", "other", "a", (), ()))
    named = {
        "metadata": {"namespace": "default"},
        "spec": {"resourceClaims": [{"name": "x", "resourceClaimName": "a"}]},
    }
    assert uses(named, held)
    extended = {
        "metadata": {"namespace": "default"},
        "status": {"extendedResourceClaimStatus": {"resourceClaimName": "a"}},
    }
    for one in (pod("p", "1", "a"), named, extended):
        kept = trim_pod(one)
        assert kept is not None and uses(kept, held)
    assert trim_pod({"metadata": {}, "spec": {}}) is None


def test_frameworks_listen_for_a_claim_that_was_made_for_their_pod() -> None:
    """The claim's file is for every pod that comes: one that did not say ``torch`` may not start with the variable."""
    held = PreparedClaim("u", "default", "a", (POD,), ())
    says = pod("p", POD, "a")
    says["metadata"]["annotations"] = {names.COOPERATES: "torch, jax", "other": "x"}
    kept = trim_pod(says)
    assert kept is not None and kept["metadata"]["annotations"] == {names.COOPERATES: "torch, jax"}
    silent = pod("q", "other", "b")
    assert cooperates([silent, kept], held) == {"torch", "jax"}
    assert not cooperates([silent], held)
    assert not cooperates([kept], PreparedClaim("u", "elsewhere", "a", (POD,), ()))
    assert not cooperates([kept], PreparedClaim("u", "default", "a", ("another",), ())), "of that name before"
    kept["status"] = {"phase": "Pending"}
    kept["spec"]["resourceClaims"] = [{"name": "x", "resourceClaimName": "a"}]
    assert uses(kept, held) and not cooperates([kept], held), "other pods may come to share it"


def test_what_is_written_down_comes_back_and_garbage_does_not(tmp_path: Path) -> None:
    records = ClaimRecords(tmp_path / "claims")
    assert records.load() == {}
    held = PreparedClaim(
        "u", "default", "a", (POD,), (AllocatedDevice("gpu", "gpu-0", "s", 7, 40), AllocatedDevice("b", "gpu-1"))
    )
    records.put(held)
    for name, text in (
        ("x.json", "{"),
        ("y.json", "[]"),
        ("z.json", '{"results": [{}]}'),
        ("w.json", '{"results": 1}'),
    ):
        (records.folder / name).write_text(text)
    (records.folder / ".part-x").write_text("of a run that was killed")
    assert records.load() == {"u": held}
    assert not (records.folder / ".part-x").exists()
    records.drop("u")
    records.drop("u")
    assert records.load() == {}
    with pytest.raises(WorldError, match="cannot be written down"):
        ClaimRecords(records.folder / "x.json").put(held)


@asynccontextmanager
async def preparing(
    root: Path, spec: str = "2x16+1x80mig"
) -> AsyncIterator[tuple[FakeApi, ClaimPreparer, FakePartitions]]:
    """A driver without sockets."""
    gpus = FakePartitions(spec)
    async with FakeApi().served() as api, KubeClient(Cluster(api.url)) as client:
        ladder = IsolationLadder(gpus.found(), [Seen()])
        ladder.select()
        cdi_files, records = CdiFiles(root / "cdi", KIND, PREFIX), ClaimRecords(root / "claims")
        yield (
            api,
            ClaimPreparer(client, NODE, gpus.found(), gpus, ladder, cdi_files, records, lambda text: None, tuple),
            gpus,
        )


class Seen(Cooperative):
    """Keeps whom it was asked to isolate, and which limits pods have. ``gate``: what the first limit waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.tenants: list[Tenant] = []
        self.limits: dict[str, dict[int, int]] = {}
        self.begun, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def edits(self, tenant: Tenant) -> Any:
        self.tenants.append(tenant)
        return super().edits(tenant)

    def hold(self, uid: str, mib: Mapping[int, int]) -> None:
        if not self.begun.is_set():
            self.begun.set()
            self.gate.wait(10)
        self.limits[uid] = dict(mib)


async def ask(preparer: ClaimPreparer, *claims: dict[str, Any], uid: str = "") -> list[Any]:
    """NodePrepareResources; the answers in order."""
    kinds = messages()[1]
    asked = [
        kinds.Claim(namespace="default", name=one["metadata"]["name"], uid=uid or one["metadata"]["uid"])
        for one in claims
    ]
    answer = await preparer.methods()["NodePrepareResources"](kinds.NodePrepareResourcesRequest(claims=asked), None)
    return [answer.claims[one.uid] for one in asked]


@pytest.mark.processes
def test_one_bad_claim_does_not_spoil_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with preparing(tmp_path) as (api, preparer, _):
            claims = [
                claim("good", result("gpu-0", "4Gi"), uid="good"),
                claim("gone", result("gpu-0", "4Gi"), uid="gone"),
                claim("unknown", result("gpu-7", "4Gi"), uid="unknown"),
                claim("whole", result("gpu-1"), uid="whole"),
                claim("huge", result("gpu-1", "17Gi"), uid="huge"),
                claim("path", result("gpu-0", "1Gi"), uid="../../etc/x"),
            ]
            for one in claims:
                if one["metadata"]["name"] != "gone":
                    await api.create("resourceclaims", one)
            answers = await ask(preparer, *claims)
            assert not answers[0].error and len(answers[0].devices) == 1
            words = ("is gone", "has no device gpu-7", "does not say how much", "17408 MiB", "no uid of a claim")
            for answer, word in zip(answers[1:], words, strict=True):
                assert word in answer.error and "; " in answer.error and not answer.devices
            [other] = await ask(preparer, claims[0], uid="stale")
            assert "another one now" in other.error
            assert [path.name for path in (tmp_path / "cdi").iterdir()] == [f"{PREFIX}good.json"]
            assert set(preparer.records.load()) == {"good"}

    asyncio.run(main())


@pytest.mark.processes
def test_a_mistake_of_ours_is_one_claims_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with preparing(tmp_path) as (api, preparer, _):
            said: list[str] = []
            monkeypatch.setattr(preparer, "log", said.append)
            claims = [claim(name, result("gpu-0", "1Gi"), uid=name) for name in ("good", "bad")]
            for one in claims:
                await api.create("resourceclaims", one)
            real = preparer.cdi_files.put

            def put(name: str, devices: Any) -> None:
                if name == "bad":
                    raise ZeroDivisionError("by nought")
                real(name, devices)

            monkeypatch.setattr(preparer.cdi_files, "put", put)
            for _ in range(2):
                good, bad = await ask(preparer, *claims)
                assert not good.error and len(good.devices) == 1
                assert "ZeroDivisionError: by nought" in bad.error and not bad.devices
            assert len([text for text in said if "Traceback" in text and "in put" in text]) == 1, "the place, once"
            monkeypatch.setattr(preparer.cdi_files, "put", real)
            assert not (await ask(preparer, claims[1]))[0].error
            kinds = messages()[1]
            odd: dict[str, str] = {"good": ""}
            monkeypatch.setattr(preparer.records, "drop", lambda uid: odd[uid])
            back = kinds.NodeUnprepareResourcesRequest(
                claims=[kinds.Claim(namespace="default", name=uid, uid=uid) for uid in ("bad", "good")]
            )
            answer = (await preparer.methods()["NodeUnprepareResources"](back, None)).claims
            assert "KeyError" in answer["bad"].error and not answer["good"].error

    asyncio.run(main())


@pytest.mark.processes
def test_the_kubelet_is_told_the_request_and_not_which_alternative_it_was(tmp_path: Path) -> None:
    async def main() -> None:
        async with preparing(tmp_path) as (api, preparer, _):
            first = claim(
                "a", result("gpu-0", "1Gi", request="gpu/large"), result("gpu-1", "1Gi", request="b"), uid="a"
            )
            await api.create("resourceclaims", first)
            [answer] = await ask(preparer, first)
            assert [list(one.request_names) for one in answer.devices] == [["gpu"], ["b"]]

    asyncio.run(main())


@pytest.mark.processes
def test_a_new_claim_takes_nothing_off_the_limit_of_a_pod_that_joined_another(tmp_path: Path) -> None:
    """The kubelet says nothing when a pod joins a claim that is prepared already: the pod says so itself."""

    async def main() -> None:
        async with preparing(tmp_path) as (api, preparer, _):
            shared = claim("shared", result("gpu-0", "4Gi"), uid="shared", pods=("first",))
            own = claim("own", result("gpu-0", "1Gi"), uid="own")
            for one in (shared, own):
                await api.create("resourceclaims", one)
            preparer.pods = lambda: iter([pod("p", POD, "own", "shared")])
            for one in (shared, own):
                assert not (await ask(preparer, one))[0].error
            level = preparer.ladder.memory
            assert isinstance(level, Seen)
            assert level.limits == {"first": {0: 4 << 10}, POD: {0: 5 << 10}}

    asyncio.run(main())


@pytest.mark.processes
def test_a_look_that_takes_its_time_writes_no_old_limit_over_a_new_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with preparing(tmp_path) as (api, preparer, _):
            level = preparer.ladder.memory
            assert isinstance(level, Seen)
            for name in ("one", "two"):
                await api.create("resourceclaims", claim(name, result("gpu-0", "1Gi"), uid=name))
            level.begun.set()
            assert not (await ask(preparer, claim("one", uid="one")))[0].error
            level.begun.clear()
            level.gate.clear()
            looking = asyncio.create_task(preparer.hold_all())
            await asyncio.to_thread(level.begun.wait, 10)
            asking = asyncio.create_task(ask(preparer, claim("two", uid="two")))
            await asyncio.wait([asking], timeout=0.3)  # a claim that overtakes has time enough for it
            level.gate.set()
            await looking
            assert not (await asking)[0].error and level.limits == {POD: {0: 2 << 10}}

    asyncio.run(main())


@pytest.mark.processes
def test_a_claim_of_several_devices_has_one_environment(tmp_path: Path) -> None:
    """Parts of one GPU count together, in the order in which a program sees GPUs; every CDI device says the same."""

    async def main() -> None:
        async with preparing(tmp_path) as (api, preparer, _):
            several = claim(
                "a", result("gpu-1", "8Gi", "60", request="b"), result("gpu-0", "2Gi", "20"),
                result("gpu-0", "2Gi", "20", request="c"), result("gpu-2-mig-5-0-4", request="d"), uid="a",
            )  # fmt: skip
            await api.create("resourceclaims", several)
            [answer] = await ask(preparer, several)
            assert [list(one.request_names) for one in answer.devices] == [["b"], ["gpu"], ["c"], ["d"]]
            level = preparer.ladder.memory
            assert isinstance(level, Seen)
            [tenant] = level.tenants
            shown = [(grant.gpu.uuid, grant.mib) for grant in tenant.grants]
            part = ("MIG-fake-gpu-2-mig-5-0-4", 40 << 10)
            assert shown == [("GPU-fake-0000", 4 << 10), ("GPU-fake-0001", 8 << 10), part]
            assert (tenant.uid, tenant.percent) == (POD, 40), "of 40 and 60 the lesser, for there is one variable"
            found = json.loads((tmp_path / "cdi" / f"{PREFIX}a.json").read_text())
            assert [f"{found['kind']}={one['name']}" for one in found["devices"]] == [
                one.cdi_device_ids[0] for one in answer.devices
            ]
            [edits] = {json.dumps(one["containerEdits"]) for one in found["devices"]}
            env = dict(one.split("=", 1) for one in json.loads(edits)["env"])
            assert env[names.VISIBLE].split(",") == [uuid for uuid, _ in shown]
            assert preparer.holdings() == {(POD, 0): 4 << 10, (POD, 1): 8 << 10}

    asyncio.run(main())


@pytest.mark.processes
def test_a_part_that_another_claim_still_has_is_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with preparing(tmp_path) as (api, preparer, gpus):
            first, second = (claim(name, result("gpu-2-mig-5-0-4"), uid=name) for name in ("first", "second"))
            crossing = claim("crossing", result("gpu-2-mig-9-0-4"), uid="crossing")
            for one in (first, second, crossing):
                await api.create("resourceclaims", one)
            answers = await ask(preparer, first, second, crossing)
            assert [bool(one.error) for one in answers] == [False, True, True]
            assert "still prepared for claim default/first" in answers[1].error and "overlaps" in answers[2].error
            gpus.stuck = "a program uses it"
            kinds = messages()[1]
            back = kinds.NodeUnprepareResourcesRequest(
                claims=[kinds.Claim(namespace="default", name="first", uid="first")]
            )
            spare_victims = preparer.methods()["NodeUnprepareResources"]
            assert "a program uses it" in (await spare_victims(back, None)).claims["first"].error
            gpus.stuck = ""
            (tmp_path / "cdi" / f"{PREFIX}odd.json").mkdir()
            assert "cannot be removed" in (await spare_victims(back, None)).claims["first"].error
            (tmp_path / "cdi" / f"{PREFIX}odd.json").rmdir()
            assert not (await spare_victims(back, None)).claims["first"].error
            assert not (await ask(preparer, second))[0].error

    asyncio.run(main())
