"""Small networks of the kinds that have integers and truth values beside their floats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from support.hostile import node

Arrays = dict[str, np.ndarray]
_Named = Mapping[str, tuple[int, Sequence[int | str] | None]]
FLOAT, LONG, BYTE = TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT8


def _weights(*shape: int) -> np.ndarray:
    random = np.random.default_rng(sum(shape))
    return (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("f4")


def _model(
    nodes: Sequence[onnx.NodeProto], inputs: _Named, outputs: Mapping[str, int], **held: Any
) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()]
    made = [helper.make_tensor_value_info(n, kind, None) for n, kind in outputs.items()]
    kept = [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()]
    graph = helper.make_graph(list(nodes), "typed", given, made, kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def segmenter() -> onnx.ModelProto:
    """Images, of which each pixel's class is found by ArgMax."""
    nodes = [
        node("Conv", "x w", "a", pads=[1] * 4),
        node("Relu", "a", "b"),
        node("Conv", "b v", "c"),
        node("ArgMax", "c", "y", axis=1, keepdims=0),
    ]
    inputs = {"x": (FLOAT, ("N", 3, "H", "W"))}
    return _model(nodes, inputs, {"y": LONG}, w=_weights(8, 3, 3, 3), v=_weights(5, 8, 1, 1))


def classifier() -> onnx.ModelProto:
    """Images, of which the three likeliest classes are found by TopK."""
    nodes = [
        node("Conv", "x w", "a", strides=[2, 2], pads=[1] * 4),
        node("MaxPool", "a", "b places", kernel_shape=[2, 2], strides=[2, 2], pads=[1] * 4),
        node("GlobalAveragePool", "b", "c"),
        node("Flatten", "c", "d"),
        node("Gemm", "d v", "e"),
        node("Softmax", "e", "f", axis=-1),
        node("TopK", "f k", "y which", axis=-1),
    ]
    inputs = {"x": (FLOAT, ("N", 3, "H", "W"))}
    held = {"w": _weights(8, 3, 3, 3), "v": 4 * _weights(8, 10), "k": np.array([3])}
    return _model(nodes, inputs, {"y": FLOAT, "which": LONG, "places": LONG}, **held)


def byte_images() -> onnx.ModelProto:
    """Images as bytes, channels last, which the network scales."""
    nodes = [
        node("Cast", "x", "f", to=FLOAT),
        node("Div", "f scale", "g"),
        node("Transpose", "g", "h", perm=[0, 3, 1, 2]),
        node("Conv", "h w", "a", pads=[1] * 4),
        node("Relu", "a", "y"),
    ]
    inputs = {"x": (BYTE, ("N", "H", "W", 3))}
    return _model(nodes, inputs, {"y": FLOAT}, w=_weights(8, 3, 3, 3), scale=np.float32(255))


def masked_attention() -> onnx.ModelProto:
    """Attention over those of a sequence's places whose mask is not 0."""
    nodes = [
        node("MatMul", "x w", "q"),
        node("MatMul", "x v", "k"),
        node("Transpose", "k", "t", perm=[0, 2, 1]),
        node("MatMul", "q t", "s"),
        node("Cast", "mask", "b", to=TensorProto.BOOL),
        node("Unsqueeze", "b axis", "c"),
        node("Where", "c s least", "m"),
        node("Softmax", "m", "p", axis=-1),
        node("MatMul", "p x", "y"),
    ]
    inputs = {"x": (FLOAT, ("N", "L", 16)), "mask": (LONG, ("N", "L"))}
    held = {"w": _weights(16, 16), "v": _weights(16, 16) + 1, "axis": np.array([1])}
    return _model(nodes, inputs, {"y": FLOAT}, least=np.float32(-1e9), **held)


MODELS = {each.__name__: each for each in (segmenter, classifier, byte_images, masked_attention)}


def arrays(name: str, batch: int, height: int, width: int, seed: int = 0) -> Arrays:
    """Inputs for one of `MODELS`."""
    random = np.random.default_rng(seed)
    if name == "byte_images":
        return {"x": random.integers(0, 256, (batch, height, width, 3), np.uint8)}
    if name == "masked_attention":
        mask = random.integers(0, 2, (batch, width)) | (np.arange(width) == 0)
        return {"x": random.standard_normal((batch, width, 16)).astype("f4"), "mask": mask}
    return {"x": random.standard_normal((batch, 3, height, width)).astype("f4")}
