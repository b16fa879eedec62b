"""Loop: a body that runs a number of times, or as long as it wants."""

from __future__ import annotations

from typing import Any

from leanconv.errors import ModelError
from leanconv.graph.convert.bodies import Repeated
from leanconv.graph.convert.rule import Call
from leanconv.types import BOOL, INT64


def condition(call: Call, index: int) -> bool:
    """A condition that is known; one on open sizes becomes a guard."""
    kind = call.value(index).type
    if kind.dtype != BOOL or kind.elements != 1:
        raise ModelError(f"the condition is {kind}; expected one bool")
    return bool(call.constant(index).reshape(-1)[0])


class Loop(Repeated):
    """A Loop: how often at most, whether to begin at all, what is carried."""

    def __init__(self, call: Call) -> None:
        states = [call.anything(index) for index in range(2, len(call))]
        if None in states:
            raise ModelError("a carried value is absent; expected all of them")
        super().__init__(call, [state for state in states if state is not None], 2, 1)

    @property
    def count(self) -> Any:
        """How often it runs at most."""
        call = self.call
        if call.optional(1) is not None and not condition(call, 1):
            return 0
        if call.optional(0) is None:
            return None
        kind = call.value(0).type
        if kind.dtype != INT64 or kind.elements != 1:
            raise ModelError(f"the trip count is {kind}; expected one int64")
        return call.scalar(0)
