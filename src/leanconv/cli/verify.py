"""`leanconv verify MODEL [SAMPLES]`: a plan's results against float64, on samples."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leanconv.cli.common import (
    add_load_options,
    add_output_options,
    add_shape_option,
    input_shapes,
    load_options,
    positive,
    random_inputs,
)
from leanconv.cli.exit_codes import EXIT_NOT_MET, EXIT_OK
from leanconv.cli.output import print_json, print_table, print_text, progress
from leanconv.cli.samples import read_sample

if TYPE_CHECKING:
    from leanconv import Network

Arrays = Mapping[str, np.ndarray]


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "verify", help="compare a plan's results with float64", description=__doc__
    )
    parser.add_argument("model", metavar="MODEL", help="an ONNX file")
    parser.add_argument(
        "samples",
        metavar="SAMPLES",
        nargs="*",
        help=".npy (of a single input) or .npz files (arrays by name); random numbers if none",
    )
    add_load_options(parser)
    add_shape_option(parser)
    parser.add_argument("--plan", metavar="FILE", help="verify the plan that this file holds")
    parser.add_argument(
        "--count", type=positive, default=3, metavar="N", help="random samples (default 3)"
    )
    add_output_options(parser)
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command; exit code 3 if an error is above what the plan states."""
    with progress(f"verifying {options.model}"):
        report = verify(options)
    if options.json:
        print_json(report)
    else:
        rows = [
            [row["sample"], row["output"], f"{row['error']:.2e}", f"{row['largest']:.3g}"]
            for row in report["rows"]
        ]
        print_text(report["text"] + "\n", options.wide)
        print_table(["sample", "output", "error", "largest value"], rows, left=2, wide=options.wide)
    return EXIT_OK if report["kept"] else EXIT_NOT_MET


def verify(options: argparse.Namespace) -> dict[str, Any]:
    """Run samples through the plan and through the same network in float64.

    Errors are relative: the largest difference over the largest value of the output.
    """
    import leanconv

    wanted = load_options(options)
    network = leanconv.load(options.model, **wanted, plan=options.plan)
    exact = leanconv.load(options.model, dtype="float64", threads=options.threads)
    dtypes = {port.name: port.dtype for port in exact.inputs}
    rows: list[dict[str, Any]] = []
    allowed = 0.0
    for label, arrays in _samples(network, options):
        plan = network.bind({name: array.shape for name, array in arrays.items()})
        allowed = max(allowed, plan.predicted_error)
        found = network.run(arrays)
        truth = exact.run({name: array.astype(dtypes[name]) for name, array in arrays.items()})
        for name, given in truth.items():
            values = given.astype(np.float64)  # integers would wrap around
            largest = float(np.abs(values).max())
            difference = float(np.abs(found[name] - values).max())
            error = difference / largest if largest else difference
            rows.append({"sample": label, "output": name, "error": error, "largest": largest})
    double = next(iter(network.plan.inputs.values())).dtype == "float64"
    worst = max((row["error"] for row in rows), default=0.0)
    kept = bool(worst <= allowed)  # false for NaN, too
    return {
        "model": options.model,
        "predicted_error": allowed,
        "worst_error": worst,
        "kept": kept,
        "rows": rows,
        "text": f"largest error {worst:.2e}, the plan states {allowed:.2e}: "
        + ("kept" if kept else "NOT kept")
        + (" (itself in float64: only two plans are compared)" if double else ""),
    }


def _samples(network: Network, options: argparse.Namespace) -> Iterator[tuple[str, Arrays]]:
    if not options.samples:
        shapes = input_shapes(network, options.shape)
        for seed in range(options.count):
            yield f"random {seed}", random_inputs(network, shapes, seed)
    for path in options.samples:
        yield Path(path).name, read_sample(Path(path), network)
