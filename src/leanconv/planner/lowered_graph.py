"""A network as calls over values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from leanconv.codegen.lowered import Call, Repeat
from leanconv.planner.constant_pool import ConstantPool
from leanconv.planner.views import Views
from leanconv.records import dataclass


@dataclass(frozen=True, eq=False)
class Step:
    """One operation of the network, or a reorder between two.

    Attributes:
        name: of the node in the file.
        op: the operation, `"Reorder"` for a change of layout.
        algorithm: how it is done.
        calls: kernels over values.
        output: the first value that it defines.
        repeats: calls that run several times; before those inside them.
    """

    name: str
    op: str
    algorithm: str
    calls: tuple[Call, ...]
    output: str
    repeats: tuple[Repeat, ...] = ()

    @property
    def flops(self) -> int:
        """Floating point operations of all calls, each as often as it runs."""
        flops = [call.kernel.flops for call in self.calls]
        for each in self.repeats:
            for number in range(each.first, each.first + each.calls):
                flops[number] *= each.times
        return sum(flops)


@dataclass(frozen=True, eq=False)
class LoweredGraph:
    """A network as calls over values.

    Attributes:
        steps: in order.
        bytes: size of every value that is computed or given, in its format.
        views: values that are bytes of another one.
        constants: by the names that calls use; `fill_weights` takes them out.
        inputs, outputs: names of what the user gives and gets, plain.
    """

    steps: tuple[Step, ...]
    bytes: Mapping[str, int]
    views: Views[str]
    constants: ConstantPool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def all_repeats(steps: Sequence[Step]) -> tuple[Repeat, ...]:
    """What runs several times, by the numbers of the calls among those of all steps."""
    found: list[Repeat] = []
    before = 0
    for step in steps:
        found += [replace(each, first=before + each.first) for each in step.repeats]
        before += len(step.calls)
    return tuple(found)
