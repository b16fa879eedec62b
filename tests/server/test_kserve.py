"""The model for KServe, where KServe is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import leanconv as lc
from support.hostile import node
from support.onnx_models import model as onnx_model
from support.served import small_net

X = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def kserve() -> Any:
    return pytest.importorskip("kserve", reason="kserve is not installed")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return small_net(tmp_path / "one.onnx")


@pytest.fixture
def model(kserve: Any, path: str) -> Any:
    from leanconv.kserve import LeanConvModel

    made = LeanConvModel("one", path, threads=1)
    assert made.load()
    return made


@pytest.fixture
def expected(path: str) -> np.ndarray:
    return lc.load(path, threads=1, reproducible=True)(X)


def rest_request(kserve: Any, x: np.ndarray, **options: Any) -> Any:
    given = kserve.InferInput("x", list(x.shape), "FP32")
    given.set_data_from_numpy(x, binary_data=True)
    return kserve.InferRequest("one", [given], request_id="7", **options)


def test_a_model_answers(kserve: Any, model: Any, expected: np.ndarray) -> None:
    answer = model.predict(rest_request(kserve, X))
    assert np.array_equal(answer.outputs[0].as_numpy(), expected)
    document, json_length = answer.to_rest()
    assert json_length is None
    (output,) = document["outputs"]
    assert (document["id"], document["model_name"], output["shape"]) == ("7", "one", [2, 4, 1, 1])
    assert np.array_equal(np.float32(output["data"]), expected.ravel())


def test_raw_bytes_where_they_are_asked_for(kserve: Any, model: Any, expected: np.ndarray) -> None:
    asked = rest_request(kserve, X, parameters={"binary_data_output": True})
    body, json_length = model.predict(asked).to_rest()
    assert body[json_length:] == expected.tobytes()


@pytest.mark.parametrize("raw", [True, False])
def test_over_grpc(kserve: Any, model: Any, expected: np.ndarray, raw: bool) -> None:
    """By the messages that KServe's gRPC server reads and writes."""
    from kserve.protocol.grpc.grpc_predict_v2_pb2 import ModelInferRequest, ModelInferResponse

    tensor: dict[str, Any] = {"name": "x", "shape": X.shape, "datatype": "FP32"}
    if not raw:
        tensor["contents"] = {"fp32_contents": X.ravel()}
    message = ModelInferRequest(
        id="7",
        model_name="one",
        inputs=[tensor],
        raw_input_contents=[X.tobytes()] if raw else [],
    )
    asked = ModelInferRequest.FromString(message.SerializeToString())
    answer = model.predict(kserve.InferRequest.from_grpc(asked)).to_grpc()
    found = ModelInferResponse.FromString(answer.SerializeToString())
    assert (found.id, found.outputs[0].name, list(found.outputs[0].shape)) == (
        "7",
        "y",
        [2, 4, 1, 1],
    )
    assert found.raw_output_contents[0] == expected.tobytes()


def test_what_a_network_does_not_take_is_refused(kserve: Any, model: Any, path: str) -> None:
    from leanconv.kserve import LeanConvModel

    with pytest.raises(kserve.errors.InvalidInput, match="1x3x8x7"):
        model.predict(rest_request(kserve, np.ones((1, 3, 8, 7), np.float32)))
    few = kserve.InferRequest("one", [kserve.InferInput("x", [1, 3, 8, 8], "FP32", data=[1.0])])
    with pytest.raises(kserve.errors.InvalidInput, match="reshape"):
        model.predict(few)
    with pytest.raises(lc.InputError, match="call load"):
        LeanConvModel("one", path).predict(few)


def test_types_that_kserve_lacks_are_refused(kserve: Any, tmp_path: Path) -> None:
    from leanconv.kserve import LeanConvModel

    file = tmp_path / "half.onnx"
    made = onnx_model(
        [node("Relu", "x", "y")], {"x": (1, 3)}, ["y"], elem_type=TensorProto.BFLOAT16
    )
    file.write_bytes(made.SerializeToString())
    with pytest.raises(lc.UnsupportedError, match="bfloat16"):
        LeanConvModel("half", file).load()


def test_without_kserve(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "kserve", None)
    monkeypatch.delitem(sys.modules, "leanconv.kserve", raising=False)
    with pytest.raises(lc.MissingExtraError, match="pip install kserve"):
        import leanconv.kserve  # noqa: F401
