"""What the doctor asks of an API server is answered by the fake as by a real one."""

from __future__ import annotations

import asyncio

import pytest

from tests.kube.test_real import WHERE, ground
from tidewright.app.kube.doctor import collect
from tidewright.kube.client import timestamps
from tidewright.kube.doctor import examine as doctor
from tidewright.kube.doctor import pods as doctor_pods

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("where", WHERE)
def test_everything_is_listed_and_events_are_found_by_their_pod(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_pods, "SILENT_S", -1.0)
    monkeypatch.setattr("tidewright.app.kube.doctor.MOST_PODS", 1000)

    async def main() -> None:
        async with ground(where) as found:
            quiet, heard = await found.pod(), await found.pod()
            meta = heard["metadata"]
            about = {"kind": "Pod", "name": meta["name"], "namespace": "default", "uid": meta["uid"]}
            event = {"metadata": {"name": found.name()}, "involvedObject": about, "reason": "Tried", "type": "Warning",
                     "lastTimestamp": timestamps.now()[:19] + "Z"}  # fmt: skip
            await found.post("/api/v1/namespaces/default/events", event)
            facts = await collect(found.api)
            assert facts.unread == () and facts.services is not None and facts.slices is not None
            assert facts.has_events[meta["uid"]] and facts.has_events[quiet["metadata"]["uid"]] is False
            [said] = [one for one in doctor_pods.unscheduled(facts) if "schedulerName tidewright-test" in one.text]
            assert quiet["metadata"]["name"] in said.text and meta["name"] not in said.text
            assert {one.what for one in doctor.examine(facts)} >= {"version", "dra", "bypassed"}

    asyncio.run(main())
