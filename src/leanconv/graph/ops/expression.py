"""Expression: elementwise operations of which only the last one's result is wanted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes, Node, TensorType
from leanconv.graph.ops import pointwise, typed
from leanconv.graph.ops.base import Array, Arrays, Op, Types, array, required, single
from leanconv.half_arrays import held_as
from leanconv.records import dataclass
from leanconv.types import BOOL, FLOATS, DType

ELEMENTWISE = frozenset((*pointwise.OPS, *typed.OPS)) - {"BitCast"}
# Functions that take some ten multiply-adds for each element.
SERIES = frozenset(
    (
        *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Elu", "Erf", "Exp"),
        *("Gelu", "Log", "Mod", "Pow", "Sigmoid", "Silu", "Sin", "Sinh", "Softplus", "Tan", "Tanh"),
    )
)
MOST_TERMS, MOST_SERIES, MOST_OPERANDS = 16, 2, 8
_Infer = Callable[[str, Types, Attributes], tuple[TensorType, ...]]
_Evaluate = Callable[[str, Arrays, Attributes], tuple[Array, ...]]


@dataclass(frozen=True)
class Term:
    """One operation of an expression.

    Attributes:
        op: one of `ELEMENTWISE`.
        args: what it takes: the node's inputs come first, then the results of the terms before.
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


def term_types(
    kinds: Sequence[TensorType], terms: Sequence[Term], infer: _Infer
) -> list[TensorType]:
    """The types of the results of an expression's terms, as they are computed.

    Args:
        kinds: of the inputs.
        terms: the expression.
        infer: gives the types of any operation's outputs.

    Raises:
        ModelError: a term does not fit what it takes; a result has another shape than the last one,
            or something is neither bool nor of the one float type.
    """
    found = list(kinds)
    for term in terms:
        if term.op not in ELEMENTWISE or not all(0 <= place < len(found) for place in term.args):
            raise ModelError(
                f"a term is {term.op} of {term.args}; expected an elementwise operation of inputs "
                "and of terms before it"
            )
        read = [found[place] for place in term.args]
        found += infer(term.op, read, dict(term.attributes))
    made = found[len(kinds) :]
    if not 0 < len(made) <= MOST_TERMS or any(kind.shape != made[-1].shape for kind in made):
        raise ModelError(
            f"got terms that give {', '.join(map(str, made)) or 'nothing'}; expected 1 to "
            f"{MOST_TERMS}, all of one shape"
        )
    dtypes = {kind.dtype for kind in found} - {BOOL}
    if len(dtypes) != 1 or not dtypes <= {*FLOATS}:
        raise ModelError(
            f"got values {', '.join(map(str, found))}; expected bool and one float type"
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

    taken = (*FLOATS, BOOL)
    return single(inferred, computed, 1, 3 * MOST_TERMS, ("terms",), work, dtypes=taken)
