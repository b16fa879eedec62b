"""`leanconv profile MODEL`: calls, average, least, most, share and GFLOP/s of every layer."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from leanconv.cli.common import (
    add_load_options,
    add_output_options,
    add_shape_option,
    input_shapes,
    load_options,
    positive,
    random_inputs,
)
from leanconv.cli.output import print_json, print_table, print_text, progress
from leanconv.cli.shares import other_ns, other_text
from leanconv.cli.table import Column
from leanconv.units import format_ns, shape_text

if TYPE_CHECKING:
    from leanconv.runtime.profile import ProfileRow

_COLUMNS = (
    Column("layer", "name"),
    Column("operation", "name"),
    Column("algorithm", "name"),
    Column("average"),
    Column("share"),
    Column("GFLOP/s", optional=1),
    Column("least", optional=2),
    Column("most", optional=3),
    Column("calls", optional=4),
)


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("profile", help="time every layer", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="an ONNX file")
    add_load_options(parser)
    add_shape_option(parser)
    parser.add_argument(
        "--batch", type=positive, metavar="N", help="where the model leaves it open"
    )
    parser.add_argument(
        "--repeat", type=positive, default=20, metavar="N", help="timed runs (default 20)"
    )
    parser.add_argument("--sort", action="store_true", help="the slowest first")
    add_output_options(parser)
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command."""
    import leanconv

    with progress(f"loading {options.model}") as shown:
        network = leanconv.load(options.model, **load_options(options))
        inputs = random_inputs(network, input_shapes(network, options.shape, options.batch))
        shown.say(f"profiling {options.model}")
        rows = network.profile(inputs, repeats=options.repeat)
    total_ns = sum(row.average_ns for row in rows)
    if options.sort:
        rows = sorted(rows, key=lambda row: -row.average_ns)
    shapes = {name: list(x.shape) for name, x in inputs.items()}
    if options.json:
        layers = [asdict(row) for row in rows]
        report: dict[str, Any] = {"model": options.model, "inputs": shapes}
        report["other_average_ns"] = other_ns((row.op, row.average_ns) for row in rows)
        print_json({**report, "total_average_ns": total_ns, "layers": layers})
        return 0
    described = ", ".join(f"{name} {shape_text(shape)}" for name, shape in shapes.items())
    print_text(f"{options.model}: {described}", options.wide)
    calls = f"{options.repeat} run{'s' if options.repeat > 1 else ''}"
    print_text(f"all layers: {format_ns(total_ns)} on average of {calls}\n", options.wide)
    print_table(_COLUMNS, [_cells(row) for row in rows], wide=options.wide)
    times = ((row.op, row.average_ns) for row in rows)
    print_text("\n" + other_text(times, "measured"), options.wide)
    return 0


def _cells(row: ProfileRow) -> list[str]:
    return [
        row.name,
        row.op,
        row.algorithm,
        format_ns(row.average_ns),
        f"{row.share:.1%}",
        _rate(row.flops, row.average_ns),
        format_ns(row.least_ns),
        format_ns(row.most_ns),
        str(row.calls),
    ]


def _rate(flops: int, average_ns: float) -> str:
    """FLOPs per nanosecond are GFLOP/s; the plain sum's FLOPs, whatever the algorithm does."""
    return f"{flops / average_ns:.1f}" if flops and average_ns else ""
