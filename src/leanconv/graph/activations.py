"""Which operations are activation functions, and the attributes that are their parameters."""

from __future__ import annotations

from leanconv.graph.ir import Node
from leanconv.spec.activation import Activation

# operation -> (kind of Activation, the attributes that are its parameters)
_KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Relu": ("relu", ()),
    "Clip": ("clip", ("min", "max")),
    "LeakyRelu": ("leaky_relu", ("alpha",)),
    "PRelu": ("prelu", ()),
    "Sigmoid": ("sigmoid", ()),
    "Silu": ("silu", ()),
    "HardSigmoid": ("hard_sigmoid", ("alpha", "beta")),
    "HardSwish": ("hard_swish", ()),
    "Tanh": ("tanh", ()),
    "Gelu": ("gelu", ()),
    "Elu": ("elu", ("alpha",)),
}
# Those of one input; PRelu's slopes are a second one.
UNARY_ACTIVATIONS = tuple(op for op in _KINDS if op != "PRelu")


def activation_of(node: Node) -> Activation | None:
    """The activation that a node applies to its first input, None for other operations."""
    if node.op not in _KINDS:
        return None
    kind, names = _KINDS[node.op]
    if node.op == "Gelu" and node.attributes["approximate"] == "tanh":
        kind = "gelu_tanh"
    return Activation(kind, tuple(node.attributes[name] for name in names))
