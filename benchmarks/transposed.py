"""Transposed convolutions against every engine, and against a Conv of the same products.

    python benchmarks/transposed.py               all of them; --out FILE keeps the JSON
    python benchmarks/transposed.py 2x2 det       those alone: parts of names

A Conv of the same products has the transposed one's taps over the stride along each axis, rounded
up, and as many outputs as all its phases together. Answers are compared with leanconv's in float64.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from harness import ALL_ENGINES, add_record_option, script
from leanconv.cli.bench import add_measure_options, compare
from leanconv.cli.engines.rounds import Work
from leanconv.spec.format import ceil_div
from real import in_float64


@dataclass(frozen=True)
class Layer:
    """One transposed convolution with a square kernel, followed by bias and ReLU.

    Attributes:
        name: for people.
        channels, outputs, groups: C, K and g.
        size: height and width of the input.
        kernel, stride, pad, extra: along both axes; `extra` is the output padding.
    """

    name: str
    channels: int
    outputs: int
    size: int
    kernel: int
    stride: int
    pad: int = 0
    extra: int = 0
    groups: int = 1


LAYERS = (
    Layer("det 24-24 2x2/2", 24, 24, 184, 2, 2),
    Layer("det 24-1 2x2/2", 24, 1, 368, 2, 2),
    Layer("unet 512-256 2x2/2", 512, 256, 16, 2, 2),
    Layer("unet 256-128 2x2/2", 256, 128, 32, 2, 2),
    Layer("unet 128-64 2x2/2", 128, 64, 64, 2, 2),
    Layer("unet 64-32 2x2/2", 64, 32, 128, 2, 2),
    Layer("gan 256-128 4x4/2", 256, 128, 16, 4, 2, 1),
    Layer("gan 128-64 4x4/2", 128, 64, 32, 4, 2, 1),
    Layer("gan 64-3 4x4/2", 64, 3, 64, 4, 2, 1),
    Layer("64-64 3x3/2", 64, 64, 56, 3, 2, 1, 1),
    Layer("64-64 5x5/2", 64, 64, 56, 5, 2, 2, 1),
    Layer("64-64 6x6/2", 64, 64, 56, 6, 2, 2),
    Layer("64-64 3x3/1", 64, 64, 56, 3, 1, 1),
    Layer("fsrcnn 56-1 9x9/3", 56, 1, 64, 9, 3, 4, 2),
    Layer("depthwise 64 4x4/2", 64, 64, 56, 4, 2, 1, 0, 64),
    Layer("depthwise 64 3x3/2", 64, 64, 56, 3, 2, 1, 1, 64),
)


def save(layer: Layer, file: Path, transposed: bool) -> None:
    """Write a layer, or the Conv of the same products, as an ONNX file."""
    per_group, outputs = layer.outputs // layer.groups, layer.outputs
    shape: tuple[int, ...] = (layer.channels, per_group, layer.kernel, layer.kernel)
    given: dict[str, Any] = {
        "strides": [layer.stride] * 2,
        "pads": [layer.pad] * 4,
        "output_padding": [layer.extra] * 2,
    }
    if not transposed:
        taps = ceil_div(layer.kernel, layer.stride)
        outputs *= layer.stride**2
        shape = (outputs, layer.channels // layer.groups, taps, taps)
        given = {"pads": [taps // 2] * 4}
    draw = np.random.default_rng(0)
    scale = 1 / np.sqrt(layer.channels // layer.groups * layer.kernel**2)
    weights = {
        "w": (draw.normal(size=shape) * scale).astype(np.float32),
        "b": draw.normal(size=outputs).astype(np.float32),
    }
    kind = "ConvTranspose" if transposed else "Conv"
    nodes = [
        helper.make_node(kind, ["x", "w", "b"], ["t"], name="layer", group=layer.groups, **given),
        helper.make_node("Relu", ["t"], ["y"], name="relu"),
    ]
    x = [1, layer.channels, layer.size, layer.size]
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(file))


def works(parts: list[str], folder: Path) -> Iterator[Work]:
    """The layers whose names have one of these parts, each before its Conv."""
    for number, layer in enumerate(LAYERS):
        if parts and not any(part.lower() in layer.name for part in parts):
            continue
        shape = (1, layer.channels, layer.size, layer.size)
        x = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
        for transposed in (True, False):
            file = folder / f"{number}-{'transposed' if transposed else 'conv'}.onnx"
            save(layer, file, transposed)
            name = layer.name if transposed else f"{layer.name} as Conv"
            yield Work(name, file, {"x": x}, partial(in_float64, file, {"x": x}))


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="of names such as unet")
    add_measure_options(parser, threads=2)
    add_record_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="leanconv-transposed-") as folder:
        return compare(works(options.parts, Path(folder)), ALL_ENGINES, options)


if __name__ == "__main__":
    script(main)
