"""Recognise operations that a file spells out in arithmetic: activations, scaled shortcuts."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from leanconv.graph.edit import Editor, frozen, rewriting
from leanconv.graph.ir import Node
from leanconv.graph.passes.simplify import bounds, clip_again
from leanconv.records import dataclass

_MOST_NODES = 6  # of one product; longer ones are no activation
# Constants as files round them, relative: in float32, and at least.
_TOLERANCE, _LEAST_TOLERANCE = 5e-7, 1e-14
_TIMES_SMALLER = 4  # elements of x for one of s, at least


@rewriting
def recognise_activations(editor: Editor, node: Node) -> bool:
    """Replace activations written as several nodes by the operation of that name.

    - x · Sigmoid(x) is Silu; x · HardSigmoid(x; 1/6, 1/2) and x · Clip(x + 3, 0, 6) / 6, HardSwish.
    - Clip(x + c, 0, d) / d and Clip(a·x + b, 0, 1) are HardSigmoid.
    - x · (1 + erf(x / √2)) / 2 is Gelu, in any order of factors, and its tanh approximation with
      x³ as a power or as products.
    - Max and Min with a number are Clip, Clip from 0 is Relu.

    Left alone: patterns with an intermediate value that something else reads, numbers that are not
    those of the definition to the last digits of the graph's dtype, Mish, and x · Sigmoid(1.702 x).

    Requires: a verified graph, before `fold_batch_norm`, which would fold parts of the patterns.
    Ensures: the same values up to rounding.
    """
    new: Node | None = None
    if not editor.types[node.key].dtype.is_float:
        return False
    if node.op in ("Mul", "Div"):
        new = _from_product(editor, node)
    elif node.op in ("Clip", "Relu"):
        new = _from_clip(editor, node)
    elif node.op in ("Max", "Min"):
        new = _from_extreme(editor, node)
    if new is None or editor.shape(new.inputs[0]) != editor.shape(node.output):
        return False
    editor.replace(node, new)
    return True


# Products


@dataclass(frozen=True)
class _Product:
    """coefficient · the product of the values named by `factors`."""

    coefficient: float
    factors: tuple[str, ...]


def _scalar(editor: Editor, name: str) -> float | None:
    """The value of a constant of one element, None for anything else."""
    array = editor.constants.get(name)
    return float(array.flat[0]) if array is not None and array.size == 1 else None


def _product(editor: Editor, node: Node) -> _Product:
    """Take apart a Mul, Div or Pow by numbers and the private ones that feed it."""
    coefficient, factors = 1.0, []
    pending, opened = [node], 1
    while pending:
        current = pending.pop()
        names = list(current.inputs)
        number = _scalar(editor, names[1])
        if current.op == "Pow":
            names = [names[0]] * int(number or 0)
        elif current.op == "Div":
            names.pop()
            coefficient /= number or math.nan
        for name in names:
            value, inner = _scalar(editor, name), editor.producer(name)
            if value is not None:
                coefficient *= value
            elif inner and opened < _MOST_NODES and _opens(editor, inner):
                pending.append(inner)
                opened += 1
            else:
                factors.append(name)
    return _Product(coefficient, tuple(factors))


def _opens(editor: Editor, node: Node) -> bool:
    """Return whether a node is a private part of a product."""
    if node.op != "Mul" and not _is_scaling(editor, node):
        return False
    return editor.is_private(node.output)


def _is_scaling(editor: Editor, node: Node) -> bool:
    """Return whether a node divides by a number but 0, or takes the second or third power."""
    number = _scalar(editor, node.inputs[1]) if node.op in ("Div", "Pow") else None
    return number in (2.0, 3.0) if node.op == "Pow" else bool(number)


def _terms(editor: Editor, name: str) -> Iterator[tuple[str, float]]:
    """Read a private value as data + number; yields at most one pair."""
    node = editor.private_producer(name, "Add", "Sub")
    if node is None:
        return
    a, b = node.inputs
    first, second = _scalar(editor, a), _scalar(editor, b)
    if second is not None:
        yield a, second if node.op == "Add" else -second
    elif first is not None and node.op == "Add":
        yield b, first


def _scaled(editor: Editor, name: str) -> Iterator[tuple[str, float]]:
    """Read a private value as data · number; yields at most one pair."""
    node = editor.private_producer(name, "Mul", "Div")
    if node is None:
        return
    a, b = node.inputs
    first, second = _scalar(editor, a), _scalar(editor, b)
    if second is not None and node.op == "Mul":
        yield a, second
    elif second:
        yield a, 1.0 / second
    elif first is not None and node.op == "Mul":
        yield b, first


def _factors(editor: Editor, name: str) -> _Product:
    """A private value as a product, or as itself."""
    node = editor.producer(name)
    return _product(editor, node) if node and _opens(editor, node) else _Product(1.0, (name,))


def _close(editor: Editor, name: str, got: float, expected: float) -> bool:
    """Return whether a number is the expected one, within the rounding of a value's dtype."""
    tolerance = max(editor.types[name].dtype.scaled_error(_TOLERANCE), _LEAST_TOLERANCE)
    return abs(got - expected) <= tolerance * abs(expected)


def _from_product(editor: Editor, node: Node) -> Node | None:
    if node.op == "Div" and not _is_scaling(editor, node):
        return None
    product = _product(editor, node)
    if len(product.factors) == 1:
        return _scaled_clip(editor, node, product)
    if len(product.factors) != 2:
        return None
    for x, gate in (product.factors, product.factors[::-1]):
        inner = editor.producer(gate)
        if inner is None or not editor.is_private(gate):
            continue
        made = _gated(editor, x, inner, product.coefficient)
        if made is not None:
            op, attributes = made
            return Node(op, (x,), node.outputs, frozen(attributes), node.name)
    return None


def _gated(
    editor: Editor, x: str, gate: Node, coefficient: float
) -> tuple[str, dict[str, object]] | None:
    """The activation that coefficient · x · gate(x) is: its operation and attributes."""

    def close(got: float, expected: float) -> bool:
        return _close(editor, x, got, expected)

    if gate.op == "Sigmoid":
        return ("Silu", {}) if gate.inputs[0] == x and close(coefficient, 1) else None
    if gate.op == "HardSigmoid":
        a = gate.attributes
        same = gate.inputs[0] == x and close(a["alpha"], 1 / 6) and close(a["beta"], 0.5)
        return ("HardSwish", {}) if same and close(coefficient, 1) else None
    if gate.op == "Clip":
        shifted = next(_terms(editor, gate.inputs[0]), ("", 0.0))
        same = shifted == (x, 3.0) and bounds(gate) == (0.0, 6.0)
        return ("HardSwish", {}) if same and close(coefficient, 1 / 6) else None
    if gate.op == "Add":
        for inner, one in _terms(editor, gate.output):
            approximate = _gelu(editor, x, inner)
            if approximate and close(one * coefficient, 0.5):
                weight = _factors(editor, inner).coefficient * coefficient
                return ("Gelu", {"approximate": approximate}) if close(weight, 0.5) else None
    return None


def _gelu(editor: Editor, x: str, name: str) -> str | None:
    """Return the kind of Gelu of a value c · erf(x / √2) or c · tanh(√(2/π) (x + 0.044715 x³))."""
    curve = _factors(editor, name).factors
    node = editor.private_producer(curve[0], "Erf", "Tanh") if len(curve) == 1 else None
    if node is None:
        return None
    inside = _factors(editor, node.inputs[0])
    if node.op == "Erf":
        same = inside.factors == (x,) and _close(editor, x, inside.coefficient, math.sqrt(0.5))
        return "none" if same else None
    if not _close(editor, x, inside.coefficient, math.sqrt(2 / math.pi)):
        return None
    return "tanh" if _is_cubic(editor, x, inside.factors) else None


def _is_cubic(editor: Editor, x: str, factors: tuple[str, ...]) -> bool:
    """Return whether a product is x + 0.044715 x³ or x · (1 + 0.044715 x²)."""
    if len(factors) == 1:
        node = editor.private_producer(factors[0], "Add")
        if node is None or x not in node.inputs:
            return False
        other = node.inputs[1 - node.inputs.index(x)]
        powers = 3
    elif len(factors) == 2 and x in factors:
        gate = factors[1 - factors.index(x)]
        other, one = next(_terms(editor, gate), ("", 0.0))
        if one != 1.0:
            return False
        powers = 2
    else:
        return False
    cubic = _factors(editor, other)
    return cubic.factors == (x,) * powers and _close(editor, x, cubic.coefficient, 0.044715)


# Clips


def _scaled_clip(editor: Editor, node: Node, product: _Product) -> Node | None:
    """HardSigmoid from Clip(x + c, 0, d) / d."""
    clip = editor.private_producer(product.factors[0], "Clip")
    if clip is None:
        return None
    low, high = bounds(clip) or (math.nan, math.nan)
    if low != 0.0 or not 0.0 < high < math.inf:
        return None
    if not _close(editor, clip.output, product.coefficient * high, 1.0):
        return None
    for x, term in _terms(editor, clip.inputs[0]):
        return _hard_sigmoid(node, x, 1.0 / high, term / high)
    return None


def _from_clip(editor: Editor, node: Node) -> Node | None:
    """HardSigmoid from Clip(a·x + b, 0, 1), Relu from Clip from 0."""
    own = bounds(node)
    if node.op == "Clip" and own == (0.0, 1.0):
        for scaled, term in _terms(editor, node.inputs[0]):
            for x, factor in _scaled(editor, scaled):
                return _hard_sigmoid(node, x, factor, term)
    return clip_again(editor, node, node.inputs[0], own)


def _from_extreme(editor: Editor, node: Node) -> Node | None:
    """Clip or Relu from Max or Min with a number."""
    a, b = node.inputs
    x, number = (a, _scalar(editor, b)) if b in editor.constants else (b, _scalar(editor, a))
    if number is None or math.isnan(number):
        return None
    own = (number, math.inf) if node.op == "Max" else (-math.inf, number)
    return clip_again(editor, node, x, own)


def _hard_sigmoid(node: Node, x: str, alpha: float, beta: float) -> Node:
    attributes = frozen({"alpha": alpha, "beta": beta})
    return Node("HardSigmoid", (x,), node.outputs, attributes, node.name)


@rewriting
def factor_sums(editor: Editor, node: Node) -> bool:
    """Turn Add(x, Mul(x, s)) into Mul(x, Add(s, 1)), s being computed and much smaller than x.

    That is how attention to channels (squeeze and excite) stands beside a shortcut; an activation
    before s takes in the 1.

    Left alone: products that others read as well, and constants, which `fold_batch_norm` takes.

    Requires: a verified graph, before `fuse_affine`.
    Ensures: no such sum remains.
    """
    if node.op != "Add":
        return False
    for index in (0, 1):
        x, product = node.inputs[1 - index], editor.private_producer(node.inputs[index], "Mul")
        if product is None or x not in product.inputs or x in editor.constants:
            continue
        factor = product.inputs[1 - product.inputs.index(x)]
        kind = editor.types[factor]
        if factor in editor.constants or _TIMES_SMALLER * kind.elements > editor.types[x].elements:
            continue
        if editor.shape(node.output) != editor.shape(x):
            continue
        one = editor.constant(f"{factor}.one", np.ones(1, kind.dtype))
        more = editor.value(factor, kind)
        editor.replace(
            node,
            Node("Add", (factor, one), (more,), frozen({}), product.name),
            Node("Mul", (x, more), node.outputs, frozen({}), node.name),
        )
        return True
    return False
