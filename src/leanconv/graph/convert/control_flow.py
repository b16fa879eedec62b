"""Control flow: what is known where the network is bound is decided there.

A branch is taken. A loop of few iterations is written out, one after the other; one of many becomes
a node that holds its body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.builder import Builder
from leanconv.graph.convert.loop_bodies import Inside, Repeated, repeated
from leanconv.graph.convert.rule import Call, Older, Rule
from leanconv.graph.convert.shapes import part_of
from leanconv.graph.ir import TensorType
from leanconv.graph.value import Value
from leanconv.types import BOOL, INT64

_MANY = 1 << 31


def condition(call: Call, index: int) -> bool:
    """A condition that is known; one on open sizes becomes a guard."""
    kind = call.value(index).type
    if kind.dtype != BOOL or kind.elements != 1:
        raise ModelError(f"the condition is {kind}; expected one bool")
    return bool(call.constant(index).reshape(-1)[0])


class Loop(Repeated):
    """A Loop: the most iterations, whether to begin at all, and the states."""

    def __init__(self, call: Call) -> None:
        states = [call.anything(index) for index in range(2, len(call))]
        if None in states:
            raise ModelError("a carried value is absent; expected all of them")
        super().__init__(call, [state for state in states if state is not None], 2, 1)

    @property
    def count(self) -> Any:
        """The most iterations, None for no limit."""
        call = self.call
        if call.optional(1) is not None and not condition(call, 1):
            return 0
        if call.optional(0) is None:
            return None
        kind = call.value(0).type
        if kind.dtype != INT64 or kind.elements != 1:
            raise ModelError(f"the trip count is {kind}; expected one int64")
        return call.scalar(0)


class Scan(Repeated):
    """A Scan: the states, then tensors of which each iteration reads a slice.

    Args:
        call: the node.
        inputs: its operands; None for all that the node has.

    Raises:
        ModelError: axes do not fit, or the tensors have different extents along them.
    """

    def __init__(self, call: Call, inputs: Sequence[Value] | None = None) -> None:
        given = [call.value(n) for n in range(len(call))] if inputs is None else list(inputs)
        slices = call.attribute("num_scan_inputs", None)
        if slices is None or not 0 < slices <= len(given):
            raise ModelError(f"num_scan_inputs is {slices}; expected 1 to {len(given)}")
        first = len(given) - slices
        super().__init__(call, given[:first], 0, 0, slices)
        self._whole = given[first:]
        axes = self._listed("scan_input_axes", slices)
        pairs = zip(axes, self._whole, strict=True)
        self._axes = [call.axis(a, len(x.shape), "a scan input's axis") for a, x in pairs]
        before_9 = "directions" if call.opset < 9 else "scan_input_directions"
        self._backwards = self._listed(before_9, slices)
        self._out_axes = self._listed("scan_output_axes", self.stacks)
        self._out_backwards = self._listed("scan_output_directions", self.stacks)
        extents = [x.shape[axis] for axis, x in zip(self._axes, self._whole, strict=True)]
        if any(extent != extents[0] for extent in extents):
            raise ModelError(f"scans extents {extents}; expected equal ones")
        self._extent = extents[0]

    @classmethod
    def of_batch(cls, call: Call) -> list[Value]:
        """The Scan of opset 8: the first axis of all operands and results is a batch."""
        given = [call.value(index) for index in range(1, len(call))]
        if any(not x.shape or x.shape[0] != given[0].shape[0] or not x.shape[0] for x in given):
            raise ModelError("operands differ in their first axis; expected one batch for all")
        images = []
        for image in range(given[0].shape[0]):
            parts = [part_of(call, x, 0, image, 1, 1) for x in given]
            alone = [call.reshape(part, part.shape[1:]) for part in parts]
            images.append(repeated(cls(call, alone)))
        rows = [[call.reshape(x, (1, *x.shape)) for x in each] for each in images]
        return [call.emit("Concat", list(each), axis=0) for each in zip(*rows, strict=True)]

    def _listed(self, name: str, count: int) -> Sequence[int]:
        numbers: Sequence[int] = self.call.attribute(name, (0,) * count)
        if len(numbers) != count:
            raise ModelError(f"attribute {name} has {len(numbers)} numbers; expected {count}")
        return numbers

    @property
    def count(self) -> Any:
        """The number of iterations: the extent of what is scanned."""
        return self._extent

    def slices(self, number: Value, builder: Builder, inside: Inside) -> list[Value]:
        """The slice of each tensor that an iteration reads."""
        rows = []
        for x, axis, backwards in zip(self._whole, self._axes, self._backwards, strict=True):
            shape = (*x.shape[:axis], *x.shape[axis + 1 :])
            if number.array is not None:
                place = int(number.array)
                place = self._extent - 1 - place if backwards else place
                if not self._extent:  # no iteration runs: any slice will do
                    empty = TensorType(shape, x.type.dtype)
                    rows.append(Value(empty, np.zeros(shape, x.type.dtype)))
                    continue
                rows.append(self.call.reshape(part_of(self.call, x, axis, place, 1, 1), shape))
                continue
            if backwards:
                x = part_of(self.call, x, axis, self._extent - 1, -1, self._extent)
            rows.append(builder.emit("Gather", [inside(x), number], axis=axis))
        return rows

    def arranged(self, stack: Value, index: int) -> Value:
        """Rows along the result's axis, in its direction."""
        rank, call = len(stack.shape), self.call
        axis = call.axis(self._out_axes[index], rank, "a scan output's axis")
        if self._out_backwards[index] and stack.shape[0]:
            stack = part_of(call, stack, 0, stack.shape[0] - 1, -1, stack.shape[0])
        order = list(range(1, rank))
        order.insert(axis, 0)
        return call.emit("Transpose", [stack], perm=tuple(order))


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
    return repeated(Loop(call))


def _scan(call: Call) -> list[Value]:
    """Repeat a body for each slice of some tensors; before opset 9, for each image of a batch."""
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
