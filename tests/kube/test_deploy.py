"""What deploy/ ships: it parses, it fits together, its commands exist, and its accounts may do what the code does."""

from __future__ import annotations

import asyncio
import copy
import os
import re
import signal
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import yaml

from tests.kube.extending import extending, until
from tests.kube.kustomized import Object, composed, containers, documents, key, kustomization
from tests.kube.objects import node, placed, pod
from tests.kube.rights import granted, missing, needed
from tests.kube.test_command import kubeconfig
from tidewright.base.errors import UsageError
from tidewright.cli import legacy
from tidewright.cli.kube.kube import command
from tidewright.kube.client.api import NODES, PODS, KubeClient
from tidewright.kube.client.credentials import Cluster
from tidewright.kube.doctor.facts import EXTENDER_RIGHTS, PLUGIN_RIGHTS, AccessRight
from tidewright.kube.extender import binder, cluster_cache
from tidewright.kube.extender import handler as verbs
from tidewright.kube.extender import leader_election as lead
from tidewright.kube.isolation.isolation_levels import IsolationSettings
from tidewright.kube.node.node_api import NodeApi
from tidewright.kube.node.node_pods import NodePods
from tidewright.kube.objects import names
from tidewright.kube.objects.pod_request import read_gpu_assignment
from tidewright.kube.plugin.service import PluginSettings
from tidewright.testing.kube_api import FakeApi

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy" / "kubernetes"
BASE = DEPLOY / "base"
DOCS = REPOSITORY / "docs" / "kubernetes.md"
FGD = ("second-scheduler", "default-scheduler")
"""Overlays that there are with -fgd at the end of their names, too."""
OVERLAYS = (*FGD, *(f"{name}-fgd" for name in FGD), "compatible")
CONFIGS = {"second-scheduler": "config.yaml", "default-scheduler": "scheduler-config.yaml"}
FILES = sorted(DEPLOY.rglob("*.yaml"))
API_VERSIONS = {
    "ServiceAccount": "v1", "Service": "v1", "Pod": "v1",
    "ClusterRole": "rbac.authorization.k8s.io/v1", "ClusterRoleBinding": "rbac.authorization.k8s.io/v1",
    "Role": "rbac.authorization.k8s.io/v1", "RoleBinding": "rbac.authorization.k8s.io/v1",
    "Deployment": "apps/v1", "DaemonSet": "apps/v1", "NetworkPolicy": "networking.k8s.io/v1",
    "MutatingWebhookConfiguration": "admissionregistration.k8s.io/v1", "PodDisruptionBudget": "policy/v1",
    "Kustomization": "kustomize.config.k8s.io/v1beta1", "KubeSchedulerConfiguration": "kubescheduler.config.k8s.io/v1",
    "Component": "kustomize.config.k8s.io/v1alpha1",
    "DeviceClass": "resource.k8s.io/v1", "ValidatingAdmissionPolicy": "admissionregistration.k8s.io/v1",
    "ValidatingAdmissionPolicyBinding": "admissionregistration.k8s.io/v1",
}  # fmt: skip
CLUSTER_WIDE = (
    "ClusterRole", "ClusterRoleBinding", "DeviceClass", "MutatingWebhookConfiguration", "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
)  # fmt: skip
NODE_OF_TOKEN = 'request.userInfo.extra[?"authentication.kubernetes.io/node-name"][0].orValue("")'
NAMELESS = ("Kustomization", "Component", "KubeSchedulerConfiguration")


def everything() -> Iterator[tuple[str, Object]]:
    for overlay in OVERLAYS:
        for item in composed(DEPLOY / "overlays" / overlay):
            yield overlay, item


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_object_has_its_version_name_and_namespace(path: Path) -> None:
    for item in documents(path):
        assert item["apiVersion"] == API_VERSIONS[item["kind"]]
        if item["kind"] not in NAMELESS:
            assert item["metadata"]["name"]
            assert ("namespace" in item["metadata"]) == (item["kind"] not in CLUSTER_WIDE)
            assert item["metadata"].get("namespace", "kube-system") == "kube-system"


@pytest.mark.parametrize(
    "folder", [BASE, DEPLOY / "mps", *(DEPLOY / "overlays" / name for name in OVERLAYS)], ids=lambda folder: folder.name
)
def test_kustomizations_name_what_is_there_and_nothing_twice(folder: Path) -> None:
    top = kustomization(folder)
    named = [*top["resources"], *(one["path"] for one in top.get("patches", ())), *top.get("components", ())]
    named += [file for one in top.get("configMapGenerator", ()) for file in one["files"]]
    assert all((folder / name).exists() for name in named)
    assert named, "an overlay of nothing"
    keys = [key(item) for item in composed(folder)]
    assert len(set(keys)) == len(keys)


def test_no_registry_is_written_down() -> None:
    for overlay, item in everything():
        for container in containers(item):
            assert re.fullmatch(r"REGISTRY/[a-z-]+:[\w.]+", container["image"]), f"{overlay}: {container['image']}"


def test_selectors_match_labels_and_accounts_exist() -> None:
    for overlay in OVERLAYS:
        items = composed(DEPLOY / "overlays" / overlay)
        templates = [item["spec"]["template"] for item in items if containers(item)]
        accounts = {item["metadata"]["name"] for item in items if item["kind"] == "ServiceAccount"}
        for item in items:
            if containers(item):
                own = item["spec"]["template"]
                assert item["spec"]["selector"]["matchLabels"].items() <= own["metadata"]["labels"].items()
                assert own["spec"]["serviceAccountName"] in accounts
            if item["kind"] == "Service":
                chosen = [
                    one for one in templates if item["spec"]["selector"].items() <= one["metadata"]["labels"].items()
                ]
                assert len(chosen) == 1
            if item["kind"].endswith("RoleBinding"):
                assert all(one["name"] in accounts for one in item["subjects"])


def test_mounts_have_volumes_and_probes_have_ports() -> None:
    for _, item in everything():
        volumes = {one["name"] for one in item.get("spec", {}).get("template", {}).get("spec", {}).get("volumes", ())}
        mounts = [{one["name"] for one in container.get("volumeMounts", ())} for container in containers(item)]
        assert set().union(*mounts) == volumes
        for container in containers(item):
            ports = {one["name"] for one in container.get("ports", ())}
            probes = [
                container[kind]["httpGet"]["port"] for kind in ("readinessProbe", "livenessProbe") if kind in container
            ]
            assert all(port in ports or isinstance(port, int) for port in probes)


def test_nothing_gets_more_of_its_machine_than_it_needs() -> None:
    for overlay, item in everything():
        for container in containers(item):
            context, shared = container["securityContext"], item["spec"]["template"]["spec"].get("securityContext", {})
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            if overlay == "compatible":
                continue
            assert context["readOnlyRootFilesystem"] is True
            assert container["resources"]["requests"]
            assert shared["seccompProfile"] == {"type": "RuntimeDefault"}
            assert shared.get("runAsNonRoot") or item["kind"] == "DaemonSet", "only the kubelet's folder is root's"
            assert not item["spec"]["template"]["spec"].get("hostNetwork")


def test_what_the_device_plugin_looks_for_is_mounted_where_it_looks() -> None:
    [plugin] = [item for item in composed(BASE) if item["kind"] == "DaemonSet"]
    [daemon] = [item for item in composed(DEPLOY / "mps") if item["kind"] == "DaemonSet"]
    volumes = {one["name"]: one.get("hostPath", {}) for one in plugin["spec"]["template"]["spec"]["volumes"]}
    mounted = {one["mountPath"]: volumes[one["name"]].get("path") for one in containers(plugin)[0]["volumeMounts"]}
    for folder in (IsolationSettings().cgroups, IsolationSettings().mps):
        assert mounted[str(folder)] == str(folder), "the same path inside, for it is told to containers of the node"
    pipes = {one["name"]: one.get("value") for one in containers(daemon)[0]["env"]}["CUDA_MPS_PIPE_DIRECTORY"]
    assert pipes == str(IsolationSettings().mps)


def test_mps_serves_the_nodes_of_the_device_plugin_and_of_the_dra_driver() -> None:
    [daemon] = [item for item in composed(DEPLOY / "mps") if item["kind"] == "DaemonSet"]
    pod_spec = daemon["spec"]["template"]["spec"]
    terms = pod_spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    chosen = [
        {one["key"]: one["values"][0] for one in term["matchExpressions"] if one["operator"] == "In"} for term in terms
    ]
    [plugin] = [item for item in composed(BASE) if item["kind"] == "DaemonSet"]
    assert plugin["spec"]["template"]["spec"]["nodeSelector"] in chosen
    [driver] = [item for item in composed(DEPLOY / "dra") if item["kind"] == "DaemonSet"]
    [own] = driver["spec"]["template"]["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert {one["key"]: one["values"][0] for one in own["matchExpressions"] if one["operator"] == "In"} in chosen
    assert len(chosen) == 2 and "nodeSelector" not in pod_spec
    [making] = pod_spec["initContainers"]
    options = re.search(r"mount -t tmpfs -o (\S+) ", making["args"][0])
    assert options and {"nosuid", "nodev"} <= set(options[1].split(",")), "pods write there"


def held_by_policy(folder: Path, account: str) -> Object:
    """The policy in force that holds an account to what is its own."""
    [policy] = [item for item in composed(folder) if item["kind"] == "ValidatingAdmissionPolicy"]
    [binding] = [item for item in composed(folder) if item["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    spec: Object = policy["spec"]
    assert spec["failurePolicy"] == "Fail"
    [only] = spec["matchConditions"]
    assert only["expression"] == f'request.userInfo.username == "system:serviceaccount:kube-system:{account}"'
    assert account in {item["metadata"]["name"] for item in composed(folder) if item["kind"] == "ServiceAccount"}
    assert {one["name"]: one["expression"] for one in spec["variables"]}["node"] == NODE_OF_TOKEN
    return spec


def test_the_device_plugin_may_write_lists_of_unhealthy_gpus_alone() -> None:
    spec = held_by_policy(BASE, "tidewright-plugin")
    [rule] = spec["matchConstraints"]["resourceRules"]
    assert (rule["apiGroups"], rule["apiVersions"], rule["resources"]) == ([""], ["v1"], ["configmaps"])
    wanted = {"create": "CREATE", "patch": "UPDATE", "update": "UPDATE", "delete": "DELETE"}
    has = {
        wanted[one.verb] for one in roles("tidewright-plugin") if one.resource == "configmaps" and one.verb in wanted
    }
    assert has and has <= set(rule["operations"]), "every way to write that the role gives"
    beginning, own = [one["expression"] for one in spec["validations"]]
    assert beginning == f'object.metadata.name.startsWith("{names.UNHEALTHY_PREFIX}")'
    assert own == f'variables.node == "" || object.metadata.name == "{names.UNHEALTHY_PREFIX}" + variables.node'


def test_the_original_has_its_ports_environment_and_mounts_and_no_more() -> None:
    items = {key(item): item for item in composed(DEPLOY / "overlays" / "compatible")}
    service = items["Service", "kube-system", "gpushare-schd-extender"]["spec"]
    assert service["ports"] == [{"name": "http", "port": 12345, "targetPort": 12345, "nodePort": 32766}]
    extender, plugin = [one for item in items.values() for one in containers(item)]
    assert {one["name"] for one in extender["env"]} == {"LOG_LEVEL", "PORT"}
    assert "command" not in extender
    assert {one["name"] for one in plugin["env"]} == {"KUBECONFIG", "NODE_NAME"}
    assert [one["mountPath"] for one in plugin["volumeMounts"]] == ["/var/lib/kubelet/device-plugins"]
    assert not [item for item in items.values() if "leases" in str(item)]


@pytest.mark.parametrize("overlay", [name for name in OVERLAYS if name != "compatible"])
def test_schedulers_ask_where_the_extender_listens(overlay: str) -> None:
    plain = overlay.removesuffix("-fgd")
    [config] = documents(DEPLOY / "overlays" / overlay / CONFIGS[plain])
    [service] = [one for one in composed(DEPLOY / "overlays" / overlay) if one["kind"] == "Service"]
    port = service["spec"]["ports"][0]
    where = {"second-scheduler": f"tidewright-extender.kube-system:{port['port']}"}
    host = where.get(plain, f"127.0.0.1:{port.get('nodePort')}")
    assert {one["urlPrefix"] for one in config["extenders"]} == {f"http://{host}/gpushare-scheduler"}
    extender = config["extenders"][0]
    assert [extender[f"{verb}Verb"] for verb in ("filter", "prioritize", "preempt", "bind")] == [
        "filter", "prioritize", "preempt", "bind",
    ]  # fmt: skip
    assert extender["managedResources"] == [{"name": names.MEM, "ignoredByScheduler": False}]


@pytest.mark.parametrize("name", FGD)
def test_least_fragmentation_is_the_same_and_asks_about_pods_without_gpus(name: str) -> None:
    plain, fgd = DEPLOY / "overlays" / name, DEPLOY / "overlays" / f"{name}-fgd"
    [old], [new] = documents(plain / CONFIGS[name]), documents(fgd / CONFIGS[name])
    second = new["extenders"].pop()
    assert new == old, "what is written twice is the same twice"
    [snippet] = [
        yaml.safe_load(one) for one in re.findall(r"```yaml\n(- urlPrefix.*?)```", DOCS.read_text(), re.DOTALL)
    ]
    assert {**second, "urlPrefix": ""} == {**snippet[0], "urlPrefix": ""}, "as the docs show it"
    assert second["ignorable"] and "managedResources" not in second, "about every pod, and none waits for it"
    assert {word for word in second if word.endswith("Verb")} == {"prioritizeVerb"}
    changed = [(a, b) for a, b in zip(composed(plain), composed(fgd), strict=True) if a != b]
    [(before, after)] = [(a, b) for a, b in changed if "tidewright-scheduler-config" not in str(b)]
    assert {one["kind"] for _, one in changed if one is not after} <= {"ConfigMap", "Deployment"}, (
        "who reads it is restarted"
    )
    assert key(after) == ("Deployment", "kube-system", "tidewright-extender")
    [was], [now] = containers(before), containers(after)
    assert now == {**was, "args": [*was["args"], "--policy", "fgd"]}
    assert accepted([*now["command"], *now["args"]]).params["policy"] == "fgd"


def test_the_scheduler_reads_the_configuration_with_the_second_extender() -> None:
    plain, fgd = (kustomization(DEPLOY / "overlays" / name) for name in ("second-scheduler", "second-scheduler-fgd"))
    [old], [new] = plain["configMapGenerator"], fgd["configMapGenerator"]
    assert old.pop("options")["labels"]["app.kubernetes.io/name"] == "tidewright", (
        "by which it is found, whatever its hash"
    )
    assert new == {**old, "behavior": "merge"}, "the same name and file: its text takes the other's place"


def accepted(words: list[str]) -> click.Context:
    """Parsed by the real command, not run. By a copy: click keeps the help option, whose names come from the parent."""
    assert words[:2] == ["tide", "kube"]
    found = copy.copy(command.commands[words[2]])
    return found.make_context(words[2], words[3:])


def test_commands_of_the_manifests_are_accepted() -> None:
    seen = set()
    for _, item in everything():
        for container in containers(item):
            words = [*container.get("command", ()), *container.get("args", ())]
            if words[:1] == ["tide"] and words[2] in command.commands:
                seen.add(words[2])
                accepted(words)
            elif words[:1] == ["gpushare-device-plugin-v2"] and legacy.PLUGIN in command.commands:
                found = accepted(["tide", *legacy.plugin_arguments(words[1:])])
                mounted = {one["mountPath"] for one in container["volumeMounts"]}
                assert found.params["binding"] == "match" or str(found.params["cdi_dir"]) in mounted
    assert "extender" in seen


def test_the_old_names_take_the_old_words() -> None:
    asked = accepted(["tide", *legacy.extender_arguments({"PORT": "12345", "LOG_LEVEL": "debug", "THREADNESS": "4"})])
    assert (asked.params["port"], asked.params["host"]) == (12345, "0.0.0.0")
    assert accepted(["tide", *legacy.extender_arguments({})]).params["port"] == 39999
    assert accepted(["tide", "kube", "inspect", "-d", "n1"]).params["node"] == "n1"
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    for script in ("gpushare-sche-extender", "gpushare-device-plugin-v2", "kubectl-inspect-gpushare"):
        module, function = scripts[script].split(":")
        assert module == legacy.__name__
        assert callable(getattr(legacy, function))


def test_flags_of_the_old_plugin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(command.commands, legacy.PLUGIN, click.Command(legacy.PLUGIN))
    words = ["-logtostderr", "--v=5", "-v", "4", "--memory-unit", "MiB", "--health-check=true", "--timeout=10"]
    assert legacy.plugin_arguments(words) == [
        "kube", "device-plugin", "--binding", "match", "--respawn", "--memory-unit", "MiB",
    ]  # fmt: skip
    assert "--health-check has no effect" in capsys.readouterr().err
    for bad in (["--bogus"], ["word"], ["--memory-unit"], ["-"]):
        with pytest.raises(UsageError):
            legacy.plugin_arguments(bad)
    monkeypatch.delitem(command.commands, legacy.PLUGIN)
    with pytest.raises(UsageError, match="has no tide kube device-plugin"):
        legacy.plugin_arguments([])


def test_gpushares_plugin_can_be_tried_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its flag, or by one more variable in the manifest, which ours reads, too."""
    tried = accepted(["tide", *legacy.plugin_arguments(["-logtostderr", "--fake-gpus=2x15"])])
    assert tried.params["fake_gpus"] == "2x15"
    monkeypatch.setenv("TIDEWRIGHT_FAKE_GPUS", "1x24")
    for words in (["kube", "device-plugin"], ["kube", "dra"], legacy.plugin_arguments(["--memory-unit=GiB"])):
        assert accepted(["tide", *words]).params["fake_gpus"] == "1x24"


def test_a_kubeconfig_that_is_not_mounted_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    legacy._forget_missing_kubeconfig()
    assert "KUBECONFIG" in legacy.os.environ, "outside a pod it is a mistake that must be told"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    legacy._forget_missing_kubeconfig()
    assert "KUBECONFIG" not in legacy.os.environ


def roles(account: str, folder: Path = BASE) -> set[AccessRight]:
    return set(granted(composed(folder), account))


def test_the_containerfile_builds_what_the_manifests_run() -> None:
    text = (REPOSITORY / "deploy" / "Containerfile").read_text()
    used = {item["image"].split("/")[1].split(":")[0] for _, found in everything() for item in containers(found)}
    targets = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE))
    assert used - {"kube-scheduler"} <= targets
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE)[0] == "${BASE}"
    copied = [word for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE) for word in line.split()[:-1]]
    assert all((REPOSITORY / name).exists() for name in copied)
    assert text.rstrip().endswith('CMD ["gpushare-sche-extender"]')


@pytest.mark.processes
def test_the_old_commands_run(tmp_path: Path) -> None:
    def command_line(function: str) -> list[str]:
        return [sys.executable, "-c", f"from tidewright.cli.legacy import {function}; {function}()"]

    async def main() -> None:
        async with FakeApi().served() as api:
            await api.create("nodes", node("n1"))
            config = str(kubeconfig(tmp_path / "config", api.url))
            environment = {**os.environ, "KUBECONFIG": config, "PORT": "0", "LOG_LEVEL": "debug", "THREADNESS": "4"}
            shown = await asyncio.create_subprocess_exec(
                *command_line("inspect"), "-d", "n1", env=environment, stdout=asyncio.subprocess.PIPE
            )
            out, _ = await shown.communicate()
            assert b"NAME:       n1" in out
            assert b"0/30 (0%)" in out
            serving = await asyncio.create_subprocess_exec(
                *command_line("extender"), env=environment, stderr=asyncio.subprocess.PIPE
            )
            assert serving.stderr is not None
            assert b"leads" in await serving.stderr.readline()
            serving.send_signal(signal.SIGTERM)
            assert await serving.wait() == 0

    asyncio.run(main())


async def bind_refuse_and_sweep(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call that an extender makes: bound, refused, conflicting, lost, run out; a lease taken and given back."""
    monkeypatch.setattr(verbs, "RESERVED_S", 0.5)
    monkeypatch.setattr(cluster_cache, "RESERVED_S", 0.5)
    monkeypatch.setattr(binder, "PATIENCE_S", 0.5)
    monkeypatch.setattr(lead, "SWEEP_S", 0.1)
    await api.create("nodes", node("n1"))
    async with extending(api, lease_s=3) as extender:
        assert await extender.bind(await api.create("pods", pod("a", 4)), "n1") == ""
        api.mischief.decide = lambda method, path: "before" if path.endswith("/b/binding") else ""
        assert await extender.bind(await api.create("pods", pod("b", 4)), "n1")
        notes = {names.IDX: "1", names.POD: "4", names.NODE: "n1"}
        left = await api.create("pods", pod("left", 4, notes=notes))
        await until(lambda: names.IDX not in api.store.objects["pods", "default", "left"]["metadata"]["annotations"])
        await until(lambda: left["metadata"]["uid"] not in extender.pool.held)
        held = api.store.objects["leases", "kube-system", "tidewright-extender"]
        await until(lambda: api.store.objects["leases", "kube-system", "tidewright-extender"] is not held)


@pytest.mark.processes
def test_the_extender_may_do_what_it_does_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with FakeApi().served() as api:
            await bind_refuse_and_sweep(api, monkeypatch)
            calls = needed(api.asked)
            have = roles("tidewright-extender")
            assert not missing(calls, have)
            probe = {
                AccessRight(verb, "leases", "coordination.k8s.io", "kube-system", "tidewright-probe")
                for verb in ("get", "update")
            }
            assert not missing(
                have - probe, calls | {AccessRight("create", "leases", "coordination.k8s.io", "kube-system")}
            )
            assert not missing(EXTENDER_RIGHTS, have), "what the doctor asks for is what the manifests give"
            assert not missing(have - probe, EXTENDER_RIGHTS)
            old = roles("gpushare-schd-extender", DEPLOY / "overlays" / "compatible")
            assert not missing((one for one in calls if one.resource != "leases"), old)

    asyncio.run(main())


@pytest.mark.processes
def test_the_judge_sees_a_missing_right() -> None:
    async def main() -> None:
        async with FakeApi().served() as api, KubeClient(Cluster(api.url)) as client:
            await api.create("nodes", node("n1"))
            await client.patch(f"{NODES}/n1/status", {"status": {}})
            await client.get(PODS)
            have = roles("tidewright-extender")
            assert missing(needed(api.asked), have) == {AccessRight("patch", "nodes/status")}
            assert not missing(needed(api.asked), roles("tidewright-plugin"))

    asyncio.run(main())


async def tell_everything(api: FakeApi, client: KubeClient) -> None:
    """Every call that a device plugin makes: its pods, its node, GPUs that fail and come back, a mark, an event,
    an eviction."""
    await api.create("nodes", node("n1"))
    made = await api.create("pods", placed("a", "n1", 0, 4))
    here, said = NodePods(client, "n1"), []
    writer = NodeApi(client, "n1", said.append)
    await writer.read_node()
    assert len(await here.listed()) == 1
    watching = asyncio.create_task(here.reflector.run())
    await here.reflector.synced.wait()
    await until(lambda: any(watch for *_, watch in api.asked))
    watching.cancel()
    claim: Any = SimpleNamespace(assignment=read_gpu_assignment(made))
    assert await writer.node_notes({names.LEVEL: "none"})
    assert await writer.count(2)
    assert await writer.assigned(claim.assignment, "L3 MPS")
    for gpus in ({1}, {0, 1}, set()):
        assert await writer.unhealthy(gpus)
    await writer.event(made, "Refused", "a reason")
    assert await writer.evict(made)
    assert not said


@pytest.mark.processes
def test_the_device_plugin_may_do_what_it_does_and_no_more() -> None:
    async def main() -> None:
        async with FakeApi().served() as api, KubeClient(Cluster(api.url)) as client:
            await tell_everything(api, client)
            calls, have = needed(api.asked), roles("tidewright-plugin")
            assert not missing(calls, have)
            assert not missing(have, calls)
            assert set(PLUGIN_RIGHTS) == calls, "what the doctor asks for"
            old = missing(calls, roles("gpushare-device-plugin", DEPLOY / "overlays" / "compatible"))
            assert {right.resource for right in old} == {"configmaps", "pods/eviction"}

    asyncio.run(main())


def test_the_device_plugin_finds_what_it_needs_mounted() -> None:
    [plugin] = [one for item in composed(BASE) for one in containers(item) if one["name"] == "plugin"]
    needs = PluginSettings("n1")
    mounted = {one["mountPath"]: one for one in plugin["volumeMounts"]}
    assert {str(needs.folder), str(needs.cdi)} <= mounted.keys()
    written = (mounted[str(needs.folder)], mounted[str(needs.cdi)])
    assert not any(one.get("readOnly") for one in written), "sockets and CDI files are written there"
    assert {one["name"] for one in plugin["env"]} >= {"NODE_NAME"}
