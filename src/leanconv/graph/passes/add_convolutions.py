"""Compute a sum of convolutions of one input as one convolution, whose weights are their sum.

So networks look that were trained with several branches and exported without being merged: RepVGG,
MobileOne, YOLOv6. See Ding et al., "RepVGG: Making VGG-style ConvNets Great Again" (2021), 3.3.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from leanconv.graph.edit import PIECE_ELEMENTS, Array, Editor, node_like, release_read, rewrite
from leanconv.graph.ir import Graph, Node
from leanconv.graph.passes.fold_batch_norm import (
    AFFINE_OPS,
    Vector,
    bias_of,
    read_affine,
)
from leanconv.records import dataclass
from leanconv.types import FLOATS

_MOST_NODES = 64  # of a sum: of a longer one the beginning is one


@dataclass(frozen=True, eq=False)
class _Term:
    """A summand: a factor for each channel, times a convolution of the input or the input itself.

    Attributes:
        conv: the convolution; None for the input.
        scale: the factors, (M,); None where they are 1.
    """

    conv: Node | None
    scale: Vector | None = None

    def times(self, factors: Vector) -> _Term:
        return _Term(self.conv, factors if self.scale is None else self.scale * factors)


@dataclass(frozen=True, eq=False)
class _Sum:
    """A value as a sum of convolutions of one other.

    Attributes:
        source: the name of their input.
        terms: the summands.
        shift: a number for each channel that is added, (M,); None for zeros.
        nodes: how many compute it.
    """

    source: str
    terms: tuple[_Term, ...]
    shift: Vector | None = None
    nodes: int = 0

    @property
    def convs(self) -> list[Node]:
        """The convolutions among the summands."""
        return [term.conv for term in self.terms if term.conv is not None]

    @property
    def pays(self) -> bool:
        """Whether one convolution does less: its own input alone it adds as its residual."""
        others = [term for term in self.terms if term.conv is None]
        plain = all(term.scale is None for term in others) and self.shift is None
        return len(self.convs) > 1 or (len(self.convs) == 1 and bool(others) and not plain)


@dataclass(frozen=True)
class _Axis:
    """Taps along an axis: `count` of them, from `-before` on in steps of `dilation`."""

    count: int
    before: int
    after: int
    dilation: int

    @property
    def reach(self) -> int:
        """The place of the last tap."""
        return (self.count - 1) * self.dilation - self.before


def add_convolutions(graph: Graph) -> Graph:
    """Turn sums of convolutions of one input into one, with factors per channel and the input.

    Smaller kernels are padded by zeros, so that an input that is not finite spreads as far as the
    largest kernel reaches. Weights are added in float64 and rounded once.

    Left alone: convolutions of other strides or groups, or whose taps lie between those of others;
    values that others read as well; convolutions with an activation, a residual, or weights that
    are not constant; sums whose kernel would have more taps than all of them together, such as of
    3x1 and 1x3, whose result would not be finite, or that would make far more constants than the
    graph came with; a convolution plus its own input, which it adds as its residual.

    Requires: a verified graph, after `fold_batch_norm`, before `fuse_residual`.
    Ensures: no such sum remains.
    """
    reads = [name for n in graph.nodes if n.op in ("Conv", *AFFINE_OPS) for name in n.inputs[:2]]
    several = {name for name, count in Counter(reads).items() if count > 1}
    if not any(node.op == "Conv" and node.inputs[0] in several for node in graph.nodes):
        return graph
    sums = _sums(Editor(graph), graph.nodes)
    if not sums:
        return graph

    def rule(editor: Editor, node: Node) -> bool:
        found = sums.get(node.key)
        return found is not None and _write(editor, node, found)

    with np.errstate(all="ignore"):  # a sum that overflows is not made
        return rewrite(graph, rule)


def _sums(editor: Editor, nodes: Sequence[Node]) -> dict[str, _Sum]:
    """The sums to be made, by the names of their values; no one is a part of another."""
    found: dict[str, _Sum] = {}
    inside: set[str] = set()

    def part(name: str) -> _Sum:
        known = found.get(name) if editor.is_private(name) else None
        return known or _Sum(name, (_Term(None),))

    for node in nodes:
        if node.op == "Conv":
            if _is_plain(editor, node):
                found[node.output] = _Sum(node.inputs[0], (_Term(node),), nodes=1)
            continue
        if node.op not in AFFINE_OPS:
            continue
        running = [name for name in node.inputs if name not in editor.constants]
        made = None
        if len(running) == 1:
            affine = read_affine(editor, node, 1)
            made = _scaled(part(running[0]), affine.scale, affine.shift) if affine else None
        elif node.op == "Add":
            made = _added(editor, *map(part, running))
        if made is not None and made.nodes <= _MOST_NODES:
            found[node.output] = made
            inside.update(name for name in running if part(name).convs)
    return {
        name: each
        for name, each in found.items()
        if name not in inside and each.pays and _saves(editor, each)
    }


def _is_plain(editor: Editor, conv: Node) -> bool:
    """Return whether a convolution has nothing but constant weights and, perhaps, a bias."""
    w = editor.constants.get(conv.inputs[1])
    held = w is not None and editor.types[conv.inputs[1]].dtype in FLOATS
    bias = not conv.input(2) or conv.input(2) in editor.constants
    return held and bias and not (conv.attributes["activation"] or conv.input(3))


def _scaled(part: _Sum, scale: Vector, shift: Vector) -> _Sum:
    """A sum times factors, plus numbers."""
    one = bool(np.all(scale == 1))
    terms = part.terms if one else tuple(term.times(scale) for term in part.terms)
    total = shift if part.shift is None else part.shift * scale + shift
    return _Sum(part.source, terms, total if total.any() else None, part.nodes + 1)


def _added(editor: Editor, a: _Sum, b: _Sum) -> _Sum | None:
    """Two sums of the same input as one, None where no convolution computes them."""
    if a.source != b.source or not (a.convs or b.convs):
        return None
    shifts = [each.shift for each in (a, b) if each.shift is not None]
    total = shifts[0] if len(shifts) == 1 else shifts[0] + shifts[1] if shifts else None
    made = _Sum(a.source, (*a.terms, *b.terms), total, a.nodes + b.nodes + 1)
    first, *others = made.convs
    alike = all(
        conv.attributes[name] == first.attributes[name]
        for conv in others
        for name in ("strides", "group")
    )
    shapes = [editor.shape(conv.output) for conv in made.convs]
    if len(made.convs) < len(made.terms):
        shapes.append(editor.shape(made.source))
        alike = alike and all(stride == 1 for stride in first.attributes["strides"])
    alike = alike and all(shape == shapes[0] for shape in shapes[1:])
    return made if alike and _axes(editor, made) else None


def _axes(editor: Editor, found: _Sum) -> list[_Axis] | None:
    """The taps of the convolution that is the sum, None where taps lie between others."""
    rank = len(found.convs[0].attributes["strides"])
    result = []
    for axis in range(rank):
        each = [_axis(editor, term.conv, axis) for term in found.terms]
        step = math.gcd(*(taps.dilation for taps in each if taps.count > 1)) or 1
        before = max(taps.before for taps in each)
        last = max(each, key=lambda taps: taps.reach)
        if any((before - taps.before) % step for taps in each):
            return None
        count = (last.reach + before) // step + 1
        result.append(_Axis(count, before, last.after, step))
    return result


def _axis(editor: Editor, conv: Node | None, axis: int) -> _Axis:
    """The taps of a summand along an axis; the input itself has one, of no padding."""
    if conv is None:
        return _Axis(1, 0, 0, 1)
    attributes, kernel = conv.attributes, editor.shape(conv.inputs[1])[2:]
    pads = attributes["pads"]
    before, after = pads[axis], pads[axis + len(kernel)]
    return _Axis(int(kernel[axis]), before, after, attributes["dilations"][axis])


def _saves(editor: Editor, found: _Sum) -> bool:
    """Return whether the sum has no more taps than its convolutions together."""
    axes = _axes(editor, found)
    taps = sum(math.prod(map(int, editor.shape(conv.inputs[1])[2:])) for conv in found.convs)
    return axes is not None and math.prod(axis.count for axis in axes) <= taps


def _write(editor: Editor, node: Node, found: _Sum) -> bool:
    """Put one convolution in the place of a sum."""
    first, axes = found.convs[0], _axes(editor, found)
    assert axes is not None, "it was found"
    like = editor.constants[first.inputs[1]]
    outputs = like.shape[0]
    shape = (*like.shape[:2], *(axis.count for axis in axes))
    if not editor.may_add((math.prod(shape) + outputs) * like.itemsize):
        return False
    bias = np.zeros(outputs) if found.shift is None else found.shift
    for term in found.terms:
        if term.conv is not None:
            own = bias_of(editor, term.conv, outputs)
            bias = bias + (own if term.scale is None else own * term.scale)
    terms, weights = bias.astype(like.dtype), _weights(editor, found, axes, shape, like.dtype)
    if weights is None or not np.isfinite(terms).all():
        return False
    for conv in found.convs:
        release_read(editor.constants[conv.inputs[1]])  # what was made of it takes its place
    inputs = [found.source, editor.constant(first.inputs[1], weights)]
    if terms.any():
        inputs.append(editor.constant(first.input(2) or f"{first.inputs[1]}.bias", terms))
    attributes = {
        "pads": (*(axis.before for axis in axes), *(axis.after for axis in axes)),
        "dilations": tuple(axis.dilation for axis in axes),
    }
    new = node_like(first, inputs=tuple(inputs), outputs=node.outputs, attributes=attributes)
    editor.replace(node, new)
    return True


def _weights(
    editor: Editor, found: _Sum, axes: Sequence[_Axis], shape: tuple[int, ...], dtype: np.dtype
) -> Array | None:
    """The sum's weights, added in float64 and rounded; None unless they are finite."""
    result = np.empty(shape, dtype)
    rows = max(1, PIECE_ELEMENTS // max(1, math.prod(shape[1:])))
    for first in range(0, shape[0], rows):
        some = slice(first, first + rows)
        total = np.zeros(result[some].shape)
        for part, weights in _parts(editor, found, axes, total, first):
            part += weights
        result[some] = total
        if not np.isfinite(result[some]).all():
            return None
    return result


def _parts(
    editor: Editor, found: _Sum, axes: Sequence[_Axis], total: Array, first: int
) -> Iterator[tuple[Array, Array]]:
    """Where weights are added to those of some outputs from the first on, and the weights."""
    count, inputs = total.shape[:2]
    outputs = np.arange(first, first + count)
    for term in found.terms:
        scale = np.ones(count) if term.scale is None else term.scale[first : first + count]
        taps = [_axis(editor, term.conv, axis) for axis in range(len(axes))]
        places = [slice(None), slice(None)]
        for axis, own in zip(axes, taps, strict=True):
            begin = (axis.before - own.before) // axis.dilation
            step = max(1, own.dilation // axis.dilation)  # of several taps
            places.append(slice(begin, begin + (own.count - 1) * step + 1, step))
        part = total[tuple(places)]
        factors = scale.reshape(-1, *(1,) * (total.ndim - 1))
        if term.conv is not None:
            w = editor.constants[term.conv.inputs[1]][first : first + count]
            yield part, w * factors
        else:  # output n is input n, which is input n % inputs of its group
            own_input = np.arange(inputs) == (outputs % inputs)[:, None]
            yield part, own_input.reshape(count, inputs, *(1,) * len(axes)) * factors
