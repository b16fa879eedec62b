"""`leanconv profile MODEL`: every layer's median time, share, estimate, GFLOP/s, share of peak."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from leanconv.api.inputs import given_values
from leanconv.cli.network_inputs import input_shapes, planned_for, random_inputs
from leanconv.cli.options import (
    add_input_options,
    add_load_options,
    add_output_options,
    load_options,
    positive,
)
from leanconv.cli.output import print_json, print_table, print_text, progress
from leanconv.cli.table import NONE, Column
from leanconv.cli.times import Startup, other_ns, other_text, started, taken_ns
from leanconv.records import dataclass
from leanconv.units import counted, format_ns, shape_text

if TYPE_CHECKING:
    from leanconv.api.backend import ProfileRow

_COLUMNS = (
    Column("layer", "name"),
    Column("operation", "name"),
    Column("algorithm", "name"),
    Column("median"),
    Column("share"),
    Column("predicted", optional=1),
    Column("GFLOP/s", optional=2),
    Column("of peak", optional=3),
    Column("least", optional=4),
    Column("most", optional=5),
    Column("average", optional=6),
)
HELP = "time every layer"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's options."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX file")
    add_load_options(parser)
    add_input_options(parser)
    parser.add_argument(
        "--batch",
        type=positive,
        metavar="N",
        help="images at once, where the model leaves that open (default 1)",
    )
    parser.add_argument(
        "--repeat", type=positive, default=20, metavar="N", help="timed runs (default: 20)"
    )
    parser.add_argument("--sort", action="store_true", help="the slowest first")
    add_output_options(parser)


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command."""
    with progress(f"loading {options.model}") as shown:
        network, startup = started(options.model, "profile", load_options(options))
        values = given_values(network.inputs, options.value)
        shapes = input_shapes(network, options.shape, options.batch, values)
        inputs = random_inputs(network, shapes, values=values)
        planned = [network]
        startup = startup.planned(
            lambda: planned.append(planned_for(network, options.shape, shapes, values))
        )
        network = planned[-1]
        startup = startup.answered(taken_ns(lambda: network.run(inputs)))
        shown.say(f"profiling {options.model}")
        rows = network.profile(inputs, repeats=options.repeat)
    plan: Any = network.plan  # of the CPU, which estimates times
    machine = _Machine.of(plan)
    report = {
        "model": options.model,
        "inputs": {name: list(x.shape) for name, x in inputs.items()},
        **startup.to_json(),
        **vars(machine),
        "total_median_ns": sum(row.median_ns for row in rows),
        "total_average_ns": sum(row.average_ns for row in rows),
        "total_predicted_ns": plan.predicted_ns,
        "other_median_ns": other_ns((row.op, row.median_ns) for row in rows),
    }
    if options.sort:
        rows = sorted(rows, key=lambda row: -row.median_ns)
    if options.json:
        layers = [{**asdict(row), **machine.rates(row)} for row in rows]
        print_json({**report, "layers": layers})
    else:
        _print(report, rows, machine, startup, options)
    return 0


@dataclass(frozen=True)
class _Machine:
    """The peak rate of a plan's threads, at the nominal clock.

    Attributes:
        threads: of the plan.
        dtype: that is computed in.
        clock_ghz: by which the peak is computed.
        peak_gflops: all threads together.
    """

    threads: int
    dtype: str
    clock_ghz: float
    peak_gflops: float

    @staticmethod
    def of(plan: Any) -> _Machine:
        """The peak of a network's plan."""
        target, dtype = plan.target, plan.dtype
        peak = target.peak_gflops(dtype, plan.threads)
        return _Machine(plan.threads, dtype, target.costs.ghz, peak)

    def rates(self, row: ProfileRow) -> dict[str, float | None]:
        """GFLOP/s of the plain sum, whatever the algorithm does, and their share of the peak."""
        if not (row.flops and row.median_ns):
            return {"gflops": None, "peak_share": None}
        rate = row.flops / row.median_ns  # FLOPs per nanosecond
        return {"gflops": rate, "peak_share": rate / self.peak_gflops}


def _print(
    report: dict[str, Any],
    rows: Sequence[ProfileRow],
    machine: _Machine,
    startup: Startup,
    options: argparse.Namespace,
) -> None:
    described = ", ".join(f"{name} {shape_text(s)}" for name, s in report["inputs"].items())
    runs, threads = counted(options.repeat, "run"), counted(machine.threads, "thread")
    print_text(
        f"{options.model}: {described}\n{startup.text}\n"
        f"all layers: {format_ns(report['total_median_ns'])}, the sum of the medians of {runs}; "
        f"predicted {format_ns(report['total_predicted_ns'])}\n"
        f"peak: {machine.peak_gflops:.4g} GFLOP/s in {machine.dtype}, of {threads} at a nominal "
        f"{machine.clock_ghz:g} GHz; rates count the plain sum's operations, of which winograd, "
        "fft and large pools need fewer"
        + "; 8-bit integers may exceed the peak" * any(row.op.startswith("QLinear") for row in rows)
        + "\n",
        options.wide,
    )
    print_table(_COLUMNS, [_cells(row, machine) for row in rows], wide=options.wide)
    times = ((row.op, row.median_ns) for row in rows)
    print_text("\n" + other_text(times, "measured"), options.wide)


def _cells(row: ProfileRow, machine: _Machine) -> list[str]:
    rates = machine.rates(row)
    gflops, share = rates["gflops"], rates["peak_share"]
    return [
        row.name,
        row.op,
        row.algorithm,
        format_ns(row.median_ns),
        f"{row.share:.1%}",
        NONE if row.predicted_ns is None else format_ns(row.predicted_ns),
        NONE if gflops is None else f"{gflops:.1f}",
        NONE if share is None else f"{share:.1%}",
        format_ns(row.least_ns),
        format_ns(row.most_ns),
        format_ns(row.average_ns),
    ]
