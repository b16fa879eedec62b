"""ncnn: one convolution of codes with Relu, written in ncnn's own format for int8."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ncnn
import numpy as np
import onnx
from onnx import numpy_helper

_MAGIC = 7767517
_CODES = (0x000D4B38).to_bytes(4, "little")  # the tag in front of weights that are int8
_AS_IT_IS = 1  # else int8 would become float32
_REQUANTISE = 101  # how: of int8, by a scale for each output, to int8


def load(
    model: str, inputs: dict[str, np.ndarray], threads: int
) -> tuple[Callable[[], list[np.ndarray]], str]:
    """Write and load the layer of `quantised_layers.layer_model`; see `worker`."""
    graph = onnx.load(model).graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    (conv,) = (node for node in graph.node if node.op_type == "Conv")
    net = ncnn.Net()
    net.opt.num_threads = threads
    with tempfile.TemporaryDirectory(prefix="ncnn-layer-") as folder:
        description, weights = Path(folder) / "layer.param", Path(folder) / "layer.bin"
        description.write_text(_description(conv, constants["w"]))
        weights.write_bytes(_weights(constants))
        if net.load_param(str(description)) or net.load_model(str(weights)):
            raise ValueError("ncnn cannot load the layer")
    (x,) = inputs.values()
    image = x[0].astype(np.int8)

    def run() -> list[np.ndarray]:
        extractor = net.create_extractor()
        extractor.input("in0", ncnn.Mat(image))
        failed, out = extractor.extract("out0", _AS_IT_IS)
        if failed:
            raise RuntimeError("ncnn cannot compute the layer")
        whole = ncnn.Mat()
        ncnn.convert_packing(out, whole, 1)  # from blocks of channels
        return [np.asarray(whole).view(np.uint8)[np.newaxis]]

    return run, str(ncnn.__version__)


def _weights(constants: dict[str, np.ndarray]) -> bytes:
    """Codes in whole words, then what numbers are multiplied by to become codes."""
    codes = constants["w"].tobytes()
    scales = (constants["w_scale"], constants["x_scale"], constants["y_scale"])
    factors = b"".join((1 / np.atleast_1d(scale)).astype(np.float32).tobytes() for scale in scales)
    return _CODES + codes + bytes(-len(codes) % 4) + factors


def _description(conv: onnx.NodeProto, w: np.ndarray) -> str:
    """The network of this one layer as ncnn's text."""
    given: dict[str, Any] = {a.name: onnx.helper.get_attribute_value(a) for a in conv.attribute}
    if given["group"] != 1:
        raise ValueError("only one group")
    outputs, _, kernel_h, kernel_w = w.shape
    top, left, bottom, right = given["pads"]
    values = {
        0: outputs,
        1: kernel_w,
        2: given["dilations"][1],
        3: given["strides"][1],
        4: left,
        5: 0,  # no bias
        6: w.size,
        8: _REQUANTISE,
        9: 1,  # Relu
        11: kernel_h,
        12: given["dilations"][0],
        13: given["strides"][0],
        14: top,
        15: right,
        16: bottom,
    }
    parameters = " ".join(f"{key}={value}" for key, value in values.items())
    return f"{_MAGIC}\n2 2\nInput in 0 1 in0\nConvolution conv 1 1 in0 out0 {parameters}\n"
