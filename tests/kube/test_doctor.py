"""What the doctor finds: each check on what makes it speak, and the whole on a fake API server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kube.objects import node, placed, pod
from tests.kube.test_command import kubeconfig, tide
from tidewright.app.kube.doctor import collect
from tidewright.kube.client import timestamps
from tidewright.kube.client.api import KubeClient
from tidewright.kube.client.credentials import Cluster
from tidewright.kube.doctor import examine as doctor
from tidewright.kube.doctor import nodes as doctor_nodes
from tidewright.kube.doctor import pods as doctor_pods
from tidewright.kube.doctor import scheduler as doctor_scheduler
from tidewright.kube.doctor import scheduler_config as doctor_config
from tidewright.kube.doctor.facts import EXTENDER_RIGHTS, CheckResult, ClusterFacts
from tidewright.kube.objects import names
from tidewright.kube.objects.gpu_inventory import GpuInfo, publish
from tidewright.kube.objects.heartbeat import PluginHeartbeat, written
from tidewright.testing.kube_api import FakeApi

DEPLOY = Path(__file__).parents[2] / "deploy" / "kubernetes"
NOW_S = 1_700_000_000.0
LONG_AGO = {names.ASSUME_TIME: str(int((NOW_S - 3600) * 1e9))}
LABEL = {"gpushare": "true"}
EXTENDER_ACCOUNT = "system:serviceaccount:kube-system:tidewright-extender"


def facts(**more: Any) -> ClusterFacts:
    return ClusterFacts(**({"version": {"gitVersion": "v1.36.2"}, "groups": {}, "now_s": NOW_S} | more))


def levels(found: Any) -> list[str]:
    return [one.level for one in found]


def only(found: Any, level: str = "bad") -> CheckResult:
    """The one finding of a level; it says what to do."""
    chosen = [one for one in found if one.level == level]
    assert len(chosen) == 1, chosen
    assert chosen[0].next
    return chosen[0]


def server(name: str, component: str, ready: bool = True, on: str = "", **more: Any) -> dict[str, Any]:
    found = pod(
        name, node=on, labels={"app.kubernetes.io/name": "tidewright", "app.kubernetes.io/component": component}
    )
    found["spec"]["containers"] = [{"name": "c", **more}]
    found["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
    return found


def service(**spec: Any) -> dict[str, Any]:
    """The extender's."""
    ports = [{"name": "http", "port": 12345, "targetPort": "http"}]
    chosen = {"app.kubernetes.io/name": "tidewright", "app.kubernetes.io/component": "extender"}
    meta = {"name": "tidewright-extender", "namespace": "kube-system"}
    return {"metadata": meta, "spec": {"clusterIP": "10.96.0.9", "selector": chosen, "ports": ports, **spec}}


def endpoints(ready: bool = True, port: str = "http") -> dict[str, Any]:
    """Of that Service."""
    meta = {"name": "tidewright-extender-x", "namespace": "kube-system"}
    meta["labels"] = {"kubernetes.io/service-name": "tidewright-extender"}  # type: ignore[assignment]
    found = [{"addresses": ["10.0.0.2"], "conditions": {"ready": ready}}]
    return {"metadata": meta, "ports": [{"name": port, "port": 12345}], "endpoints": found}


def lease(name: str, renewed: str, holder: str = "somebody") -> dict[str, Any]:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}
    return {"metadata": {"name": name, "namespace": "kube-system"}, "spec": spec}


@pytest.mark.parametrize(
    ("text", "level"),
    [("v1.36.2", "ok"), ("v1.28.3+k3s1", "note"), ("v1.25.0", "bad"), ("next", "note"), ("v2.0.0", "ok")],
)
def test_version(text: str, level: str) -> None:
    assert levels(doctor.version(facts(version={"gitVersion": text}))) == [level]


def test_dra_is_told_and_never_wrong() -> None:
    for groups in ({}, {"resource.k8s.io": ("v1beta1",)}, {"resource.k8s.io": ("v1", "v1beta2")}):
        assert levels(doctor.dra(facts(groups=groups))) == ["ok"]


def test_missing_rights_are_named() -> None:
    granted = dict.fromkeys(EXTENDER_RIGHTS, True)
    assert levels(doctor.rights(facts(reviews={"": granted}))) == ["ok"]
    denied = {right: right.verb != "patch" for right in EXTENDER_RIGHTS}
    assert "patch pods" in only(doctor.rights(facts(reviews={"": denied}))).text
    assert "/api/v1/pods" in only(doctor.rights(facts(unread=("/api/v1/pods (Forbidden)",))), "note").text


def test_extender_pods() -> None:
    assert "no pod of an extender" in only(doctor_scheduler.extender(facts())).text
    standing_by = server("e", "extender", ready=False)
    assert "none leads" in only(doctor_scheduler.extender(facts(pods=(standing_by,)))).text
    assert levels(doctor_scheduler.extender(facts(pods=(standing_by, server("f", "extender"))))) == ["ok"]


def test_a_device_plugin_on_every_labelled_node_and_one_alone() -> None:
    both = (node("a", labels=LABEL), node("b", labels=LABEL))
    one = (server("p", "plugin", on="a"),)
    assert "runs on b" in only(doctor_scheduler.plugin(facts(nodes=both, pods=one))).text
    all_of_them = (*one, server("q", "plugin", on="b"))
    assert levels(doctor_scheduler.plugin(facts(nodes=both, pods=all_of_them))) == ["ok"]
    old = pod("old", node="a", phase="Running", labels={"app": "gpushare", "component": "gpushare-device-plugin"})
    assert "two device plugins" in only(doctor_scheduler.plugin(facts(nodes=both, pods=(*all_of_them, old)))).text


def config(**changes: Any) -> dict[str, Any]:
    extender = {
        "urlPrefix": "http://tidewright-extender.kube-system:12345/gpushare-scheduler",
        "filterVerb": "filter",
        "bindVerb": "bind",
        "managedResources": [{"name": names.MEM}],
    }
    text = {"apiVersion": doctor_config.V1, "kind": doctor_config.KIND, "extenders": [extender | changes]}
    return {"metadata": {"name": "s", "namespace": "kube-system"}, "data": {"config.yaml": json.dumps(text)}}


def test_a_scheduler_that_asks_the_extender() -> None:
    assert levels(doctor_scheduler.scheduler(facts(maps=(config(),)))) == ["ok"]
    assert "bindVerb" in only(doctor_scheduler.scheduler(facts(maps=(config(bindVerb=""),)))).text
    assert "weight" in only(doctor_scheduler.scheduler(facts(maps=(config(prioritizeVerb="prioritize"),)))).text
    assert "ignorable" in only(doctor_scheduler.scheduler(facts(maps=(config(ignorable=True),))), "note").text
    old = config()
    old["data"] = {"c": old["data"]["config.yaml"].replace("/v1", "/v1beta3")}
    assert "v1beta3 is gone" in only(doctor_scheduler.scheduler(facts(maps=(old,)))).text
    other = config(urlPrefix="http://x/other", managedResources=[{"name": "example.com/other"}])
    damaged = {"metadata": {"name": "x"}, "data": {"a": f"[{doctor_config.KIND}"}}
    assert levels(doctor_scheduler.scheduler(facts(maps=(other, damaged)))) == ["note"]


@pytest.mark.parametrize("overlay", ["second-scheduler", "second-scheduler-fgd"])
def test_the_schedulers_that_are_shipped_are_well_configured(overlay: str) -> None:
    text = (DEPLOY / "overlays" / overlay / "config.yaml").read_text()
    shipped = {"metadata": {"name": "s", "namespace": "kube-system"}, "data": {"config.yaml": text}}
    assert set(levels(doctor_scheduler.scheduler(facts(maps=(shipped,))))) == {"ok"}
    only_second = yaml.safe_load(text)
    only_second["extenders"] = only_second["extenders"][1:]
    shipped["data"]["config.yaml"] = yaml.safe_dump(only_second)
    assert "note" in levels(doctor_scheduler.scheduler(facts(maps=(shipped,)))), "nobody is asked about gpu-mem"


def test_a_scheduler_whose_configuration_is_elsewhere_or_nowhere() -> None:
    def running(*words: str) -> ClusterFacts:
        found = server("s", "", command=["kube-scheduler", *words])
        found["metadata"]["labels"] = {"component": "kube-scheduler"}
        return facts(pods=(found,))

    for words in (("--config=/etc/s.yaml",), ("--config", "/etc/s.yaml")):
        assert "/etc/s.yaml" in only(doctor_scheduler.scheduler(running(*words)), "note").text
    assert "without --config" in only(doctor_scheduler.scheduler(running("--v=2"))).text
    assert "managed" in only(doctor_scheduler.scheduler(facts()), "note").text


def test_nodes() -> None:
    inventory = {
        names.TABLE: publish((GpuInfo(0, 15),)),
        names.PLUGIN: written(PluginHeartbeat(True, "2023-11-14T22:13:08Z", boot="x")),
    }
    good = node("good", annotations=inventory, labels=LABEL)
    assert levels(doctor_nodes.nodes(facts(nodes=(good,)))) == ["ok"]
    assert "no node shares" in only(doctor_nodes.nodes(facts())).text
    empty = node("empty", 0, 0, labels=LABEL)
    assert "offers no" in only(doctor_nodes.nodes(facts(nodes=(good, empty)))).text
    guessed = doctor_nodes.nodes(facts(nodes=(node("g", labels=LABEL),)))
    assert "taken to be equal" in only(guessed, "note").text
    away = node("away", annotations=inventory, labels=LABEL)
    away["status"]["allocatable"] = {}
    assert "not registered" in only(doctor_nodes.nodes(facts(nodes=(away,)))).text
    sick = {"metadata": {"name": "unhealthy-gpu-good"}, "data": {"gpus": "0"}}
    assert "GPUs 0" in only(doctor_nodes.nodes(facts(nodes=(good,), maps=(sick,))), "note").text
    unlabelled = node("good", annotations=inventory)
    assert "without the label" in only(doctor_nodes.nodes(facts(nodes=(unlabelled,))), "note").text


@pytest.mark.parametrize(
    ("heartbeat", "words"),
    [
        ("", "no heartbeat"),
        ("{", "UNREADABLE"),
        (written(PluginHeartbeat(False, "2023-11-14T22:13:08Z")), "UNREGISTERED"),
        (written(PluginHeartbeat(True, "2023-11-14T20:00:00Z")), "SILENT since"),
        (written(PluginHeartbeat(True, "2023-11-14T22:13:08Z", boot="before")), "since the node was started"),
    ],
)
def test_heartbeats(heartbeat: str, words: str) -> None:
    notes = {names.TABLE: publish((GpuInfo(0, 15),))} | ({names.PLUGIN: heartbeat} if heartbeat else {})
    found = node("n", annotations=notes, labels=LABEL)
    found["status"]["nodeInfo"] = {"bootID": "now"}
    said = list(doctor_nodes.nodes(facts(nodes=(found,))))
    assert words in only(said).text
    assert levels(said) == ["bad"], "and nobody says that it is ready"


def test_units_are_those_of_the_whole_cluster() -> None:
    assert "GiB" in next(doctor_nodes.units(facts(nodes=(node("a"),)))).text
    assert "MiB" in next(doctor_nodes.units(facts(nodes=(node("a", 16000, 1),)))).text
    mixed = only(doctor_nodes.units(facts(nodes=(node("a"), node("b", 16000, 1)))))
    assert "b look as if counted in MiB" in mixed.text


def test_others_on_the_same_node() -> None:
    nvidia = node("a")
    nvidia["status"]["allocatable"]["nvidia.com/gpu"] = "2"
    assert "NVIDIA's device plugin" in only(doctor_nodes.leftovers(facts(nodes=(nvidia,)))).text
    hami = node("b", annotations={"hami.io/node-nvidia-register": "[]", names.TABLE: publish((GpuInfo(0, 15),))})
    assert "HAMi" in only(doctor_nodes.leftovers(facts(nodes=(hami,))), "note").text
    old = server("old", "", on="a", image="somewhere/k8s-gpushare-plugin:v2")
    assert "gpushare's own old" in only(doctor_nodes.leftovers(facts(pods=(old,))), "note").text


def test_more_given_out_than_there_is() -> None:
    crowded = (placed("a", "n", 0, 9), placed("b", "n", 0, 9))
    assert "has 15, and pods hold 18" in only(doctor_nodes.overcommitted(facts(nodes=(node("n"),), pods=crowded))).text
    nowhere = (placed("a", "n", 7, 1),)
    assert "does not exist" in only(doctor_nodes.overcommitted(facts(nodes=(node("n"),), pods=nowhere))).text
    fine = (placed("a", "n", 0, 9), placed("b", "n", 1, 9), placed("far", "elsewhere", 0, 99))
    assert levels(doctor_nodes.overcommitted(facts(nodes=(node("n"),), pods=fine))) == ["ok"]


def test_pods_that_went_past_the_extender() -> None:
    past = pod("past", node="n", phase="Running")
    past["spec"]["schedulerName"] = "other"
    found = only(doctor_pods.bypassed(facts(pods=(past, placed("a", "n", 0, 1)))))
    assert "by other: default/past" in found.text
    assert levels(doctor_pods.bypassed(facts(pods=(pod("waits"), past | {"status": {"phase": "Succeeded"}})))) == ["ok"]


def test_marks_on_pods_that_were_never_bound() -> None:
    old = pod("old", notes={names.IDX: "0", names.POD: "4", **LONG_AGO})
    new = pod("new", notes={names.IDX: "0", names.POD: "4", names.ASSUME_TIME: str(int(NOW_S * 1e9))})
    found = only(doctor_pods.stale(facts(pods=(old, new, placed("a", "n", 0, 1)))))
    assert "default/old" in found.text
    assert "new" not in found.text


def test_pods_that_never_got_their_gpu() -> None:
    notes = {names.IDX: "0", names.POD: "4", names.ASSIGNED: "false", **LONG_AGO}
    waiting = pod("w", node="n", notes=notes)
    assert "default/w" in only(doctor_pods.handed_over(facts(pods=(waiting,)))).text
    running = pod("r", node="n", notes=notes, phase="Running")
    assert "default/r" in only(doctor_pods.handed_over(facts(pods=(running,))), "note").text


def test_pods_that_were_refused_on_their_node() -> None:
    looping = pod("l", node="n")
    message = "unknown device: no-gpu-has-10MiB-to-run"
    looping["status"]["containerStatuses"] = [
        {"state": {"waiting": {}}, "lastState": {"terminated": {"message": message}}}
    ]
    assert "default/l" in only(doctor_pods.stuck(facts(pods=(looping,)))).text
    rejected = pod("r", node="n", phase="Failed")
    rejected["status"]["reason"] = "UnexpectedAdmissionError"
    assert "never starts again" in only(doctor_pods.stuck(facts(pods=(rejected,)))).next
    assert list(doctor_pods.stuck(facts(pods=(pod("a"),)))) == []


async def sound(api: FakeApi) -> None:
    """A cluster with nothing wrong."""
    notes = {
        names.TABLE: publish((GpuInfo(0, 15), GpuInfo(1, 15))),
        names.PLUGIN: written(PluginHeartbeat(True, "2999-01-01T00:00:00Z")),
    }
    await api.create("nodes", node("n1", annotations=notes, labels=LABEL))
    for one in (server("e", "extender"), server("p", "plugin", on="n1"), placed("a", "n1", 0, 6)):
        await api.create("pods", one)
    await api.create("configmaps", config())
    await api.create("services", service())
    await api.create("endpointslices", endpoints())
    await api.create("leases", lease("kube-scheduler", timestamps.now()))


@pytest.mark.processes
def test_a_sound_cluster_and_a_broken_one_from_the_command_line(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeApi().served() as api:
            await sound(api)
            path = str(kubeconfig(tmp_path / "config", api.url))
            code, out, err = await tide("kube", "doctor", "--kubeconfig", path)
            assert (code, err) == (0, ""), out
            assert "BAD" not in out
            api.refused.add(("create", "pods/binding"))
            await api.create("pods", pod("past", node="n1", phase="Running"))
            code, out, _ = await tide("kube", "doctor", "--kubeconfig", path, "-o", "json")
            found = json.loads(out)
            assert (code, found["sound"]) == (1, False)
            assert {one["what"] for one in found["findings"] if one["level"] == "bad"} == {"rights", "bypassed"}
            code, out, _ = await tide("kube", "inspect", "--kubeconfig", path, "-o", "wide")
            assert (code, out.splitlines()[0].split()[-1]) == (0, "PLUGIN")
            code, out, _ = await tide("kube", "inspect", "--kubeconfig", path, "-o", "wide", "-d")
            assert code == 0 and "Used(MiB)" in out

    asyncio.run(main())


@pytest.mark.processes
def test_what_may_not_be_read_is_named_and_the_rest_is_looked_at() -> None:
    async def main() -> None:
        async with FakeApi().served() as api:
            await sound(api)
            api.mischief.forbidden = ("/configmaps",)
            async with KubeClient(Cluster(api.url)) as client:
                found = await collect(client, EXTENDER_ACCOUNT)
            assert any("configmaps" in line for line in found.unread)
            assert len(found.nodes) == 1
            assert found.reviews == {EXTENDER_ACCOUNT: dict.fromkeys(EXTENDER_RIGHTS, True)}
            assert not [one for one in doctor.examine(found) if one.level == "bad"]

    asyncio.run(main())


@pytest.mark.processes
def test_the_rights_of_the_device_plugin_are_its_own() -> None:
    async def main() -> None:
        async with FakeApi().served() as api:
            await sound(api)
            api.refused = {("create", "pods/eviction"), ("create", "pods/binding")}
            async with KubeClient(Cluster(api.url)) as client:
                found = await collect(client, "system:serviceaccount:kube-system:tidewright-plugin")
            [wrong] = [one for one in doctor.examine(found) if one.what == "rights" and one.level == "bad"]
            assert "create pods/eviction" in wrong.text and "binding" not in wrong.text
            assert "plugin-rbac.yaml" in wrong.next

    asyncio.run(main())
