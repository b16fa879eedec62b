"""`leanconv explain MODEL|PROBLEM`: every layer's algorithm, bytes, time and error, and why."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leanconv.api.inputs import given_values
from leanconv.cli.gradients import add_gradient_option, gradient_plan, window_arguments
from leanconv.cli.network_inputs import (
    input_shapes,
    is_problem,
    planned_for,
    read_problem,
    shape_groups,
)
from leanconv.cli.options import (
    UsageError,
    add_input_options,
    add_load_options,
    add_output_options,
    listed,
    load_options,
    unknown,
)
from leanconv.cli.output import in_options, print_json, print_table, print_text, progress, writing
from leanconv.cli.table import NONE, Column
from leanconv.cli.times import other_ns, other_text
from leanconv.errors import InputError
from leanconv.graph.convert import FILE_RULES
from leanconv.graph.file_graph import FileNode
from leanconv.operators.operator import network_error
from leanconv.pages import explain_page
from leanconv.units import counted, format_bytes, format_ns, shape_text

HELP = "say what was chosen for every layer, and why"
_OPERATORS = (Column("operator", "name"), Column("opsets", "name"), Column("of", "prose"))
_LAYERS = (
    Column("layer", "name"),
    Column("operation", "name"),
    Column("algorithm", "name"),
    Column("time"),
    Column("weights", optional=1),
    Column("rel. error", optional=2),
    Column("scratch", optional=3),
    Column("next best", "prose", optional=4),
)
_CANDIDATES = (
    Column("algorithm", "name"),
    Column("time"),
    Column("weights"),
    Column("rel. error", optional=1),
    Column("scratch", optional=2),
    Column("why it lost", "prose"),
    Column("parameters", "prose", optional=3),
    Column("layouts", "name", optional=4),
)
_SHOWN = 10  # layers that are shown where nobody asks for all
_SELECTOR = Column("selector", "name")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's options."""
    parser.add_argument(
        "what",
        metavar="MODEL|PROBLEM",
        nargs="?",
        help="an ONNX file, a line such as ic64ih56oc64oh54kh3, or cv1 to cv12 of MEC",
    )
    parser.add_argument(
        "--operators", action="store_true", help="list the operators that models may have"
    )
    add_load_options(parser)
    add_input_options(parser)
    add_output_options(parser)
    add_gradient_option(parser, "explain, of a problem,")
    parser.add_argument(
        "--fields",
        action="store_true",
        help="show what outputs read of inputs: extent, stride and offset of each spatial axis",
    )
    parser.add_argument(
        "--guards",
        action="store_true",
        help="show what sizes that the file leaves open share, what they do not, and why",
    )
    parser.add_argument(
        "--all", action="store_true", help=f"show all layers, not the {_SHOWN} that take longest"
    )
    parser.add_argument("--layer", metavar="NAME", help="show every candidate of this layer")
    parser.add_argument("--html", metavar="FILE", help="write a page with pictures (of a model)")
    parser.add_argument("--plan", metavar="FILE", help="explain the plan that this file holds")
    parser.add_argument("--save", metavar="FILE", help="write the plan (of a model)")


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command."""
    if options.operators:
        return _operators(options)
    if options.what is None:
        raise UsageError("got no model; expected an ONNX file, a problem, or --operators")
    problem = is_problem(options.what)
    if problem and (options.layer or options.html or options.plan or options.save):
        raise UsageError(
            f"--layer, --html, --plan and --save go with a model; got the problem {options.what}; "
            "leave them out, or give an ONNX file"
        )
    if options.gradient and not problem:
        raise UsageError(f"--gradient goes with a problem; got {options.what}; leave it out")
    if options.fields or options.guards:
        if problem:
            name = "--fields" if options.fields else "--guards"
            raise UsageError(f"{name} goes with a model; got the problem {options.what}")
        return _sizes(options)
    with progress(f"planning {options.what}"):
        report, nodes = (_problem(options), ()) if problem else _model(options)
    if options.json:
        print_json(report)
    elif problem:
        print_text(report["text"], options.wide)
    elif options.layer:
        _print_layer(report["layers"], options.layer, nodes, options.wide)
    else:
        _print_layers(report, options)
    return 0


def _sizes(options: argparse.Namespace) -> int:
    """Print the receptive fields of outputs, or what the sizes of a model share."""
    import leanconv
    from leanconv.cli.explain_sizes import field_rows, guard_rows, print_fields, print_guards

    report: dict[str, Any] = {"model": options.what}
    with progress(f"{'reading' if options.fields else 'planning'} {options.what}"):
        network = leanconv.load(options.what, **load_options(options))
        values = given_values(network.inputs, options.value)
        groups = [options.shape] if options.fields else shape_groups(options.shape)
        every = [input_shapes(network, group, values=values) for group in groups]
        if options.fields:
            report["fields"] = field_rows(network, every[0], values)
        else:
            report |= guard_rows(network, every, values)
    if options.json:
        print_json(report)
    elif options.fields:
        print_fields(report["fields"], options.wide)
    else:
        print_guards(report, options.wide)
    return 0


def _operators(options: argparse.Namespace) -> int:
    """List ONNX's operators that are taken, and in which opsets."""
    rows = [
        {
            "operator": name,
            "since": rule.since,
            "until": rule.until,
            "data": not (rule.running == () or rule.knows_shape),
        }
        for name, rule in sorted(FILE_RULES.items())
    ]
    if options.json:
        print_json({"operators": rows})
        return 0
    table = [
        [
            str(row["operator"]),
            f"{row['since']} to {row['until']}",
            "data" if row["data"] else "shapes and constants only",
        ]
        for row in rows
    ]
    print_table(_OPERATORS, table, options.wide)
    return 0


def _print_layers(report: dict[str, Any], options: argparse.Namespace) -> None:
    """Print the plan's totals, then a row for each layer, or each of those that take longest."""
    wide, layers, rows = options.wide, report["layers"], []
    longest = sorted(range(len(layers)), key=lambda number: -layers[number]["time_ns"])
    shown = layers if options.all else [layers[number] for number in sorted(longest[:_SHOWN])]
    for layer in shown:
        row = [layer["name"], layer["op"], layer["words"], *_numbers(layer), layer["next_best"]]
        rows.append([*row, layer["selector"] or ""] if wide else row)
    inputs = ", ".join(f"{n} {shape_text(s)}" for n, s in report["asked"]["inputs"].items())
    print_text(f"{report['model']}: {inputs}", wide)
    print_text(report["text"] + "\n", wide)
    print_table([*_LAYERS, _SELECTOR] if wide else _LAYERS, rows, wide=wide)
    if len(shown) < len(layers):
        share = sum(one["time_ns"] for one in shown) / max(1, sum(one["time_ns"] for one in layers))
        print_text(
            f"\nthese {len(shown)} of {counted(len(layers), 'layer')} take {share:.0%} of the "
            "predicted time; --all shows all",
            wide,
        )
    times = ((layer["op"], layer["time_ns"]) for layer in layers)
    print_text("\n" + other_text(times, "predicted"), wide)


def _layers_named(
    layers: list[dict[str, Any]], name: str, nodes: Sequence[FileNode]
) -> list[dict[str, Any]]:
    """The layers of a name or output, those in which a node of the file is computed, or those of
    the short form of a name that a table shows.

    Several, where what one node of the file computes became several layers.

    Raises:
        InputError: there is none, or several names are like this one.
    """
    found = [each for each in layers if name in (each["name"], each["output"])]
    if not found:
        inside = _computed_in(name, nodes, [each["output"] for each in layers])
        found = [each for each in layers if each["output"] in inside]
    if found:
        return found
    pattern = re.compile(".*".join(map(re.escape, name.split("…"))))
    found = [each for each in layers if pattern.search(each["name"])]
    names = list(dict.fromkeys(each["name"] for each in found))
    if len(names) > 1:
        raise InputError(
            f"{len(names)} layers have {name!r} in their names; give one of {listed(names)}"
        )
    if not found:
        raise unknown("layer", name, [each["name"] for each in layers])
    return found


def _print_layer(
    layers: list[dict[str, Any]], name: str, nodes: Sequence[FileNode], wide: bool
) -> None:
    """A row for each candidate of a layer, and the algorithms that cannot compute it."""
    for number, layer in enumerate(_layers_named(layers, name, nodes)):
        if number:
            print_text("")
        if any(name in (node.name, *node.outputs) for node in nodes) and name != layer["name"]:
            print_text(f"{name} of the file is computed in the layer {layer['name']}", wide)
        rows = [_candidate_row(candidate, wide) for candidate in layer["candidates"]]
        for algorithm, why in layer["rejected"].items():
            rows.append([algorithm, "", "", "", "", why, "", "", *[""] * wide])
        columns = [*_CANDIDATES, _SELECTOR] if wide else _CANDIDATES
        print_table(columns, rows, title=f"{layer['name']}: {layer['op']}", wide=wide)


def _candidate_row(candidate: dict[str, Any], wide: bool) -> list[str]:
    reads = "/".join(dict.fromkeys(candidate["reads"].values()))
    formats = f"{reads} to {candidate['writes']}" if reads else candidate["writes"]
    row = [candidate["words"], *_numbers(candidate), candidate["reason"] or "chosen"]
    row += [candidate["parameters"], formats]
    return [*row, candidate["selector"] or ""] if wide else row


def _numbers(facts: dict[str, Any]) -> list[str]:
    return [
        format_ns(facts["time_ns"]),
        format_bytes(facts["weight_bytes"]) if facts["weight_bytes"] else NONE,
        f"{facts['error']:.1e}" if facts["error"] else NONE,
        format_bytes(facts["scratch_bytes"]) if facts["scratch_bytes"] else NONE,
    ]


def _problem(options: argparse.Namespace) -> dict[str, Any]:
    """Plan one convolution with weights of zero: a plan depends on shapes only."""
    import leanconv
    from leanconv.runtime.pool import default_threads

    spec = read_problem(options.what, **({"dtype": options.dtype} if options.dtype else {}))
    settings = load_options(options)
    del settings["dtype"]
    if settings.pop("algorithms"):
        raise UsageError(
            f"--algorithm goes with a model; see `leanconv algorithms {options.what}` for a problem"
        )
    if settings.pop("stream_weights"):
        raise UsageError("--stream-weights goes with a model; a problem is one layer")
    plan: Any  # of the convolution, or of its gradient
    if options.gradient:
        for name in ("precision", "tune"):
            if settings.pop(name):
                raise UsageError(f"--{name} goes with no gradient; leave it, or --gradient, out")
        plan, how = gradient_plan(spec, options.gradient, settings)
    else:
        weights = np.zeros(spec.weight_shape, spec.dtype)
        window = window_arguments(spec)
        plan = leanconv.plan_conv2d(spec.input_shape, weights, **window, **settings)
        how = {name: getattr(plan, name) for name in ("algorithm", "parameters", "selector")}
    return {
        "problem": str(spec),
        **how,
        "flops": spec.flops,
        "dtype": spec.dtype,
        "asked": {
            "threads": settings["threads"] or default_threads(),
            "memory_limit": settings["memory_limit"],
            "max_error": settings["max_error"],
        },
        "workspace_bytes": plan.workspace_bytes,
        "weight_bytes": plan.weight_bytes,
        "memory_bytes": plan.memory_bytes,
        "predicted_error": plan.predicted_error,
        "text": plan.explain(),
    }


def _model(options: argparse.Namespace) -> tuple[dict[str, Any], Sequence[FileNode]]:
    import leanconv

    network = leanconv.load(options.what, **load_options(options), plan=options.plan)
    values = given_values(network.inputs, options.value)
    shapes = input_shapes(network, options.shape, values=values)
    network = planned_for(network, [] if options.plan else options.shape, shapes, values)
    plan: Any = network.plan  # of the CPU
    if options.save:
        plan.save(options.save)
    report = network.report(front=bool(options.html or options.json))
    if options.html:
        page = explain_page(f"{Path(options.what).name} on leanconv", report)
        with writing(options.html) as aside:
            aside.write_text(page, encoding="utf-8")
    report["other_ns"] = other_ns((layer["op"], layer["time_ns"]) for layer in report["layers"])
    text = f"{_promise(report, network_error(plan.dtype))}\n{in_options(report['text'])}"
    return {"model": options.what, **report, "text": text}, network.backend.model.nodes


def _computed_in(name: str, nodes: Sequence[FileNode], outputs: Collection[str]) -> set[str]:
    """Return the first of some values of a file that follow from a node's results.

    Args:
        name: of the node, or of one of its outputs.
        nodes: of the file.
        outputs: the names of those values.
    """
    left = [each for node in nodes if name in (node.name, *node.outputs) for each in node.outputs]
    seen = set(left)
    while ahead := [value for value in left if value not in outputs]:
        readers = [node for node in nodes if set(ahead) & set(node.reads)]
        left = [each for node in readers for each in node.outputs if each not in seen]
        seen.update(left)
    return seen & set(outputs)


def _promise(report: dict[str, Any], aim: float) -> str:
    """Time of a plan, its limits, and the error that it aims at without a `max_error`."""
    requested = report["asked"]
    limit, most = requested["memory_limit"], requested["max_error"]
    return (
        f"predicted {format_ns(report['predicted_ns'])} with "
        f"{counted(requested['threads'], 'thread')}\n"
        f"asked for: memory limit {'none' if limit is None else format_bytes(limit)}, max. error "
        + (f"none ({aim:.0e} is aimed at)" if most is None else f"{most:.1e}")
    )
