"""How long a network takes until it answers: to load, to plan and compile, and to run at first."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from leanconv.cli.problem_lines import model_file
from leanconv.records import dataclass
from leanconv.units import format_ns

if TYPE_CHECKING:
    from leanconv import Network


@dataclass(frozen=True)
class Startup:
    """What it took, in nanoseconds.

    Attributes:
        load_ns: to read and check the file; to plan and compile, too, where it fixes all shapes.
        at_load: whether it does.
        plan_ns: to plan and compile after that, for all shapes together.
        first_run_ns: the first run, without planning.
    """

    load_ns: int
    at_load: bool
    plan_ns: int = 0
    first_run_ns: int | None = None

    def planned(self, plan: Callable[[], object]) -> Startup:
        """With the time that `plan` takes added to that of planning."""
        return replace(self, plan_ns=self.plan_ns + taken_ns(plan))

    def answered(self, run_ns: int) -> Startup:
        """With the time of a run, if it is the first."""
        return self if self.first_run_ns is not None else replace(self, first_run_ns=run_ns)

    @property
    def text(self) -> str:
        """For people."""
        if self.at_load:
            steps = f"loaded, planned and compiled in {format_ns(self.load_ns + self.plan_ns)}"
        else:
            steps = f"loaded in {format_ns(self.load_ns)}, planned and compiled in "
            steps += format_ns(self.plan_ns)
        first = self.first_run_ns
        return steps if first is None else f"{steps}; first run {format_ns(first)}"

    def to_json(self) -> dict[str, Any]:
        """As the fields of a JSON object; `plan_ns` is null where `load_ns` has it."""
        return {
            "load_ns": self.load_ns + self.plan_ns if self.at_load else self.load_ns,
            "plan_ns": None if self.at_load else self.plan_ns,
            "first_run_ns": self.first_run_ns,
        }


def started(model: str, command: str, options: Mapping[str, Any]) -> tuple[Network, Startup]:
    """Load a network for a command and say how long that took."""
    import leanconv

    begin = time.perf_counter_ns()
    network = leanconv.load(model_file(model, command), **options)
    load_ns = time.perf_counter_ns() - begin
    shapes = [port.shape for port in network.inputs]
    fixed = all(s is not None and all(isinstance(e, int) for e in s) for s in shapes)
    return network, Startup(load_ns, fixed)


def taken_ns(work: Callable[[], object]) -> int:
    """The nanoseconds that work takes."""
    begin = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - begin
