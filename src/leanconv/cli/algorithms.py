"""`leanconv algorithms PROBLEM`: every algorithm with bytes, estimated error and time.

With `--gradient x` or `w` those of a gradient of the convolution, by its input or its weights;
with `--zeros 0.9` those for weights of which so many are 0.
"""

from __future__ import annotations

import argparse
from typing import Any

from leanconv.cli.gradients import add_gradient_option, gradient_text
from leanconv.cli.network_inputs import read_problem
from leanconv.cli.options import UsageError, add_load_options, add_output_options, part
from leanconv.cli.output import print_json, print_table
from leanconv.cli.table import Column
from leanconv.types import FLOAT32
from leanconv.units import counted, format_bytes

_COLUMNS = (
    Column("algorithm", "name"),
    Column("estimate"),
    Column("workspace"),
    Column("weights"),
    Column("rel. error"),
    Column("parameters or reason", "prose"),
)
HELP = "list the algorithms for a convolution"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's options."""
    parser.add_argument(
        "problem", metavar="PROBLEM", help="such as ic64ih56oc64oh54kh3, or cv1 to cv12 of MEC"
    )
    parser.add_argument(
        "--layout",
        choices=("NCHW", "NHWC"),
        default="NCHW",
        help="order of the axes of input and output (default: NCHW)",
    )
    add_load_options(parser, ("dtype", "threads"), dtype="compute in this type (default: float32)")
    add_gradient_option(parser, "list those of")
    parser.add_argument(
        "--zeros", type=part, default=0.0, metavar="PART", help="of weights that are 0, such as 0.9"
    )
    parser.add_argument("--measure", action="store_true", help="run each one, too, and time it")
    add_output_options(parser)
    parser.set_defaults(dtype=FLOAT32)


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command."""
    from leanconv.api.comparison import compare_algorithms, compare_gradients
    from leanconv.runtime.pool import default_threads

    if options.gradient and options.zeros:
        raise UsageError(
            "--zeros goes with the convolution itself, and its gradients compute every product; "
            "leave out --zeros or --gradient"
        )
    spec = read_problem(options.problem, layout=options.layout, dtype=options.dtype)
    threads = options.threads or default_threads()
    if options.gradient:
        rows = compare_gradients(spec, options.gradient, threads, options.measure)
    else:
        rows = compare_algorithms(spec, threads, options.measure, options.zeros)
    if options.json:
        algorithms = [vars(row) for row in rows]
        facts = {"problem": str(spec), "threads": threads, "dtype": spec.dtype}
        if options.zeros:
            facts["zeros"] = options.zeros
        if options.gradient:
            facts["gradient"] = options.gradient
        print_json({**facts, "layout": options.layout, "algorithms": algorithms})
        return 0
    extra = [Column("selector", "name")] if options.wide else []
    measured = [Column("measured")] if options.measure else []
    columns = [*_COLUMNS[:2], *measured, *_COLUMNS[2:], *extra]
    zeros_text = f"{options.zeros:.0%} zeros, " if options.zeros else ""
    cells = [_cells(row, options) for row in rows]
    print_table(
        columns,
        cells,
        title=f"{gradient_text(options.gradient)}{spec}: {spec.padding_text}, {options.layout}, "
        f"{spec.dtype}, {zeros_text}{counted(threads, 'thread')}",
        wide=options.wide,
    )
    return 0


def _cells(row: Any, options: argparse.Namespace) -> list[str]:
    selector = [row.selector] if options.wide else []
    if row.reason:
        return [row.algorithm, *["-"] * (5 if options.measure else 4), row.reason, *selector]
    measured = [f"{row.measured_seconds * 1e3:.3f} ms"] if options.measure else []
    return [
        row.algorithm,
        f"{row.seconds * 1e3:.3f} ms",
        *measured,
        format_bytes(row.workspace_bytes),
        format_bytes(row.weight_bytes),
        f"{row.error:.1e}",
        row.parameters,
        *selector,
    ]
