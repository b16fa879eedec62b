"""Make one node of attention: products round a softmax; and one of normalisation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from leanconv.graph.edit import Editor, frozen, node_like, rewrite, rewriting
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops.algebra import numbers_of
from leanconv.types import FLOATS

_REPEATED = {"Mul": 2, "Pow": 1}  # how often a square reads what it squares


@dataclass
class _Scores:
    """Scores of an attention: product(q, k) · scale + mask."""

    product: Node
    scale: float
    mask: str


@rewriting
def fuse_attention(editor: Editor, node: Node) -> bool:
    """Make an Attention of MatMul, a factor, a mask that is added, Softmax and MatMul.

    The factor and the mask may be missing. Factors of queries and keys become the product's; keys
    that are only transposed before are read as they were.

    Left alone: what others read between, a softmax over another axis than the last, operands that
    are constants or are broadcast to each other's batches, masks of a larger batch than the scores.

    Requires: a verified graph.
    Ensures: such products hold no square matrix.
    """
    if node.op != "MatMul":
        return False
    softmax = editor.private_producer(node.inputs[0], "Softmax")
    v = node.inputs[1]
    if softmax is None or v in editor.constants:
        return False
    rank = len(editor.shape(v))
    if rank < 2 or softmax.attributes["axis"] != rank - 1:
        return False
    scores = _scores(editor, softmax.inputs[0])
    if scores is None or scores.product.inputs[1] in editor.constants:
        return False
    q, k = scores.product.inputs
    shapes = [editor.shape(name) for name in (q, k, v)]
    types = {editor.types[name].dtype for name in (q, k, v)}
    if any(s[:-2] != shapes[0][:-2] or len(s) != rank for s in shapes) or not types <= {*FLOATS}:
        return False
    if 0 in (*shapes[0], *shapes[1], *shapes[2]):
        return False
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    (q, of_q), (k, of_k) = _without_factor(editor, q), _without_factor(editor, k)
    before = editor.private_producer(k, "Transpose")
    transposed, scale = before is not None and before.attributes["perm"] == swapped, of_q * of_k
    if before is not None and transposed:
        k, factor = _without_factor(editor, before.inputs[0])
        scale *= factor
    scale *= scores.scale
    if not math.isfinite(scale):
        return False
    inputs = (q, k, v, scores.mask) if scores.mask else (q, k, v)
    attributes = frozen({"scale": scale, "transposed": transposed})
    editor.replace(node, Node("Attention", inputs, node.outputs, attributes, node.name))
    return True


def _without_factor(editor: Editor, name: str) -> tuple[str, float]:
    """Return the factor beside a number in a private product, and that number; else name and 1."""
    scaled = editor.private_producer(name, "Mul", "Div")
    for index in () if scaled is None else (0, 1) if scaled.op == "Mul" else (0,):
        assert scaled is not None, "there is a product"
        inner, factor = scaled.inputs[index], editor.uniform(scaled.inputs[1 - index])
        if factor and inner not in editor.constants and editor.shape(inner) == editor.shape(name):
            return inner, factor if scaled.op == "Mul" else 1 / factor
    return name, 1.0


def _scores(editor: Editor, name: str) -> _Scores | None:
    """Return the scores that a softmax reads, if they are a product that nothing else reads."""
    scale, mask = 1.0, ""
    added = editor.private_producer(name, "Add")
    if added is not None:
        shape = editor.shape(name)
        for index in (0, 1):
            inner, other = added.inputs[index], added.inputs[1 - index]
            if editor.shape(inner) == shape and _factored(editor, inner) is not None:
                name, mask = inner, other
                break
        else:
            return None
    found = _factored(editor, name)
    if found is None:
        return None
    product, scale = found
    return _Scores(product, scale, mask)


def _factored(editor: Editor, name: str) -> tuple[Node, float] | None:
    """A private product, and the one number that it is multiplied with."""
    product = editor.private_producer(name, "MatMul")
    if product is not None:
        return product, 1.0
    inner, factor = _without_factor(editor, name)
    product = editor.private_producer(inner, "MatMul")
    return None if product is None else (product, factor)


@dataclass
class _Deviation:
    """sqrt(mean(square) + epsilon) of centred values."""

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
    """Return deviation and constant of a private 1 / deviation, perhaps times a constant."""
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
    """Return whether a difference is x less its mean, read by its square and once more."""
    x, name = centred.inputs[0], centred.output
    mean, square = editor.private_producer(centred.inputs[1], "ReduceMean"), found.square
    if mean is None or mean.inputs[0] != x or _first(editor, mean) != found.first:
        return False
    return _is_square(editor, square, name) and editor.uses(name) == 1 + _REPEATED[square.op]


def _is_square(editor: Editor, square: Node, name: str) -> bool:
    if editor.shape(square.output) != editor.shape(name):  # an exponent of more axes adds some
        return False
    return square.inputs[0] == name and (
        square.inputs[1] == name if square.op == "Mul" else editor.uniform(square.inputs[1]) == 2
    )


def _affine(editor: Editor, node: Node) -> bool:
    """Take in a constant scale, then a constant bias, behind a normalisation."""
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
    """Return `place` or `line` if a constant has one number per place or line; else ""."""
    return numbers_of(editor.shape(held), editor.shape(x), first)
