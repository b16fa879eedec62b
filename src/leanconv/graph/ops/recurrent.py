"""The recurrent part of LSTM, GRU and RNN: what each step adds to the input's product.

    s[t, g] = x[t, g] + h[t-1] R[g]^T             for every gate g; x holds the input's product
    LSTM  i, o, f = f(s + P c);  c[t] = f c[t-1] + i g(s_c);  h[t] = o h(c[t])      gates i o f c
    GRU   z, r = f(s);  n = g(x_h + (r h[t-1]) R_h^T);  h[t] = (1 - z) n + z h[t-1]   gates z r h
    RNN   h[t] = f(s)

Names and the order of the gates are ONNX's; `linear_before_reset` multiplies by `r` behind the
product: n = g(x_h + r (h[t-1] R_h^T + b)). R may be codes of 8 bits, which stand for
(R - zeros) * scales, a scale and a zero point for each row.

Loop, which computes any region many times, is here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes, Graph, Node, TensorType
from leanconv.graph.ops.base import (
    Array,
    Arrays,
    Op,
    Types,
    array,
    check_rank,
    checked,
    first,
    given,
    required,
    same_dtype,
)
from leanconv.records import dataclass
from leanconv.types import DTYPES, FLOATS, INT8, INT32, UINT8

# Inputs behind the product and the recurrent weights.
STATE, CELL, PEEPHOLES, BIAS, LENGTHS, SCALES, ZEROS = range(2, 9)
# Where a file names no functions of the gates: f, g, h.
USUAL_FUNCTIONS = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "GRU": ("Sigmoid", "Tanh"),
    "RNN": ("Tanh",),
}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
RESULTS = ("Y", "Y_h", "Y_c")
Evaluate = Callable[[Node, Mapping[str, Array]], tuple[Array, ...]]
Work = Callable[[Node, Mapping[str, TensorType]], int]


@dataclass(frozen=True)
class Gate:
    """An activation function of a cell.

    Attributes:
        name: ONNX's.
        alpha, beta: its parameters; those that it does not have are 0.
    """

    name: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class Cell:
    """One direction of a recurrent layer: how its steps are computed.

    Attributes:
        kind: `"LSTM"`, `"GRU"` or `"RNN"`.
        gates: the activation functions in ONNX's order: f, g, h.
        clip: bound of what they are applied to, but for the LSTM's states, as in ONNX Runtime;
            infinite where there is none.
        coupled: the LSTM's forget gate is one minus its input gate.
        linear_before_reset: of a GRU, see above.
        reverse: from the last step to the first.
    """

    kind: str
    gates: tuple[Gate, ...]
    clip: float = math.inf
    coupled: bool = False
    linear_before_reset: bool = False
    reverse: bool = False


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


# NumPy's functions of a number and two parameters, and what those that there are usually are.
GATE_FUNCTIONS: dict[str, tuple[Callable[[Any, float, float], Any], tuple[float, ...]]] = {
    "Relu": (lambda x, _a, _b: np.maximum(x, 0), ()),
    "Tanh": (lambda x, _a, _b: np.tanh(x), ()),
    "Sigmoid": (lambda x, _a, _b: _sigmoid(x), ()),
    "Affine": (lambda x, a, b: a * x + b, (1.0, 0.0)),
    "LeakyRelu": (lambda x, a, _b: np.where(x < 0, a * x, x), (0.01,)),
    "ThresholdedRelu": (lambda x, a, _b: np.where(x > a, x, 0), (1.0,)),
    "ScaledTanh": (lambda x, a, b: a * np.tanh(b * x), (1.0, 1.0)),
    "HardSigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), (0.2, 0.5)),
    "Elu": (lambda x, a, _b: np.where(x < 0, a * np.expm1(x), x), (1.0,)),
    "Softsign": (lambda x, _a, _b: x / (1 + np.abs(x)), ()),
    "Softplus": (lambda x, _a, _b: np.logaddexp(x, 0), ()),
}


def _infer(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    x, weights, cells = first(types), required(types, 1), attributes["cells"]
    check_rank(x, 3, 3)
    check_rank(weights, 3, 3, "input 1")
    directions, rows, hidden = weights.shape
    steps, batch, columns = x.shape
    if directions != len(cells) or rows != GATES[cells[0].kind] * hidden:
        raise ModelError(
            f"the recurrent weights are {weights}; expected {len(cells)} directions of "
            f"{GATES[cells[0].kind]} squares"
        )
    if columns != directions * rows or hidden < 1 or steps < 1:
        raise ModelError(
            f"the input's product is {x}; expected at least one step of {directions * rows} columns"
        )
    wanted = {
        STATE: (directions, batch, hidden),
        CELL: (directions, batch, hidden),
        PEEPHOLES: (directions, 3 * hidden),
        BIAS: (directions, hidden),
        LENGTHS: (batch,),
        SCALES: (directions, rows),
        ZEROS: (directions, rows),
    }
    for index, shape in wanted.items():
        kind = given(types, index)
        if kind is not None and kind.shape != shape:
            raise ModelError(f"input {index} is {kind}; expected the shape {shape}")
    lengths = given(types, LENGTHS)
    if lengths is not None and lengths.dtype != INT32:
        raise ModelError(f"input {LENGTHS} is {lengths}; expected int32")
    coded = not weights.dtype.is_float
    if coded != (given(types, SCALES) is not None) or weights.dtype == INT32:
        raise ModelError(
            f"the recurrent weights are {weights}; expected floats, or codes with scales"
        )
    apart = (LENGTHS, 1) if coded else (LENGTHS,)
    dtype = same_dtype([kind for index, kind in enumerate(types) if index not in apart])
    shapes = {"Y": (steps, directions, batch, hidden)}
    return tuple(
        checked(shapes.get(name, (directions, batch, hidden)), dtype)
        for name in attributes["results"]
    )


def step(
    cell: Cell, x: Array, weights: Array, h: Array, c: Array, peepholes: Array, bias: Array
) -> tuple[Array, Array]:
    """The next states of a cell, by NumPy.

    Args:
        cell: the cell.
        x: the input's product (N, gates * H).
        weights: (gates * H, H).
        h, c: states (N, H).
        peepholes: (3, H).
        bias: (H,), added to the GRU's recurrent product alone.
    """
    hidden = h.shape[-1]

    def gate(number: int, value: Array, clip: float = cell.clip) -> Array:
        function = cell.gates[number]
        clipped = np.clip(value, -clip, clip)
        compute, _ = GATE_FUNCTIONS[function.name]
        return np.asarray(compute(clipped, function.alpha, function.beta))

    def parts(value: Array) -> list[Array]:
        return [value[..., at : at + hidden] for at in range(0, value.shape[-1], hidden)]

    if cell.kind == "RNN":
        return gate(0, x + h @ weights.T), c
    if cell.kind == "LSTM":
        i, o, f, g = parts(x + h @ weights.T)
        i = gate(0, i + peepholes[0] * c)
        f = 1 - i if cell.coupled else gate(0, f + peepholes[2] * c)
        c = f * c + i * gate(1, g)
        return gate(0, o + peepholes[1] * c) * gate(2, c, math.inf), c
    behind = weights[2 * hidden :].T
    z, r = parts(x[..., : 2 * hidden] + h @ weights[: 2 * hidden].T)
    z, r = gate(0, z), gate(0, r)
    product = r * (h @ behind + bias) if cell.linear_before_reset else (r * h) @ behind
    new = gate(1, x[..., 2 * hidden :] + product)
    return (1 - z) * new + z * h, c


def _order(cell: Cell, steps: int, lengths: Array) -> Iterator[tuple[Array, Array]]:
    """For each step the times (N,) that are computed, and whether there is one left."""
    for number in range(steps):
        alive = number < lengths
        backwards = np.where(alive, lengths - 1 - number, number)
        yield (backwards if cell.reverse else np.full_like(lengths, number)), alive


def _evaluate(arrays: Arrays, attributes: Attributes) -> tuple[Array, ...]:
    x, weights, cells = array(arrays), array(arrays, 1), attributes["cells"]
    (steps, batch, _), (directions, rows, hidden) = x.shape, weights.shape

    def optional(index: int, shape: tuple[int, ...]) -> Array:
        found = given(arrays, index)
        return np.zeros(shape, x.dtype) if found is None else np.asarray(found)

    states = optional(STATE, (directions, batch, hidden)).copy()
    inner = optional(CELL, (directions, batch, hidden)).copy()
    if weights.dtype.kind != "f":
        away = weights - optional(ZEROS, (directions, rows))[..., None]
        weights = (away * array(arrays, SCALES)[..., None]).astype(x.dtype)
    peepholes = optional(PEEPHOLES, (directions, 3 * hidden)).reshape(directions, 3, hidden)
    bias = optional(BIAS, (directions, hidden))
    found = given(arrays, LENGTHS)
    lengths = np.full(batch, steps) if found is None else np.clip(found, 0, steps).astype(np.int64)
    y = np.zeros((steps, directions, batch, hidden), x.dtype)
    line = np.arange(batch)
    for d, cell in enumerate(cells):
        columns = slice(d * rows, (d + 1) * rows)
        for times, alive in _order(cell, steps, lengths):
            given_x = x[times, line, columns]
            h, c = step(cell, given_x, weights[d], states[d], inner[d], peepholes[d], bias[d])
            keep = alive[:, None]
            states[d], inner[d] = np.where(keep, h, states[d]), np.where(keep, c, inner[d])
            y[times, d, line] = np.where(keep, states[d], 0)
    made = {"Y": y, "Y_h": states, "Y_c": inner}
    return tuple(made[name] for name in attributes["results"])


def _work(types: Types, _attributes: Attributes, _results: tuple[TensorType, ...]) -> int:
    return first(types).elements * required(types, 1).shape[-1]


_TYPES = (*FLOATS, INT32, INT8, UINT8)
OPS: dict[str, Op] = {
    "Recurrence": Op(
        _infer,
        _evaluate,
        "x (T, N, directions * gates * H), r (directions, gates * H, H), h0 (directions, N, H)?, "
        "c0?, peepholes (directions, 3 * H)?, bias (directions, H)?, lengths (N,)?, "
        "scales (directions, gates * H)?, zeros?; gives results",
        ("cells", "results"),
        _work,
        dtypes=_TYPES,
        halves="rounded",
        kernel="recurrence",
    )
}


def _infer_loop(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    body: Graph = attributes["body"].graph
    count, states = attributes["count"], attributes["states"]
    if len(types) != len(body.inputs) or not 0 <= states <= min(len(types), len(body.outputs)):
        raise ModelError(
            f"got {len(types)} inputs, {states} of them carried, for a body of {len(body.inputs)} "
            f"inputs and {len(body.outputs)} outputs; expected as many"
        )
    if count < 1:
        raise ModelError("attribute count is less than 1; expected a loop that runs")
    given = [required(types, index) for index in range(len(types))]
    for name, kind in zip(body.inputs, given, strict=True):
        if body.types[name] != kind:
            raise ModelError(
                f"the body's input {name!r} is {body.types[name]}; expected {kind}, as the node's"
            )
    made = [body.types[name] for name in body.outputs]
    for name, kind, wanted in zip(body.outputs[:states], made, given, strict=False):
        if kind != wanted:
            raise ModelError(
                f"the body carries {wanted} on as {name!r}, which is {kind}; expected equal types"
            )
    stacked = (checked((count, *kind.shape), kind.dtype) for kind in made[states:])
    return (*made[:states], *stacked)


def run(graph: Graph, values: dict[str, Array], evaluate: Evaluate) -> list[Array]:
    """The outputs of a graph, node by node; an array goes when nothing reads it any more.

    Args:
        graph: in normal form.
        values: of its inputs and constants.
        evaluate: computes a node.
    """
    left: dict[str, int] = {}
    for name in (*graph.outputs, *(name for node in graph.nodes for name in node.inputs)):
        left[name] = left.get(name, 0) + 1
    for node in graph.nodes:
        values.update(zip(node.outputs, evaluate(node, values), strict=True))
        for name in node.inputs:
            left[name] -= 1
            if not left[name]:
                values.pop(name, None)
    return [values[name] for name in graph.outputs]


def loop(evaluate: Evaluate, work: Work) -> Op:
    """The operation, made of what computes a node and of what says how much that is."""

    def computed(arrays: Arrays, attributes: Attributes) -> tuple[Array, ...]:
        body: Graph = attributes["body"].graph
        states = attributes["states"]
        given = [array(arrays, index) for index in range(len(arrays))]
        stacks: list[list[Array]] = [[] for _ in body.outputs[states:]]
        for _ in range(attributes["count"]):
            values = {**body.constants, **dict(zip(body.inputs, given, strict=True))}
            made = run(body, values, evaluate)
            given[:states] = made[:states]
            for stack, each in zip(stacks, made[states:], strict=True):
                stack.append(each)
        return (*given[:states], *map(np.stack, stacks))

    def worked(types: Types, attributes: Attributes, results: tuple[TensorType, ...]) -> int:
        del types, results
        body: Graph = attributes["body"].graph
        once = sum(work(node, body.types) for node in body.nodes)
        return int(attributes["count"]) * (len(body.nodes) + once)

    signature = "states and what else each iteration reads...; gives the last states, and stacks"
    attributes = ("body", "count", "states")
    return Op(_infer_loop, computed, signature, attributes, worked, dtypes=DTYPES)
