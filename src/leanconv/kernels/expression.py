"""Expressions of elementwise operations: a tuple of steps, each a function of earlier values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leanconv.codegen import activations, math
from leanconv.codegen.emitter import Function, Value
from leanconv.graph.activations import UNARY_ACTIVATIONS, activation_of
from leanconv.graph.ir import Node
from leanconv.records import dataclass
from leanconv.spec.activation import KINDS, Activation

_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "Sqrt": lambda e, x: e.unary("sqrt", x),
    "Exp": math.exp,
    "Log": math.log,
    "Erf": math.erf,
    "Neg": math.negate,
    "Abs": lambda e, x: e.unary("fabs", x),
    "Reciprocal": lambda _, x: 1.0 / x,
    "Softplus": math.softplus,
    "Square": lambda _, x: x * x,
    "Cube": lambda _, x: x * x * x,
    "Add": lambda _, a, b: a + b,
    "Sub": lambda _, a, b: a - b,
    "Mul": lambda _, a, b: a * b,
    "Div": lambda _, a, b: a / b,
    "Pow": math.power,
    "Min": math.smaller,
    "Max": math.larger,
    "PRelu": lambda e, x, slope: activations.apply(e, x, Activation("prelu"), slope),
}
BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "PRelu")
UNARY = (*UNARY_ACTIVATIONS, "Sqrt", "Exp", "Log", "Erf", "Neg", "Abs", "Reciprocal", "Softplus")
_POWERS = {2.0: "Square", 3.0: "Cube", 0.5: "Sqrt", -1.0: "Reciprocal"}


@dataclass(frozen=True)
class Step:
    """One operation of an expression.

    Attributes:
        op: a kind of activation, or a key of the table of functions above.
        args: which values it takes: the operands come first, then the kernel's numbers, then the
            results of the steps before.
        parameters: the activation's.
    """

    op: str
    args: tuple[int, ...]
    parameters: tuple[float, ...] = ()

    def apply(self, e: Function, values: Sequence[Value]) -> Value:
        """Append the code of this step."""
        args = [values[i] for i in self.args]
        if self.op in KINDS:
            return activations.apply(e, args[0], Activation(self.op, self.parameters), *args[1:])
        return _FUNCTIONS[self.op](e, *args)


def step_of(node: Node, args: tuple[int, ...], exponent: float | None = None) -> Step:
    """The step that a node of the graph is.

    Args:
        node: its operation is one of `UNARY` or `BINARY`.
        args: as `Step.args`.
        exponent: the exponent of a `Pow` where it is one known number.
    """
    if node.op == "Pow" and exponent in _POWERS:
        return Step(_POWERS[exponent], args[:1])
    activation = activation_of(node) if node.op in UNARY_ACTIVATIONS else None
    if activation is None:
        return Step(node.op, args)
    return Step(activation.kind, args, activation.parameters)
