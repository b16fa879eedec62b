"""`leanconv explain MODEL|PROBLEM`: every layer's algorithm, bytes, time and error, and why."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from leanconv.cli.common import (
    add_load_options,
    add_shape_option,
    input_shapes,
    is_problem,
    load_options,
)
from leanconv.cli.output import print_json, printable, progress
from leanconv.errors import InputError
from leanconv.spec.conv import ConvSpec


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "explain", help="say what was chosen for every layer, and why", description=__doc__
    )
    parser.add_argument(
        "what", metavar="MODEL|PROBLEM", help="an ONNX file, or a line such as ic64ih56oc64oh54kh3"
    )
    add_load_options(parser)
    add_shape_option(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command."""
    with progress(f"planning {options.what}"):
        report = _problem(options) if is_problem(options.what) else _model(options)
    if options.json:
        print_json(report)
    else:
        print(printable(report["text"]))
    return 0


def _problem(options: argparse.Namespace) -> dict[str, Any]:
    """Plan one convolution with weights of zero: a plan depends on shapes only."""
    import leanconv

    spec = ConvSpec.parse(options.what, **({"dtype": options.dtype} if options.dtype else {}))
    if len(spec.size) != 2:
        raise InputError(
            f"problem {options.what} has {len(spec.size)} spatial axes; explain takes two "
            f"(put it into an ONNX file for others)"
        )
    settings = {key: value for key, value in load_options(options).items() if key != "dtype"}
    plan = leanconv.plan_conv2d(
        spec.input_shape,
        np.zeros(spec.weight_shape, spec.dtype),
        stride=spec.stride,
        padding=(*spec.pad_begin, *spec.pad_end),
        dilation=spec.dilation,
        groups=spec.groups,
        **settings,
    )
    return {
        "problem": str(spec),
        "algorithm": plan.algorithm,
        "flops": spec.flops,
        "workspace_bytes": plan.workspace_bytes,
        "weight_bytes": plan.weight_bytes,
        "memory_bytes": plan.memory_bytes,
        "predicted_error": plan.predicted_error,
        "text": plan.explain(),
    }


def _model(options: argparse.Namespace) -> dict[str, Any]:
    import leanconv

    network = leanconv.load(options.what, **load_options(options))
    shapes = input_shapes(network, options.shape)
    plan = network.bind(shapes)
    return {
        "model": options.what,
        "inputs": {name: list(shape) for name, shape in shapes.items()},
        "arena_bytes": plan.arena_bytes,
        "weight_bytes": plan.weight_bytes,
        "memory_bytes": plan.memory_bytes,
        "steps": [
            {
                "name": step.name,
                "op": step.op,
                "algorithm": step.algorithm,
                "flops": step.flops,
                "weight_bytes": step.weight_bytes,
                "output_bytes": step.output_bytes,
            }
            for step in plan.steps
        ],
        "text": network.explain(),
    }
