"""A model in a replica: definitions, groups of requests, one request that spoils none of the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.errors import UsageError, WorldError
from tidewright.serve.define import parse_tensor, serves
from tidewright.serve.protocol.signature import TensorSignature
from tidewright.serve.replica.link import (
    MAX_HELLO,
    BatchDone,
    RequestResult,
    frame,
    from_gateway,
    from_replica,
    length_of,
    packed,
    unpacked,
)
from tidewright.serve.replica.model import ReplicaModel, load

from ..sizes import examples
from . import models


@pytest.mark.parametrize(
    ("text", "shape"),
    [("FP32", ()), ("FP32[]", ()), ("FP32[3]", (3,)), (" INT64 [ 2, -1 ] ", (2, -1)), ("BYTES[1,]", (1,))],
)
def test_tensors_as_they_are_written(text: str, shape: tuple[int, ...]) -> None:
    assert parse_tensor("x", text) == TensorSignature("x", text.strip().partition("[")[0].strip(), shape)


@pytest.mark.parametrize("text", ["", "fp32", "FP32[a]", "FP32(3)", "FP32[3", "[3]"])
def test_tensors_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="not a tensor"):
        parse_tensor("x", text)


@pytest.mark.parametrize(
    "name", ["models", "tests.serve.models:", ":total", "no.such.module:x", "tests.serve.models:nothing", "os:getcwd"]
)
def test_models_that_cannot_be_loaded(name: str) -> None:
    with pytest.raises(UsageError):
        load(name)


def test_a_definition_is_still_a_function() -> None:
    assert load("tests.serve.models:total") is models.total
    assert models.total(np.ones((2, 3))).tolist() == [[3.0], [3.0]]
    with pytest.raises(UsageError):
        serves(inputs={"x": "FP99"})


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=12), bad=st.sets(st.integers(0, 11)))
@settings(max_examples=examples(40), deadline=None)
def test_each_request_has_its_own_result(sizes: list[int], bad: set[int]) -> None:
    model = ReplicaModel(models.total)
    requests = [{"x": np.full((size, 3), -1.0 if at in bad else at, np.float32)} for at, size in enumerate(sizes)]
    results = model.run(requests)
    for at, (size, result) in enumerate(zip(sizes, results, strict=True)):
        if at in bad:
            assert result == "ValueError: negative"
        else:
            assert isinstance(result, dict) and result["y"].tolist() == [[3.0 * at]] * size


def test_models_without_batches_and_with_text() -> None:
    model = ReplicaModel(models.single)
    words = np.array(b"hi", object).reshape(())
    first, second = model.run([{"x": np.arange(n, dtype=np.float32), "word": words} for n in (2, 3)])
    assert isinstance(first, dict) and first["y"].tolist() == [0.0, 2.0] and first["y"].dtype == np.float64
    assert isinstance(second, dict) and second["y"].shape == (3,) and second["z"].item() == b"hi"


def test_outputs_that_do_not_fit_are_errors_of_the_model() -> None:
    (result,) = ReplicaModel(models.forgetful).run([{"x": np.ones((3, 1), np.float32)}])
    assert isinstance(result, str) and "output y has the shape [1, 1] for a batch of 3" in result


def test_modules_of_torch_run_as_in_evaluation() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    model = ReplicaModel(models.network)
    x = np.ones((2, 4), np.float32)
    x.flags.writeable = False
    (result,) = model.run([{"x": x}])
    module = models.network.target().eval()
    assert isinstance(result, dict) and np.allclose(result["logits"], module(torch.ones(2, 4)).detach().numpy())
    assert [size for size, _ in model.warm_up()] == [1, 2, 4]


def test_messages_there_and_back() -> None:
    tensors = {"x": np.arange(6, dtype=np.int16).reshape(2, 3), "w": np.array([b"a", b""], object)}
    done = BatchDone((RequestResult(packed(tensors)), RequestResult(error="no")))
    sent = frame(done)
    assert length_of(sent[:4]) == length_of(sent[:4], MAX_HELLO) == len(sent) - 4
    assert length_of(b"GET ") > MAX_HELLO
    with pytest.raises(WorldError, match="1048576 at most"):
        length_of(b"GET ", MAX_HELLO)
    back = from_replica(sent[4:])
    assert back == done and isinstance(back, BatchDone)
    found = unpacked(back.results[0].outputs)
    assert all(np.array_equal(found[name], tensors[name]) for name in tensors)


@given(data=st.binary(max_size=50))
def test_bytes_that_are_no_message(data: bytes) -> None:
    for read in (from_replica, from_gateway):
        try:
            read(data)
        except WorldError as error:
            assert "no message" in str(error)
