"""How near the products after a lowering come to the peak, and im2win to im2col: cv1 to cv12.

    python benchmarks/lowering.py --out lowering.json
    python benchmarks/lowering.py cv4 cv5 --ablation     im2win, each technique taken away

Few methods in many rounds; the page of all algorithms is written by `algorithms.py`. All run in
this process, in turn, on the same threads: a method's number is the median over rounds,
its ratio the median of direct's time over its own in the same round; above 1 it is the faster one.
Lowering and products are timed apart as well: where both are done block by block, the products'
time is that of both less that of blocks that are only lowered. The products' share of the peak is
of multiply-adds on registers (`microkernel.py`): one core's rate in the same round, times what so
many threads do together of what one does.

Two things are expected: that im2col, MEC and im2win run their products at 85 % of the peak on cv4,
cv5 and cv8, and that im2win, its lowering counted, is faster than im2col's whole matrix on every
layer. What is not so is listed at the end, and the exit code is 3.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from algorithms import ABLATION
from harness import Patience, script
from leanconv.algorithms.interface import Candidate, KernelUse
from leanconv.algorithms.select import choice_named, choose
from leanconv.algorithms.unfold.kernels import BlockConv, Serial, Unfold
from leanconv.api.conv_choice import conv_problem
from leanconv.cli.engines import machine
from leanconv.cli.options import positive
from leanconv.cli.output import print_json, print_table, progress
from leanconv.codegen.emitter import Function
from leanconv.codegen.host import host
from leanconv.errors import InputError, SpecError
from leanconv.kernels.copy import Copy
from leanconv.planner.packing import Preparation, candidate_program
from leanconv.reference.layers import LAYERS
from leanconv.runtime.calibration import speedup
from leanconv.runtime.memory import Block, SharedArena
from leanconv.runtime.portable import told_program
from leanconv.spec import ConvSpec
from leanconv.spec.format import aligned_offsets
from leanconv.types import FLOAT32
from leanconv.units import format_bytes, format_ns
from microkernel import Peak, Work, aligned, work

BASE = "direct"
METHODS = (
    "im2col:rows=whole",
    "im2col",
    "mec:solution=A",
    "mec:solution=B",
    "im2win:rows=whole",
    "im2win",
)

T = TypeVar("T")
GOAL, GOAL_LAYERS = 0.85, ("cv4", "cv5", "cv8")
MATRIX, WINDOWS = "im2col:rows=whole", "im2win"


class BlockLowering(BlockConv):
    """The blocks of another kernel, lowered and not multiplied."""

    def multiply(self, e: Function, *place: Any) -> None:
        """Emit nothing."""


def only_lowered(use: KernelUse) -> KernelUse:
    """A kernel that lowers and multiplies block by block, without the products."""
    parts = {f.name: getattr(use.kernel, f.name) for f in fields(use.kernel)}
    return replace(use, kernel=BlockLowering(**parts))


def stages(candidate: Candidate) -> dict[str, tuple[KernelUse, ...]]:
    """The kernels of a candidate: those that lower, those that multiply, and the rest."""
    parts: dict[str, list[KernelUse]] = {"lower": [], "product": [], "rest": []}
    for use in candidate.kernels:
        kernel = use.kernel.kernel if isinstance(use.kernel, Serial) else use.kernel
        if isinstance(kernel, BlockConv):
            parts["lower"].append(only_lowered(use))
        elif isinstance(kernel, Unfold):
            parts["lower"].append(use)
        elif isinstance(kernel, Copy):
            parts["rest"].append(use)
        else:
            parts["product"].append(use)
    return {name: tuple(uses) for name, uses in parts.items() if uses}


@dataclass
class Measured:
    """One method on one layer.

    Attributes:
        candidate: what is run.
        run: runs all of it.
        parts: runs one kind of its kernels each; empty if there is only one kind.
        memory: packed constants, and what it works in.
        times: nanoseconds of a run, the median of each round's.
        apart: those of the parts.
    """

    candidate: Candidate
    run: Callable[[], int]
    parts: dict[str, Callable[[], int]]
    memory: tuple[Block, Block]
    times: list[int] = field(default_factory=list)
    apart: dict[str, list[int]] = field(default_factory=dict)

    def turn(self, seconds: float) -> tuple[int, dict[str, int]]:
        """Run for so long, and at least once; then as long in parts; nanoseconds of each."""
        taken = median_for(self.run, seconds)
        share = seconds / max(1, len(self.parts))
        return taken, {name: median_for(run, share) for name, run in self.parts.items()}

    def keep(self, taken: int, apart: dict[str, int]) -> None:
        """Take over what a turn has measured."""
        self.times.append(taken)
        for name, part in apart.items():
            self.apart.setdefault(name, []).append(part)

    @property
    def products(self) -> list[int]:
        """Nanoseconds of the products alone, round by round."""
        if "product" in self.apart:
            return self.apart["product"]
        lowered = self.apart.get("lower", [0] * len(self.times))
        return [t - part for t, part in zip(self.times, lowered, strict=True)]


def median_for(run: Callable[[], int], seconds: float) -> int:
    """The median of the nanoseconds of runs over that time."""
    taken: list[int] = []
    end = time.perf_counter() + seconds
    while not taken or time.perf_counter() < end:
        taken.append(run())
    return round(statistics.median(taken))


def prepare(spec: ConvSpec, method: str, w: np.ndarray, x: int, y: int, threads: int) -> Measured:
    """Plan and compile one method, for arrays at these addresses.

    Raises:
        SpecError: the method refuses the layer.
    """
    target = host()
    candidate = choose(conv_problem(spec, None), target, choice_named(method))
    packing, arena = candidate.packing(w, {}), SharedArena()

    def runner(uses: tuple[KernelUse, ...]) -> tuple[Callable[[], int], Block]:
        part = replace(candidate, kernels=uses)
        program, library = candidate_program(part, target, threads, ("x", "y"))
        block, (places, _) = Block(program.constant_bytes), aligned_offsets(part.constant_bytes)
        at = {role: block.address + place for role, place in places.items()}
        if at:
            Preparation.of({role: packing[role] for role in at}, at, target, threads).run()
        linked = told_program(program, library, arena.part(program.arena_bytes), paced=False)
        return lambda: linked.run((x, y, block.address)), block

    parts = stages(candidate)
    apart = parts.keys() != {"product"}
    runs = {name: runner(uses)[0] for name, uses in parts.items()} if apart else {}
    run, constants = runner(candidate.kernels)
    assert arena.block is not None
    return Measured(candidate, run, runs, (constants, arena.block))


def measure(
    spec: ConvSpec, methods: Sequence[str], peak: Work, options: argparse.Namespace
) -> dict[str, Any]:
    """Measure the methods on one layer; those that refuse it say why.

    Raises:
        InputError: two methods answer differently.
    """
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, spec.input_shape).astype(spec.dtype)
    w = rng.uniform(-1, 1, spec.weight_shape).astype(spec.dtype)
    y = np.empty(spec.output_shape, spec.dtype)
    measured: dict[str, Measured] = {}
    refused: dict[str, str] = {}
    right: np.ndarray | None = None
    for method in (BASE, *methods):
        try:
            one = prepare(spec, method, w, x.ctypes.data, y.ctypes.data, options.threads)
        except SpecError as error:
            refused[method] = str(error)
            continue
        y[...] = np.nan
        one.run()
        right = y.copy() if right is None else right
        apart = float(np.abs(y - right).max() / np.abs(right).max())
        if not apart <= 1e-5:
            raise InputError(f"{spec}: {method} differs from {BASE} by {apart:.1e}")
        measured[method] = one
    peaks: list[float] = []
    patience, threads = Patience(options.threads), options.threads

    def quiet(take: Callable[[], T]) -> T:
        return take() if threads == 1 else patience.undisturbed(take)[0]

    for turn in range(options.rounds):
        one_core = peak.rate(options.seconds / 4) / 1e9
        peaks.append(one_core * (1 if threads == 1 else quiet(lambda: speedup(threads))))
        order = list(measured.values())
        for one in order[turn % len(order) :] + order[: turn % len(order)]:
            one.keep(*quiet(functools.partial(one.turn, options.seconds)))
    summaries = {m: summary(o, measured[BASE], spec, peaks) for m, o in measured.items()}
    return {"peaks_gflops": peaks, "methods": summaries, "refused": refused}


def times_faster(ours: Sequence[int], theirs: Sequence[int]) -> float:
    """How many times faster the first is: the median of the rounds' ratios."""
    return statistics.median(b / a for a, b in zip(ours, theirs, strict=True))


def summary(one: Measured, base: Measured, spec: ConvSpec, peaks: list[float]) -> dict[str, Any]:
    """What is reported of one method."""
    time_ns = statistics.median(one.times)
    rates = [spec.flops / t for t in one.products]
    return {
        "time_ns": time_ns,
        "times_ns": one.times,
        "gflops": spec.flops / time_ns,
        "ratio": times_faster(one.times, base.times),
        "products_of_peak": statistics.median(r / p for r, p in zip(rates, peaks, strict=True)),
        "workspace_bytes": one.memory[1].bytes,
        "weight_bytes": one.memory[0].bytes,
        "parts_ns": {name: statistics.median(times) for name, times in one.apart.items()},
        "parameters": one.candidate.details,
    }


def misses(layers: dict[str, Any]) -> list[str]:
    """What was expected and is not so, of those methods that were measured."""
    found = []
    for name, layer in layers.items():
        methods = layer["methods"]
        if name in GOAL_LAYERS:
            found += [
                f"{name}: the products of {m} run at {100 * r['products_of_peak']:.1f} % of peak; "
                f"expected {100 * GOAL:.0f} %"
                for m, r in methods.items()
                if m in METHODS and r["products_of_peak"] < GOAL
            ]
        if {MATRIX, WINDOWS} <= methods.keys():
            faster = gain(layer)
            if faster <= 1:
                found.append(f"{name}: {WINDOWS} is {faster:.3f} times as fast as {MATRIX}")
    return found


def gain(layer: dict[str, Any]) -> float:
    """How many times faster im2win is than im2col with the whole matrix, both with lowering."""
    return times_faster(*(layer["methods"][m]["times_ns"] for m in (WINDOWS, MATRIX)))


def print_layer(name: str, spec: ConvSpec, result: dict[str, Any]) -> None:
    """Print one layer's table."""
    rows = []
    for method, r in result["methods"].items():
        parts = r["parts_ns"]
        rows.append(
            [
                method,
                format_ns(r["time_ns"]),
                f"{r['gflops']:.1f}",
                f"{r['ratio']:.2f}",
                format_bytes(r["workspace_bytes"]),
                format_ns(parts["lower"]) if "lower" in parts else "",
                f"{100 * r['products_of_peak']:.1f} %",
                r["parameters"],
            ]
        )
    heads = ["", "time", "GFLOP/s", "direct/this", "workspace", "lower", "product", "chosen"]
    print_table(heads, rows, title=f"{name}: {spec}, {spec.layout}")
    for reason in result["refused"].values():
        print(f"  {reason}")
    if {MATRIX, WINDOWS} <= result["methods"].keys():
        print(f"  {WINDOWS} is {gain(result):.2f} times as fast as {MATRIX}")


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("layers", nargs="*", metavar="LAYER", help="cv1 to cv12 (default: all)")
    parser.add_argument("--method", action="append", metavar="TEXT", help="only this (repeatable)")
    parser.add_argument("--ablation", action="store_true", help="im2win without its techniques")
    parser.add_argument("--batch", type=positive, default=1, metavar="N")
    parser.add_argument("--layout", choices=("NCHW", "NHWC"), default="NCHW")
    parser.add_argument("--threads", type=positive, default=1, metavar="N")
    parser.add_argument("--rounds", type=positive, default=15, metavar="N")
    parser.add_argument("--seconds", type=float, default=0.04, metavar="S", help="of one turn")
    parser.add_argument("--wait", type=float, default=60.0, metavar="S", help="for a quiet machine")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON to a file as well")
    options = parser.parse_args()
    unknown = sorted(set(options.layers) - LAYERS.keys())
    if unknown:
        raise InputError(f"layers {unknown} are not known; expected {', '.join(LAYERS)}")
    methods = list(options.method or METHODS)
    methods += ABLATION if options.ablation else ()
    busy = machine.wait_until_quiet(patience_s=options.wait)
    lanes = host().lanes(FLOAT32)
    accumulators = min(24, host().registers - 4)
    peak = work("peak", Peak(lanes, accumulators), aligned(2 * lanes), aligned(24 * lanes))
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
            result = measure(spec, methods, peak, options)
            document["layers"][name] = {"problem": str(spec), **result}
            if not options.json:
                print_layer(name, spec, result)
    missed = document["missed"] = misses(document["layers"])
    if options.out is not None:
        options.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if options.json:
        print_json(document)
    else:
        print("\n".join(missed))
    return 3 if missed else 0


if __name__ == "__main__":
    script(main)
