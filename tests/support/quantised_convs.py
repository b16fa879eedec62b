"""Single nodes QLinearConv of all kinds: what they read, and their attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from leanconv.graph.ir import Graph, Node
from leanconv.spec import Activation
from leanconv.spec.requantise import ResidualCodes
from leanconv.types import FLOAT32, INT8, INT32, UINT8, DType
from support.nodes import one_node

# Input, weights, attributes: what is not named is 1, 0 and none.
SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((1, 3, 9, 11), (20, 3, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),  # a first layer
    ((2, 20, 5, 4), (33, 20, 1, 1), {}),
    ((1, 40, 6, 7), (16, 40, 3, 3), {"pads": (1, 0, 1, 2), "dilations": (2, 1)}),
    ((3, 70, 1, 1), (10, 70, 1, 1), {}),  # dense
    ((1, 32, 5, 6), (64, 16, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}),
    ((1, 12, 5, 6), (18, 4, 3, 3), {"group": 3, "pads": (1, 1, 1, 1)}),  # no whole blocks
    ((1, 24, 7, 5), (24, 1, 3, 3), {"group": 24, "pads": (1, 1, 1, 1)}),  # depthwise
    ((2, 17, 33), (5, 17, 4), {"pads": (1, 2), "strides": (3,)}),
    ((1, 5, 4, 5, 6), (7, 5, 2, 3, 2), {"pads": (1, 1, 0, 0, 1, 1), "strides": (2, 1, 1)}),
    ((2, 20, 5, 4), (20, 20, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((1, 48, 9, 7), (41, 48, 3, 3), {"pads": (1, 1, 1, 1)}),  # packed by compiled code
)


# It has the same bits everywhere; of its results codes are made.
LEAKY = Activation("leaky_relu", (0.1,))


@dataclass(frozen=True)
class QuantisedConv:
    """A node, its graph, and values for its inputs."""

    node: Node
    graph: Graph
    inputs: Mapping[str, np.ndarray]


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """All codes of a type; some of them are many, so that there are runs of extremes."""
    drawn = rng.integers(int(dtype.low), int(dtype.high), shape, dtype=dtype, endpoint=True)
    extremes = rng.choice(np.array([dtype.low, dtype.high], dtype), shape)
    return np.where(rng.random(shape) < 0.1, extremes, drawn)  # type: ignore[no-any-return]


def quantised_conv(
    number: int,
    x_dtype: DType = UINT8,
    dtype: DType = UINT8,
    residual: bool = False,
    seed: int = 0,
    w_dtype: DType = INT8,
    zero: bool = False,
    activation: Activation | None = None,
) -> QuantisedConv:
    """A node of the shapes of that number.

    Args:
        number: of `SHAPES`.
        x_dtype, dtype, w_dtype: of input, result and weights.
        residual: whether codes are added.
        seed: of all numbers.
        zero: whether padding, too, may stand for another code than 0.
        activation: of scaled sums, None for none.
    """
    x_shape, w_shape, given = SHAPES[number]
    rng, rank, outputs = np.random.default_rng(seed), len(x_shape) - 2, w_shape[0]
    attributes: dict[str, Any] = {"strides": (1,) * rank, "pads": (0,) * 2 * rank}
    attributes |= {"dilations": (1,) * rank, "group": 1} | given
    low, high = int(dtype.low), int(dtype.high)
    free = zero or not any(attributes["pads"])
    attributes["x_zero"] = int(rng.integers(x_dtype.low, x_dtype.high + 1)) if free else 0
    held = dtype in (INT8, UINT8)
    attributes |= {"y_zero": low + 100 if held else 0, "dtype": dtype, "residual": None}
    attributes["activation"] = activation
    bounds = (low + 4, high - 5) if held else (-2.5, float("inf"))
    attributes |= {"low": bounds[0], "high": bounds[1]}
    size = float(np.prod(w_shape[1:])) ** 0.5
    constants = {"w": numbers(rng, w_shape, w_dtype)}
    constants["bias"] = rng.integers(-4000, 4000, outputs, np.int32)
    if dtype != INT32:
        steps = 50.0 if held and activation is None else 1.0
        spread = rng.random(outputs) * steps / (8000 * size)
        constants["scale"] = spread.astype(np.float32)
    if activation is not None:
        constants["affine"] = rng.normal(0, 60, (2, outputs)).astype(np.float32)
    inputs = {"x": numbers(rng, x_shape, x_dtype)}
    names = ["x", "w", "bias" if seed % 3 else "", "scale" if dtype != INT32 else ""]
    if residual:
        first = bool(rng.integers(2))
        own = ResidualCodes(low + 91, low + 3, low + 250, 0.031, 0.0172, 0.0403, low + 120, first)
        attributes["residual"] = own
        shape = (
            one_node(
                "QLinearConv",
                inputs,
                constants,
                ["x", "w", "", "scale"],
                {**attributes, "residual": None, "activation": None},
            )[1]
            .types["y"]
            .shape
        )
        inputs["r"] = numbers(rng, shape, dtype)
        names.append("r")
    if activation is not None:
        names += ["affine"] if residual else ["", "affine"]
    while not names[-1]:
        names.pop()
    constants = {name: array for name, array in constants.items() if name in names}
    return QuantisedConv(*one_node("QLinearConv", inputs, constants, names, attributes), inputs)


def some() -> Iterator[QuantisedConv]:
    """Few nodes: of them one whose residual may be its input."""
    yield quantised_conv(0)
    yield quantised_conv(3, residual=True)
    yield quantised_conv(9, residual=True)


def cases() -> Iterator[QuantisedConv]:
    """Nodes of all shapes, with all types of codes and results among them."""
    kinds = [(x, y) for x in (UINT8, INT8) for y in (UINT8, INT8, FLOAT32, INT32)]
    for number in range(len(SHAPES)):
        for seed, (x, y) in enumerate(kinds[number % 2 :: 2]):
            yield quantised_conv(number, x, y, seed=number + seed)
        yield quantised_conv(number, UINT8, UINT8, residual=True, seed=number)
        dtype = (UINT8, INT8, FLOAT32)[number % 3]
        added = dtype != FLOAT32 and number % 2 == 0
        yield quantised_conv(number, UINT8, dtype, added, number, activation=LEAKY)
        yield quantised_conv(number, INT8, INT8, residual=True, seed=number + 1)
    yield quantised_conv(2, UINT8, UINT8, seed=4, w_dtype=UINT8)
