"""Choices for the nodes of a loop's body, which no search sees."""

from __future__ import annotations

from leanconv.algorithms.parameters import AUTO, Choice
from leanconv.operators import NodeContext, operator_of
from leanconv.operators.loop import ACCURATE


def choice_with_aim(context: NodeContext, aim: str) -> Choice:
    """The most accurate choice for a node of a body, or the smallest; the fastest of equal ones."""
    operator = operator_of(context.node)
    choices = operator.choices(context)
    if aim == ACCURATE:
        return min(choices, key=lambda choice: (choice.error, choice.cycles))

    def held(choice: Choice) -> int:
        lowered = operator.lower(context, choice)
        arrays = (array.nbytes for array in lowered.constants.values())
        packed = (size for packing in lowered.packings for size in packing.bytes.values())
        scratch = max((call.kernel.scratch_bytes for call in lowered.calls), default=0)
        return sum(arrays) + sum(packed) + sum(lowered.temporaries.values()) + scratch

    return min(choices, key=lambda choice: (held(choice), choice.cycles))


def with_costs(context: NodeContext, choice: Choice) -> Choice:
    """A choice with its costs for a node of a body."""
    operator = operator_of(context.node)
    for vary in (False, True):
        for each in operator.choices(context, vary_parameters=vary):
            if choice in (each, AUTO):
                return each
    return operator.estimated(context, choice)
