"""Fold batch normalisation, and every constant factor and term per channel, into convolutions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from leanconv.graph.edit import (
    PIECE_ELEMENTS,
    Array,
    DenseView,
    Editor,
    channel_extent,
    channel_vector,
    conv_behind,
    frozen,
    node_like,
    release_read,
    reshape_node,
    rewrite,
)
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import OPS
from leanconv.graph.ops.algebra import batch_norm_affine
from leanconv.records import dataclass

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Affine:
    """y = scale · data + shift, with vectors of shape (C,) along one axis of the value `data`.

    `steps` nodes of the graph compute it.
    """

    data: str
    scale: Vector
    shift: Vector
    steps: int = 1


def fold_batch_norm(graph: Graph) -> Graph:
    """Fold BatchNormalization and Add, Sub, Mul, Div by constants per channel into weights.

    They fold into the Conv or ConvTranspose before them, also through the Reshape behind a fully
    connected layer; otherwise into the Conv behind them. Where that pads, its zeros must not be
    shifted: factors fold, and one Add of what is left stays. Constants are computed in float64 and
    rounded once to the dtype of the weights. A BatchNormalization that is left becomes Mul and Add.

    Left alone: values that others read as well, convolutions with an activation or a residual
    (on their output side), constants that vary along other axes, folds whose result would not be
    finite, and folds that would make far more constants than the graph came with.

    Requires: a verified graph, after `dense_to_conv`.
    Ensures: no BatchNormalization but those past the limit on new constants.
    """
    with np.errstate(all="ignore"):  # a fold that overflows is not made
        return rewrite(rewrite(graph, _fold), _decompose)


def _fold(editor: Editor, node: Node) -> bool:
    if node.op == "Conv":
        return _fold_forwards(editor, node)
    return node.op in AFFINE_OPS and _fold_backwards(editor, node)


def _fold_backwards(editor: Editor, node: Node) -> bool:
    """Fold an affine node into the convolution that makes its data."""
    data = _data_input(editor, node)
    found = conv_behind(editor, data) if data else None
    if found is None or found.conv.attributes["activation"] or found.conv.input(3):
        return False
    conv = found.conv
    if not _affordable(editor, conv):
        return False
    affine = read_affine(editor, node, found.axis)
    if affine is None:
        return False
    w = editor.constants[conv.inputs[1]]
    old = bias_of(editor, conv, affine.scale.size)
    by_axis = _by_output if conv.op == "Conv" else _by_second
    parts = _rounded(
        w,
        None if np.all(affine.scale == 1) else by_axis(w, affine.scale, conv.attributes["group"]),
        old * affine.scale + affine.shift,
    )
    if parts is None:
        return False
    _write_backwards(editor, node, found, _operands(editor, conv, *parts))
    return True


def _write_backwards(
    editor: Editor, node: Node, found: DenseView, operands: tuple[str, ...]
) -> None:
    conv, view = found.conv, found.view
    inputs = (conv.inputs[0], *operands)
    if view is None:
        editor.replace(node, node_like(conv, inputs=inputs, outputs=node.outputs))
        return
    inner = editor.value(conv.output, editor.types[conv.output])
    editor.replace(
        node,
        node_like(conv, inputs=inputs, outputs=(inner,)),
        node_like(view, inputs=(inner,), outputs=node.outputs),
    )


def _fold_forwards(editor: Editor, conv: Node) -> bool:
    """Fold the affine nodes before a convolution into it."""
    source = conv.inputs[0]
    view = editor.private_producer(source, "Reshape")
    shape = editor.shape(source)
    if view is not None and _is_rows(editor.shape(view.inputs[0]), shape):
        source = view.inputs[0]
    else:
        view = None
    padded = any(conv.attributes["pads"])
    if padded and view is None and _fold_factors(editor, conv):
        return True
    total = _affine_before(editor, source, padded=padded)
    if total is None or not _affordable(editor, conv):
        return False
    w, group = editor.constants[conv.inputs[1]], conv.attributes["group"]
    grouped, terms = _by_second(w, total.shift, group)
    shifted = (grouped * terms).reshape(w.shape[0], -1).sum(axis=1)
    parts = _rounded(
        w,
        None if np.all(total.scale == 1) else _by_second(w, total.scale, group),
        bias_of(editor, conv, w.shape[0]) + shifted,
    )
    if parts is None:
        return False
    operands = (*_operands(editor, conv, *parts), *conv.inputs[3:])
    if view is None:
        editor.replace(conv, node_like(conv, inputs=(total.data, *operands)))
        return True
    rows = editor.value(total.data, TensorType(shape, editor.types[source].dtype))
    editor.replace(
        conv,
        reshape_node(total.data, rows, shape, view.name),
        node_like(conv, inputs=(rows, *operands)),
    )
    return True


def _fold_factors(editor: Editor, conv: Node) -> bool:
    """Fold scale · x + shift before a convolution that pads: as scale · (x + shift / scale)."""
    total = _affine_before(editor, conv.inputs[0], padded=False)
    unshifted = _affine_before(editor, conv.inputs[0], padded=True)
    steps = unshifted.steps if unshifted else 0
    if total is None or total.steps < steps + 2 or not _affordable(editor, conv):
        return False  # one node stays in any case
    w, kind = editor.constants[conv.inputs[1]], editor.types[conv.inputs[0]]
    terms = (total.shift / total.scale).astype(kind.dtype)
    scaled = _product(*_by_second(w, total.scale, conv.attributes["group"]))
    if scaled is None or not np.isfinite(terms).all():
        return False
    one = bool(np.all(terms == terms[0]))
    added = terms[:1] if one else terms.reshape(-1, *(1,) * (len(kind.shape) - 2))
    moved = editor.value(total.data, kind)
    operands = (
        editor.constant(f"{moved}.shift", added),
        editor.constant(conv.inputs[1], scaled.reshape(w.shape)),
    )
    editor.replace(
        conv,
        Node("Add", (total.data, operands[0]), (moved,), frozen({}), conv.name),
        node_like(conv, inputs=(moved, operands[1], *conv.inputs[2:])),
    )
    return True


def _is_rows(inner: tuple[int, ...], outer: tuple[int, ...]) -> bool:
    return len(inner) == 2 and outer[:2] == inner and all(extent == 1 for extent in outer[2:])


def _affine_before(editor: Editor, source: str, *, padded: bool) -> Affine | None:
    """Everything affine, per channel and private that leads to `source`, as one step."""
    total = None
    while (node := editor.private_producer(source, *AFFINE_OPS)) is not None:
        step = read_affine(editor, node, 1)
        if step is None:
            break
        if total is not None:
            shift = total.scale * step.shift + total.shift
            step = Affine(step.data, total.scale * step.scale, shift, total.steps + 1)
        if padded and step.shift.any():
            break
        total, source = step, step.data
    return total


# Affine nodes


def _data_input(editor: Editor, node: Node) -> str:
    """The one input that is computed, "" when the other is not a constant."""
    if node.op == "BatchNormalization":
        known = all(name in editor.constants for name in node.inputs[1:])
        return node.inputs[0] if known else ""
    running = [name for name in node.inputs if name not in editor.constants]
    return running[0] if len(running) == 1 else ""


def read_affine(editor: Editor, node: Node, axis: int) -> Affine | None:
    """A node as a factor and a summand for each place along an axis; None if it is none."""
    data = _data_input(editor, node)
    if not data:
        return None
    shape = editor.shape(data)
    if editor.shape(node.output) != shape or not 0 <= axis < len(shape):
        return None
    if node.op == "BatchNormalization":
        return _read_batch_norm(editor, node) if axis == 1 else None
    constant = next(name for name in node.inputs if name != data)
    if not channel_extent(editor.shape(constant), shape, axis):
        return None
    vector = channel_vector(editor.constants[constant], shape[axis])
    affine = OPS[node.op].affine
    found = affine(vector, constant == node.inputs[0]) if affine else None
    if found is None:
        return None
    scale, shift = (np.broadcast_to(each, vector.shape) for each in found)
    return Affine(data, scale, shift)


def _read_batch_norm(editor: Editor, node: Node) -> Affine:
    arrays = [editor.constants[name].astype(np.float64) for name in node.inputs[1:]]
    return Affine(node.inputs[0], *batch_norm_affine(arrays, node.attributes["epsilon"]))


AFFINE_OPS = (*(op for op, each in OPS.items() if each.affine), "BatchNormalization")


# Weights and biases


def _affordable(editor: Editor, conv: Node) -> bool:
    w = editor.constants.get(conv.inputs[1])
    channels = editor.shape(conv.output)[1]
    if w is None or (conv.input(2) and conv.input(2) not in editor.constants):
        return False
    return editor.may_add(w.nbytes + channels * w.itemsize)


def bias_of(editor: Editor, conv: Node, channels: int) -> Vector:
    """The constant bias of a convolution, zeros where it has none."""
    name = conv.input(2)
    return editor.constants[name].astype(np.float64) if name else np.zeros(channels)


def _by_output(w: Array, scale: Vector, _group: int) -> tuple[Array, Vector]:
    """Return weights and factors that scale their first axis."""
    return w, scale.reshape((-1,) + (1,) * (w.ndim - 1))


def _by_second(w: Array, scale: Vector, group: int) -> tuple[Array, Vector]:
    """Return those that scale the second axis: a Conv's inputs, a ConvTranspose's outputs."""
    grouped = w.reshape(group, w.shape[0] // group, *w.shape[1:])
    return grouped, scale.reshape(group, 1, -1, *(1,) * (w.ndim - 2))


def _rounded(
    w: Array, factors: tuple[Array, Vector] | None, bias: Array
) -> tuple[Array | None, Array] | None:
    """Scaled weights (None where they stay) and bias in w's dtype; None unless all are finite."""
    rounded = bias.astype(w.dtype)
    if not np.isfinite(rounded).all():
        return None
    if factors is None:
        return None, rounded
    scaled = _product(*factors)
    return None if scaled is None else (scaled.reshape(w.shape), rounded)


def _product(w: Array, factors: Vector) -> Array | None:
    """Weights times factors, made in float64 and rounded to their dtype; None unless finite."""
    result = np.empty(w.shape, w.dtype)
    rows = max(1, PIECE_ELEMENTS // max(1, w[:1].size))
    for first in range(0, len(w), rows):
        some = slice(first, first + rows)
        piece = result[some]
        np.multiply(w[some], factors[some], piece, dtype=np.float64, casting="same_kind")
        if not np.isfinite(piece).all():
            return None
    release_read(w)  # what was made of it takes its place
    return result


def _operands(editor: Editor, conv: Node, w: Array | None, bias: Array) -> tuple[str, str]:
    weights = conv.inputs[1] if w is None else editor.constant(conv.inputs[1], w)
    return weights, editor.constant(conv.input(2) or f"{conv.inputs[1]}.bias", bias)


# Remaining BatchNormalizations


def _decompose(editor: Editor, node: Node) -> bool:
    if node.op != "BatchNormalization" or not _data_input(editor, node):
        return False
    kind = editor.types[node.inputs[0]]
    shape = (kind.shape[1],) + (1,) * (len(kind.shape) - 2)
    dtype = np.dtype(kind.dtype)
    if not editor.may_add(2 * kind.shape[1] * dtype.itemsize):
        return False
    affine = _read_batch_norm(editor, node)
    scale, shift = (v.astype(dtype).reshape(shape) for v in (affine.scale, affine.shift))
    scaled = editor.value(node.output, kind)
    attributes = frozen({})
    factors = editor.constant(f"{node.output}.scale", scale)
    terms = editor.constant(f"{node.output}.shift", shift)
    editor.replace(
        node,
        Node("Mul", (affine.data, factors), (scaled,), attributes, node.name),
        Node("Add", (scaled, terms), node.outputs, attributes, node.name),
    )
    return True
