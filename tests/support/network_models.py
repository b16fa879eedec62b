"""Networks for the tests: the examples', small ones of a few nodes, and their oracles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from examples.networks import FULL_NETWORKS, SMALL_NETWORKS
from leanconv.graph.onnx_import import read_model
from leanconv.types import FLOAT64
from support.interpret import interpret

NARROW = {
    "mobilenetv2": {"width": 0.25, "image": 96},
    "resnet50": {"width": 0.125, "image": 64},
    "resnet101": {"width": 0.125, "image": 64},
    "vgg16": {"width": 0.0625, "image": 64},
}
NAMES = (*SMALL_NETWORKS, *NARROW)

Shape = Sequence[int | str]


@cache
def model(name: str) -> bytes:
    """A small network, a narrow version of a big one, or MobileNetV2 as it is."""
    if name == "mobilenetv2-1.0":
        return FULL_NETWORKS["mobilenetv2"]().SerializeToString()
    if name in NARROW:
        return FULL_NETWORKS[name](**NARROW[name]).SerializeToString()
    return SMALL_NETWORKS[name]().SerializeToString()


@cache
def small_model(name: str) -> bytes:
    """The same for images of half the height and width, where there are narrow or small ones."""
    if name in NARROW:
        sizes = NARROW[name]
        half = {**sizes, "image": int(sizes["image"]) // 2}
        return FULL_NETWORKS[name](**half).SerializeToString()
    return SMALL_NETWORKS[name](image=32).SerializeToString()


def images(built: bytes, batch: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """Normally distributed images of the size that a network of one input declares."""
    (port,) = read_model(built).inputs
    shape = [n if isinstance(n, int) else batch for n in port.shape or ()]
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def by_onnxruntime(built: bytes, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What ONNX Runtime computes."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(built, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def by_numpy(built: bytes, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the graph, before any pass, gives in NumPy's float64."""
    read = read_model(built)
    graph = read.bind({n: a.shape for n, a in inputs.items()}, dtype=FLOAT64)
    wide = {n: a.astype(np.float64) for n, a in inputs.items()}
    return dict(zip(read.outputs, interpret(graph, wide).values(), strict=True))


def small(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Shape],
    outputs: dict[str, Shape],
    constants: dict[str, np.ndarray] | None = None,
    dtype: int = TensorProto.FLOAT,
    opset: int = 17,
) -> bytes:
    """A model of a few nodes."""
    graph = helper.make_graph(
        list(nodes),
        "small",
        [helper.make_tensor_value_info(n, dtype, list(s)) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, dtype, list(s)) for n, s in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    built = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8 if opset < 21 else 10,
    )
    return built.SerializeToString()


def weights(*shape: int, seed: int = 3) -> np.ndarray:
    """Random weights."""
    return np.random.default_rng(seed).normal(size=shape).astype("f4")
