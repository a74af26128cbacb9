"""The OpenAPI document: valid by its own standard, and bounded as the controller's validators are."""

from __future__ import annotations

import json
from typing import Any, get_args

import jsonschema
import msgspec
import pytest
from openapi_spec_validator import validate

from tidewright.model.job import JobSpec, problems
from tidewright.model.launchable import unlaunchable
from tidewright.wire import api
from tidewright.wire.bounds import BODIES, QUERIES
from tidewright.wire.openapi import ROUTES, document

DOCUMENT = json.loads(msgspec.json.encode(document("1")))  # as it is served
SCHEMAS = DOCUMENT["components"]["schemas"]


def _shown(name: str, value: Any) -> bool:
    """Whether the document allows the value as this component."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def _enforced(value: Any) -> bool:
    """Whether the controller takes the value as a spec, as far as the pool does not matter."""
    try:
        spec = msgspec.convert(value, JobSpec)
    except msgspec.ValidationError:
        return False
    return not problems(spec) and not unlaunchable(spec)


def _edges(schema: dict[str, Any]) -> list[Any]:
    """Values on both sides of each bound."""
    found: list[Any] = []
    low, high = schema.get("minimum"), schema.get("maximum")
    found += [low - 1, low] if low is not None else []
    found += [high, high + 1] if high is not None else []
    found += [0, 0.5] if "exclusiveMinimum" in schema else []
    found += [*schema["enum"], "something else"] if "enum" in schema else []
    if "maxLength" in schema:
        found += ["/" + "x" * (schema["maxLength"] - 1), "/" + "x" * schema["maxLength"]]
    if "pattern" in schema:
        found += ["", "a", "a" * 128, "a" * 129, "-a", "a b", "12", "a/b", "/a"]
    return found


def _cases() -> list[tuple[str, Any]]:
    cases: list[tuple[str, Any]] = []
    for field, schema in SCHEMAS["JobSpec"]["properties"].items():
        cases += [(field, value) for value in _edges(schema)]
        if "items" in schema and field != "after":
            cases += [(field, [value]) for value in _edges(schema["items"])]
    cases += [("command", []), ("command", ["x"])]
    cases += [
        ("array", {"parent": "p", "index": 0, "size": 1, field: value})
        for field, schema in SCHEMAS["ArrayMember"]["properties"].items()
        for value in _edges(schema)
    ]
    return cases


@pytest.mark.parametrize(("field", "value"), _cases(), ids=lambda value: str(value)[:24])
def test_the_document_allows_what_the_validators_take(field: str, value: Any) -> None:
    whole = {"command": ["x"], field: value}
    if field == "min_devices":
        whole["devices"] = 65_536
    if value == "be":
        whole |= {"gpu_share": 500, "tier": "basic"}
    assert _shown("JobSpec", whole) == _enforced(whole), whole if len(str(whole)) < 300 else field


def test_every_choice_of_a_spec_is_in_the_document() -> None:
    hints = {field.name: get_args(field.type) for field in msgspec.structs.fields(JobSpec)}
    for field in ("kind", "tier", "preempt", "placement"):
        assert set(SCHEMAS["JobSpec"]["properties"][field]["enum"]) == set(hints[field])
    assert set(SCHEMAS["JobView"]["properties"]["state"]["enum"]) == set(get_args(api.StateName))


def test_the_document_is_openapi() -> None:
    validate(DOCUMENT)


def test_every_bound_is_of_a_field_that_there_is() -> None:
    for name, fields in BODIES.items():
        assert set(fields) <= set(SCHEMAS[name]["properties"])
    assert set(QUERIES) <= {param.name for route in ROUTES for param in route.query}
    assert not _shown("SubmitRequest", {"specs": []}) and _shown("SubmitRequest", {"specs": [{"command": ["x"]}]})
