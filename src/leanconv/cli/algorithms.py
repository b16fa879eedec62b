"""`leanconv algorithms PROBLEM`: every algorithm with bytes, estimated error and time."""

from __future__ import annotations

import argparse
from typing import Any

from leanconv.cli.network_inputs import read_problem
from leanconv.cli.options import add_load_options, add_output_options
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
    parser.add_argument("--measure", action="store_true", help="run each one, too, and time it")
    add_output_options(parser)
    parser.set_defaults(dtype=FLOAT32)


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command."""
    from leanconv.api.comparison import compare_algorithms
    from leanconv.runtime.pool import default_threads

    spec = read_problem(options.problem, layout=options.layout, dtype=options.dtype)
    threads = options.threads or default_threads()
    rows = compare_algorithms(spec, threads, options.measure)
    if options.json:
        algorithms = [vars(row) for row in rows]
        facts = {"problem": str(spec), "threads": threads, "dtype": spec.dtype}
        print_json({**facts, "layout": options.layout, "algorithms": algorithms})
        return 0
    extra = [Column("selector", "name")] if options.wide else []
    measured = [Column("measured")] if options.measure else []
    columns = [*_COLUMNS[:2], *measured, *_COLUMNS[2:], *extra]
    cells = [_cells(row, options) for row in rows]
    print_table(
        columns,
        cells,
        title=f"{spec}: {spec.padding_text}, {options.layout}, {spec.dtype}, "
        f"{counted(threads, 'thread')}",
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
