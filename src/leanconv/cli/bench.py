"""`leanconv bench layers|MODEL|PROBLEM`: against every engine that is installed, each in its own
process, in turn; medians and ratios.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from leanconv.api.inputs import given_values
from leanconv.cli.engines.processes import ENGINES
from leanconv.cli.engines.report import add_measure_options, compare
from leanconv.cli.engines.rounds import Work
from leanconv.cli.network_inputs import input_shapes, is_problem, random_inputs, read_problem
from leanconv.cli.options import add_input_options, positive
from leanconv.errors import InputError
from leanconv.graph.onnx_parts import named_value
from leanconv.graph.wire import written
from leanconv.quantizer.onnx_graph import OnnxGraph, OnnxNode, int_attribute
from leanconv.reference.direct import convolve
from leanconv.reference.layers import LAYERS
from leanconv.spec.conv import ConvSpec
from leanconv.types import FLOAT32
from leanconv.units import shape_text

HELP = "compare with the other engines that are installed"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's options."""
    parser.add_argument(
        "what",
        metavar="layers|MODEL|PROBLEM",
        help="an ONNX file, a line such as ic64ih56oc64oh54kh3, cv1 to cv12 (the MEC paper's "
        "layers), or `layers`: these twelve",
    )
    parser.add_argument("--batch", type=positive, metavar="N", help="images at once (default: 1)")
    add_input_options(parser)
    add_measure_options(parser)


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command; 3 if answers differ or the goal is missed."""
    with tempfile.TemporaryDirectory(prefix="leanconv-bench-") as folder:
        if options.what == "layers":
            specs = {n: ConvSpec.parse(p, batch=options.batch or 1) for n, p in LAYERS.items()}
            works = layer_works(specs, Path(folder))
        elif is_problem(options.what):
            spec = read_problem(options.what, batch=options.batch or 1)
            named = options.what if options.what in LAYERS else ""
            works = layer_works({named: spec}, Path(folder))
        else:
            works = iter([_model_work(options)])
        return compare(works, ENGINES, options)


def layer_works(specs: Mapping[str, ConvSpec], folder: Path, exact: bool = False) -> Iterator[Work]:
    """Yield each convolution as a network of its own, with seeded weights.

    Args:
        specs: by name; without bias, residual or activation, in NCHW.
        folder: where the ONNX files go; each is removed when the next one is requested.
        exact: whether answers are compared with the exact one, which takes long to compute.
    """
    for name, spec in specs.items():
        generator = np.random.default_rng(0)
        weight = generator.standard_normal(spec.weight_shape).astype(spec.dtype)
        file = folder / "layer.onnx"
        file.write_bytes(conv_model(spec, weight))
        x = generator.standard_normal(spec.input_shape).astype(spec.dtype)
        truth = functools.partial(_exact, spec, x, weight) if exact else None
        yield Work(f"{name} {spec}".strip(), file, {"x": x}, truth)
        file.unlink()


def conv_model(spec: ConvSpec, weight: np.ndarray) -> bytes:
    """Return the ONNX file of `y = Conv(x, w)`, for engines that read nothing else.

    Args:
        spec: the convolution, without bias, residual or activation, in NCHW.
        weight: its weights, of `spec.weight_shape` and the spec's dtype.
    """
    assert spec.layout == "NCHW"
    assert weight.shape == spec.weight_shape
    attributes = {
        "kernel_shape": _ints("kernel_shape", spec.kernel),
        "strides": _ints("strides", spec.stride),
        "dilations": _ints("dilations", spec.dilation),
        "pads": _ints("pads", spec.pad_begin + spec.pad_end),
        "group": int_attribute("group", spec.groups),
    }
    x, y = (
        {name: named_value(name, spec.dtype.onnx, shape)}
        for name, shape in (("x", spec.input_shape), ("y", spec.output_shape))
    )
    return OnnxGraph(
        nodes=[OnnxNode("Conv", ["x", "w"], ["y"], "conv", attributes)],
        constants={"w": weight},
        inputs=x,
        outputs=y,
        opset=13,
        domains={},
        ir_version=8,
        around=(),
        inside=(written(2, str(spec).encode()),),
        others={},
    ).data()


def _ints(name: str, values: Sequence[int]) -> bytes:
    """An AttributeProto of whole numbers that are not negative."""
    numbers = b"".join(written(8, value) for value in values)
    return written(1, name.encode()) + numbers + written(20, 7)


def _exact(spec: ConvSpec, x: np.ndarray, weight: np.ndarray) -> list[np.ndarray]:
    return [convolve(spec, x, weight)]


def _model_work(options: argparse.Namespace) -> Work:
    import leanconv

    file = Path(options.what)
    network = leanconv.load(str(file))
    values = given_values(network.inputs, options.value)
    shapes = input_shapes(network, options.shape, options.batch, values)
    inputs = random_inputs(network, shapes, values=values)
    computed = network.backend.dtype
    if computed != FLOAT32:
        raise InputError(
            f"{file} computes in {computed}; expected float32, in which bench compares: convert "
            "the model to float32"
        )
    texts = ", ".join(shape_text(x.shape) for x in inputs.values())
    return Work(f"{file.stem} {texts}", file, inputs, stated=bool(options.shape))
