"""Times of a network until it first answers, by purpose, and the share of its convolutions."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanconv.cli.network_inputs import model_file
from leanconv.progress import Spent, spent
from leanconv.records import dataclass, field, replace
from leanconv.units import counted, format_ns

if TYPE_CHECKING:
    from leanconv import Network

_STARTED_FIELD = 19  # of /proc/self/stat behind the command's name: ticks from boot to the start
_PURPOSES = ("reading", "planning", "code", "packing weights")  # as `progress.spending` has them
_MOST_SHOWN = 4


@dataclass(frozen=True)
class Startup:
    """Times until a network first answers, in nanoseconds.

    Attributes:
        load_ns: to read and check the file; to plan and compile, too, where it fixes all shapes.
        at_load: whether it does.
        before_ns: from the start of the process to that, imports included; None where the system
            does not say.
        plan_ns: to plan and compile after that, for all shapes together.
        first_run_ns: the first run, without planning.
        spent_ns: on what loading and planning were spent, by purpose.
        kernels, compiled: how many kernels were loaded, and compiled because no file had them.
    """

    load_ns: int
    at_load: bool
    before_ns: int | None = None
    plan_ns: int = 0
    first_run_ns: int | None = None
    spent_ns: Mapping[str, int] = field(default_factory=dict)
    kernels: int = 0
    compiled: int = 0

    def planned(self, plan: Callable[[], object]) -> Startup:
        """These times with that of `plan` added to planning."""
        with spent() as found:
            taken = taken_ns(plan)
        return replace(self, plan_ns=self.plan_ns + taken)._with(found)

    def answered(self, run_ns: int) -> Startup:
        """These times with that of a run, if it is the first."""
        return self if self.first_run_ns is not None else replace(self, first_run_ns=run_ns)

    def _with(self, found: Spent) -> Startup:
        both = dict(self.spent_ns)
        for purpose, ns in found.ns.items():
            both[purpose] = both.get(purpose, 0) + ns
        kernels, compiled = self.kernels + found.kernels, self.compiled + found.compiled
        return replace(self, spent_ns=both, kernels=kernels, compiled=compiled)

    @property
    def ready_ns(self) -> int:
        """Nanoseconds from the start of the process, where it is known, to a planned network."""
        return (self.before_ns or 0) + self.load_ns + self.plan_ns

    @property
    def text(self) -> str:
        """The times as a line for people."""
        parts = [] if self.before_ns is None else [f"start and imports {format_ns(self.before_ns)}"]
        known = {each: self.spent_ns[each] for each in _PURPOSES if each in self.spent_ns}
        parts += [f"{name} {format_ns(ns)}" for name, ns in known.items()]
        other = self.load_ns + self.plan_ns - sum(known.values())
        parts.append(f"other {format_ns(max(0, other))}")
        line = f"ready in {format_ns(self.ready_ns)} ({', '.join(parts)}; {self._code})"
        first = self.first_run_ns
        return line if first is None else f"{line}; first run {format_ns(first)}"

    @property
    def _code(self) -> str:
        if not self.kernels:
            return "no kernels"
        if not self.compiled:
            return f"{counted(self.kernels, 'kernel')} from the cache"
        return f"{self.compiled} of {counted(self.kernels, 'kernel')} compiled"

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a JSON object; `plan_ns` is null where `load_ns` has it."""
        return {
            "before_ns": self.before_ns,
            "load_ns": self.load_ns + self.plan_ns if self.at_load else self.load_ns,
            "plan_ns": None if self.at_load else self.plan_ns,
            "first_run_ns": self.first_run_ns,
            "spent_ns": dict(self.spent_ns),
            "kernels": self.kernels,
            "compiled_kernels": self.compiled,
        }


def started(model: str, command: str, options: Mapping[str, Any]) -> tuple[Network, Startup]:
    """Load a network for a command and say how long that took."""
    import leanconv

    load, file = leanconv.load, model_file(model, command)
    before = process_ns()
    with spent() as found:
        begin = time.perf_counter_ns()
        network = load(file, **options)
        load_ns = time.perf_counter_ns() - begin
    shapes = [port.shape for port in network.inputs]
    fixed = all(s is not None and all(isinstance(e, int) for e in s) for s in shapes)
    return network, Startup(load_ns, fixed, before)._with(found)


def process_ns() -> int | None:
    """Return the nanoseconds since this process began; None where the system does not say."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[_STARTED_FIELD])
        began = ticks * 10**9 // os.sysconf("SC_CLK_TCK")
        return max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - began)
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def taken_ns(work: Callable[[], object]) -> int:
    """The nanoseconds that work takes."""
    begin = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - begin


def other_ns(times: Iterable[tuple[str, float]]) -> float:
    """The time of other layers than convolutions, of (operation, nanoseconds) of each layer."""
    return sum(ns for op, ns in times if not _convolves(op))


def other_text(times: Iterable[tuple[str, float]], kind: str) -> str:
    """A line on other layers than convolutions: their share of the time, and the longest of them.

    Args:
        times: operation and nanoseconds of each layer.
        kind: `"predicted"` or `"measured"`.
    """
    layers = list(times)
    total, other = sum(ns for _, ns in layers), other_ns(layers)
    line = f"not convolution: {other / (total or 1):.1%} of the {kind} time, {format_ns(other)}"
    sums: Counter[str] = Counter()
    for op, ns in layers:
        if not _convolves(op):
            sums[op] += round(ns)
    most = ", ".join(f"{op} {format_ns(ns)}" for op, ns in sums.most_common(_MOST_SHOWN))
    return f"{line} ({most})" if most else line


def _convolves(op: str) -> bool:
    from leanconv.graph.ops import OPS

    return op in OPS and OPS[op].convolves
