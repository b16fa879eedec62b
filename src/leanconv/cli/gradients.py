"""Gradients of a convolution on the command line: the option, a plan's report, work to measure."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leanconv.cli.engines.rounds import Work
from leanconv.spec.conv import ConvSpec

if TYPE_CHECKING:
    from leanconv.api.gradient_plan import GradientPlan

_NEEDS = ("x", "w")
RESULT = {"x": "dx", "w": "dw"}


def add_gradient_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--gradient`.

    Args:
        parser: that takes it.
        what: is done, for the help.
    """
    parser.add_argument(
        "--gradient",
        choices=_NEEDS,
        help=f"{what} the gradient by the convolution's input (x) or weights (w)",
    )


def gradient_text(need: str | None) -> str:
    """What stands in front of a problem's name."""
    return f"{RESULT[need]} of " if need else ""


def gradient_plan(
    spec: ConvSpec, need: str, settings: Mapping[str, Any]
) -> tuple[GradientPlan, dict[str, Any]]:
    """Plan a gradient.

    Args:
        spec: the convolution.
        need: "x" or "w".
        settings: threads, limits and the like, as `plan_conv2d_backward` has them.

    Returns:
        The plan; which gradient it is of, and how that is computed.
    """
    import leanconv

    plan = leanconv.plan_conv2d_backward(
        spec.input_shape,
        spec.weight_shape,
        **window_arguments(spec),
        needs=(need,),
        dtype=spec.dtype,
        **settings,
    )
    (part,) = plan.parts
    return plan, {
        "gradient": need,
        "algorithm": part.algorithm,
        "parameters": str(part.choice.parameters),
        "selector": str(part.choice),
    }


def gradient_works(specs: Mapping[str, ConvSpec], need: str, folder: Path) -> Iterator[Work]:
    """Yield the gradient of each convolution, from seeded arrays.

    Args:
        specs: by name, in NCHW.
        need: "x" or "w".
        folder: where the files go that say what is computed.
    """
    for name, spec in specs.items():
        generator = np.random.default_rng(0)
        shapes = {"x": spec.input_shape, "w": spec.weight_shape, "dy": spec.output_shape}
        arrays = {n: generator.standard_normal(s).astype(spec.dtype) for n, s in shapes.items()}
        file = folder / "gradient.json"
        file.write_text(json.dumps({"need": need, **window_arguments(spec)}), encoding="utf-8")
        yield Work(gradient_text(need) + f"{name} {spec}".strip(), file, arrays)


def window_arguments(spec: ConvSpec) -> dict[str, Any]:
    """The window of a convolution as `plan_conv2d` has it."""
    return {
        "stride": spec.stride,
        "padding": (*spec.pad_begin, *spec.pad_end),
        "dilation": spec.dilation,
        "groups": spec.groups,
    }
