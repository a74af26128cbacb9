"""As much of ``kubectl kustomize`` as deploy/ uses: resources, patches by name (lists replaced), components, generated
ConfigMaps with the hash behind their names and its rewriting of references to them, image names.

Source: kustomize v5.8's hasher and its default nameReference configuration. test_kustomized.py holds this against the real one
where there is one.
"""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.kube.test_webhook import applied

Object = dict[str, Any]
GENERATORS = {"configMapGenerator": "ConfigMap"}
"""Those that deploy/ uses; ``secretGenerator`` would need its own encoding."""
VOLUMES = "spec/template/spec/volumes/"
ENVIRONMENT = tuple(
    f"spec/template/spec/{kind}/{way}" for kind in ("containers", "initContainers")
    for way in ("env/valueFrom/configMapKeyRef/name", "envFrom/configMapRef/name")
)  # fmt: skip
WORKLOADS = ("Deployment", "ReplicaSet", "DaemonSet", "StatefulSet", "Job")
NAME_REFERENCES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(WORKLOADS, (f"{VOLUMES}configMap/name", f"{VOLUMES}projected/sources/configMap/name", *ENVIRONMENT)),
    "Role": ("rules/resourceNames",), "ClusterRole": ("rules/resourceNames",),
}  # fmt: skip
"""Fields that kustomize takes for names of ConfigMaps, by the kind that has them: it looks at no ``resources`` beside them."""
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The quick one where PyYAML was built with it."""


def documents(path: Path) -> list[Object]:
    return [one for one in yaml.load_all(path.read_text(), LOADER) if one is not None]


def kustomization(folder: Path) -> Object:
    return documents(folder / "kustomization.yaml")[0]


def key(item: Object) -> tuple[str, str, str]:
    return item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]


def containers(item: Object) -> list[Object]:
    if item["kind"] not in ("Deployment", "DaemonSet"):
        return []
    return list(item["spec"]["template"]["spec"]["containers"])


def composed(folder: Path) -> list[Object]:
    """What ``kubectl kustomize`` prints, in no order."""
    found = _composed(folder)
    generated = generated_names(folder)
    hashed = {
        key(one): one for one in found if one["kind"] in generated and one["metadata"]["name"] in generated[one["kind"]]
    }
    for (_, namespace, name), item in hashed.items():
        item["metadata"]["name"] = f"{name}-{_hash(item)}"
        for other in found:
            if other["metadata"].get("namespace", namespace) == namespace:
                for path in NAME_REFERENCES.get(other["kind"], ()):
                    _renamed(other, path.split("/"), name, item["metadata"]["name"])
    return found


def generated_names(folder: Path) -> dict[str, set[str]]:
    """By kind, without the hash; with those of the folders that it is made of."""
    top, found = kustomization(folder), {kind: set[str]() for kind in GENERATORS.values()}
    assert "secretGenerator" not in top, "teach _composed how Secrets are generated"
    for generator, kind in GENERATORS.items():
        found[kind] |= {one["name"] for one in top.get(generator, ())}
    for path in (folder / one for one in top.get("resources", ())):
        if path.is_dir():
            for kind, names in generated_names(path).items():
                found[kind] |= names
    return found


def wrong_references(folder: Path) -> list[str]:
    """What bears the name of something generated and is none: kustomize rewrites some of these, and which is hard to know."""
    generated = {name for names in generated_names(folder).values() for name in names}
    items = _composed(folder)
    taken = [
        (f"{one['kind']} {one['metadata']['name']}", one["metadata"]["name"])
        for one in items
        if one["kind"] not in GENERATORS.values()
    ]
    taken += [
        (f"resourceNames of {one['kind']} {one['metadata']['name']}", name)
        for one in items
        for name in resource_names(one)
    ]
    taken += [(f"the Lease of {one['metadata']['name']}", name) for one in items for name in leases_in(one)]
    return [what for what, name in taken if name in generated]


def resource_names(item: Object) -> Iterator[str]:
    """Of a role's rules."""
    return (name for rule in item.get("rules") or () for name in rule.get("resourceNames") or ())


def leases_in(item: Object) -> Iterator[str]:
    """Names of Leases by which the schedulers that read a ConfigMap lead."""
    for text in (item.get("data") or {}).values() if item["kind"] == "ConfigMap" else ():
        election = (yaml.safe_load(text) or {}).get("leaderElection") or {}
        if "resourceName" in election:
            yield election["resourceName"]


def real_kustomize() -> list[str]:
    """The command that prints a folder's objects; empty where there is none."""
    if shutil.which("kubectl"):
        return ["kubectl", "kustomize"]
    return ["kustomize", "build"] if shutil.which("kustomize") else []


def really_composed(folder: Path) -> list[Object]:
    """By kustomize itself."""
    done = subprocess.run([*real_kustomize(), str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.load_all(done.stdout, LOADER) if one is not None]


def _composed(folder: Path) -> list[Object]:
    """Before any hash."""
    found: list[Object] = []
    top = kustomization(folder)
    for path in (folder / resource for resource in top.get("resources", ())):
        found += _composed(path) if path.is_dir() else documents(path)
    for entry in top.get("configMapGenerator", ()):
        _generate(folder, entry, found)
    for patch in (one for entry in top.get("patches", ()) for one in documents(folder / entry["path"])):
        target = next(one for one in found if key(one) == key(patch))
        target["spec"] |= patch["spec"]
    for component in top.get("components", ()):
        for entry in kustomization(folder / component)["patches"]:
            wanted = entry["target"]["kind"], entry["target"]["name"]
            [at] = [at for at, one in enumerate(found) if (one["kind"], one["metadata"]["name"]) == wanted]
            found[at] = applied(found[at], yaml.safe_load(entry["patch"]))
    _set_images(found, top.get("images", ()))
    return found


def _set_images(found: Iterable[Object], images: Iterable[Object]) -> None:
    new = {one["name"]: f"{one['newName']}:{one['newTag']}" for one in images}
    for item in found:
        spec = item["spec"]["template"]["spec"] if containers(item) else {}
        for container in (*spec.get("initContainers", ()), *containers(item)):
            container["image"] = new.get(container["image"], container["image"])


def _generate(folder: Path, entry: Object, found: list[Object]) -> None:
    data = {name: (folder / name).read_text() for name in entry["files"]}
    if entry.get("behavior") == "merge":
        [old] = [one for one in found if key(one) == ("ConfigMap", entry["namespace"], entry["name"])]
        old["data"] |= data
        return
    meta = {"name": entry["name"], "namespace": entry["namespace"], **copy.deepcopy(entry.get("options", {}))}
    found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})


def _hash(item: Object) -> str:
    """Of a ConfigMap's data; its name does not count. Letters for digits and vowels, so that no word comes of it."""
    text = json.dumps(
        {"data": item["data"], "kind": "ConfigMap", "name": ""}, separators=(",", ":"), ensure_ascii=False
    )
    for letter, written in (("&", "\\u0026"), ("<", "\\u003c"), (">", "\\u003e")):
        text = text.replace(letter, written)
    return hashlib.sha256(text.encode()).hexdigest()[:10].translate(str.maketrans("013ae", "ghkmt"))


def _renamed(at: Any, way: list[str], old: str, new: str) -> None:
    """Along ``way``, through every list on it."""
    if isinstance(at, list):
        for position, each in enumerate(at):
            if not way and each == old:
                at[position] = new
            elif way:
                _renamed(each, way, old, new)
    elif isinstance(at, dict) and way and way[0] in at:
        if len(way) == 1 and at[way[0]] == old:
            at[way[0]] = new
        else:
            _renamed(at[way[0]], way[1:], old, new)
