"""deploy/kubernetes/dra: it fits the driver, and its account may do what the driver does and no more."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kube.driving import NODE, POD, driving, pod, result, seen_from_the_node
from tests.kube.extending import until
from tests.kube.kustomized import composed, containers, kustomization
from tests.kube.rights import granted, missing, needed
from tests.kube.test_deploy import DEPLOY, REPOSITORY, accepted, held_by_policy
from tidewright.devices.excess import Rules
from tidewright.kube.dra.protocol import DRIVER, GROUP
from tidewright.kube.dra.service import DraSettings
from tidewright.kube.dra.slices import STEP_MIB
from tidewright.kube.node.gpus import GpuProcess

FOLDER = DEPLOY / "dra"
PAGE = REPOSITORY / "docs" / "kubernetes-dra.md"


def parts(kind: str) -> list[dict[str, Any]]:
    return [item for item in composed(FOLDER) if item["kind"] == kind]


def test_everything_there_is_put_together() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {"kustomization.yaml", *kustomization(FOLDER)["resources"]}
    [device_class], [daemon] = parts("DeviceClass"), parts("DaemonSet")
    assert device_class["metadata"]["name"] == DRIVER
    assert device_class["spec"]["selectors"] == [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    template = daemon["spec"]["template"]
    assert daemon["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    [account] = parts("ServiceAccount")
    assert template["spec"]["serviceAccountName"] == account["metadata"]["name"]
    [term] = template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    [plugin] = [one for one in composed(DEPLOY / "base") if one["kind"] == "DaemonSet"]
    served = plugin["spec"]["template"]["spec"]["nodeSelector"]
    assert [{one["key"]: one["values"][0]} for one in term["matchExpressions"] if one["operator"] == "NotIn"] == [
        served
    ]


def test_the_driver_runs_as_its_container_says() -> None:
    [driver] = [one for item in parts("DaemonSet") for one in containers(item)]
    accepted([*driver["command"], *driver["args"]])
    needs = DraSettings("n1")
    mounted = {one["mountPath"]: one for one in driver["volumeMounts"]}
    assert {str(needs.plugins), str(needs.registry), str(needs.cdi)} <= mounted.keys()
    limits = needs.isolation
    assert {str(limits.cgroups), str(limits.mps)} <= mounted.keys(), (
        "or no rung above the cooperative one is ever in force"
    )
    assert [path for path, one in mounted.items() if one.get("readOnly")] == [str(limits.mps)], (
        "the others are written to"
    )
    [daemon] = parts("DaemonSet")
    volumes = {one["name"]: one for one in daemon["spec"]["template"]["spec"]["volumes"]}
    assert volumes.keys() == {one["name"] for one in mounted.values()}
    for path, mount in mounted.items():
        host = volumes[mount["name"]].get("hostPath")
        assert host is None or host["path"] == path, "the kubelet is told the path that is seen inside"
    assert {one["name"] for one in driver["env"]} >= {"NODE_NAME"}
    context = driver["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"]} and context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False and re.fullmatch(r"REGISTRY/tidewright:[\w.]+", driver["image"])


def test_a_driver_may_write_the_slices_of_its_own_node_alone() -> None:
    spec = held_by_policy(FOLDER, "tidewright-dra")
    [rule] = spec["matchConstraints"]["resourceRules"]
    group, version = GROUP.removeprefix("/apis/").split("/")
    assert (rule["apiGroups"], rule["apiVersions"], rule["resources"]) == ([group], [version], ["resourceslices"])
    written = {one.verb for one in granted(composed(FOLDER), "tidewright-dra") if one.resource == "resourceslices"}
    assert written - {"list", "watch"} == {operation.lower() for operation in rule["operations"]}
    variables = {one["name"]: one["expression"] for one in spec["variables"]}
    assert variables["slice"] == 'request.operation == "DELETE" ? oldObject : object'
    node, driver = [one["expression"] for one in spec["validations"]]
    assert node == 'variables.node != "" && variables.slice.spec.?nodeName.orValue("") == variables.node'
    assert driver == f'variables.slice.spec.driver == "{DRIVER}"'


@pytest.mark.processes
def test_the_driver_may_do_what_it_does_and_no_more(tmp_path: Path) -> None:
    """A pool that grows, shrinks and falls sick; a claim; a pod that takes too much."""

    async def main() -> None:
        async with driving("1x15+1x80mig", rules=Rules("evict", 0, 0, 0), watch_s=0.05) as found:
            found.driver.memory_guard.proc = seen_from_the_node(tmp_path)
            await found.ready()
            found.gpus.sick[0] = "XID 79"
            await until(lambda: found.devices().get("gpu-0", {}).get("taints"))
            parts_there, found.driver.placements = found.driver.placements, ()
            found.gpus.sick.clear()
            await until(lambda: list(found.devices()) == ["gpu-0"] and parts_there)
            one = await found.claim("a", result("gpu-0", "1Gi"))
            await found.api.create("pods", pod("greedy", POD, "a"))
            assert not (await found.kubelet.prepare(one))[one[2]].error
            (tmp_path / "41").mkdir()
            (tmp_path / "41" / "cgroup").write_text(f"0::/kubepods/pod{POD}/c\n")
            found.gpus.used = [GpuProcess(0, 41, 2048)]
            await until(lambda: ("pods", "default", "greedy") not in found.api.store.objects)
            await until(lambda: ("PATCH", f"/api/v1/nodes/{NODE}/status", False) in found.api.asked)
            calls = needed(found.api.asked)
            have = set(granted(composed(FOLDER), "tidewright-dra"))
            assert not missing(calls, have)
            assert not missing(have, calls)

    asyncio.run(main())


def test_the_claims_of_the_page_are_what_the_driver_offers() -> None:
    found = [
        one
        for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
        for one in yaml.safe_load_all(text)
        if one and one.get("kind") in ("ResourceClaim", "ResourceClaimTemplate")
    ]
    assert found
    for one in found:
        spec = one["spec"].get("spec", one["spec"])
        for request in spec["devices"]["requests"]:
            exactly = request["exactly"]
            assert exactly["deviceClassName"] == DRIVER and one["apiVersion"] == "resource.k8s.io/v1"
            capacity = exactly.get("capacity", {}).get("requests", {})
            assert capacity.keys() <= {"memory", "smPercent"}
            if memory := capacity.get("memory"):
                assert int(memory.removesuffix("Gi")) * 1024 % STEP_MIB == 0
