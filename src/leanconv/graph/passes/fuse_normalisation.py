"""Make one node of a mean, a variance, and what is scaled by them: normalisation."""

from __future__ import annotations

from dataclasses import dataclass

from leanconv.graph.edit import Editor, frozen, node_like, rewrite
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops.algebra import numbers_of
from leanconv.types import FLOATS

_REPEATED = {"Mul": 2, "Pow": 1}  # how often a square reads what it squares


@dataclass
class _Deviation:
    """sqrt(mean(square) + epsilon) of what is centred."""

    square: Node
    first: int
    epsilon: float


def fuse_normalisation(graph: Graph) -> Graph:
    """Make a Normalise of ReduceMean, Sub, a square, its ReduceMean, Add, Sqrt, and Div or Mul.

    The same of what is squared as it is and multiplied by 1 / deviation: RMSNormalization.

    A scale and a bias that are constants become its operands: numbers of the places of a line, or
    of its channel.

    Left alone: means over other axes than the last ones, what others read between, scales and
    biases that come at run time, which follow it.

    Requires: a verified graph.
    Ensures: such values are read and written once.
    """

    def rule(editor: Editor, node: Node) -> bool:
        return any(make(editor, node) for make in (_normalise, _without_mean, _affine))

    return rewrite(graph, rule)


def _normalise(editor: Editor, node: Node) -> bool:
    """(x - mean) / deviation, or · 1 / deviation, perhaps times a constant scale."""
    if node.op not in ("Mul", "Div") or editor.types[node.output].dtype not in FLOATS:
        return False
    for index in (0, 1) if node.op == "Mul" else (0,):
        centred = editor.producer(node.inputs[index])
        if centred is None or centred.op != "Sub" or centred.inputs[0] in editor.constants:
            continue
        scale, inverse = "", node.inputs[1 - index]
        if node.op == "Mul":
            inverse, scale = _scaled_inverse(editor, inverse)
        found = _deviation(editor, inverse) if inverse else None
        if found is None or not _is_centred(editor, centred, found):
            continue
        x = centred.inputs[0]
        if scale and not _fits(editor, scale, x, found.first):
            continue
        _replace(editor, node, (x, scale) if scale else (x,), found, True)
        return True
    return False


def _without_mean(editor: Editor, node: Node) -> bool:
    """x times 1 / deviation of x as it is, multiplied in this order."""
    if node.op != "Mul" or editor.types[node.output].dtype not in FLOATS:
        return False
    for x, name in (node.inputs, node.inputs[::-1]):
        inverse = editor.private_producer(name, "Reciprocal")
        found = _deviation(editor, inverse.inputs[0]) if inverse else None
        if found is None or x in editor.constants or not _is_square(editor, found.square, x):
            continue
        _replace(editor, node, (x,), found, False)
        return True
    return False


def _replace(
    editor: Editor, node: Node, inputs: tuple[str, ...], found: _Deviation, centred: bool
) -> None:
    attributes = {"first": found.first, "epsilon": found.epsilon, "centred": centred}
    editor.replace(node, Node("Normalise", inputs, node.outputs, frozen(attributes), node.name))


def _scaled_inverse(editor: Editor, name: str) -> tuple[str, str]:
    """Of a private 1 / deviation, perhaps times a constant: the deviation and the constant."""
    scale, product = "", editor.private_producer(name, "Mul")
    if product is not None:
        held = [each for each in product.inputs if each in editor.constants]
        others = [each for each in product.inputs if each not in editor.constants]
        if len(held) != 1:
            return "", ""
        (scale,), (name,) = held, others
    inverse = editor.private_producer(name, "Reciprocal")
    return ("", "") if inverse is None else (inverse.inputs[0], scale)


def _deviation(editor: Editor, name: str) -> _Deviation | None:
    """A private square root of a variance and an epsilon, and the square that it is the mean of."""
    root = editor.private_producer(name, "Sqrt")
    shifted = root and editor.private_producer(root.inputs[0], "Add")
    if not shifted:
        return None
    for index in (0, 1):
        mean = editor.private_producer(shifted.inputs[index], "ReduceMean")
        epsilon = editor.uniform(shifted.inputs[1 - index])
        if mean is None or epsilon is None or epsilon < 0:
            continue
        if editor.shape(shifted.output) != editor.shape(mean.output):
            continue
        square, first = editor.private_producer(mean.inputs[0], *_REPEATED), _first(editor, mean)
        if square is not None and first is not None:
            return _Deviation(square, first, epsilon)
    return None


def _first(editor: Editor, mean: Node) -> int | None:
    """The axis from which on a mean is taken of all; None if it is of others, or drops them."""
    rank, axes = len(editor.shape(mean.inputs[0])), mean.attributes["axes"]
    first = rank - len(axes)
    whole = tuple(sorted(axes)) == tuple(range(first, rank))
    return first if axes and whole and mean.attributes["keepdims"] else None


def _is_centred(editor: Editor, centred: Node, found: _Deviation) -> bool:
    """Whether a difference is that of x and its mean, and read by its square and once more."""
    x, name = centred.inputs[0], centred.output
    mean, square = editor.private_producer(centred.inputs[1], "ReduceMean"), found.square
    if mean is None or mean.inputs[0] != x or _first(editor, mean) != found.first:
        return False
    return _is_square(editor, square, name) and editor.uses(name) == 1 + _REPEATED[square.op]


def _is_square(editor: Editor, square: Node, name: str) -> bool:
    """Whether a node squares a value and nothing else."""
    if editor.shape(square.output) != editor.shape(name):  # an exponent of more axes adds some
        return False
    return square.inputs[0] == name and (
        square.inputs[1] == name if square.op == "Mul" else editor.uniform(square.inputs[1]) == 2
    )


def _affine(editor: Editor, node: Node) -> bool:
    """A constant scale, then a constant bias, of what is normalised."""
    if node.op not in ("Mul", "Add"):
        return False
    for index in (0, 1):
        before, held = (
            editor.private_producer(node.inputs[index], "Normalise"),
            node.inputs[1 - index],
        )
        if before is None or held not in editor.constants:
            continue
        given = before.inputs
        if len(given) > (1 if node.op == "Mul" else 2):
            continue
        kind = _fits(editor, held, given[0], before.attributes["first"])
        # A line's number is multiplied with the deviation first, which rounds otherwise.
        if not kind or (kind == "line" and node.op == "Mul" and not before.attributes["centred"]):
            continue
        inputs = (*given, held) if node.op == "Mul" or len(given) == 2 else (*given, "", held)
        editor.replace(node, node_like(before, inputs=inputs, outputs=node.outputs))
        return True
    return False


def _fits(editor: Editor, held: str, x: str, first: int) -> str:
    """Whether a constant has a number for each `place` of a line, or for each `line`; else ""."""
    return numbers_of(editor.shape(held), editor.shape(x), first)
