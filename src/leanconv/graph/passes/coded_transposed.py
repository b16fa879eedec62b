"""A ConvTranspose of codes by constant codes: one QLinearConv of all phases, put in order behind.

With s the stride along an axis, output q·s + r is the sum of x[q + b - t] · w[k + s·t] over t,
where b = (r + pad) div s and k = (r + pad) mod s. So each r, a phase, is a convolution of stride 1
of the input, and the phases of all axes are one convolution of K·s·s channels, whose window is as
large as all of theirs together:

    QLinearConv (N, K·s·s, Q, Q) -> (N, K, s, s, Q, Q) -> (N, K, Q, s, Q, s) -> (N, K, Qs, Qs)

Taps that a phase lacks are zeros. What the last stride gives too much is cut off. The sums are
exact int32; ONNX Runtime, which has no such operation on integers, sums their floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from leanconv.graph.edit import Array, frozen
from leanconv.graph.ir import Node, TensorType
from leanconv.graph.passes.coded_layers import FLOATS, coded_weights
from leanconv.graph.passes.coded_values import Values
from leanconv.records import dataclass
from leanconv.types import FLOAT32

_MOST_TAPS = 3  # of all phases together, by those that they have: integers are no faster beyond


@dataclass(frozen=True)
class _Axis:
    """The phases along an axis, as one window.

    Attributes:
        stride: their number.
        extent: Q, the places of each.
        taps: of the window that holds all of theirs.
        pads: of the input, before and behind.
        weights: for each phase and tap of that window the tap of the kernel, or -1.
    """

    stride: int
    extent: int
    taps: int
    pads: tuple[int, int]
    weights: tuple[tuple[int, ...], ...]


def _axis(size: int, kernel: int, stride: int, pad: int, out: int) -> _Axis | None:
    """The phases of an axis; None where the window would not reach the input's ends."""
    firsts = [divmod(r + pad, stride) for r in range(stride)]  # b and k of each
    counts = [max(0, -(-(kernel - k) // stride)) for _, k in firsts]
    reached = [(b - n + 1, b) for (b, _), n in zip(firsts, counts, strict=True) if n]
    low, high = min(low for low, _ in reached), max(high for _, high in reached)
    extent = -(-out // stride)
    behind = extent + high - size
    if low > 0 or behind < 0:
        return None
    weights = []
    for (b, k), count in zip(firsts, counts, strict=True):
        taps = [b - (tap + low) for tap in range(high - low + 1)]
        weights.append(tuple(k + stride * t if 0 <= t < count else -1 for t in taps))
    return _Axis(stride, extent, high - low + 1, (-low, behind), tuple(weights))


def coded_transposed(values: Values, node: Node) -> bool:
    """A ConvTranspose of codes, whose result is floats so far."""
    given, editor = node.attributes, values.editor
    x = values.coded(node.inputs[0])
    plain = given["activation"] is None and not node.input(4) and set(given["dilations"]) == {1}
    if x is None or not plain or not values.is_constant(node.inputs[1]):
        return False
    if editor.types[node.output].dtype != FLOAT32:
        return False
    shape, out = editor.shape(node.inputs[0]), editor.shape(node.output)
    kernel, rank = editor.shape(node.inputs[1])[2:], len(shape) - 2
    steps = zip(shape[2:], kernel, given["strides"], given["pads"][:rank], out[2:], strict=True)
    axes = [_axis(*each) for each in steps]
    found = [axis for axis in axes if axis is not None]
    share = prod(axis.taps * axis.stride for axis in found) / prod(kernel)
    if len(found) < rank or share > _MOST_TAPS:
        return False
    groups, phases = given["group"], prod(axis.stride for axis in found)

    def arranged(w: Array) -> Array:
        return _stacked(w, groups, found)

    weights = coded_weights(values, x, node.inputs[1], node.input(2), arranged, 1, phases, share)
    if weights is None:
        return False
    places = tuple(axis.extent for axis in found)
    conv = editor.value(node.output, TensorType((shape[0], out[1] * phases, *places), FLOAT32))
    pads = tuple(axis.pads[end] for end in (0, 1) for axis in found)
    ones = (1,) * rank
    window = {"strides": ones, "pads": pads, "dilations": ones, "group": groups}
    attributes = frozen({**window, **FLOATS, "x_zero": x.code.zero})
    layer = Node("QLinearConv", (x.name, *weights.inputs), (conv,), attributes, node.name)
    editor.replace(node, layer, *_in_order(values, node, conv, found))
    return True


def _stacked(w: Array, groups: int, axes: Sequence[_Axis]) -> Array:
    """Weights (C, K / groups, kernel...) as those of all phases, (K · phases, C / groups, taps...).

    A channel's phases are neighbours.
    """
    rank = len(axes)
    inputs, outputs = w.shape[0] // groups, w.shape[1]
    parts = w.reshape(groups, inputs, outputs, *w.shape[2:]).swapaxes(1, 2)
    for number, axis in enumerate(axes):
        at = 3 + 2 * number  # an axis of kernel taps becomes one of phases and one of taps
        padded = np.concatenate([parts, np.zeros_like(parts.take([0], at))], at)
        parts = padded.take(np.array(axis.weights), at)
    order = (0, 1, *range(3, 3 + 2 * rank, 2), 2, *range(4, 4 + 2 * rank, 2))
    taps = tuple(axis.taps for axis in axes)
    return np.asarray(parts.transpose(order).reshape(-1, inputs, *taps))


def _in_order(values: Values, node: Node, source: str, axes: Sequence[_Axis]) -> list[Node]:
    """What brings the phases' results into their places, and cuts off what is too much."""
    editor, rank = values.editor, len(axes)
    batch, channels, *out = editor.shape(node.output)
    strides, places = ([a.stride for a in axes], [a.extent for a in axes])
    whole = [stride * place for stride, place in zip(strides, places, strict=True)]
    perm = (0, 1, *(2 + rank * (1 - side) + axis for axis in range(rank) for side in (0, 1)))
    split = (batch, channels, *strides, *places)
    shapes = [split, tuple(split[axis] for axis in perm), (batch, channels, *whole)]
    moves = [
        ("Reshape", {"shape": shapes[0]}),
        ("Transpose", {"perm": perm}),
        ("Reshape", {"shape": shapes[2]}),
    ]
    if whole != out:
        sizes = (batch, channels, *out)
        none, ones = (0,) * len(sizes), (1,) * len(sizes)
        shapes.append(sizes)
        moves.append(("Slice", {"starts": none, "steps": ones, "sizes": sizes}))
    nodes = []
    for (op, attributes), shape in zip(moves, shapes, strict=True):
        made = editor.value(node.output, TensorType(shape, FLOAT32))
        nodes.append(Node(op, (source,), (made,), frozen(attributes), node.name))
        source = made
    last = nodes.pop()
    return [*nodes, Node(last.op, last.inputs, node.outputs, last.attributes, node.name)]
