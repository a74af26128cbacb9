"""deploy/kubernetes/webhook fits together, fits the code, and its account may do what the webhook does and no more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.kube.kustomized import composed, containers, key, kustomization
from tests.kube.rights import missing, needed
from tests.kube.test_deploy import DEPLOY, accepted, roles
from tests.kube.test_webhook import container, pod
from tests.kube.test_webhook_served import NAME, make_pair, webhook
from tidewright.kube.objects import names
from tidewright.kube.webhook.conversion import SWITCH, ConversionSettings, convert
from tidewright.testing.kube_api import FakeApi

FOLDER = DEPLOY / "webhook"
Object = dict[str, Any]


def items() -> dict[str, Object]:
    found = composed(FOLDER)
    assert len({key(item) for item in found}) == len(found)
    return {item["kind"]: item for item in found}


def the_container() -> Object:
    [found] = containers(items()["Deployment"])
    return found


def test_everything_chooses_the_same_pods() -> None:
    found = items()
    assert all((FOLDER / name).exists() for name in kustomization(FOLDER)["resources"])
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert found["PodDisruptionBudget"]["spec"]["minAvailable"] < found["Deployment"]["spec"]["replicas"]


def test_the_command_is_accepted_and_reads_what_is_mounted() -> None:
    one = the_container()
    params = accepted([*one["command"], *one["args"]]).params
    assert params["sm_percent"] is None, "as from gpushare: who does not say has no limit"
    [mount] = one["volumeMounts"]
    assert {params["tls_cert"], params["tls_key"]} == {
        Path(mount["mountPath"]) / name for name in ("tls.crt", "tls.key")
    }
    assert mount["readOnly"]
    template = items()["Deployment"]["spec"]["template"]["spec"]
    [volume] = template["volumes"]
    assert volume["secret"]["defaultMode"] & 0o077 == 0
    assert template["securityContext"]["fsGroup"] == template["securityContext"]["runAsGroup"]
    assert [one["containerPort"] for one in one["ports"]] == [params["port"]]
    assert {one[probe]["httpGet"]["scheme"] for probe in ("readinessProbe", "livenessProbe")} == {"HTTPS"}


def test_nothing_gets_more_of_its_machine_than_it_needs() -> None:
    one, shared = the_container(), items()["Deployment"]["spec"]["template"]["spec"]["securityContext"]
    assert shared["runAsNonRoot"]
    assert shared["seccompProfile"] == {"type": "RuntimeDefault"}
    assert one["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}
    }  # fmt: skip


def test_the_api_server_sends_new_pods_of_willing_namespaces_to_the_service() -> None:
    found = items()
    [hook] = found["MutatingWebhookConfiguration"]["webhooks"]
    service = hook["clientConfig"]["service"]
    assert f"{service['name']}.{service['namespace']}.svc" == NAME
    assert key(found["Service"])[1:] == (service["namespace"], service["name"])
    assert service["port"] in [one["port"] for one in found["Service"]["spec"]["ports"]]
    assert found["Service"]["spec"]["ports"][0]["targetPort"] in [one["name"] for one in the_container()["ports"]]
    assert hook["rules"] == [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "resources": ["pods"],
            "operations": ["CREATE"],
            "scope": "Namespaced",
        }
    ]
    assert hook["namespaceSelector"] == {"matchLabels": {SWITCH: "enabled"}}
    assert (hook["failurePolicy"], hook["sideEffects"], hook["reinvocationPolicy"]) == (
        "Fail",
        "NoneOnDryRun",
        "IfNeeded",
    )
    [condition] = hook["matchConditions"]
    assert f"'{names.MEM}' in c.resources.limits" in condition["expression"]
    assert hook["admissionReviewVersions"] == ["v1"]


def test_our_own_pods_never_wait_for_themselves() -> None:
    for path in (DEPLOY / "webhook", DEPLOY / "overlays" / "second-scheduler"):
        for item in (one for one in composed(path) if containers(one)):
            assert convert(item["spec"]["template"], "kube-system", ConversionSettings()) is None


@pytest.mark.processes
def test_the_webhook_may_do_what_it_does_and_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeApi().served() as api, webhook(api, make_pair(tmp_path / "pair")) as (_, caller):
            for _ in range(2):
                assert (await caller.review(pod(container("a", "8"))))["allowed"]
            calls, have = needed(api.asked), roles("tidewright-webhook", FOLDER)
            assert not missing(calls, have)
            assert not missing(have, calls)
            assert len(have) == 2

    asyncio.run(main())
