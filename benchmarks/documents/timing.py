"""Methods timed in turn, each of a lowering and its product; products by us or by a BLAS."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from documents.figure import Effort, spread
from harness import Patience
from leanconv.algorithms.select import choice_named, choose
from leanconv.api.conv_choice import conv_problem
from leanconv.codegen.host import host
from leanconv.spec import ConvSpec
from lowering import Measured, median_for, prepare

_WAITING_S = 5.0  # of a case, for cores of one's own, and for turns taken again
AGREES = 2e-4  # of the largest number; Winograd's and sums' rounding is far below


class Arrays:
    """Input, weights and output of one layer, the same numbers every time."""

    def __init__(self, spec: ConvSpec) -> None:
        rng = np.random.default_rng(0)
        self.spec = spec
        self.x = rng.uniform(-1, 1, spec.input_shape).astype(np.float32)
        self.w = rng.uniform(-1, 1, spec.weight_shape).astype(np.float32)
        self.y = np.empty(spec.output_shape, np.float32)

    def planned(self, method: str, threads: int) -> Measured:
        """A method of ours, made ready.

        Raises:
            SpecError: the method refuses the layer.
        """
        addresses = self.x.ctypes.data, self.y.ctypes.data
        return prepare(self.spec, method, self.w, *addresses, threads)

    def checked(self, run: Callable[[], object], right: np.ndarray | None) -> np.ndarray:
        """Run once and compare with another method's answer; returns a copy of this one.

        Raises:
            AssertionError: they differ by more than rounding.
        """
        self.y[...] = np.nan
        run()
        if right is None:
            return np.array(self.y)
        apart = float(np.abs(self.y - right).max() / np.abs(right).max())
        assert apart <= AGREES, f"{self.spec}: answers differ by {apart:.1e}"
        return right


@dataclass(frozen=True)
class Timed:
    """One method: everything at once, and its parts apart.

    Attributes:
        run: does all of it once.
        parts: by name, each does one part.
        memory: that they work in; it lives as long as this.
    """

    run: Callable[[], Any]
    parts: Mapping[str, Callable[[], Any]]
    memory: object


def bytes_of(spec: ConvSpec, method: str, threads: int) -> dict[str, int]:
    """Workspace and packed weights of a plan, without running it."""
    candidate = choose(conv_problem(spec, None), host(), choice_named(method))
    return {
        "workspace_bytes": candidate.workspace_bytes(threads),
        "weight_bytes": sum(candidate.constant_bytes.values()),
    }


def in_turn(
    methods: Mapping[str, Timed], effort: Effort, clock: Callable[[], int] = time.perf_counter_ns
) -> dict[str, dict[str, Any]]:
    """Give every method a turn a round, until the figure's time is over; who begins changes.

    Args:
        methods: by name.
        effort: threads, turns and their length.
        clock: gives nanoseconds.

    Returns:
        By method `ns`, the spread of its turns' medians, and `parts_ns`, the least of each part's.
    """
    times: dict[str, list[float]] = {name: [] for name in methods}
    parts: dict[str, dict[str, float]] = {name: {} for name in methods}
    patience = Patience(effort.threads, left_s=_WAITING_S)
    order = list(methods)
    for turn in range(effort.rounds):
        if effort.deadline.passed(turn):
            break
        start = turn % len(order)
        for name in order[start:] + order[:start]:
            method = methods[name]

            def take(method: Timed = method) -> int:
                return median_for(_clocked(method.run, clock), effort.seconds)

            times[name].append(patience.undisturbed(take)[0])
            for part, run in method.parts.items():
                taken = median_for(_clocked(run, clock), effort.seconds / 4)
                parts[name][part] = min(taken, parts[name].get(part, taken))
    return {name: {"ns": spread(times[name]), "parts_ns": parts[name]} for name in methods}


def _clocked(run: Callable[[], Any], clock: Callable[[], int]) -> Callable[[], int]:
    def timed() -> int:
        begin = clock()
        run()
        return clock() - begin

    return timed


def of_plan(measured: Measured) -> Timed:
    """A planned method, with its lowering and products apart."""
    return Timed(measured.run, measured.parts, measured.memory)
