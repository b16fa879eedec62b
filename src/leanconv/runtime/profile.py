"""The time of each step of a network, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from leanconv.records import dataclass


@dataclass(frozen=True)
class ProfileRow:
    """Times of one step over the repeats of a profile, in nanoseconds.

    Attributes:
        name, op, algorithm: of the step, as the plan and `explain` name it.
        calls: number of times that it was timed.
        median_ns, average_ns, least_ns, most_ns: of the times.
        share: of the median in the sum of all steps' medians.
        flops: of the plain sum.
        predicted_ns: the plan's estimate; None where it estimates no times.
    """

    name: str
    op: str
    algorithm: str
    calls: int
    median_ns: float
    average_ns: float
    least_ns: int
    most_ns: int
    share: float
    flops: int
    predicted_ns: int | None = None


class Step(Protocol):
    """Interface of a plan's step, for a profile."""

    @property
    def name(self) -> str:
        """Name of the node in the file."""

    @property
    def op(self) -> str:
        """Operation of the node in the file."""

    @property
    def algorithm(self) -> str:
        """Algorithm that computes the step."""

    @property
    def flops(self) -> int:
        """Floating point operations of one run."""


def profile_rows(
    steps: Sequence[Step],
    times: Sequence[Sequence[int]],
    estimates: Sequence[int | None],
) -> list[ProfileRow]:
    """One row for each step.

    Args:
        steps: of the plan, in order.
        times: for each of them the nanoseconds of every repeat.
        estimates: for each of them the nanoseconds that the plan predicts.
    """
    from statistics import median

    medians = [float(median(row)) if row else 0.0 for row in times]
    total = sum(medians) or 1.0
    return [
        ProfileRow(
            step.name,
            step.op,
            step.algorithm,
            len(row),
            median,
            sum(row) / max(1, len(row)),
            min(row, default=0),
            max(row, default=0),
            median / total,
            step.flops,
            estimate,
        )
        for step, row, median, estimate in zip(steps, times, medians, estimates, strict=True)
    ]
