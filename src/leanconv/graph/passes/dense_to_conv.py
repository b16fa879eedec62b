"""Compute fully connected layers as convolutions."""

from __future__ import annotations

import math

import numpy as np

from leanconv.graph.edit import (
    Array,
    Editor,
    channel_extent,
    channel_vector,
    frozen,
    reshape_node,
    rewrite,
)
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.records import dataclass

_FEW_CHANNELS = 4  # of a map that is no blocks of them

# (weight, transposed, alpha, kernel) -> the constant made of it; layers that share a weight go on
# sharing it.
_Made = dict[tuple[str, bool, float, tuple[int, ...]], str]


@dataclass(frozen=True)
class _Dense:
    """y[r, m] = alpha · sum_k x[r, k] · w[k, m] + bias[m].

    Attributes:
        x: the value of shape (..., K).
        w: the constant, of shape (K, M), or (M, K) when `transposed`.
        rows, inputs, outputs: R, K and M, all positive.
        bias: a constant that varies along the last axis only, "" for none; times `beta`.
    """

    x: str
    w: str
    transposed: bool
    rows: int
    inputs: int
    outputs: int
    alpha: float = 1.0
    bias: str = ""
    beta: float = 1.0


def dense_to_conv(graph: Graph) -> Graph:
    """Turn Gemm and MatMul with a constant right side (K, M) into Conv and Reshapes.

    A Reshape of a map (N, C, H, W) to (N, C·H·W) followed by such a layer becomes a Conv whose
    kernel is the whole map, reading the map itself (also with one or three spatial axes), unless it
    has few channels. Anything else becomes rows (R, K, 1, 1), a 1x1 Conv, and a Reshape back. The
    constants take in alpha, beta and the transposition of the weights.

    Left alone: a right side that is computed or has another rank than 2; a left side that is
    transposed or a plain vector; a third Gemm input that is computed or varies from row to row;
    and tensors without elements.

    Requires: a verified graph.
    Ensures: every layer that qualifies is a Conv with its bias and no activation.
    """
    made: _Made = {}

    def rule(editor: Editor, node: Node) -> bool:
        dense = _read(editor, node)
        return dense is not None and _write(editor, node, dense, made)

    return rewrite(graph, rule)


def _read(editor: Editor, node: Node) -> _Dense | None:
    if node.op not in ("Gemm", "MatMul"):
        return None
    x, w = node.inputs[:2]
    xs, ws = editor.shape(x), editor.shape(w)
    if w not in editor.constants or len(ws) != 2 or len(xs) < 2 or 0 in xs + ws:
        return None
    ws = tuple(map(int, ws))  # a constant that is made of extents is for these alone
    if node.op == "MatMul":
        return _Dense(x, w, False, math.prod(xs[:-1]), ws[0], ws[1])
    a, bias = node.attributes, node.input(2)
    if a["transA"]:
        return None
    if bias and (
        bias not in editor.constants
        or not channel_extent(editor.shape(bias), editor.shape(node.output), 1)
    ):
        return None
    transposed = bool(a["transB"])
    inputs, outputs = ws[::-1] if transposed else ws
    return _Dense(x, w, transposed, xs[0], inputs, outputs, a["alpha"], bias, a["beta"])


def _write(editor: Editor, node: Node, dense: _Dense, made: _Made) -> bool:
    source, channels, kernel = _map_behind(editor, dense)
    key = (dense.w, dense.transposed, dense.alpha, (channels, *kernel))
    w = editor.constants[dense.w]
    if not editor.may_add(dense.outputs * w.itemsize + (0 if key in made else w.nbytes)):
        return False
    if key not in made:
        made[key] = editor.constant(dense.w, _weights(w, dense, channels, kernel))
    inputs = [source, made[key]]
    kind = editor.types[dense.x]
    if dense.bias:
        bias = channel_vector(editor.constants[dense.bias], dense.outputs) * dense.beta
        inputs.append(editor.constant(dense.bias, bias.astype(kind.dtype)))
    new = []
    if not source:
        rows = (dense.rows, dense.inputs, 1, 1)
        inputs[0] = editor.value(dense.x, TensorType(rows, kind.dtype))
        new.append(reshape_node(dense.x, inputs[0], rows, node.name))
    out = node.output
    ones = (1,) * len(kernel)
    result = editor.value(out, TensorType((dense.rows, dense.outputs, *ones), kind.dtype))
    attributes = {
        "strides": ones,
        "pads": (0,) * (2 * len(kernel)),
        "dilations": ones,
        "group": 1,
        "activation": None,
    }
    new.append(Node("Conv", tuple(inputs), (result,), frozen(attributes), node.name))
    new.append(reshape_node(result, out, editor.shape(out), node.name))
    editor.replace(node, *new)
    return True


def _map_behind(editor: Editor, dense: _Dense) -> tuple[str, int, tuple[int, ...]]:
    """The map (N, C, spatial...) that `dense.x` flattens; "" and a 1x1 kernel if it is none."""
    before = editor.producer(dense.x)
    if before is not None and before.op == "Reshape" and len(editor.shape(dense.x)) == 2:
        shape = editor.shape(before.inputs[0])
        # Weights are as large as the map. Of few channels, such as an LSTM's directions, it is no
        # blocks of channels and lies in memory as the rows do, which are one long sum.
        if 3 <= len(shape) <= 5 and shape[0] == dense.rows and shape[1] > _FEW_CHANNELS:
            channels, *kernel = map(int, shape[1:])
            return before.inputs[0], channels, tuple(kernel)
    return "", dense.inputs, (1, 1)


def _weights(w: Array, dense: _Dense, channels: int, kernel: tuple[int, ...]) -> Array:
    """The weights in Conv's layout (M, C, kernel...), alpha applied in float64."""
    rows = w if dense.transposed else w.T
    if dense.alpha != 1.0:
        rows = (rows.astype(np.float64) * dense.alpha).astype(w.dtype)
    return rows.reshape(dense.outputs, channels, *kernel)
