"""`leanconv bench layers|MODEL|PROBLEM`: against every engine that is installed, each in its own
process, in turn; medians and ratios.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from leanconv.api.inputs import given_values
from leanconv.cli.common import add_shape_option, add_value_option, positive
from leanconv.cli.engines.catalogue import ENGINES
from leanconv.cli.engines.onnx_file import conv_model
from leanconv.cli.engines.report import add_measure_options, compare
from leanconv.cli.engines.rounds import Work
from leanconv.cli.network_inputs import input_shapes, random_inputs
from leanconv.cli.problem_lines import is_problem, read_problem
from leanconv.errors import InputError
from leanconv.reference.direct import convolve
from leanconv.reference.layers import LAYERS
from leanconv.spec.conv import ConvSpec
from leanconv.types import FLOAT32
from leanconv.units import shape_text


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "bench", help="compare with the other engines that are installed", description=__doc__
    )
    parser.add_argument(
        "what",
        metavar="layers|MODEL|PROBLEM",
        help="an ONNX file, a line such as ic64ih56oc64oh54kh3, cv1 to cv12 (the MEC paper's "
        "layers), or `layers`: these twelve",
    )
    parser.add_argument("--batch", type=positive, metavar="N", help="images at once (default: 1)")
    add_shape_option(parser)
    add_value_option(parser)
    add_measure_options(parser)
    parser.set_defaults(execute=execute)


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
