"""Reading requests: any JSON is taken or refused, every element type goes in and out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from leanconv.api.inputs import InputSpec
from leanconv.server.limits import RefusedError
from leanconv.server.protocol import decode
from leanconv.types import BOOL, FLOAT32, UINT8
from support.served import Running, serving

INPUTS = (
    InputSpec("x", ("N", 2), FLOAT32),
    InputSpec("n", (None,), UINT8),
    InputSpec("f", None, BOOL),
)
OUTPUTS = (InputSpec("y", ("N", 2), FLOAT32), InputSpec("z", None, FLOAT32))
NAMES = st.sampled_from(["x", "n", "f", "y", "z", "q", ""])
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-300, 300),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
)
ANYTHING = st.recursive(
    LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner))
)
SHAPES = st.one_of(st.lists(st.integers(-1, 3), max_size=3), ANYTHING)
TENSORS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.one_of(NAMES, ANYTHING),
        "shape": SHAPES,
        "datatype": st.one_of(st.sampled_from(["FP32", "UINT8", "BOOL", "FP64"]), ANYTHING),
        "data": st.one_of(st.lists(LEAVES, max_size=6), ANYTHING),
        "parameters": st.one_of(
            st.dictionaries(st.sampled_from(["binary_data_size", "binary_data"]), LEAVES),
            ANYTHING,
        ),
    },
)
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "inputs": st.one_of(st.lists(TENSORS, max_size=4), ANYTHING),
        "outputs": st.one_of(st.lists(TENSORS, max_size=3), ANYTHING),
        "id": ANYTHING,
        "parameters": st.one_of(
            st.dictionaries(st.sampled_from(["binary_data_output"]), LEAVES), ANYTHING
        ),
    },
)


@settings(max_examples=150, deadline=None)
@given(REQUESTS, st.binary(max_size=12), st.integers(-2, 2))
def test_any_request_is_read_or_refused(document: Any, raw: bytes, shift: int) -> None:
    text = json.dumps(document).encode()
    body = memoryview(bytearray(text + raw))
    length = max(0, len(text) + shift)
    refused = None
    try:
        found = decode(body, length, INPUTS, OUTPUTS)
    except RefusedError as error:
        refused = error
    if refused is not None:
        assert refused.status == 400
        assert "; expected " in str(refused)
        return
    for spec, array in zip(INPUTS, found.arrays, strict=True):
        assert array.dtype == spec.dtype.numpy
        assert spec.takes(array.shape)


KINDS = {
    "FP32": (TensorProto.FLOAT, np.float32),
    "FP64": (TensorProto.DOUBLE, np.float64),
    "FP16": (TensorProto.FLOAT16, np.float16),
    "BF16": (TensorProto.BFLOAT16, np.uint16),
    "INT8": (TensorProto.INT8, np.int8),
    "UINT8": (TensorProto.UINT8, np.uint8),
    "INT32": (TensorProto.INT32, np.int32),
    "INT64": (TensorProto.INT64, np.int64),
    "BOOL": (TensorProto.BOOL, np.bool_),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder: Path = tmp_path_factory.mktemp("kinds")
    for name, (kind, _) in KINDS.items():
        graph = helper.make_graph(
            [helper.make_node("Transpose", ["x"], ["y"], perm=[0, 2, 1])],
            name,
            [helper.make_tensor_value_info("x", kind, ["N", 3, 2])],
            [helper.make_tensor_value_info("y", kind, ["N", 2, 3])],
        )
        opset = [helper.make_opsetid("", 17)]
        made = helper.make_model(graph, opset_imports=opset, ir_version=9)
        (folder / f"{name}.onnx").write_bytes(made.SerializeToString())
    with serving([str(folder)], batch=2) as running:
        yield running


@pytest.mark.parametrize("name", KINDS)
def test_every_type_goes_in_and_out(served: Running, name: str) -> None:
    kind = np.dtype(KINDS[name][1])
    x = np.arange(18).reshape(3, 3, 2).astype(kind)
    tensor = {"name": "x", "shape": x.shape, "datatype": name}
    raw = {**tensor, "parameters": {"binary_data_size": x.nbytes}}
    parameters = {"binary_data_output": True}
    text = json.dumps({"inputs": [raw], "parameters": parameters}).encode()
    length = {"Inference-Header-Content-Length": str(len(text))}
    where = f"/v2/models/{name}/infer"
    answer = served.client.post(where, content=text + x.tobytes(), headers=length)
    assert answer.status_code == 200, answer.text
    head = int(answer.headers["Inference-Header-Content-Length"])
    (output,) = json.loads(answer.content[:head])["outputs"]
    assert (output["datatype"], output["shape"]) == (name, [3, 2, 3])
    found = np.frombuffer(answer.content[head:], kind).reshape(3, 2, 3)
    assert np.array_equal(found, x.transpose(0, 2, 1))
    answer = served.client.post(where, json={"inputs": [{**tensor, "data": x.tolist()}]})
    if name == "BF16":
        assert answer.status_code == 400
        return
    assert answer.status_code == 200, answer.text
    (output,) = answer.json()["outputs"]
    assert output["data"] == x.transpose(0, 2, 1).ravel().tolist()
