"""What each operator does to channels: which of its results are numbers, and what it ties together.

By how axes run from operands to results: `_RULES` names ways that keep channels apart; an operator
of any other one needs all that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from leanconv.graph.channels import Channels, Known, Mask, Read
from leanconv.graph.edit import PIECE_ELEMENTS, Array, channel_extent, release_read
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops import OPS, evaluate
from leanconv.graph.ops.pointwise import ELEMENTWISE
from leanconv.types import FLOATS

Vector = npt.NDArray[np.float64]
_SAME = ("mean", "max", "min")  # reductions of equal numbers that give these
# Says what is known of a node's results; False, where the node needs all channels of all inputs.
_Rule = Callable[[Channels, Node], bool]

CONVOLUTIONS = ("Conv", "ConvTranspose")
_MOST_PAIRS = 1 << 25  # of an input and an output of a convolution; a larger one keeps all channels


def find_channels(graph: Graph) -> Channels:
    """Follow the channels of a verified graph from its inputs to its outputs, and settle."""
    found = Channels(graph)
    for node in graph.nodes:
        shapes = [found.types[name].shape for name in (*node.inputs[:1], *node.outputs) if name]
        rule = _RULES.get(OPS[node.op].routes) if all(node.inputs[:1]) else None
        apart = all(len(shape) > 1 and isinstance(shape[1], int) for shape in shapes)
        if not (rule and apart and rule(found, node)):
            for name in node.inputs:
                found.pin(name)
    for name in graph.outputs:
        found.pin(name)
    found.settle()
    return found


# -- convolutions ---------------------------------------------------------------------------------
def grouped(conv: Node, w: Array) -> Array:
    """Weights as (groups, outputs, inputs, taps), a view; inputs and outputs are of a group."""
    group = conv.attributes["group"]
    taps = w.reshape(group, w.shape[0] // group, w.shape[1], -1)
    return taps if conv.op == "Conv" else taps.swapaxes(1, 2)


def _pieces(weights: Array) -> Iterator[tuple[tuple[slice, ...], Array]]:
    """Parts of grouped weights, each with its place in (groups, outputs)."""
    axis = 0 if len(weights) > 1 else 1
    each = weights[:1] if len(weights) > 1 else weights[:, :1]
    step = max(1, PIECE_ELEMENTS // max(1, each.size))
    for first in range(0, weights.shape[axis], step):
        place = (*(slice(None),) * axis, slice(first, first + step))
        yield place, weights[place]


def folded(weights: Array, numbers: Vector) -> Vector:
    """What channels that are numbers add to each output, (K,), where no tap reads padding."""
    groups, outputs, inputs = weights.shape[:3]
    added = np.zeros((groups, outputs))
    if numbers.any():
        some = numbers.reshape(groups, 1, inputs)
        for place, piece in _pieces(weights):
            added[place] = (piece.sum(axis=3, dtype=np.float64) * some[place[:1]]).sum(axis=2)
    return added.reshape(-1)


def _conv(found: Channels, node: Node) -> bool:
    names = [name for name in (*node.inputs[1:3], *node.inputs[4:]) if name]
    codes = node.op not in CONVOLUTIONS or found.types[node.output].dtype not in FLOATS
    if codes or any(name not in found.constants for name in names):
        return False
    weights = grouped(node, found.constants[node.inputs[1]])
    groups, outputs, inputs = weights.shape[:3]
    if groups * outputs * inputs > _MOST_PAIRS or not found.may_have(groups * outputs):
        return False
    made = found.add(node.output, groups * outputs)
    source, before = found.classes.get(node.inputs[0]), node.input(3)
    if before:
        found.tie(made, found.classes.get(before, np.zeros_like(made)))
    key = node.inputs[1], node.op, groups
    nonzero, known = found.nonzero.get(key), found.known_of(node.inputs[0], groups * inputs)
    if nonzero is None:
        nonzero = found.nonzero[key] = np.empty(weights.shape[:3], bool)
        for place, piece in _pieces(weights):
            nonzero[place] = piece.any(axis=3)
        release_read(found.constants[node.inputs[1]])
    flat = node.op == "Conv" and not any(node.attributes["pads"])
    folds = known.sure & (flat | (known.numbers == 0))
    if groups > 1:
        leads = made.reshape(groups, outputs)[:, 0]
        for each in (made, np.zeros_like(made) if source is None else source):
            found.tie(each, np.repeat(leads, len(each) // groups))
    elif source is not None:
        stands = known.sure & ~folds if node.op == "Conv" else np.zeros_like(folds)
        found.reads[node.key] = Read(source, made, nonzero[0], folds, stands, known)
    alone = ~(nonzero & ~folds.reshape(groups, 1, inputs)).any(axis=2).reshape(-1)
    if alone.any():
        numbers = np.where(folds, known.numbers.astype(np.float64), 0)
        _constant_outputs(found, node, alone, folded(weights, numbers))
    return True


def _constant_outputs(found: Channels, node: Node, alone: Mask, terms: Vector) -> None:
    """Compute the channels of a convolution that read nothing but numbers."""
    count, dtype, before = len(alone), found.types[node.output].dtype.numpy, None
    bias, slope = (found.constants.get(node.input(place)) for place in (2, 4))
    if bias is not None:
        terms = terms + bias.astype(np.float64)
    if node.input(3):
        known = found.known_of(node.input(3), count)
        alone, before = alone & known.sure, known.numbers.reshape(1, count, 1)
    one: dict[str, object] = {"strides": (1,), "pads": (0, 0), "dilations": (1,), "group": 1}
    nothing = np.zeros((1, 1, 1), dtype), np.zeros((count, 1, 1), dtype)
    operands = (*nothing, terms.astype(dtype), before, slope)
    (made,) = evaluate("Conv", operands, {**node.attributes, **one})
    found.know(node.output, made.reshape(count), alone)


# -- element by element ---------------------------------------------------------------------------
def _elementwise(found: Channels, node: Node) -> bool:
    if node.op not in ELEMENTWISE:
        return False
    kind = found.types[node.output]
    rank, channels = len(kind.shape), kind.shape[1]
    operands, known, whole = [], [], False
    for name in filter(None, node.inputs):
        held, shape = found.constants.get(name), found.types[name].shape
        axis, classes = 1 - (rank - len(shape)), found.classes.get(name)
        known.append(found.unknown(name, channels))
        if held is not None:
            if held.dtype == object:
                return False
            if channel_extent(held.shape, kind.shape, 1):
                flat = np.broadcast_to(held.reshape(-1), (channels,))
                known[-1] = Known(flat, np.ones(channels, bool))
        elif axis == 1 and classes is not None and len(classes) == channels:
            operands.append(classes)
            known[-1] = found.known_of(name, channels)
        else:
            found.pin(name)
            whole = whole or (axis >= 0 and shape[axis] != 1)
    if not operands:
        return False
    found.classes[node.output] = operands[0]
    for other in operands[1:]:
        found.tie(operands[0], other)
    if whole:
        found.pin(node.output)
    sure = np.logical_and.reduce([each.sure for each in known])
    numbers = np.zeros(channels, kind.dtype.numpy)
    if sure.any():
        (made,) = evaluate(node.op, [each.numbers[sure] for each in known], node.attributes)
        numbers = numbers.astype(made.dtype)
        numbers[sure] = made
    if node.op == "Mul" and kind.dtype in FLOATS:
        nothing = np.logical_or.reduce([each.sure & (each.numbers == 0) for each in known])
        sure, numbers = sure | nothing, np.where(nothing, 0, numbers).astype(numbers.dtype)
    found.know(node.output, numbers, sure)
    return True


# -- channels side by side ------------------------------------------------------------------------
def _joined(found: Channels, node: Node) -> bool:
    parts = [found.classes[name] for name in node.inputs if name in found.classes]
    whole = node.op == "Concat" and node.attributes["axis"] == 1 and len(parts) == len(node.inputs)
    if not whole or not found.may_have(sum(map(len, parts))):
        return False
    known = [found.known_of(n, len(p)) for n, p in zip(node.inputs, parts, strict=True)]
    numbers, sure = [each.numbers for each in known], [each.sure for each in known]
    found.give(node.output, np.concatenate(parts), np.concatenate(numbers), np.concatenate(sure))
    return True


def _parts(found: Channels, node: Node) -> bool:
    """Split and Slice: a result has the channels behind those of the one before."""
    a, classes = node.attributes, found.classes.get(node.inputs[0])
    if node.op == "Split" and a["axis"] != 1:
        return _alike(found, node)
    first, sizes = (0, a["sizes"]) if node.op == "Split" else (a["starts"][1], a["sizes"][1:2])
    if classes is None or (node.op == "Slice" and a["steps"][1] != 1):
        return False
    known = found.known_of(node.inputs[0], len(classes))
    for name, size in zip(node.outputs, sizes, strict=True):
        some = slice(first, first + size)
        found.give(name, classes[some], known.numbers[some], known.sure[some])
        first += size
    return True


def _reshape(found: Channels, node: Node) -> bool:
    """One that makes several channels of each, such as its pixels."""
    x, y = found.types[node.inputs[0]].shape, found.types[node.output].shape
    classes = found.classes.get(node.inputs[0])
    if x[0] != y[0] or not x[1] or y[1] % x[1] or classes is None or not found.may_have(y[1]):
        return False
    times, known = y[1] // x[1], found.known_of(node.inputs[0], x[1])
    numbers, sure = known.numbers.repeat(times), known.sure.repeat(times)
    found.give(node.output, classes.repeat(times), numbers, sure)
    return True


# -- each channel by itself -----------------------------------------------------------------------
def _alike(found: Channels, node: Node, only: float | None = None) -> bool:
    """Each channel follows from that of the first input alone; a number stays what it is.

    `only` is the one number that does; NaN where none does, None where all do.
    """
    x, y = (found.types[name].shape for name in (node.inputs[0], node.outputs[-1]))
    fixed = all(name in found.constants for name in node.inputs[1:] if name)
    classes, known = found.classes.get(node.inputs[0]), found.known.get(node.inputs[0])
    if classes is None or not fixed or len(x) != len(y):
        return False
    for name in node.outputs:
        found.classes[name] = classes
        if known is not None:
            kept = known.sure if only is None else known.sure & (known.numbers == only)
            found.know(name, known.numbers, kept)
    return True


def _pool(found: Channels, node: Node) -> bool:
    a = node.attributes
    if node.op not in ("MaxPool", "AveragePool"):
        return False
    padded, spatial = any(a["pads"]), len(a["kernel_shape"])
    if node.op == "AveragePool" and a["count_include_pad"]:
        return _alike(found, node, 0 if padded or a["ceil_mode"] else None)
    inside = all(p < a["kernel_shape"][i % spatial] for i, p in enumerate(a["pads"]))
    inside = inside and all(d == 1 for d in a["dilations"])
    return _alike(found, node, None if inside or not padded else np.nan)


def _reduction(found: Channels, node: Node) -> bool:
    a, (combines, step) = node.attributes, OPS[node.op].reduces or ("", "")
    apart = min(a["axes"], default=0) > 1 and a["keepdims"]
    return apart and _alike(found, node, np.nan if step else None if combines in _SAME else 0)


def _resize(found: Channels, node: Node) -> bool:
    a = node.attributes
    if node.op == "Resample":
        return min(a["axes"], default=2) > 1 and _alike(found, node, 0)
    x, y = (found.types[name].shape for name in (node.inputs[0], node.output))
    return x[1] == y[1] and a["scales"][1] == 1 and _alike(found, node)


def _pad(found: Channels, node: Node) -> bool:
    pads, a = node.attributes["pads"], node.attributes
    apart = not (pads[1] or pads[len(pads) // 2 + 1])
    return apart and _alike(found, node, a["value"] if a["mode"] == "constant" else None)


_RULES: Mapping[str, _Rule] = {
    "convolution": _conv,
    "transposed convolution": _conv,
    "aligned": _elementwise,
    "along axis": _joined,
    "split": _parts,
    "slice": _parts,
    "reshape": _reshape,
    "windows": _pool,
    "reduced": _reduction,
    "resized": _resize,
    "pad": _pad,
}
