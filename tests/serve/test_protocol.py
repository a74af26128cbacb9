"""The Open Inference Protocol: tensors survive the way there and back, as NVIDIA's own client sends and reads them; what is wrong
is said with what the model takes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tidewright.base.errors import UsageError
from tidewright.serve.protocol.datatypes import DTYPES, datatype_of
from tidewright.serve.protocol.inference import read_call, write_answer
from tidewright.serve.protocol.metadata import model_metadata, server_metadata
from tidewright.serve.protocol.signature import ModelSignature, TensorSignature, check_signature

from ..sizes import examples

IMAGE = ModelSignature((TensorSignature("x", "FP32", (2, -1)),), (TensorSignature("y", "FP32", (1,)),), max_batch=4)
NUMERIC = [name for name in DTYPES if name != "BYTES"]


def body(**changes: Any) -> bytes:
    one = {"name": "x", "shape": [1, 2, 3], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6], **changes}
    return json.dumps({"inputs": [one]}).encode()


def tensors(names: list[str]) -> st.SearchStrategy[Any]:
    shapes = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)

    def of(name: str) -> st.SearchStrategy[Any]:
        if name == "BYTES":
            return hnp.arrays(object, shapes, elements=st.binary(max_size=5), fill=st.nothing())
        finite = {"allow_nan": False, "allow_infinity": False} if name.startswith("FP") else {}
        return hnp.arrays(DTYPES[name], shapes, elements=hnp.from_dtype(DTYPES[name], **finite))

    return st.sampled_from(names).flatmap(of)


def signature_of(array: Any) -> ModelSignature:
    return ModelSignature((TensorSignature("x", datatype_of(array), array.shape),))


@given(array=tensors(NUMERIC), nested=st.booleans())
def test_json_there_and_back(array: Any, nested: bool) -> None:
    data = array.tolist() if nested else array.ravel().tolist()
    sent = json.dumps({"inputs": [{"name": "x", "shape": array.shape, "datatype": datatype_of(array), "data": data}]})
    call = read_call(sent.encode(), None, signature_of(array))
    x = call.tensors()["x"]
    assert x.dtype == array.dtype and np.array_equal(x, array)
    answer, length = write_answer(call, "m", "1", {"y": array})
    assert length is None
    (output,) = json.loads(answer)["outputs"]
    back = np.array(output["data"], array.dtype).reshape(output["shape"])
    assert output["datatype"] == datatype_of(array) and np.array_equal(back, array)


@given(array=tensors(list(DTYPES)), binary=st.booleans())
@settings(max_examples=examples(60))
def test_tritons_client_is_understood_and_understands(array: Any, binary: bool) -> None:
    http = pytest.importorskip("tritonclient.http", reason="the client of Triton is not installed")
    name = datatype_of(array)
    if not binary and name in ("BYTES", "FP16"):
        return  # its client sends neither as JSON: bytes need not be text
    given_input = http.InferInput("x", list(array.shape), name)
    given_input.set_data_from_numpy(array, binary_data=binary)
    wanted = http.InferRequestedOutput("y", binary_data=binary)
    sent, length = http.InferenceServerClient.generate_request_body([given_input], outputs=[wanted], request_id="7")
    call = read_call(bytes(sent), length, signature_of(array))
    assert call.id == "7" and call.wanted == {"y": binary} and np.array_equal(call.tensors()["x"], array)
    answer, head = write_answer(call, "m", "1", {"y": array})
    result = http.InferResult.from_response_body(answer, header_length=head)
    assert result.get_response()["model_name"] == "m"
    got = result.as_numpy("y")
    assert np.array_equal(got.reshape(array.shape) if array.size else got, array) or not array.size


def test_batches() -> None:
    call = read_call(body(shape=[3, 2, 1]), None, IMAGE)
    assert call.batch == 3 and call.tensors()["x"].shape == (3, 2, 1)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", "not an inference request"),
        (b"{}", "inputs"),
        (b"[" * 100_000, "not an inference request"),
        (b'{"inputs": [{"name": "\xff"}]}', "not an inference request"),
        (body(name="z"), "which the model has not"),
        (json.dumps({"inputs": []}).encode(), "input x is missing"),
        (json.dumps({"inputs": [json.loads(body())["inputs"][0]] * 2}).encode(), "twice"),
        (body(datatype="FP64"), "datatype 'FP64'"),
        (body(shape=[1, 3, 2]), "shape [1, 3, 2]"),
        (body(shape=[1, 2]), "shape [1, 2]"),
        (body(shape=[1, 2, -3]), "shape [1, 2, -3]"),
        (body(shape=[1, 2, 2**40]), "shape"),
        (body(shape=[1, 2, 4]), "6 elements, shape [1, 2, 4] has 8"),
        (body(shape=[0, 2, 3], data=[]), "a batch of 0 items"),
        (body(shape=[5, 2, 1], data=list(range(10))), "a batch of 5 items; the model takes 1 to 4"),
        (body(data=[1, 2, 3, 4, 5, "6"]), "holds what is no FP32"),
        (body(data=[1, 2, 3, 4, 5, None]), "holds what is no FP32"),
        (body(data=[[1, 2, 3], [4, 5]]), "ragged"),
        (body(data=[1, 2, 3, 4, 5, 1e300]), "beyond FP32"),
        (body(data={"a": 1}), "not a list"),
        (body(data=None), "not a list"),
        (body(parameters={"binary_data_size": 24}), "binary_data_size 24 does not fit"),
        (body(parameters={"binary_data_size": -1}), "does not fit"),
        (body(parameters={"binary_data_size": True}), "does not fit"),
    ],
)
def test_what_is_wrong_is_said_with_what_the_model_takes(sent: bytes, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_call(sent, None, IMAGE).tensors()
    assert said in caught.value.message and "x FP32 [batch, 2, -1]" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("datatype", "data"),
    [("UINT8", [256]), ("UINT8", [-1]), ("INT8", [1.5]), ("INT64", [2**63]), ("UINT64", [2**64]), ("BOOL", [2]),
     ("INT32", [True]), ("BYTES", [1]), ("BYTES", ["a", None]), ("BYTES", [None, "a"]), ("FP16", [1e6])],
)  # fmt: skip
def test_elements_that_the_datatype_has_not(datatype: str, data: list[Any]) -> None:
    sent = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": datatype, "data": data}]}).encode()
    with pytest.raises(UsageError):
        read_call(sent, None, ModelSignature((TensorSignature("x", datatype, (1,)),))).tensors()


@pytest.mark.parametrize("length", [0, -1, 10**9])
def test_lengths_that_do_not_fit_the_body(length: int) -> None:
    with pytest.raises(UsageError, match="inference-header-content-length"):
        read_call(body(), length, IMAGE)


@given(sent=st.binary(max_size=200), length=st.none() | st.integers(-5, 250))
def test_any_bytes_are_read_or_refused(sent: bytes, length: int | None) -> None:
    for one in (sent, body()[:-5] + sent, body() + sent):
        try:
            read_call(one, length, IMAGE).tensors()
        except UsageError as error:
            assert error.remedy


@given(tail=st.binary(max_size=30), size=st.integers(0, 30))
def test_any_binary_data_is_read_or_refused(tail: bytes, size: int) -> None:
    for datatype in ("BYTES", "BOOL", "FP16"):
        model = ModelSignature((TensorSignature("x", datatype, (2,)),))
        one = {"name": "x", "shape": [2], "datatype": datatype, "parameters": {"binary_data_size": size}}
        head = json.dumps({"inputs": [one]}).encode()
        try:
            found = read_call(head + tail, len(head), model).tensors()
        except UsageError:
            continue
        assert size == len(tail) and found["x"].shape == (2,)


def test_outputs_that_are_not_there_or_cannot_be_sent() -> None:
    sent = json.loads(body()) | {"outputs": [{"name": "z"}]}
    with pytest.raises(UsageError, match="no output 'z'"):
        read_call(json.dumps(sent).encode(), None, IMAGE)
    call = replace(read_call(body(), None, IMAGE), wanted={"y": False})
    with pytest.raises(UsageError, match="the model returned"):
        write_answer(call, "m", "1", {"z": np.zeros(1)})
    with pytest.raises(UsageError, match="no datatype"):
        write_answer(call, "m", "1", {"y": np.zeros(1, complex)})
    with pytest.raises(UsageError, match="binary_data"):
        write_answer(call, "m", "1", {"y": np.array([b"\xff"], object)})
    answer, _ = write_answer(call, "m", "1", {"y": np.array([np.nan, 1.0])})
    assert json.loads(answer)["outputs"][0]["data"] == [None, 1.0]


def test_metadata() -> None:
    assert model_metadata("m", "3", IMAGE)["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2, -1]}]
    assert server_metadata("1.0")["extensions"] == ["binary_tensor_data"]


@pytest.mark.parametrize(
    "wrong",
    [
        ModelSignature((TensorSignature("x", "FP99", (1,)),)),
        ModelSignature((TensorSignature("x y", "FP32", (1,)),)),
        ModelSignature((TensorSignature("x", "FP32", (-2,)),)),
        ModelSignature((TensorSignature("x", "FP32", (1,)),) * 2),
        ModelSignature((), max_batch=-1),
    ],
)
def test_signatures_that_make_no_sense(wrong: ModelSignature) -> None:
    with pytest.raises(UsageError):
        check_signature(wrong)
    check_signature(IMAGE)
