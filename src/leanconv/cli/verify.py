"""`leanconv verify MODEL [SAMPLES]`: a plan's results against float64, on samples."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from leanconv.api.inputs import bound_by, given_values
from leanconv.cli import EXIT_NOT_MET, EXIT_OK
from leanconv.cli.image_options import (
    Arrays,
    Given,
    add_image_options,
    preprocessing_of,
    read_inputs,
)
from leanconv.cli.network_inputs import input_shapes, model_file, random_inputs, stated_for
from leanconv.cli.options import (
    IMAGES_HELP,
    UsageError,
    add_input_options,
    add_load_options,
    add_output_options,
    load_options,
    positive,
)
from leanconv.cli.output import print_json, print_table, print_text, progress
from leanconv.operators.operator import network_error
from leanconv.types import FLOAT32, FLOAT64
from leanconv.units import error_text, shape_text

if TYPE_CHECKING:
    from leanconv import Network

HELP = "compare a plan's results with float64"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's options."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX file")
    parser.add_argument(
        "samples",
        metavar="SAMPLES",
        nargs="*",
        help=f"{IMAGES_HELP}; random numbers if none",
    )
    add_load_options(parser)
    add_input_options(parser)
    add_image_options(parser)
    parser.add_argument("--plan", metavar="FILE", help="verify the plan that this file holds")
    parser.add_argument(
        "--repair",
        metavar="FILE",
        help="write a plan whose error, measured on the samples, is at most --max-error (default: "
        "what the plan states)",
    )
    parser.add_argument(
        "--count", type=positive, default=3, metavar="N", help="random samples (default 3)"
    )
    add_output_options(parser)


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command; exit code 3 if an error is above what the plan states."""
    with progress(f"verifying {options.model}"):
        report = verify(options)
    if options.json:
        print_json(report)
    else:
        rows = [
            [row["sample"], row["output"], row["text"], f"{row['largest']:.3g}"]
            for row in report["rows"]
        ]
        print_text("\n".join([report["text"], *report["notes"]]) + "\n", options.wide)
        print_table(
            ["sample", "output", "rel. error", "largest value"], rows, left=2, wide=options.wide
        )
        _print_layers(report["layers"], options)
        if report["mend"]:
            print_text("\n" + report["mend"], options.wide)
    return EXIT_OK if report["kept"] else EXIT_NOT_MET


def _print_layers(layers: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """The layers that add more to the error than the plan takes them to."""
    if not layers:
        return
    print_text("\nlayers that add more to the error of the outputs than the plan states:\n")
    rows = [
        [
            row["layer"],
            row["algorithm"],
            f"{row['passed']:.2e}",
            f"{row['expected']:.2e}",
            f"{row['passed'] / row['expected']:.1f}",
            f"{row['own']:.2e}",
            f"{row['stated']:.2e}",
        ]
        for row in layers
    ]
    titles = ["layer", "algorithm", "adds", "expected", "times", "own error", "stated"]
    print_table(titles, rows, left=2, wide=options.wide)


def verify(options: argparse.Namespace) -> dict[str, Any]:
    """Run samples through the plan and through the same network in float64.

    Errors are relative: the largest difference over the largest value of the output; of integers
    and truth values, those that differ are counted. With `--repair` the plan that is verified is
    the one that is written.

    Raises:
        BudgetError: `--repair`, and no plan keeps the error on the samples.
    """
    import leanconv

    model_file(options.model, "verify")
    wanted = load_options(options)
    if options.repair and options.plan:
        raise UsageError("got --repair together with --plan; expected one of them")
    # What is to be repaired is the usual plan: by estimate none may keep the error.
    first = {**wanted, "max_error": None} if options.repair else wanted
    network = leanconv.load(options.model, **first, plan=options.plan)
    exact = leanconv.load(options.model, dtype=FLOAT64, threads=options.threads)
    if not (options.plan or options.repair):  # a plan of a file is one of the network as it is
        values = given_values(network.inputs, options.value)
        network, exact = (stated_for(each, options.shape, values) for each in (network, exact))
    given = dict(_samples(network, options))
    samples = {label: sample.arrays for label, sample in given.items()}
    notes = [f"{label}: {'; '.join(one.notes)}" for label, one in given.items() if one.notes]
    report = _compared(network, exact, samples, options)
    if options.repair:
        wanted["max_error"] = wanted["max_error"] or report["predicted_error"] or None
        network = leanconv.load(options.model, **wanted, samples=list(samples.values()))
        network.plan.save(options.repair)
        report = _compared(network, exact, samples, options)
        report["text"] += f"\nthe plan is written: leanconv.load(…, plan={options.repair!r})"
    elif not report["kept"] and not report["double"]:
        report["layers"] = _layers(network, exact, samples)
        report["mend"] = (
            f"what a plan states is an estimate; --repair FILE --max-error X writes a plan whose "
            f"error on these samples is measured (this one works with "
            f"X={error_text(report['worst_error'])}), or says the least that can be kept"
        )
    return {**report, "notes": notes}


def _compared(
    network: Network, exact: Network, samples: Mapping[str, Arrays], options: argparse.Namespace
) -> dict[str, Any]:
    from leanconv.planner.network_plan import NetworkPlan

    dtypes = {port.name: port.dtype.held for port in exact.inputs}
    rows: list[dict[str, Any]] = []
    allowed, rest = 0.0, False
    for label, arrays in samples.items():
        allowed = max(allowed, network.bind(bound_by(network.inputs, arrays)).predicted_error)
        found = network.run(arrays)
        truth = exact.run({name: array.astype(dtypes[name]) for name, array in arrays.items()})
        rows += [_row(label, name, found[name], exactly) for name, exactly in truth.items()]
        rest = rest or (isinstance(network.plan, NetworkPlan) and bool(network.plan.late_text))
    double = next(iter(network.plan.inputs.values())).dtype == FLOAT64
    worst = max((row["error"] for row in rows), default=0.0)
    aim = network_error(FLOAT64 if double else FLOAT32)  # of what no plan states
    accepted = max(allowed, aim) if rest or not allowed else allowed
    kept = bool(worst <= accepted)  # false for NaN, too
    return {
        "model": options.model,
        "predicted_error": allowed,
        "worst_error": worst,
        "kept": kept,
        "double": double,
        "rows": rows,
        "layers": [],
        "mend": "",
        "text": f"largest relative error {worst:.2e}, the plan states "
        + (f"{allowed:.2e}" if allowed or rest else f"none, and {accepted:.0e} is accepted")
        + f" of what is compiled; with what NumPy computes {accepted:.0e} is accepted" * rest
        + (": kept" if kept else ": NOT kept")
        + (
            ". The plan computes in float64 itself, so this is the difference between two plans in "
            "float64, not an error against exact results"
            if double
            else ""
        ),
    }


def _row(sample: str, name: str, found: np.ndarray, exactly: np.ndarray) -> dict[str, Any]:
    """Compare an output with its reference: floats by relative error, others by how many differ."""
    from leanconv.api.measured_error import relative_error

    values = exactly.astype(np.float64)  # integers would wrap around
    row = {"sample": sample, "output": name, "largest": float(np.abs(values).max(initial=0.0))}
    if found.shape != exactly.shape:
        text = f"{shape_text(found.shape)}, not {shape_text(exactly.shape)}"
        return {**row, "error": math.inf, "differing": exactly.size, "text": text}
    if exactly.dtype.kind in "biu":
        differing = int(np.count_nonzero(found != exactly))
        text = f"{differing} of {exactly.size} differ"
        return {**row, "error": 0.0, "differing": differing, "text": text}
    error = relative_error({name: found}, {name: values})
    return {**row, "error": error, "differing": 0, "text": f"{error:.2e}"}


def _layers(
    network: Network, exact: Network, samples: Mapping[str, Arrays]
) -> list[dict[str, Any]]:
    """The layers that exceed their part of the error in the plan, the largest first.

    They are measured on the samples of the last one's shapes, with the plan of these.
    """
    from leanconv.api.measured_error import Measurements
    from leanconv.planner.network_plan import NetworkPlan

    plan = network.plan
    shapes = {name: kind.shape for name, kind in plan.inputs.items()}
    alike = [s for s in samples.values() if {n: a.shape for n, a in s.items()} == shapes]
    backends = network.backend, exact.backend
    if not isinstance(plan, NetworkPlan) or plan.merged or not alike:
        return []
    measuring = Measurements(*backends, alike)  # type: ignore[arg-type]
    layers = [one for one in measuring.layers(plan) if one.passed > one.expected]
    return [
        {
            "layer": one.name,
            "algorithm": one.algorithm,
            "own": one.own,
            "stated": one.stated,
            "passed": one.passed,
            "expected": one.expected,
        }
        for one in sorted(layers, key=lambda one: -one.passed)
    ]


def _samples(network: Network, options: argparse.Namespace) -> Iterator[tuple[str, Given]]:
    preprocessing = preprocessing_of(network, options.samples, options)
    if not options.samples:
        values = given_values(network.inputs, options.value)
        shapes = input_shapes(network, options.shape, values=values)
        for seed in range(options.count):
            yield f"random {seed}", Given(random_inputs(network, shapes, seed, values), None, ())
    for path in options.samples:
        yield path, read_inputs(network, path, preprocessing, options)
