"""ncnn: one convolution, written in ncnn's own format. It takes one image at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import ncnn
import numpy as np

from engines.one_conv import OneConv

_MAGIC = 7767517
_RAW_FLOATS = bytes(4)  # the tag in front of weights that are stored as they are


def load(
    model: str, inputs: dict[str, np.ndarray], threads: int
) -> tuple[Callable[[], list[np.ndarray]], str]:
    """Write and load the layer; see `leanconv.cli.engines.worker`."""
    conv = OneConv.from_file(model)
    net = ncnn.Net()
    net.opt.num_threads = threads
    for option in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        setattr(net.opt, f"use_{option}", False)
    with tempfile.TemporaryDirectory(prefix="ncnn-layer-") as folder:
        description, weights = Path(folder) / "layer.param", Path(folder) / "layer.bin"
        description.write_text(_description(conv))
        weights.write_bytes(_RAW_FLOATS + np.ascontiguousarray(conv.weight).tobytes())
        if net.load_param(str(description)) or net.load_model(str(weights)):
            raise ValueError("ncnn cannot load the layer")
    (x,) = inputs.values()

    def run() -> list[np.ndarray]:
        images = []
        for image in x:
            extractor = net.create_extractor()
            extractor.input("in0", ncnn.Mat(image))
            failed, out = extractor.extract("out0")
            if failed:
                raise RuntimeError("ncnn cannot compute the layer")
            images.append(np.asarray(out))
        return [images[0][np.newaxis] if len(images) == 1 else np.stack(images)]

    return run, str(ncnn.__version__)


def _description(conv: OneConv) -> str:
    """The network of this one layer as ncnn's text."""
    outputs, _, kernel_h, kernel_w = conv.weight.shape
    top, left, bottom, right = conv.pads
    values = {
        0: outputs,
        1: kernel_w,
        2: conv.dilations[1],
        3: conv.strides[1],
        4: left,
        5: 0,
        6: conv.weight.size,
        7: conv.groups,
        11: kernel_h,
        12: conv.dilations[0],
        13: conv.strides[0],
        14: top,
        15: right,
        16: bottom,
    }
    kind = "Convolution" if conv.groups == 1 else "ConvolutionDepthWise"
    if conv.groups == 1:
        del values[7]
    parameters = " ".join(f"{key}={value}" for key, value in values.items())
    return f"{_MAGIC}\n2 2\nInput in 0 1 in0\n{kind} conv 1 1 in0 out0 {parameters}\n"
