"""What kustomize makes of deploy/: by itself where it is installed, and by our reading of it everywhere."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.kube.kustomized import (
    Object,
    composed,
    documents,
    generated_names,
    key,
    kustomization,
    leases_in,
    real_kustomize,
    really_composed,
    resource_names,
    wrong_references,
)  # fmt: skip
from tests.kube.rights import granted
from tidewright.kube.doctor.facts import AccessRight

DEPLOY = Path(__file__).parents[2] / "deploy" / "kubernetes"
FOLDERS = sorted(
    path.parent for path in DEPLOY.rglob("kustomization.yaml") if kustomization(path.parent)["kind"] == "Kustomization"
)
DOCS = DEPLOY.parents[1] / "docs" / "kubernetes-install.md"
SECOND = ("second-scheduler", "second-scheduler-fgd")


SOME = ("base", "overlays/compatible", "overlays/second-scheduler-fgd")
"""Looked at in ``make test``, too: the base, patches, and generated names that are referred to."""


def titled(folder: Path) -> str:
    return str(folder.relative_to(DEPLOY))


def by_key(items: list[Object]) -> dict[tuple[str, str, str], Object]:
    found = {key(item): item for item in items}
    assert len(found) == len(items), "an object twice"
    return found


def named_as_the_lease(folder: Path) -> Path:
    """The overlays in ``folder``, with a ConfigMap that has the name of the scheduler's Lease."""
    shutil.copytree(DEPLOY, folder, dirs_exist_ok=True)
    for path in folder.rglob("*.yaml"):
        path.write_text(path.read_text().replace("tidewright-scheduler-config", "tidewright-scheduler"))
    return folder / "overlays" / "second-scheduler"


def test_all_that_can_be_applied_is_looked_at() -> None:
    assert {titled(folder) for folder in FOLDERS} >= {"base", "webhook", "dra", "mps", "overlays/compatible"}
    assert len(FOLDERS) == 9 and {titled(folder) for folder in FOLDERS} >= set(SOME)


@pytest.mark.parametrize(
    "folder",
    [pytest.param(one, marks=() if titled(one) in SOME else pytest.mark.full, id=titled(one)) for one in FOLDERS],
)
def test_kustomize_itself_makes_what_we_think_it_makes(folder: Path) -> None:
    if not real_kustomize():
        pytest.skip("neither kubectl nor kustomize is installed here")
    assert by_key(really_composed(folder)) == by_key(composed(folder))


@pytest.mark.parametrize("folder", FOLDERS, ids=titled)
def test_nothing_generated_shares_its_name(folder: Path) -> None:
    assert wrong_references(folder) == []


@pytest.mark.parametrize("overlay", SECOND)
def test_the_second_scheduler_may_hold_its_lease_and_reads_its_configuration(overlay: str) -> None:
    items = composed(DEPLOY / "overlays" / overlay)
    [config] = [item for item in items if item["kind"] == "ConfigMap"]
    [lease] = leases_in(config)
    have = set(granted(items, "tidewright-scheduler"))
    assert {
        AccessRight(verb, "leases", "coordination.k8s.io", "kube-system", lease) for verb in ("get", "update")
    } <= have
    [deployment] = [item for item in items if key(item)[::2] == ("Deployment", "tidewright-scheduler")]
    [volume] = [one for one in deployment["spec"]["template"]["spec"]["volumes"] if "configMap" in one]
    assert volume["configMap"]["name"] == config["metadata"]["name"]
    assert config["data"] == {"config.yaml": (DEPLOY / "overlays" / overlay / "config.yaml").read_text()}


def test_a_generated_name_that_is_a_leases_too_is_caught(tmp_path: Path) -> None:
    folder = named_as_the_lease(tmp_path)
    assert generated_names(folder) == {"ConfigMap": {"tidewright-scheduler"}}
    assert {"resourceNames of Role tidewright-scheduler", "the Lease of tidewright-scheduler"} <= set(
        wrong_references(folder)
    )
    [role] = [item for item in composed(folder) if key(item)[::2] == ("Role", "tidewright-scheduler")]
    assert list(resource_names(role)) == ["tidewright-scheduler-22m8g56c7m"], "as kustomize did, with that very hash"


def test_the_overlay_that_the_docs_show_changes_what_it_says_and_no_more(tmp_path: Path) -> None:
    if not real_kustomize():
        pytest.skip("neither kubectl nor kustomize is installed here")
    shutil.copytree(DEPLOY, tmp_path / "deploy" / "kubernetes")
    [shown] = re.findall(r"```yaml\n# my-cluster/kustomization.yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    (tmp_path / "my-cluster").mkdir()
    (tmp_path / "my-cluster" / "kustomization.yaml").write_text(shown)
    plain, mine = (
        by_key(really_composed(one)) for one in (DEPLOY / "overlays" / "second-scheduler", tmp_path / "my-cluster")
    )
    assert plain.keys() == mine.keys()
    assert "REGISTRY" not in str(mine)
    plugin, wanted = (
        found["DaemonSet", "kube-system", "tidewright-plugin"]["spec"]["template"]["spec"] for found in (mine, plain)
    )
    assert plugin["runtimeClassName"] == "nvidia"
    words = wanted["containers"][0]["args"]
    assert plugin["containers"][0]["args"] == ["MiB" if word == "GiB" else word for word in words]


def test_references_are_rewritten_wherever_kustomize_rewrites_them(tmp_path: Path) -> None:
    """On a workload with each kind of reference; against the real one where there is one."""
    refers = {"configMapKeyRef": {"name": "made", "key": "a&<>é"}}
    container = {"name": "c", "image": "i", "env": [{"name": "A", "valueFrom": refers}],
                 "envFrom": [{"configMapRef": {"name": "made"}}]}  # fmt: skip
    volumes = [{"name": "v", "configMap": {"name": "made"}}, {"name": "other", "configMap": {"name": "kept"}},
               {"name": "p", "projected": {"sources": [{"configMap": {"name": "made"}}]}}]  # fmt: skip
    spec = {"containers": [container], "initContainers": [container | {"name": "first"}], "volumes": volumes}
    rules = [{"apiGroups": [""], "resources": ["pods"], "resourceNames": ["made", "kept"], "verbs": ["get"]}]
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    items = [
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d", "namespace": "here"},
         "spec": {"template": {"spec": spec}}},
        {**rbac, "kind": "ClusterRole", "metadata": {"name": "all"}, "rules": rules},
        {**rbac, "kind": "Role", "metadata": {"name": "far", "namespace": "there"}, "rules": rules},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "made", "namespace": "here"}},
    ]  # fmt: skip
    top = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": ["all.yaml"],
           "configMapGenerator": [{"name": "made", "namespace": "here", "files": ["text"]}]}  # fmt: skip
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(top))
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(items))
    (tmp_path / "text").write_text('a & b < c > "é"\n')
    found = by_key(composed(tmp_path))
    text = str(found["DaemonSet", "here", "d"])
    assert (text.count("'made-"), text.count("'made'"), text.count("'kept'")) == (6, 0, 1)
    assert list(resource_names(found["Role", "there", "far"])) == ["made", "kept"]
    assert next(resource_names(found["ClusterRole", "", "all"])).startswith("made-")
    assert documents(tmp_path / "all.yaml") == items, "read anew, not changed"
    if real_kustomize():
        assert by_key(really_composed(tmp_path)) == found
