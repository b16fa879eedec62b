"""`leanconv algorithms PROBLEM`: every algorithm with bytes, estimated error and time."""

from __future__ import annotations

import argparse
from typing import Any

from leanconv.cli.common import thread_count
from leanconv.cli.output import print_json, print_table
from leanconv.units import format_bytes


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "algorithms", help="list the algorithms for a convolution", description=__doc__
    )
    parser.add_argument("problem", metavar="PROBLEM", help="such as ic64ih56oc64oh54kh3")
    parser.add_argument("--layout", choices=("NCHW", "NHWC"), default="NCHW")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--threads", type=thread_count, default=1, metavar="N", help="default 1")
    parser.add_argument("--measure", action="store_true", help="run each one, too")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command."""
    from leanconv.api.comparison import compare_algorithms
    from leanconv.spec import ConvSpec

    spec = ConvSpec.parse(options.problem, layout=options.layout, dtype=options.dtype)
    rows = compare_algorithms(spec, options.threads, options.measure)
    if options.json:
        print_json({"problem": str(spec), "algorithms": [vars(row) for row in rows]})
        return 0
    print_table(
        [
            "algorithm",
            "estimate",
            "measured",
            "workspace",
            "weights",
            "error",
            "parameters or reason",
        ],
        [_cells(row) for row in rows],
        left=1,
    )
    return 0


def _cells(row: Any) -> list[str]:
    if row.reason:
        return [row.algorithm, "-", "-", "-", "-", "-", row.reason]
    return [
        row.algorithm,
        f"{row.seconds * 1e3:.3f} ms",
        "-" if row.measured_seconds is None else f"{row.measured_seconds * 1e3:.3f} ms",
        format_bytes(row.workspace_bytes),
        format_bytes(row.weight_bytes),
        f"{row.error:.1e}",
        row.parameters,
    ]
