"""What the doctor says of schedulers that cannot place a pod: wrong Services, Leases without a holder, missing rights."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kube.kustomized import composed
from tests.kube.objects import node, pod
from tests.kube.rights import granted, missing
from tests.kube.test_command import kubeconfig, tide
from tests.kube.test_doctor import (
    EXTENDER_ACCOUNT,
    NOW_S,
    config,
    endpoints,
    facts,
    lease,
    levels,
    only,
    server,
    service,
    sound,
)  # fmt: skip
from tidewright.app.kube import doctor as kube_doctor
from tidewright.app.kube.doctor import collect
from tidewright.kube.client import timestamps
from tidewright.kube.client.api import KubeClient
from tidewright.kube.client.credentials import Cluster
from tidewright.kube.doctor import elections as doctor_leader
from tidewright.kube.doctor import examine as doctor
from tidewright.kube.doctor import pods as doctor_pods
from tidewright.kube.doctor import scheduler as doctor_scheduler
from tidewright.kube.doctor.facts import EXTENDER_RIGHTS, PLUGIN_RIGHTS, ROLES, AccessRight, role_of
from tidewright.kube.objects import names
from tidewright.testing.kube_api import FakeApi

DEPLOY = Path(__file__).parents[2] / "deploy" / "kubernetes"
NOW, LONG_AGO, LATER = "2023-11-14T22:13:20.000000Z", "2023-11-14T21:00:00.000000Z", "2023-11-14T23:00:00.000000Z"
"""NOW is NOW_S."""
OWN = ("kube-system", "kube-scheduler")
SECOND = ("kube-system", "tidewright-scheduler")
SCHEDULER_ACCOUNT = "system:serviceaccount:kube-system:tidewright-scheduler"


def asked_at(prefix: str, **more: Any) -> Any:
    """What is found in a scheduler with this urlPrefix."""
    there = {
        "services": (service(type="NodePort", ports=[{"name": "http", "port": 12345, "nodePort": 32766}]),),
        "slices": (endpoints(),),
    }
    return doctor_scheduler.scheduler(facts(maps=(config(urlPrefix=prefix),), **(there | more)))


@pytest.mark.parametrize(
    "host",
    [
        "tidewright-extender:12345", "tidewright-extender.kube-system:12345", "tidewright-extender.kube-system.svc:12345",
        "tidewright-extender.kube-system.svc.cluster.local.:12345", "10.96.0.9:12345", "127.0.0.1:32766", "localhost:32766",
        "[::1]:32766", "192.0.2.7:32766", "gpu-node:32766",
    ],
)  # fmt: skip
def test_all_ways_to_name_the_extender(host: str) -> None:
    there = node("gpu-node")
    there["status"]["addresses"] = [
        {"type": "InternalIP", "address": "192.0.2.7"},
        {"type": "Hostname", "address": "gpu-node"},
    ]
    assert levels(asked_at(f"http://{host}/gpushare-scheduler", nodes=(there,))) == ["ok"]


@pytest.mark.parametrize(
    ("host", "level", "words"),
    [
        ("tidewright-extender.kube-system:12346", "bad", "has no port 12346"),
        ("tidewright-extender.kube-system", "bad", "has no port 80"),
        ("tidewright-extender.kube-systm:12345", "bad", "no Service kube-systm/tidewright-extender"),
        ("tidewright-extendr.kube-system.svc:12345", "bad", "no Service kube-system/tidewright-extendr"),
        ("127.0.0.1:32767", "bad", "no Service has the node port 32767"),
        ("10.96.0.9:32766", "bad", "has no port 32766"),
        ("127.0.0.1:12345", "note", "cannot be seen from here"),
        ("10.96.0.99:12345", "note", "cannot be seen from here"),
        ("extender.example.com:12345", "note", "outside of the cluster"),
        ("[broken", "bad", "is no URL"),
        ("", "bad", "is no URL"),
    ],
)
def test_ways_that_lead_nowhere(host: str, level: str, words: str) -> None:
    assert words in only(asked_at(f"http://{host}/gpushare-scheduler"), level).text


def test_a_service_without_a_ready_endpoint() -> None:
    here = "http://tidewright-extender.kube-system:12345/gpushare-scheduler"
    for slices in ((), (endpoints(ready=False),), (endpoints(port="other"),)):
        assert "no ready endpoint" in only(asked_at(here, slices=slices)).text
    ready, waiting = server("e", "extender"), server("f", "extender", ready=False)
    for one in (ready, waiting):
        one["metadata"]["namespace"] = "kube-system"
    assert "no ready endpoint" in only(asked_at(here, slices=None, pods=(waiting,))).text
    assert levels(asked_at(here, slices=None, pods=(ready,))) == ["ok"]
    assert "does not answer below /gpushare" in only(asked_at(here.removesuffix("-scheduler"))).text
    assert levels(asked_at("http://anything", services=None)) == ["ok"], "Services may not be listed"


@pytest.mark.parametrize(
    "name", ["aliyun.com/gpu_mem", "gpu-mem", "aliyun.com/gpumem", "aliyun.com/gpu-memory", "other.io/mem"]
)
def test_an_extender_that_is_never_asked_about_gpu_memory(name: str) -> None:
    there = {"services": (service(),), "slices": (endpoints(),)}
    found = list(doctor_scheduler.scheduler(facts(maps=(config(managedResources=[{"name": name}]),), **there)))
    assert f"asked about {name}, never about {names.MEM}" in only(found).text
    assert levels(found) == ["bad"]
    hami = config(urlPrefix="https://hami:443", managedResources=[{"name": "nvidia.com/gpumem"}])
    assert levels(doctor_scheduler.scheduler(facts(maps=(hami,)))) == ["note"], "somebody else's"


def second(**election: Any) -> dict[str, Any]:
    """The shipped scheduler's configuration."""
    text = yaml.safe_load((DEPLOY / "overlays" / "second-scheduler" / "config.yaml").read_text())
    text["leaderElection"] |= election
    return {"metadata": {"name": "s", "namespace": "kube-system"}, "data": {"config.yaml": yaml.safe_dump(text)}}


def deployment(
    name: str = "tidewright-scheduler", replicas: int = 2, ready: int = 2, component: str = "scheduler"
) -> dict[str, Any]:
    marks = {"app.kubernetes.io/name": "tidewright", "app.kubernetes.io/component": component}
    template = {
        "metadata": {"labels": marks},
        "spec": {"volumes": [{"name": "c", "configMap": {"name": "s"}}, {"name": "t"}]},
    }
    return {"metadata": {"name": name, "namespace": "kube-system"}, "spec": {"replicas": replicas, "template": template},
            "status": {"readyReplicas": ready}}  # fmt: skip


def leaders(found: dict[str, Any] | None, key: tuple[str, str] = SECOND, **more: Any) -> Any:
    leases = {OWN: lease("kube-scheduler", NOW)} | {key: found}
    return doctor_leader.leaders(facts(**({"maps": (second(),), "leases": leases} | more)))


def test_who_leads() -> None:
    assert levels(leaders(lease("s", NOW))) == ["ok", "ok"]
    assert "has never led" in only(leaders(None)).text
    assert "no process holds Lease kube-system/tidewright-scheduler" in only(leaders(lease("s", NOW, holder=""))).text
    expired = only(leaders(lease("s", "2023-11-14T22:12:40.000000Z")))
    assert "does not lead" in expired.text and "40 s ago" in expired.text
    old = only(leaders(lease("s", LONG_AGO)))
    assert "does not lead" in old.text and "4400 s ago by this machine's clock" in old.text
    assert "ahead" in only(leaders(lease("s", LATER))).text
    assert "at no time" in only(leaders(lease("s", "soon"))).text
    assert levels(leaders(None, maps=(second(leaderElect=False),))) == ["ok"], "it needs none"


def test_clocks_that_differ_are_no_reason_to_worry() -> None:
    found = list(leaders(lease("s", LONG_AGO), renewed=frozenset({SECOND})))
    assert levels(found) == ["ok", "ok", "note"]
    assert "differ by about 4400 s" in found[-1].text


def test_the_clusters_own_scheduler() -> None:
    assert "without leader election" in only(leaders(None, OWN, maps=()), "note").text
    assert "the cluster's own scheduler does not lead" in only(leaders(lease("k", LONG_AGO), OWN, maps=())).text
    assert list(leaders(None, maps=(), leases={})) == [], "it may not be read, which is said elsewhere"


def test_an_extender_that_is_no_pod() -> None:
    key = doctor_leader.EXTENDER_LEASE
    there = facts(leases={key: lease("e", NOW, "laptop")})
    assert "leads: laptop" in only_ok(doctor_scheduler.extender(there))
    assert list(doctor_leader.leaders(there)) == [], "said once"
    for gone in (None, lease("e", LONG_AGO), lease("e", NOW, "")):
        assert "no pod of an extender" in only(doctor_scheduler.extender(facts(leases={key: gone}))).text


def test_extenders_that_no_service_leads_to() -> None:
    pods = (server("e", "extender"),)
    assert levels(doctor_scheduler.extender(facts(pods=pods, services=(service(),)))) == ["ok"]
    for other in (service(selector={"app": "other"}), service(selector=None)):
        assert "no Service selects" in only(doctor_scheduler.extender(facts(pods=pods, services=(other,)))).text


def only_ok(found: Any) -> str:
    [one] = found
    assert one.level == "ok"
    return str(one.text)


def test_odd_configurations_are_read_as_far_as_they_go() -> None:
    text = {
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": ["x"],
        "profiles": {"a": 1},
        "extenders": [None, {"urlPrefix": 7}],
    }
    odd = {"metadata": {"name": "s"}, "data": {"c": json.dumps(text)}}
    assert doctor_leader.elections(facts(maps=(odd,)))[OWN] == "the scheduler of ConfigMap s"
    assert "bad" in levels(doctor_scheduler.scheduler(facts(maps=(odd,), services=())))


def test_deployments_without_pods() -> None:
    maps = (second(),)
    assert levels(doctor_leader.deployments(facts(deployments=(deployment(),)))) == ["ok"]
    gone = only(doctor_leader.deployments(facts(deployments=(deployment(replicas=0, ready=0),))))
    assert "is scaled to 0" in gone.text and "scale deployment tidewright-scheduler" in gone.next
    starting = deployment(ready=0)
    assert "none of the 2 pods" in only(doctor_leader.deployments(facts(deployments=(starting,)))).text
    for since, level in ((NOW, "note"), (LONG_AGO, "bad"), ("", "bad")):
        starting["status"]["conditions"] = [{"type": "Available", "status": "False", "lastTransitionTime": since}]
        assert levels(doctor_leader.deployments(facts(deployments=(starting,)))) == [level]
    own = deployment("mine", 0, component="mine")
    assert "mine is scaled to 0" in only(doctor_leader.deployments(facts(maps=maps, deployments=(own,)))).text
    hook = deployment("tidewright-webhook", 0, component="webhook")
    assert only(doctor_leader.deployments(facts(deployments=(hook,)))).what == "webhook"
    other = deployment("other", 0, component="other")
    assert list(doctor_leader.deployments(facts(deployments=(other,)))) == []
    extender = deployment("tidewright-extender", 0, component="extender")
    assert "tidewright-extender is scaled to 0" in only(doctor_scheduler.extender(facts(deployments=(extender,)))).text


def test_configurations_that_no_pod_reads_are_not_judged() -> None:
    old, new = config(urlPrefix="http://gone.nowhere:1"), second()
    old["metadata"]["name"] = "old"
    there = {"services": (service(),), "slices": (endpoints(),), "deployments": (deployment(),)}
    found = list(doctor_scheduler.scheduler(facts(maps=(old, new), **there)))
    assert levels(found) == ["note", "ok"]
    assert "no pod reads ConfigMap old" in found[0].text


def waiting(name: str = "w", made: str = LONG_AGO, **spec: Any) -> dict[str, Any]:
    found = pod(name, creationTimestamp=made)
    found["spec"] |= spec
    return found


def test_pods_that_no_scheduler_takes() -> None:
    eventless = {"uid-w": False}
    found = only(
        doctor_pods.unscheduled(
            facts(pods=(waiting(schedulerName="tidewright"),), maps=(second(),), has_events=eventless)
        )
    )
    assert "schedulerName tidewright" in found.text and "default/w" in found.text
    assert "does not lead" in found.next
    misspelt = waiting(schedulerName="tidewrite")
    unknown = only(doctor_pods.unscheduled(facts(pods=(misspelt,), maps=(second(),), has_events=eventless)))
    assert "default-scheduler, tidewright have" in unknown.next
    tried, bound, ended = waiting("tried"), waiting("bound", nodeName="n"), waiting("ended")
    tried["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    ended["status"]["phase"] = "Failed"
    quiet = (tried, bound, ended, waiting("new", NOW), waiting("undated", ""), pod("other", creationTimestamp=LONG_AGO))
    quiet[-1]["spec"]["containers"] = [{"name": "c"}]
    assert doctor_pods.silent(quiet, NOW_S) == []
    for has_events in ({}, {"uid-w": True}):
        assert list(doctor_pods.unscheduled(facts(pods=(waiting(),), has_events=has_events))) == []


def test_of_many_waiting_pods_some_of_each_scheduler_are_judged() -> None:
    many = [waiting(f"p{at:02}") for at in range(30)]
    pods = (*many, waiting("w", schedulerName="tidewright"))
    chosen = [one["metadata"]["name"] for one in doctor_pods.sample(pods, 20)]
    assert len(chosen) == 20 and "w" in chosen and "p18" in chosen and "p19" not in chosen
    has_events = {f"uid-p{at:02}": False for at in range(20)}
    found = only(doctor_pods.unscheduled(facts(pods=pods, has_events=has_events)))
    assert "p00" in found.text and "(events of 10 more not read)" in found.text


@pytest.mark.parametrize(
    "message",
    [
        'Post "http://x.y:12346/gpushare-scheduler/filter": dial tcp 10.96.0.9:12346: connect: connection refused',
        "failed filter with extender at URL http://x.y:12346/gpushare-scheduler/filter, code 404",
    ],
)
def test_pods_whose_scheduler_gets_no_answer(message: str) -> None:
    tried = waiting()
    tried["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": message}
    ]
    found = only(doctor_pods.unanswered(facts(pods=(tried, waiting("other")))))
    assert "from http://x.y:12346/gpushare-scheduler/filter, so these wait: default/w" in found.text
    tried["spec"]["nodeName"] = "n"
    assert list(doctor_pods.unanswered(facts(pods=(tried,)))) == []


def test_what_our_accounts_are_asked_is_what_their_roles_give() -> None:
    overlays = DEPLOY / "overlays"
    folders = (overlays / "second-scheduler", overlays / "compatible", DEPLOY / "dra", DEPLOY / "webhook")
    shipped = [one for folder in folders for one in composed(folder)]
    accounts = {one["metadata"]["name"] for one in shipped if one["kind"] == "ServiceAccount"}
    assert accounts == ROLES.keys()
    for name, role in ROLES.items():
        assert (DEPLOY / role.manifest).exists()
        have = set(granted(shipped, name))
        bound = role_of(name, [SECOND]).rights
        # What the scheduler may do besides comes from the cluster's own roles.
        asked = {one for one in bound if one.resource == "leases"} if name == "tidewright-scheduler" else set(bound)
        assert asked or name.startswith("gpushare")
        assert not missing(asked, have)
    assert set(ROLES["tidewright-extender"].rights) == set(EXTENDER_RIGHTS)
    assert set(role_of("tidewright-plugin", [SECOND]).rights) == set(PLUGIN_RIGHTS)
    for name in ("tidewright-dra", "tidewright-webhook"):
        assert not missing(granted(shipped, name), ROLES[name].rights), (
            "a deleted binding is only found by asking for all"
        )


def test_what_could_not_be_listed_is_not_taken_for_empty() -> None:
    def said(*unread: str) -> set[str]:
        return {one.what for one in doctor.examine(facts(unread=unread)) if one.level == "bad"}

    assert said() == {"extender", "nodes"}
    assert said("/api/v1/nodes (Forbidden)") == {"extender"}
    assert said("/api/v1/nodes (Forbidden)", "/api/v1/pods (Forbidden)") == set()
    notes = [one for one in doctor.examine(facts(unread=("/a (Forbidden)", "/b (Forbidden)"))) if one.what == "rights"]
    assert "/a (Forbidden), /b (Forbidden)" in only(notes, "note").text


@pytest.mark.processes
def test_pods_whose_events_are_not_read_are_not_reported() -> None:
    async def main() -> None:
        async with FakeApi().served() as api:
            await installed(api)
            for at in range(30):
                made = await api.create("pods", waiting(f"p{at:02}"))
                event = {
                    "metadata": {"name": f"e{at}", "namespace": "default"},
                    "involvedObject": {"uid": made["metadata"]["uid"]},
                }
                await api.create("events", event)

            async def unscheduled() -> list[Any]:
                return [one for one in doctor.examine(await looked_at(api)) if one.what == "unscheduled"]

            assert await unscheduled() == [], "each has an event"
            await api.create("pods", waiting("q", schedulerName="tidewright"))
            assert "default/q" in only(await unscheduled()).text
            api.mischief.forbidden = ("/events",)
            found = await looked_at(api)
            assert [line for line in found.unread if "events" in line] == ["events of pods in default (Forbidden)"]
            assert await unscheduled() == []

    asyncio.run(main())


async def looked_at(api: FakeApi) -> Any:
    async with KubeClient(Cluster(api.url)) as client:
        return await collect(client)


async def installed(api: FakeApi) -> None:
    """A sound cluster with the second scheduler."""
    await sound(api)
    await api.remove("configmaps", "kube-system", "s")
    await api.create("configmaps", second())
    await api.create("deployments", deployment())
    await api.create("leases", lease("tidewright-scheduler", timestamps.now()))
    for name in (*(name for name in ROLES if name.startswith("tidewright-")), "default"):
        await api.create("serviceaccounts", {"metadata": {"name": name, "namespace": "kube-system"}})


@pytest.mark.processes
def test_accounts_are_reviewed_without_being_asked_for() -> None:
    async def main() -> None:
        async with FakeApi().served() as api:
            await installed(api)
            for namespace, account in (("kube-system", "gpushare-device-plugin"), ("elsewhere", "tidewright-plugin")):
                running = pod("x", node="n1", phase="Running", namespace=namespace)
                running["spec"] |= {"serviceAccountName": account, "containers": []}
                await api.create("pods", running)
            api.refused = {("patch", "persistentvolumes", SCHEDULER_ACCOUNT), ("get", "leases", SCHEDULER_ACCOUNT)}
            found = await looked_at(api)
            assert [one.removeprefix("system:serviceaccount:") for one in found.reviews] == [
                f"kube-system:{name}" for name in (
                    "gpushare-device-plugin", "tidewright-dra", "tidewright-extender",
                    "tidewright-plugin", "tidewright-scheduler", "tidewright-webhook",
                )
            ]  # fmt: skip
            wrong = only([one for one in doctor.examine(found) if one.what == "rights"])
            assert "kube-system/tidewright-scheduler may not" in wrong.text
            assert "get leases" in wrong.text and "patch persistentvolumes" in wrong.text
            assert "second-scheduler/scheduler-rbac.yaml" in wrong.next
            own = AccessRight("get", "leases", "coordination.k8s.io", *SECOND)
            assert not found.reviews[SCHEDULER_ACCOUNT][own]
            assert {one.name for one in found.reviews[SCHEDULER_ACCOUNT] if one.resource == "leases"} == {"", SECOND[1]}
            api.mischief.forbidden = ("/subjectaccessreviews",)
            found = await looked_at(api)
            assert any(EXTENDER_ACCOUNT in line for line in found.unread)
            assert not [one for one in doctor.examine(found) if one.what == "rights" and one.level == "bad"]

    asyncio.run(main())


@pytest.mark.processes
def test_a_lease_that_looks_old_is_looked_at_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_doctor, "LOOK_AGAIN_S", 0.3)

    async def main() -> None:
        async with FakeApi().served() as api:
            await installed(api)
            await api.change("leases", *SECOND, {"spec": {"renewTime": LONG_AGO}})
            assert not (await looked_at(api)).renewed
            looking = asyncio.create_task(looked_at(api))
            while not looking.done():
                await asyncio.sleep(0.05)
                await api.change("leases", *SECOND, {"metadata": {"annotations": {"at": timestamps.now()}}})
            assert looking.result().renewed == {SECOND}
            api.mischief.forbidden = ("/leases/",)
            found = await looked_at(api)
            assert found.leases == {} and any("Lease" in line for line in found.unread)

    asyncio.run(main())


@pytest.mark.processes
def test_a_scheduler_that_is_broken_in_every_way_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with FakeApi().served() as api:
            await installed(api)
            path = str(kubeconfig(tmp_path / "config", api.url))
            code, out, err = await tide("kube", "doctor", "--kubeconfig", path)
            assert (code, err) == (0, ""), out
            await api.remove("leases", *SECOND)
            await api.change("deployments", "kube-system", "tidewright-scheduler", {"spec": {"replicas": 0}})
            text = second()["data"]["config.yaml"].replace(":12345", ":12346")
            await api.change("configmaps", "kube-system", "s", {"data": {"config.yaml": text}})
            api.refused.add(("create", "pods/binding", EXTENDER_ACCOUNT))
            await api.create("pods", waiting(schedulerName="tidewright"))
            heard = await api.create("pods", waiting("heard"))
            event = {
                "metadata": {"name": "e", "namespace": "default"},
                "involvedObject": {"uid": heard["metadata"]["uid"]},
            }
            await api.create("events", event)
            code, out, _ = await tide("kube", "doctor", "--kubeconfig", path, "-o", "json")
            found = json.loads(out)["findings"]
            bad = {one["what"]: one["text"] for one in found if one["level"] == "bad"}
            assert (code, set(bad)) == (1, {"rights", "scheduler", "leader", "unscheduled"})
            assert "heard" not in bad["unscheduled"]
            texts = "\n".join(one["text"] for one in found)
            assert "has no port 12346" in texts and "is scaled to 0" in texts and "has never led" in texts

    asyncio.run(main())
