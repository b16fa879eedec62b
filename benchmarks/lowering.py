"""The lowering algorithms on cv1 to cv12 of the MEC paper: time, workspace, ratio to direct.

    python benchmarks/lowering.py --out lowering.json
    python benchmarks/lowering.py cv4 cv5 --ablation     im2win, each technique taken away
    python benchmarks/lowering.py cv10 --scalar          with the loops as they are written

All run in this process, in turn, on the same threads: a method's number is the median over rounds,
its ratio the median of direct's time over its own in the same round; above 1 it is the faster one.
`lower` and `product` are the stages' own times where there are several: the least of all rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import leanconv as lc
from harness import script
from leanconv.cli.bench import LAYERS
from leanconv.cli.common import positive
from leanconv.cli.engines import machine
from leanconv.cli.output import print_json, print_table, progress
from leanconv.errors import InputError
from leanconv.spec import ConvSpec
from leanconv.units import format_bytes, format_ns

BASE = "direct"
METHODS = (
    "im2col:rows=whole",
    "im2col",
    "mec:solution=A",
    "mec:solution=B",
    "im2win:rows=whole",
    "im2win",
)
SCALAR = ("naive", "im2win:form=base", "im2win:form=vector")
ABLATION = tuple(
    f"im2win:rows=whole,{switch}"
    for switch in (
        "reorder=off",
        "unroll=on",
        "vectorise=off",
        "register=off",
        "cache=off",
        "threads=off",
    )
)


@dataclass
class Measured:
    """One method on one layer.

    Attributes:
        plan: what is run.
        times: nanoseconds of a run, the median of each round's.
        stages: nanoseconds of each stage, the least so far.
    """

    plan: lc.ConvPlan
    times: list[int] = field(default_factory=list)
    stages: list[int] = field(default_factory=list)

    def turn(self, x: np.ndarray, y: np.ndarray, seconds: float) -> None:
        """Run for so long, and at least once; then once stage by stage."""
        taken: list[int] = []
        end = time.perf_counter() + seconds
        while not taken or time.perf_counter() < end:
            start = time.perf_counter_ns()
            self.plan(x, out=y)
            taken.append(time.perf_counter_ns() - start)
        self.times.append(round(statistics.median(taken)))
        now = self.plan._program.time_stages([x.ctypes.data, y.ctypes.data])
        self.stages = [min(pair) for pair in zip(self.stages or now, now, strict=True)]


def measure(spec: ConvSpec, methods: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """Measure the methods on one layer; those that refuse it say why.

    Raises:
        InputError: two methods answer differently.
    """
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, spec.input_shape).astype(spec.dtype)
    w = rng.uniform(-1, 1, spec.weight_shape).astype(spec.dtype)
    measured: dict[str, Measured] = {}
    refused: dict[str, str] = {}
    right: np.ndarray | None = None
    for method in (BASE, *methods):
        try:
            plan = lc.plan_conv2d(
                x.shape,
                w,
                stride=spec.stride,
                layout=spec.layout,
                algorithm=method,
                threads=options.threads,
            )
        except lc.SpecError as error:
            refused[method] = str(error)
            continue
        y = plan(x)
        right = y if right is None else right
        apart = float(np.abs(y - right).max() / np.abs(right).max())
        if apart > 1e-5:
            raise InputError(f"{spec}: {method} differs from {BASE} by {apart:.1e}")
        measured[method] = Measured(plan)
    y = np.empty(spec.output_shape, spec.dtype)
    for turn in range(options.rounds):
        order = list(measured.values())
        for one in order[turn % len(order) :] + order[: turn % len(order)]:
            one.turn(x, y, options.seconds)
    return {
        "methods": {m: summary(o, measured[BASE], spec) for m, o in measured.items()},
        "refused": refused,
    }


def summary(one: Measured, base: Measured, spec: ConvSpec) -> dict[str, Any]:
    """What is reported of one method."""
    time_ns = statistics.median(one.times)
    ratios = [b / t for b, t in zip(base.times, one.times, strict=True)]
    return {
        "time_ns": time_ns,
        "times_ns": one.times,
        "gflops": spec.flops / time_ns,
        "ratio": statistics.median(ratios),
        "workspace_bytes": one.plan.workspace_bytes,
        "weight_bytes": one.plan.weight_bytes,
        "stages_ns": one.stages,
        "parameters": one.plan._candidate.parameters,
    }


def print_layer(name: str, spec: ConvSpec, result: dict[str, Any]) -> None:
    """Print one layer's table."""
    rows = []
    for method, r in result["methods"].items():
        stages = r["stages_ns"] if len(r["stages_ns"]) > 1 else []
        rows.append(
            [
                method,
                format_ns(r["time_ns"]),
                f"{r['gflops']:.1f}",
                f"{r['ratio']:.2f}",
                format_bytes(r["workspace_bytes"]),
                format_ns(stages[0]) if stages else "",
                format_ns(stages[1]) if stages else "",
                r["parameters"],
            ]
        )
    heads = ["", "time", "GFLOP/s", "direct/this", "workspace", "lower", "product", "chosen"]
    print_table(heads, rows, title=f"{name}: {spec}, {spec.layout}")
    for reason in result["refused"].values():
        print(f"  {reason}")


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("layers", nargs="*", metavar="LAYER", help="cv1 to cv12 (default: all)")
    parser.add_argument("--method", action="append", metavar="TEXT", help="only this (repeatable)")
    parser.add_argument("--ablation", action="store_true", help="im2win without its techniques")
    parser.add_argument("--scalar", action="store_true", help="the loops as written; slow")
    parser.add_argument("--batch", type=positive, default=1, metavar="N")
    parser.add_argument("--layout", choices=("NCHW", "NHWC"), default="NCHW")
    parser.add_argument("--threads", type=positive, default=1, metavar="N")
    parser.add_argument("--rounds", type=positive, default=5, metavar="N")
    parser.add_argument("--seconds", type=float, default=0.1, metavar="S", help="of one turn")
    parser.add_argument("--wait", type=float, default=60.0, metavar="S", help="for a quiet machine")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON to a file as well")
    options = parser.parse_args()
    unknown = sorted(set(options.layers) - LAYERS.keys())
    if unknown:
        raise InputError(f"layers {unknown} are not known; expected {', '.join(LAYERS)}")
    methods = list(options.method or METHODS)
    methods += [*(SCALAR if options.scalar else ()), *(ABLATION if options.ablation else ())]
    busy = machine.wait_until_quiet(patience_s=options.wait)
    document: dict[str, Any] = {
        "machine": machine.describe().to_json(),
        "busy_cpus_before": round(busy, 2),
        "batch": options.batch,
        "layout": options.layout,
        "threads": options.threads,
        "layers": {},
    }
    with progress("measuring") as shown:
        for name in options.layers or LAYERS:
            shown.say(f"measuring {name}")
            line = f"mb{options.batch}{LAYERS[name]}"
            spec = ConvSpec.parse(line, layout=options.layout)
            result = measure(spec, methods, options)
            document["layers"][name] = {"problem": str(spec), **result}
            if not options.json:
                print_layer(name, spec, result)
    if options.out is not None:
        options.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if options.json:
        print_json(document)
    return 0


if __name__ == "__main__":
    script(main)
