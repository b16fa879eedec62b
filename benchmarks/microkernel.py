"""The share of the machine's measured multiply-add peak that the micro-kernel reaches, on one core.

    python benchmarks/microkernel.py --out microkernel.json

The peak is measured by a loop of independent vector multiply-adds on registers, in turn with each
convolution; a share is the convolution's rate over the peak's in the same round, and the median
over rounds is reported. The convolutions are whole register tiles over a long reduction, their
operands in the near caches: what is measured is the micro-kernel, with its start, epilogue and
stores.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from harness import script
from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.parameters import Choice
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.select import choose
from leanconv.cli.engines import machine
from leanconv.cli.options import positive
from leanconv.cli.output import print_json, print_table, progress
from leanconv.codegen.compiler import load
from leanconv.codegen.emitter import Function, vector
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.linking import Library
from leanconv.codegen.tiling import Tile
from leanconv.planner.packing import Preparation
from leanconv.records import dataclass
from leanconv.spec import ConvSpec, Format
from leanconv.target import Target
from leanconv.types import FLOAT32

GOAL = 0.95
_SIGNATURE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)
# Tiles (rows, vectors) by instruction set; the first is the one that the model likes best.
TILES = {
    "avx512": ((14, 2), (13, 2), (9, 3), (28, 1)),
    "avx2": ((6, 2), (4, 3)),
    "neon": ((13, 2), (9, 3), (7, 2)),
    "generic": ((6, 2),),
}


@dataclass(frozen=True)
class Peak(Kernel):
    """Chunks of `steps` rounds of independent multiply-adds on registers."""

    lanes: int
    accumulators: int
    steps: int = 20_000

    @property
    def operands(self) -> tuple[str, ...]:
        """Two vectors of factors, and where the sums go."""
        return ("a", "y")

    @property
    def chunks(self) -> int:
        """One."""
        return 1

    @property
    def flops(self) -> int:
        """Two for each lane of each multiply-add."""
        return 2 * self.lanes * self.accumulators * self.steps

    def emit(self, target: Target) -> str:
        """Emit acc[i] = a·b + acc[i] over and over."""
        del target
        e = Function(self.NAME)
        kind = vector("float", self.lanes)
        a, y = e.pointer(0, "float"), e.pointer(1, "float")
        x, b = e.load(a, kind), e.load(a.at(self.lanes), kind)
        acc = [e.load(y.at(i * self.lanes), kind) for i in range(self.accumulators)]
        with e.loop("step", self.steps, [acc]):
            for i in range(self.accumulators):
                acc[i] = e.fma(x, b, acc[i])
        for i, value in enumerate(acc):
            e.store(value, y.at(i * self.lanes))
        return e.finish()


@dataclass(frozen=True, eq=False)
class Work:
    """A kernel with its arrays: a call that runs all of it, and its operations."""

    label: str
    call: Callable[[], None]
    flops: int
    held: tuple[object, ...]

    def rate(self, seconds: float) -> float:
        """The best rate of runs over that time, in operations per second."""
        end, best = time.perf_counter() + seconds, 0.0
        while time.perf_counter() < end:
            begin = time.perf_counter_ns()
            self.call()
            best = max(best, self.flops / (time.perf_counter_ns() - begin))
        return best * 1e9


def work(label: str, kernel: Kernel, *arrays: np.ndarray) -> Work:
    """Compile a kernel and bind it to arrays."""
    library: Library = load([kernel])
    function = _SIGNATURE(library.address(kernel))
    words = library.form(kernel).words
    operands = (a.ctypes.data for a in arrays)
    table = (ctypes.c_int64 * (len(words) + len(arrays)))(*words, *operands)
    address, chunks = ctypes.addressof(table) + 8 * len(words), kernel.chunks
    held = library, table, arrays

    def call() -> None:
        assert held  # what the kernel uses lives as long as the call
        function(address, 0, chunks, None)

    return Work(label, call, kernel.flops, held)


def aligned(size: int) -> np.ndarray:
    """Small random float32 numbers from a cache line's start."""
    memory = np.random.default_rng(0).random(size + 16, np.float32) * np.float32(1e-3)
    start = -(memory.ctypes.data // 4) % 16
    inside: np.ndarray = memory[start : start + size]
    return inside


def packed(kernel: DirectConv, w: np.ndarray, target: Target) -> np.ndarray:
    """Weights of float32 as a kernel reads them, from a cache line's start."""
    weights = aligned(kernel.constant_bytes["w"] // FLOAT32.bytes)
    Preparation.of(
        {"w": kernel.weight_calls(w)}, {"w": weights.ctypes.data}, target, threads=1
    ).run()
    return weights


def convolution(tile: Tile, target: Target, channels: int) -> Work:
    """A 1x1 convolution of whole tiles over `channels` inputs, in blocks of channels."""
    lanes = target.lanes(FLOAT32)
    columns = tile.rows * 8
    spec = ConvSpec.parse(f"ic{channels}ih1iw{columns}oc{tile.vectors * lanes}oh1ow{columns}kh1kw1")
    form = Format(lanes)
    problem = Problem.of(
        spec,
        Access.of_format(spec.input_shape, form),
        Access.of_format(spec.output_shape, form),
    )
    chosen = choose(problem, target, Choice("direct")).kernels[0].kernel
    assert isinstance(chosen, DirectConv)
    window = replace(chosen.conv.window, size=(1, 1, columns), out=(1, 1, columns))
    conv = replace(problem.conv, window=window)
    kernel = replace(chosen, conv=conv, tile=tile, rows=1, panels_inside=True)
    w = np.random.default_rng(1).random(spec.weight_shape, np.float32)
    weights = packed(kernel, problem.weights_3d(w), target)
    x, y = (aligned(form.elements(s)) for s in (spec.input_shape, spec.output_shape))
    return work(f"{tile.rows}x{tile.vectors} over {channels}", kernel, x, weights, y)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure peak and convolutions in turn."""
    target = host()
    lanes = target.lanes(FLOAT32)
    accumulators = min(24, target.registers - 4)
    peak = work(
        "peak", Peak(lanes, accumulators), aligned(2 * lanes), aligned(accumulators * lanes)
    )
    works = [
        convolution(Tile(*tile), target, channels)
        for tile in TILES[target.isa]
        for channels in (128, 512)
    ]
    rates: dict[str, list[float]] = {w.label: [] for w in (peak, *works)}
    shares: dict[str, list[float]] = {w.label: [] for w in works}
    with progress("measuring the peak and the micro-kernel") as shown:
        for number in range(options.rounds):
            shown.say(f"round {number + 1} of {options.rounds}")
            for each in works:
                top = peak.rate(options.seconds)
                found = each.rate(options.seconds)
                rates["peak"].append(top)
                rates[each.label].append(found)
                shares[each.label].append(found / top)
    kernels = {
        label: {"gflops": statistics.median(rates[label]) / 1e9, "share": statistics.median(found)}
        for label, found in shares.items()
    }
    return {
        "machine": machine.describe().to_json(),
        "isa": target.isa,
        "threads": 1,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "peak_gflops": statistics.median(rates["peak"]) / 1e9,
        "kernels": kernels,
        "best_share": max(k["share"] for k in kernels.values()),
        "goal": GOAL,
    }


def main() -> int:
    """Measure, print, and return 3 if the goal is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=positive, default=15, help="rounds (default 15)")
    parser.add_argument("--seconds", type=float, default=0.05, help="of one turn (default 0.05)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--out", type=Path, help="write the JSON to this file too")
    options = parser.parse_args()
    busy = machine.wait_until_quiet()
    result = {"busy_cpus_before": round(busy, 2), **measure(options)}
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if options.json:
        print_json(result)
    else:
        rows = [
            (label, f"{k['gflops']:.1f}", f"{100 * k['share']:.1f} %")
            for label, k in result["kernels"].items()
        ]
        title = f"peak {result['peak_gflops']:.1f} GFLOP/s on one core, float32, {result['isa']}"
        print_table(["tile over channels", "GFLOP/s", "of peak"], rows, title=title)
    return 0 if result["best_share"] >= GOAL else 3


if __name__ == "__main__":
    script(main)
