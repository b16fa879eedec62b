"""Control flow: a branch is taken where the network is bound."""

from __future__ import annotations

from leanconv.errors import ModelError
from leanconv.graph.builder import Value
from leanconv.graph.convert.rule import Call, Rule
from leanconv.types import BOOL


def _if(call: Call) -> list[Value]:
    """The outputs of the branch that is taken; a condition on open sizes becomes a guard."""
    condition = call.value()
    if condition.type.dtype != BOOL or condition.type.elements != 1:
        raise ModelError(f"the condition is {condition.type}; expected one bool")
    taken = "then_branch" if call.constant(0).reshape(-1)[0] else "else_branch"
    for name, graph in call.node.graphs.items():
        if graph.inputs:
            raise ModelError(f"{name} has {len(graph.inputs)} inputs; expected none")
        if len(graph.outputs) != len(call.node.outputs):
            raise ModelError(
                f"{name} has {len(graph.outputs)} outputs; expected {len(call.node.outputs)}, as "
                "many as the node"
            )
    return call.inline(taken)


_MANY = 1 << 31

RULES: dict[str, Rule] = {
    "If": Rule(_if, running=(), outputs=_MANY, graphs=("then_branch", "else_branch")),
}
