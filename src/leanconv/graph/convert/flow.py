"""Control flow: what is known where the network is bound is decided there.

A branch is taken. A loop of few iterations is written out, one after the other; one of many becomes
a node that holds its body.
"""

from __future__ import annotations

from leanconv.errors import ModelError
from leanconv.graph.convert.held_bodies import repeated
from leanconv.graph.convert.loops import Loop, condition
from leanconv.graph.convert.rule import Call, Older, Rule
from leanconv.graph.convert.scans import Scan
from leanconv.graph.value import Value

_MANY = 1 << 31


def _if(call: Call) -> list[Value]:
    """The outputs of the branch that is taken."""
    taken = "then_branch" if condition(call, 0) else "else_branch"
    for name, graph in call.node.graphs.items():
        if graph.inputs:
            raise ModelError(f"{name} has {len(graph.inputs)} inputs; expected none")
        if len(graph.outputs) != len(call.node.outputs):
            raise ModelError(
                f"{name} has {len(graph.outputs)} outputs; expected {len(call.node.outputs)}, as "
                "many as the node"
            )
    return call.inline(taken)


def _loop(call: Call) -> list[Value]:
    """What is carried at the end, then what the iterations gave, stacked."""
    return repeated(Loop(call))


def _scan(call: Call) -> list[Value]:
    """The same, for each slice of some tensors; before opset 9, for each image of a batch."""
    if call.opset >= 9:
        return repeated(Scan(call))
    if call.optional(0) is not None:
        raise ModelError("input 0 gives lengths of sequences; expected none: pad them")
    return Scan.of_batch(call)


_DIRECTIONS = {"scan_input_directions": "ints", "scan_output_directions": "ints"}
RULES: dict[str, Rule] = {
    "If": Rule(_if, running=(), outputs=_MANY, graphs=("then_branch", "else_branch")),
    "Loop": Rule(_loop, {}, 2, _MANY, running=range(2, _MANY), outputs=_MANY, graphs=("body",)),
    "Scan": Rule(
        _scan,
        {
            **_DIRECTIONS,
            "num_scan_inputs": "int",
            "scan_input_axes": "ints",
            "scan_output_axes": "ints",
        },
        1,
        _MANY,
        running=None,
        since=8,
        outputs=_MANY,
        graphs=("body",),
        older=Older(9, {"directions": "ints"}),
    ),
}
