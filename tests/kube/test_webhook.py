"""Pods that ask for gpu-mem become pods with a DRA claim: for every pod, and for reviews that nobody should send."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewright.base.errors import UsageError
from tidewright.kube.allocation.units import UnitSize
from tidewright.kube.objects import names
from tidewright.kube.objects.pod_request import read_pod_request, requests_memory
from tidewright.kube.webhook.admission_review import KIND, VERSION, allowed, pointer, read
from tidewright.kube.webhook.conversion import (
    CLAIM,
    CONVERTED,
    MOST_DEVICES,
    SWITCH,
    ConversionSettings,
    ConvertedRequest,
    convert,
    same,
    template_of,
)

Object = dict[str, Any]
LISTS = ("initContainers", "containers")


def applied(thing: Any, patch: Any) -> Any:
    """RFC 6902, add and remove: what is not there cannot be removed, and nothing is added to what is not there."""
    found = copy.deepcopy(thing)
    for operation in patch:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        at = found
        for part in way:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if operation["op"] == "remove":
            del at[last]
        elif isinstance(at, list):
            assert (operation["op"], last) == ("add", "-")
            at.append(operation["value"])
        else:
            assert (operation["op"], isinstance(at, dict)) == ("add", True)
            at[last] = operation["value"]
    return found


def container(name: str, mem: object = None, **more: Any) -> Object:
    return {"name": name, **({} if mem is None else {"resources": {"limits": {names.MEM: mem}}}), **more}


def pod(*containers: Object, init: Any = None, notes: Any = None, **spec: Any) -> Object:
    meta = {"generateName": "web-", **({} if notes is None else {"annotations": notes})}
    return {
        "metadata": meta, "spec": {"containers": list(containers), **({"initContainers": init} if init else {}), **spec}
    }  # fmt: skip


def converted(found: Object, terms: ConversionSettings | None = None) -> tuple[Object, Object]:
    """The pod and its template."""
    conversion = convert(found, "ns", terms or ConversionSettings())
    assert conversion is not None
    return applied(found, conversion.patch), dict(conversion.template)


odd_names = st.sampled_from(["cpu", "memory", "a/b", "a~b", "~1", "x~0/y", "example.com/foo~bar"])
amounts = st.dictionaries(odd_names, st.sampled_from(["1", "2Gi"]), max_size=3)


@st.composite
def resources(draw: st.DrawFn, factor: int) -> Any:
    """Of a container; ``factor``: of its units, so that the sum divides. Nulls as some clients write them."""
    if draw(st.booleans()):
        return draw(st.sampled_from([None, {}, {"limits": None}, {"limits": {"cpu": "1"}, "requests": None}]))
    units = draw(st.integers(0, 9)) * factor
    limits: Object = {**draw(amounts), names.MEM: draw(st.sampled_from([units, str(units)]))}
    found: Object = {"limits": limits}
    if draw(st.booleans()):
        limits[names.COUNT] = str(factor)
    if draw(st.booleans()):
        found["requests"] = {
            **draw(amounts),
            **{name: limits[name] for name in (names.MEM, names.COUNT) if name in limits},
        }
    if draw(st.booleans()):
        found["claims"] = draw(st.sampled_from([None, [], [{"name": "own"}], [{"name": CLAIM, "request": "x"}]]))
    return found


@st.composite
def pods(draw: st.DrawFn) -> Object:
    factor = draw(st.sampled_from([1, 1, 2, 3]))

    def some(prefix: str, least: int) -> list[Object]:
        made = []
        for index in range(draw(st.integers(least, 4))):
            one: Object = {"name": f"{prefix}{index}", "image": "i", "env": [{"name": "A~/B", "value": names.MEM}]}
            if (found := draw(resources(factor))) is not None:
                one["resources"] = found
            if prefix == "i" and draw(st.booleans()):
                one["restartPolicy"] = "Always"
            made.append(one)
        return made

    notes = draw(st.sampled_from([None, {}, {"a/b~c": "1"}, {names.SM_PERCENT: "30"}, {names.POLICY: "fgd"}]))
    spec: Object = {"containers": some("c", 1), "nodeSelector": {names.MEM: "here"}}
    meta: Object = {"generateName": "web-", "labels": {names.COUNT: str(factor)} if factor > 1 else {}}
    if draw(st.booleans()):
        meta["annotations"] = notes
    if draw(st.booleans()):
        spec["initContainers"] = some("i", 0) or None
    if draw(st.booleans()):
        others = draw(st.lists(st.sampled_from(["own", CLAIM, f"{CLAIM}-0", f"{CLAIM}-1"]), unique=True, max_size=4))
        spec["resourceClaims"] = [{"name": name, "resourceClaimName": "x"} for name in others] or None
    return {"metadata": meta, "spec": spec, "status": {}}


def without_ours(found: Object, claim: str) -> Object:
    """Without units, our claim and our note; what was absent, null or empty is absent."""
    found = copy.deepcopy(found)
    for one in (one for kind in LISTS for one in found["spec"].get(kind) or ()):
        held = one.get("resources") or {}
        for words in ("limits", "requests"):
            for name in (names.MEM, names.COUNT):
                (held.get(words) or {}).pop(name, None)
        held["claims"] = [use for use in held.get("claims") or () if use != {"name": claim}]
    claims = found["spec"].get("resourceClaims") or ()
    found["spec"]["resourceClaims"] = [one for one in claims if "resourceClaimTemplateName" not in one]
    (found["metadata"].get("annotations") or {}).pop(CONVERTED, None)
    bare: Object = lean(found)
    return bare


def lean(thing: Any) -> Any:
    if isinstance(thing, dict):
        kept = {key: lean(value) for key, value in thing.items()}
        return {key: value for key, value in kept.items() if value not in (None, {}, [])}
    return [lean(one) for one in thing] if isinstance(thing, list) else thing


def review(found: Any, **more: Any) -> bytes:
    kinds = {"resource": {"group": "", "version": "v1", "resource": "pods"}, "operation": "CREATE", "namespace": "ns"}
    request = {"uid": "u1", **kinds, "object": found, **more}
    return json.dumps({"apiVersion": VERSION, "kind": KIND, "request": request}).encode()


@given(pods())
def test_any_pod_keeps_everything_but_its_units_and_gets_one_claim(found: Object) -> None:
    assert read(review(found)).makes_pod()
    try:
        total = read_pod_request(found).total
    except UsageError:
        if requests_memory(found):
            with pytest.raises(UsageError):
                convert(found, "ns", ConversionSettings())
        else:
            assert convert(found, "ns", ConversionSettings()) is None
        return
    new, template = converted(found)
    [ours] = [one for one in new["spec"]["resourceClaims"] if "resourceClaimTemplateName" in one]
    assert ours["resourceClaimTemplateName"] == template["metadata"]["name"]
    claims = [one["name"] for one in new["spec"]["resourceClaims"]]
    assert len(set(claims)) == len(claims)
    for kind in LISTS:
        for old, one in zip(found["spec"].get(kind) or (), new["spec"].get(kind) or (), strict=True):
            asked = int(((old.get("resources") or {}).get("limits") or {}).get(names.MEM, 0))
            held = one.get("resources") or {}
            left = {name for words in ("limits", "requests") for name in held.get(words) or ()}
            assert not left & {names.MEM, names.COUNT}
            assert ({"name": ours["name"]} in (held.get("claims") or ())) == (asked > 0)
    assert without_ours(new, ours["name"]) == without_ours(found, ours["name"])
    requests = template["spec"]["spec"]["devices"]["requests"]
    assert {str(one["exactly"]["capacity"]["requests"]["memory"]) for one in requests} == {
        f"{total // len(requests)}Gi"
    }
    assert convert(new, "ns", ConversionSettings()) is None, "a second time changes nothing"
    assert read(review(new)).makes_pod()


def test_what_a_claim_asks_for() -> None:
    found = pod(
        container("a", "6"), container("b", 2), container("none"),
        init=[container("side", 1, restartPolicy="Always"), container("first", "20")], notes={names.SM_PERCENT: "30"},
    )  # fmt: skip
    new, template = converted(found, ConversionSettings(UnitSize(512)))
    assert template["metadata"]["namespace"] == "ns"
    assert template["metadata"]["name"].startswith("tidewright-gpu-10752mib-x1-sm30-")
    assert template["spec"]["spec"] == {"devices": {"requests": [{"name": "gpu-0", "exactly": {
        "deviceClassName": "gpu.tidewright.io", "allocationMode": "ExactCount", "count": 1,
        "capacity": {"requests": {"memory": "10752Mi", "smPercent": "30"}},
    }}]}}  # fmt: skip
    assert json.loads(new["metadata"]["annotations"][CONVERTED]) == {
        "units": {"side": 1, "first": 20, "a": 6, "b": 2}, "memoryMiB": 10752, "gpus": 1, "smPercent": 30,
        "template": template["metadata"]["name"],
    }  # fmt: skip
    assert new["metadata"]["annotations"][names.SM_PERCENT] == "30"


def test_multiprocessors_of_pods_that_do_not_say() -> None:
    terms = ConversionSettings(percent=10)
    for notes, percent in ((None, "10"), ({names.SM_PERCENT: "30"}, "30"), ({names.SM_PERCENT: "100"}, None)):
        _, template = converted(pod(container("a", 8), notes=notes), terms)
        [request] = template["spec"]["spec"]["devices"]["requests"]
        assert request["exactly"]["capacity"]["requests"].get("smPercent") == percent


def test_several_gpus_are_different_ones() -> None:
    _, template = converted(pod({"name": "a", "resources": {"limits": {names.MEM: "8", names.COUNT: "2"}}}))
    devices = template["spec"]["spec"]["devices"]
    assert [one["name"] for one in devices["requests"]] == ["gpu-0", "gpu-1"]
    assert [one["exactly"]["count"] for one in devices["requests"]] == [1, 1]
    assert [one["exactly"]["capacity"]["requests"] for one in devices["requests"]] == [{"memory": "4Gi"}] * 2
    assert devices["constraints"] == [{"distinctAttribute": "gpu.tidewright.io/uuid"}]


@given(st.integers(1, 1 << 24))
def test_quantities_are_canonical_and_exact(mib: int) -> None:
    text = ConvertedRequest(mib, 1, 100).capacity()["memory"]
    number, suffix = int(text[:-2]), text[-2:]
    power = ("Mi", "Gi", "Ti").index(suffix)
    assert number * 1024**power == mib
    assert suffix == "Ti" or number % 1024


@given(st.tuples(*[st.tuples(st.integers(1, 9000), st.integers(1, 8), st.integers(1, 100))] * 2))
def test_the_same_want_has_the_same_name_and_others_another(wants: Any) -> None:
    one, other = (template_of(ConvertedRequest(*want), "ns") for want in wants)
    assert (one["metadata"]["name"] == other["metadata"]["name"]) == (wants[0] == wants[1])
    assert same(one, other) == (wants[0] == wants[1])
    assert (
        one["metadata"]["name"] != template_of(ConvertedRequest(*wants[0]), "ns", "another.class")["metadata"]["name"]
    )
    assert len(one["metadata"]["name"]) <= 63


def test_what_the_api_server_adds_makes_no_other_template() -> None:
    ours = template_of(ConvertedRequest(1024, 1, 100), "ns")
    stored = copy.deepcopy(ours)
    stored["metadata"] |= {"uid": "x", "labels": None}
    stored["spec"]["metadata"] = {"creationTimestamp": None}
    assert same(stored, ours)
    stored["spec"]["metadata"] = {"annotations": {"a": "b"}}
    assert not same(stored, ours)
    assert not same({}, ours)


@pytest.mark.parametrize(
    "found",
    [
        pod(container("a")),
        pod(container("a", "4"), notes={SWITCH: "off"}),
        pod(container("a", "4"), notes={CONVERTED: "{}"}),
        pod(container("a", "4"), nodeName="n1"),
        {"metadata": {"labels": {SWITCH: "off"}}, "spec": {"containers": [container("a", "4")]}},
        pod({"name": "a", "resources": {"limits": {names.COUNT: "2"}}}),
    ],
)
def test_left_alone(found: Object) -> None:
    assert convert(found, "ns", ConversionSettings()) is None


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (pod(container("a", "0")), "asks for no"),
        (pod(container("a", "1Gi")), "units are counted"),
        (pod(container("a", "3"), notes={names.COUNT: "2"}), "do not divide"),
        (pod(container("a", "33"), notes={names.COUNT: str(MOST_DEVICES + 1)}), "32 devices at most"),
        (pod(container("a", "99999999")), "more than any GPU"),
        (pod(container("a", "4"), notes={names.SM_PERCENT: "101"}), "annotation tidewright.io/gpu-sm-percent is 101"),
        (pod(container("a", "4"), notes={names.POLICY: "best"}), "gpu-policy"),
        (
            pod({"name": "a", "resources": {"limits": {names.MEM: "4"}, "requests": {names.MEM: "3"}}}),
            "is not its limit",
        ),
        (pod(container("b", "4"), {"name": "a", "resources": {"requests": {names.MEM: "3"}}}), "is not its limit"),
    ],
)
def test_denied_with_a_reason(found: Object, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        convert(found, "ns", ConversionSettings())


def test_a_policy_is_named_as_without_effect() -> None:
    found = convert(pod(container("a", "4"), notes={names.POLICY: "fgd"}), "ns", ConversionSettings())
    assert found is not None
    assert found.warnings == (f"annotation {names.POLICY} has no effect on a DRA claim",)
    assert allowed("u", found.patch, found.warnings)["response"]["warnings"] == list(found.warnings)


def test_paths_are_escaped_and_patches_encoded() -> None:
    assert pointer("metadata", "a~b/c", 0) == "/metadata/a~0b~1c/0"
    answer = allowed("u1", [{"op": "remove", "path": "/a"}])
    assert (answer["apiVersion"], answer["kind"]) == (VERSION, KIND)
    patch = answer["response"].pop("patch")
    assert json.loads(base64.b64decode(patch, validate=True)) == [{"op": "remove", "path": "/a"}]
    assert answer["response"] == {"uid": "u1", "allowed": True, "patchType": "JSONPatch"}
    assert allowed("u1")["response"] == {"uid": "u1", "allowed": True}


MALFORMED = [
    b"", b"{", b"[]", b"null", b"[" * 100_000, b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}',
    review(pod(container("a", "4"))).replace(b"k8s.io/v1", b"k8s.io/v1beta1"),
    review(None), review([]), review({"metadata": {}}), review({"spec": {"containers": []}}), review("pod"),
    review({"metadata": {}, "spec": {"containers": "abc"}}), review({"metadata": {}, "spec": {"containers": [1]}}),
    review({"metadata": {}, "spec": {"containers": [{"name": "a", "resources": {"limits": [names.MEM]}}]}}),
    review({"metadata": {}, "spec": {"containers": [{"name": "a", "resources": "gpu"}]}}),
    review({"metadata": {"annotations": {"a": 1}}, "spec": {"containers": []}}),
    review({"metadata": {}, "spec": {"containers": [], "resourceClaims": [{}]}}),
    review({"metadata": {}, "spec": {"containers": [], "priority": "high"}}),
    review(pod(container("a", "4")), namespace="../../kube-system/secrets"), review(pod(), namespace=""),
    review(pod(), namespace="NS"), review(pod(), namespace="a" * 64), review(pod(), uid=None), review(pod(), uid=3),
    review({"metadata": {"namespace": "other"}, "spec": {"containers": []}}),
    review(pod(container("a", "4"))).replace(b"web-", b"web-\xff"), b"\xff\xfe", b'{"api\xc3": 1}',
]  # fmt: skip


@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: repr(body[-60:]) if len(body) < 9999 else "deep")
def test_malformed_reviews_are_usage_errors(body: bytes) -> None:
    with pytest.raises(UsageError):
        read(body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "4", "Always", names.MEM]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["name", "resources", "limits", "requests", "claims", "restartPolicy", names.MEM, names.COUNT]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.fixed_dictionaries({"metadata": json_values}, optional={"spec": st.fixed_dictionaries(
    {"containers": st.lists(json_values, max_size=3)},
    optional={"initContainers": json_values, "resourceClaims": json_values, "nodeName": json_values, "priority": json_values},
)}))  # fmt: skip
def test_no_pod_however_odd_is_more_than_refused(found: Any) -> None:
    try:
        asked = read(review(found))
        convert(asked.object, asked.namespace, ConversionSettings())
    except UsageError:
        pass


@given(st.lists(json_values, min_size=1, max_size=3))
def test_no_container_however_odd_is_more_than_refused(held: list[Any]) -> None:
    containers = [{"name": f"c{index}", "resources": {"limits": {names.MEM: one}}} for index, one in enumerate(held)]
    try:
        asked = read(review({"metadata": {}, "spec": {"containers": containers}}))
        convert(asked.object, asked.namespace, ConversionSettings())
    except UsageError:
        pass
