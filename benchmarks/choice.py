"""What the model's choice of algorithms costs over the tuned one, layer by layer.

    python benchmarks/choice.py                     writes docs/results/CPU/choice.json and .md
    python benchmarks/choice.py cv mobilenetv2      these alone: parts of names
    python benchmarks/choice.py --page              write the page again from the JSON

cv1 to cv12 of the MEC paper, NCHW and with warm weights, and the convolutions of four networks in
the layouts in which the planner passes their tensors on, with the error that a network grants each
and with weights as far away as the rest of the network leaves them. Equal layers are measured once.
Each layer's promising choices run in turn; the best round of each counts, and a choice that wins by
less than 2 % is not preferred to the model's. The cost is the model's time over the tuned one's.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from harness import (
    effort,
    model_file,
    results_file,
    rewrite_pages,
    script,
    write_results,
)
from leanconv.algorithms import Problem
from leanconv.api.conv_choice import conv_problem
from leanconv.api.cpu_backend import CpuBackend
from leanconv.api.options import NetworkOptions
from leanconv.cli.engines import machine
from leanconv.cli.options import positive
from leanconv.cli.output import print_json, progress
from leanconv.codegen.host import host
from leanconv.errors import InputError
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import UNFUSED_PASSES, run_passes
from leanconv.operators.convolution import problems
from leanconv.planner import tuner
from leanconv.planner.formats import default_decisions, format_rules
from leanconv.reference.layers import LAYERS
from leanconv.spec import ConvSpec
from leanconv.types import FLOAT32
from pages.choice import page

NAME = "choice"
NETWORKS = ("mobilenetv2", "resnet50", "resnet101", "vgg16")
GOAL = 1.10


@dataclass(frozen=True)
class Layer:
    """One convolution to be chosen for.

    Attributes:
        group: the network, or "cv".
        name: of the layer in it.
        problem: the convolution, with the places of its operands.
        other_weight_bytes: weights that the network reads between two runs of the layer.
    """

    group: str
    name: str
    problem: Problem
    other_weight_bytes: int = 0


def paper_layers() -> Iterator[Layer]:
    """cv1 to cv12, as `plan_conv2d` is asked for them."""
    for name, text in LAYERS.items():
        yield Layer("cv", name, conv_problem(ConvSpec.parse(text), None))


def network_layers(network: str) -> Iterator[Layer]:
    """The convolutions of a network, blocks not fused, in the planner's layouts."""
    file = model_file(network)
    model = read_model(file)
    accuracy = CpuBackend(model, NetworkOptions()).accuracy
    one = {i.name: [e if isinstance(e, int) else 1 for e in i.shape or ()] for i in model.inputs}
    shapes = {name: tuple(extents) for name, extents in one.items()}
    graph = run_passes(model.bind(shapes, dtype=FLOAT32), UNFUSED_PASSES)
    accuracy = accuracy.of_network(graph, host())
    cold = sum(array.nbytes for array in graph.constants.values())
    decisions = default_decisions(format_rules(graph, host()))
    for node, decision in zip(graph.nodes, decisions, strict=True):
        if node.op == "Conv":
            (problem,) = problems(decision.context(node, graph, host(), accuracy))
            yield Layer(network, node.name or node.outputs[0], problem, cold)


def distinct(layers: Iterable[Layer]) -> list[Layer]:
    """The first of all layers that are the same convolution, in their order."""
    found: dict[Problem, Layer] = {}
    for layer in layers:
        found.setdefault(layer.problem, layer)
    return list(found.values())


def chosen_layers(parts: Sequence[str]) -> list[Layer]:
    """All layers whose group and name, `cv/cv3`, have one of the parts in them.

    Raises:
        InputError: no layer has.
    """
    every = (paper_layers(), *(network_layers(network) for network in NETWORKS))
    layers = distinct(chain.from_iterable(every))
    chosen = [
        layer
        for layer in layers
        if not parts or any(part in f"{layer.group}/{layer.name}" for part in parts)
    ]
    if not chosen:
        raise InputError(f"no layer's name has {' or '.join(parts)}; groups: cv, {NETWORKS}")
    return chosen


def measure(layer: Layer, threads: int) -> dict[str, Any]:
    """Time the model's choice and the others of one layer; nothing where there are no others."""
    tuned = tuner.measure(
        layer.problem, host(), threads, other_weight_bytes=layer.other_weight_bytes
    )
    return {
        "group": layer.group,
        "layer": layer.name,
        "problem": str(layer.problem),
        "blocked": [layer.problem.conv.x.block > 1, layer.problem.conv.y.block > 1],
        "measured": len(tuned.seconds),
        "model": str(tuned.model),
        "tuned": str(tuned.choice),
        "model_us": round(1e6 * tuned.seconds.get(tuned.model, 0.0), 2),
        "tuned_us": round(1e6 * tuned.seconds.get(tuned.choice, 0.0), 2),
        "cost": tuned.seconds[tuned.model] / tuned.seconds[tuned.choice] if tuned.seconds else 1.0,
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Geometric means of the cost: of each group, and of all layers."""
    groups = dict.fromkeys(row["group"] for row in rows)
    means = {g: geometric_mean(r["cost"] for r in rows if r["group"] == g) for g in groups}
    return {**means, "all": geometric_mean(row["cost"] for row in rows)}


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="of names such as cv/cv3")
    parser.add_argument("--threads", type=positive, default=2, metavar="N")
    parser.add_argument("--page", action="store_true", help="write the page of earlier results")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON to this file")
    options = parser.parse_args()
    if options.page:
        rewrite_pages(NAME, page)
        return 0
    if not (options.parts or options.out):
        options.out = results_file(NAME)
    rows: list[dict[str, Any]] = []
    document: dict[str, Any] = {
        "machine": machine.describe().to_json(),
        "effort": effort(options, "threads") | {"rounds": tuner.ROUNDS},
    }
    with progress("planning") as shown:
        layers = chosen_layers(options.parts)
        for number, layer in enumerate(layers, 1):
            shown.say(f"{number} of {len(layers)}: {layer.group}/{layer.name}")
            machine.wait_for_cores(options.threads, patience_s=1.0)
            rows.append(measure(layer, options.threads))
            if not options.json:
                print(line(rows[-1]))
    document |= {"means": summary(rows), "layers": rows}
    write_results(document, options.out, page)
    if options.json:
        print_json(document)
    else:
        print(", ".join(f"{name} {mean:.3f}" for name, mean in document["means"].items()))
    return 0 if document["means"]["all"] <= GOAL else 3


def line(row: dict[str, Any]) -> str:
    """One layer for people."""
    text = f"{row['cost']:5.2f}  {row['group']}/{row['layer']}  {row['model']}"
    if not row["measured"]:
        return f"{text}  alone"
    text += f"  {row['model_us']:.1f} us"
    return text + (f"  ->  {row['tuned_us']:.1f} us  {row['tuned']}" if row["cost"] > 1 else "")


if __name__ == "__main__":
    script(main)
