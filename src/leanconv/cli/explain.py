"""`leanconv explain MODEL|PROBLEM`: every layer's algorithm, bytes, time and error, and why."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from leanconv.cli.common import (
    UsageError,
    add_load_options,
    add_shape_option,
    input_shapes,
    is_problem,
    load_options,
)
from leanconv.cli.explain_page import explain_page
from leanconv.cli.output import print_json, print_table, printable, progress
from leanconv.errors import InputError
from leanconv.spec.conv import ConvSpec
from leanconv.units import format_bytes, format_ns

_NO_FASTER = "no faster"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "explain", help="say what was chosen for every layer, and why", description=__doc__
    )
    parser.add_argument(
        "what", metavar="MODEL|PROBLEM", help="an ONNX file, or a line such as ic64ih56oc64oh54kh3"
    )
    add_load_options(parser)
    add_shape_option(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--layer", metavar="NAME", help="show every candidate of this layer")
    parser.add_argument("--html", metavar="FILE", help="write a page with pictures (of a model)")
    parser.add_argument("--plan", metavar="FILE", help="explain the plan that this file holds")
    parser.add_argument("--save", metavar="FILE", help="write the plan (of a model)")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command."""
    problem = is_problem(options.what)
    if problem and (options.layer or options.html or options.plan or options.save):
        raise UsageError(
            f"--layer, --html, --plan and --save go with a model; got the problem {options.what}; "
            "leave them out, or give an ONNX file"
        )
    with progress(f"planning {options.what}"):
        report = _problem(options) if problem else _model(options)
    if options.json:
        print_json(report)
    elif problem:
        print(printable(report["text"]))
    elif options.layer:
        _print_layer(report, options.layer)
    else:
        _print_layers(report)
    return 0


def _print_layers(report: dict[str, Any]) -> None:
    """A row for each layer, and what makes the memory."""
    rows = []
    for layer in report["layers"]:
        others = [c for c in layer["candidates"] if not c["chosen"] and c["reason"] != _NO_FASTER]
        best = min(others, key=lambda c: c["time_ns"], default=None)
        lost = f"{best['way'] or best['algorithm']}: {best['reason']}" if best else ""
        rows.append([layer["name"], layer["op"], layer["algorithm"], *_numbers(layer), lost])
    columns = ["layer", "operation", "algorithm", "time", "weights", "scratch", "error", "next"]
    print_table(columns, rows, left=3)
    print(printable(report["text"]))


def _print_layer(report: dict[str, Any], name: str) -> None:
    """A row for each candidate of a layer, and the algorithms that cannot compute it."""
    layers = [each for each in report["layers"] if name in (each["name"], each["output"])]
    if not layers:
        known = ", ".join(each["name"] for each in report["layers"][:20])
        raise InputError(f"there is no layer {name!r}; expected one such as {known}")
    layer, rows = layers[0], []
    for candidate in layer["candidates"]:
        formats = f"{'/'.join(candidate['reads'].values())} to {candidate['writes']}"
        label = [candidate["way"] or candidate["algorithm"], formats]
        rows.append([*label, *_numbers(candidate), candidate["reason"] or "chosen"])
    rows += [[name, "", "", "", "", "", why] for name, why in layer["rejected"].items()]
    columns = ["way", "layouts", "time", "weights", "scratch", "error", "why it lost"]
    print_table(columns, rows, title=f"{layer['name']}: {layer['op']}", left=2)


def _numbers(facts: dict[str, Any]) -> list[str]:
    return [
        format_ns(facts["time_ns"]),
        format_bytes(facts["weight_bytes"]),
        format_bytes(facts["scratch_bytes"]),
        f"{facts['error']:.1e}",
    ]


def _problem(options: argparse.Namespace) -> dict[str, Any]:
    """Plan one convolution with weights of zero: a plan depends on shapes only."""
    import leanconv

    spec = ConvSpec.parse(options.what, **({"dtype": options.dtype} if options.dtype else {}))
    settings = load_options(options)
    del settings["dtype"]
    if settings.pop("algorithms"):
        raise UsageError(
            f"--algorithm goes with a model; see `leanconv algorithms {options.what}` for a problem"
        )
    plan = leanconv.plan_conv2d(
        spec.input_shape,
        np.zeros(spec.weight_shape, spec.dtype),
        stride=spec.stride,
        padding=(*spec.pad_begin, *spec.pad_end),
        dilation=spec.dilation,
        groups=spec.groups,
        **settings,
    )
    return {
        "problem": str(spec),
        "algorithm": plan.algorithm,
        "flops": spec.flops,
        "workspace_bytes": plan.workspace_bytes,
        "weight_bytes": plan.weight_bytes,
        "memory_bytes": plan.memory_bytes,
        "predicted_error": plan.predicted_error,
        "text": plan.explain(),
    }


def _model(options: argparse.Namespace) -> dict[str, Any]:
    import leanconv

    network = leanconv.load(options.what, **load_options(options), plan=options.plan)
    shapes = input_shapes(network, options.shape)
    plan = network.bind(shapes)
    if options.save:
        plan.save(options.save)
    report = network.report(front=bool(options.html or options.json))
    if options.html:
        page = explain_page(f"{Path(options.what).name} on leanconv", report)
        Path(options.html).write_text(page, encoding="utf-8")
    text = f"predicted {format_ns(plan.predicted_ns)}, expected error {plan.predicted_error:.1e}\n"
    return {"model": options.what, **report, "text": text + report["text"]}
