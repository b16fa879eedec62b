"""The time of each step of a network, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from leanconv.records import dataclass


@dataclass(frozen=True)
class ProfileRow:
    """How long one step took over the repeats of a profile, in nanoseconds."""

    name: str
    op: str
    algorithm: str
    calls: int
    average_ns: float
    least_ns: int
    most_ns: int
    share: float
    flops: int


class Step(Protocol):
    """What is shown of a plan's step."""

    @property
    def name(self) -> str:
        """Of the node in the file."""

    @property
    def op(self) -> str:
        """Of the node in the file."""

    @property
    def algorithm(self) -> str:
        """How it is computed."""

    @property
    def flops(self) -> int:
        """Floating point operations of one run."""


def profile_rows(steps: Sequence[Step], times: Sequence[Sequence[int]]) -> list[ProfileRow]:
    """One row for each step.

    Args:
        steps: of the plan, in order.
        times: for each of them the nanoseconds of every repeat.
    """
    total = sum(sum(row) for row in times) or 1
    return [
        ProfileRow(
            step.name,
            step.op,
            step.algorithm,
            len(row),
            sum(row) / max(1, len(row)),
            min(row, default=0),
            max(row, default=0),
            sum(row) / total,
            step.flops,
        )
        for step, row in zip(steps, times, strict=True)
    ]
