"""Element by element: unary and binary operations, PRelu, activations; several as an Expression.

Of an Expression's operations only the last one's result is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes, Node, TensorType
from leanconv.graph.ops import typed
from leanconv.graph.ops.base import (
    PAIR,
    Array,
    Arrays,
    Op,
    Types,
    array,
    broadcast,
    check_broadcasts_to,
    checked,
    first,
    quotient,
    required,
    same_dtype,
    single,
)
from leanconv.half_arrays import held_as
from leanconv.records import dataclass, field, replace
from leanconv.spec.activation import KINDS, Activation, erf
from leanconv.types import BOOL, NUMBERS, DType

MOST_TERMS, MOST_SERIES, MOST_OPERANDS = 16, 2, 8
_Infer = Callable[[str, Types, Attributes], tuple[TensorType, ...]]
_Evaluate = Callable[[str, Arrays, Attributes], tuple[Array, ...]]


def activation_of(node: Node) -> Activation | None:
    """The activation that a node applies to its first input, None for other operations."""
    entry = OPS.get(node.op)
    if entry is None or not entry.activation:
        return None
    if node.op == "Gelu":
        return Activation(_kind_of_gelu(node.attributes["approximate"]))
    return Activation(entry.activation, tuple(node.attributes[n] for n in entry.attributes))


def _kind_of_gelu(approximate: str) -> str:
    return "gelu_tanh" if approximate == "tanh" else "gelu"


def _softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(x, np.zeros((), x.dtype)))


def activate(x: Array, activation: Activation | None, slope: Array | None = None) -> Array:
    """Apply an epilogue's activation to an array (N, C, spatial...).

    Args:
        x: any float array.
        activation: what to apply; None for nothing.
        slope: for `prelu`, the slopes below zero, shape (C,).

    Returns:
        An array of the shape and dtype of `x`.
    """
    if activation is None:
        return x
    numbers: tuple[Any, ...] = activation.parameters
    if activation.kind == "prelu":
        assert slope is not None, "prelu needs its slopes"
        numbers = (slope.reshape((-1,) + (1,) * (x.ndim - 2)),)
    y = KINDS[activation.kind].formula(np, x, *numbers)
    if activation.affine:
        factor, summand = activation.affine
        y = y * factor + summand
    return np.asarray(y, dtype=x.dtype)


def _infer_same(types: Types, _attributes: Attributes) -> TensorType:
    return first(types)


_EACH: dict[str, Any] = {"routes": "aligned", "kernel": "elementwise"}


def _unary(function: Callable[..., Array], *names: str, **facts: Any) -> Op:
    def evaluate(arrays: Arrays, attributes: Attributes) -> Array:
        x = array(arrays)
        return np.asarray(function(x, *(attributes[n] for n in names)), dtype=x.dtype)

    return single(_infer_same, evaluate, attributes=names, **_EACH, **facts)


def _activation(kind: str, **facts: Any) -> Op:
    record = KINDS[kind]
    facts = {
        "activation": kind,
        "halves": "rounded" if record.bounded else "scaled",
        "series": record.series,
        "since": record.since,
        **facts,
    }
    return _unary(partial(record.formula, np), *record.parameters, **facts)


def _either_gelu(x: Array, approximate: str) -> Array:
    return np.asarray(KINDS[_kind_of_gelu(approximate)].formula(np, x))


def _infer_binary(types: Types, _attributes: Attributes) -> TensorType:
    dtype = same_dtype(types)
    return checked(broadcast(first(types).shape, required(types, 1).shape), dtype)


def _binary(function: Callable[[Array, Array], Array], **facts: Any) -> Op:
    def evaluate(arrays: Arrays, _attributes: Attributes) -> Array:
        a, b = array(arrays), array(arrays, 1)
        return np.asarray(function(a, b), dtype=a.dtype if b.dtype != object else object)

    return single(_infer_binary, evaluate, PAIR, dtypes=NUMBERS, **_EACH, **facts)


def _divide(a: Array, b: Array) -> Array:
    """a / b; for integers towards zero, as C and ONNX do."""
    return quotient(a, b) if a.dtype.kind in "iuO" else np.asarray(np.divide(a, b))


def _power(a: Array, b: Array) -> Array:
    """a^b; of integers modulo 2^bits, a quotient towards zero where the exponent is negative."""
    if a.dtype.kind not in "iu":
        return np.asarray(np.power(a, b))
    found = np.power(a, np.maximum(b, 0))
    if a.dtype.kind == "u":
        return np.asarray(found)
    odd = np.where(b % 2 == 0, 1, -1)
    below = np.where(a == 1, 1, np.where(a == -1, odd, 0))
    return np.asarray(np.where(b < 0, below, found), dtype=a.dtype)


def _infer_prelu(types: Types, _attributes: Attributes) -> TensorType:
    same_dtype(types)
    x = first(types)
    check_broadcasts_to(required(types, 1), x.shape, "the slope")
    return x


def _evaluate_prelu(arrays: Arrays, _attributes: Attributes) -> Array:
    x = array(arrays)
    y = KINDS["prelu"].formula(np, x, array(arrays, 1))
    return np.asarray(y, dtype=x.dtype)


def _subtracted(c: Array, first: bool) -> tuple[Any, Any]:
    return (-1.0, c) if first else (1.0, -c)


def _divided(c: Array, first: bool) -> tuple[Any, Any] | None:
    return None if first else (1.0 / c, 0.0)


_SIGNED = tuple(each for each in NUMBERS if each.kind != "uint")
_EXACT: dict[str, Any] = {"halves": "exact", "takes_symbols": True, "dtypes": _SIGNED, "working": 0}
# Of angles and exponents, whose errors are absolute ones.
_WAVE: dict[str, Any] = {"precise": slice(1), "magnifies": "difference", "series": True}
CIRCULAR: dict[str, Op] = {
    "Sin": _unary(np.sin, halves="rounded", since=7, **_WAVE),
    "Cos": _unary(np.cos, halves="rounded", since=7, **_WAVE),
    "Tan": _unary(np.tan, halves="wide", since=7, **_WAVE),
    "Asin": _unary(np.arcsin, halves="rounded", magnifies="root", series=True, since=7),
    "Acos": _unary(np.arccos, halves="rounded", magnifies="root", series=True, since=7),
    "Atan": _unary(np.arctan, halves="rounded", series=True, since=7),
}
HYPERBOLIC: dict[str, Op] = {
    "Sinh": _unary(np.sinh, halves="wide", since=9, **_WAVE),
    "Cosh": _unary(np.cosh, halves="wide", since=9, **_WAVE),
    "Asinh": _unary(np.arcsinh, halves="rounded", series=True, since=9),
    "Acosh": _unary(np.arccosh, halves="rounded", magnifies="root", series=True, since=9),
    "Atanh": _unary(np.arctanh, halves="rounded", magnifies="root", series=True, since=9),
}
UNARY: dict[str, Op] = {
    **{each.op: _activation(kind) for kind, each in KINDS.items() if each.op != "PRelu"},
    "Relu": _activation("relu", **_EXACT),
    "Gelu": _unary(
        _either_gelu, "approximate", activation="gelu", halves="scaled", working=7, series=True
    ),
    "Sqrt": _unary(np.sqrt, halves="wide", magnifies="root", working=0, since=1),
    "Exp": _unary(np.exp, halves="wide", working=0, since=1, **_WAVE),
    "Log": _unary(np.log, halves="wide", magnifies="root", working=0, series=True, since=1),
    "Erf": _unary(partial(erf, np), halves="rounded", working=6, series=True, since=9),
    "Neg": _unary(np.negative, since=1, **_EXACT),
    "Abs": _unary(np.abs, **_EXACT),
    "Sign": _unary(np.sign, halves="exact", dtypes=NUMBERS, since=9),
    "Floor": _unary(np.floor, halves="scaled", since=1),
    "Ceil": _unary(np.ceil, halves="scaled", since=1),
    "Round": _unary(np.round, halves="scaled", since=11),
    "Reciprocal": _unary(
        np.reciprocal, halves="wide", magnifies="difference", divides=True, working=0, since=1
    ),
    "Softplus": _unary(_softplus, halves="scaled", working=0, series=True, since=1),
    **CIRCULAR,
    **HYPERBOLIC,
}
_ARITHMETIC: dict[str, Any] = {"halves": "scaled", "takes_symbols": True, "working": 0}
_SUM = {**_ARITHMETIC, "commutes": True}
_DIFFERENCE = {**_ARITHMETIC, "magnifies": "difference"}
_CHOICE = {**_SUM, "halves": "exact"}
BINARY: dict[str, Op] = {
    "Add": _binary(np.add, neutral=0.0, affine=lambda c, _: (1.0, c), **_SUM),
    "Sub": _binary(np.subtract, neutral=0.0, affine=_subtracted, **_DIFFERENCE),
    "Mul": _binary(np.multiply, neutral=1.0, affine=lambda c, _: (c, 0.0), **_SUM),
    "Div": _binary(
        _divide, neutral=1.0, affine=_divided, divides=True, **{**_DIFFERENCE, "working": 2}
    ),
    "Pow": _binary(_power, halves="wide", magnifies="root", neutral=1.0, series=True),
    "Min": _binary(np.minimum, **_CHOICE),
    "Max": _binary(np.maximum, **_CHOICE),
}
OPS: dict[str, Op] = {
    **UNARY,
    **BINARY,
    "PRelu": single(
        _infer_prelu,
        _evaluate_prelu,
        "x, slope (broadcasts to x)",
        activation="prelu",
        halves="scaled",
        **_EACH,
    ),
}
ELEMENTWISE = frozenset((*OPS, *typed.OPS)) - {"BitCast"}


@dataclass(frozen=True)
class Term:
    """One operation of an expression.

    Attributes:
        op: one whose kernel is that of elementwise operations.
        args: its operands by number: the node's inputs first, then results of terms before.
        attributes: its own, by name.
        name: of its result, where it is a value of its own.
        stored: the half precision to which its result is rounded, as if it were stored.
    """

    op: str
    args: tuple[int, ...]
    attributes: tuple[tuple[str, Any], ...]
    name: str = field(compare=False)
    stored: DType | None = None


def terms_of(node: Node) -> tuple[Term, ...]:
    """The terms of an Expression; of any other node, itself."""
    if node.op == "Expression":
        terms: tuple[Term, ...] = node.attributes["terms"]
        return terms
    args = tuple(range(len(node.inputs)))
    return (Term(node.op, args, tuple(sorted(node.attributes.items())), node.key),)


def inner_nodes(node: Node, taken: Collection[str]) -> list[Node]:
    """The nodes that a node stands for; the last one gives its output.

    Args:
        node: an Expression is taken apart, any other one is left.
        taken: names that other values have.
    """
    if node.op != "Expression":
        return [node]
    names, made = list(node.inputs), list[Node]()
    for term in terms_of(node):
        out = term.name
        while out in taken or out in names:
            out += "'"
        inputs = tuple(names[place] for place in term.args)
        attributes = MappingProxyType(dict(term.attributes))
        made.append(Node(term.op, inputs, (out,), attributes, node.name))
        names.append(out)
    return [*made[:-1], replace(made[-1], outputs=node.outputs)]


def joined(nodes: Sequence[Node], stored: Mapping[str, DType] = MappingProxyType({})) -> Node:
    """Make an Expression of elementwise nodes, each of which reads the ones before it.

    Args:
        nodes: the last one's name and output are the result's; some are Expressions.
        stored: the half precisions of results between them that are rounded as if stored so.
    """
    made = {each.output for each in nodes}
    read = (name for each in nodes for name in each.inputs if name not in made)
    inputs = tuple(dict.fromkeys(read))
    places = {name: place for place, name in enumerate(inputs)}
    terms: list[Term] = []
    for each in nodes:
        own = [places[name] for name in each.inputs]
        for term in terms_of(each):
            own.append(len(inputs) + len(terms))
            terms.append(replace(term, args=tuple(own[place] for place in term.args)))
        if each.output in stored:
            terms[-1] = replace(terms[-1], stored=stored[each.output])
        places[each.output] = own[-1]
    attributes = MappingProxyType({"terms": tuple(terms)})
    return Node("Expression", inputs, nodes[-1].outputs, attributes, nodes[-1].name)


def term_types(
    kinds: Sequence[TensorType], terms: Sequence[Term], infer: _Infer
) -> list[TensorType]:
    """The types of the results of an expression's terms, as they are computed.

    Args:
        kinds: of the inputs.
        terms: the expression.
        infer: gives the types of any operation's outputs.

    Raises:
        ModelError: a term does not fit what it takes, or gives another shape than the last one.
    """
    found = list(kinds)
    for term in terms:
        if not all(0 <= place < len(found) for place in term.args):
            raise ModelError(
                f"a term is {term.op} of {term.args}; expected inputs, and terms before it"
            )
        read = [found[place] for place in term.args]
        found += infer(term.op, read, dict(term.attributes))
    made = found[len(kinds) :]
    if not 0 < len(made) <= MOST_TERMS or any(kind.shape != made[-1].shape for kind in made):
        raise ModelError(
            f"got terms that give {', '.join(map(str, made)) or 'nothing'}; expected 1 to "
            f"{MOST_TERMS}, all of one shape"
        )
    return made


def expression(infer: _Infer, evaluate: _Evaluate) -> Op:
    """The operation, made of what infers and computes any operation."""

    def inferred(types: Types, attributes: Attributes) -> TensorType:
        given = [required(types, index) for index in range(len(types))]
        return term_types(given, attributes["terms"], infer)[-1]

    def computed(arrays: Arrays, attributes: Attributes) -> Array:
        values = [array(arrays, index) for index in range(len(arrays))]
        for term in attributes["terms"]:
            read = [values[place] for place in term.args]
            (made,) = evaluate(term.op, read, dict(term.attributes))
            values.append(made if term.stored is None else held_as(made, term.stored))
        return values[-1]

    def work(_: Types, attributes: Attributes, result: TensorType) -> int:
        return (len(attributes["terms"]) - 1) * result.elements

    signature = "x, more (broadcast)...; gives the last term's result"
    facts: dict[str, Any] = {"dtypes": (*NUMBERS, BOOL), "working": MOST_TERMS, **_EACH}
    return single(inferred, computed, signature, ("terms",), work, halves="rounded", **facts)
