"""Measure what the record of costs says of a machine, on the machine that this runs on.

    python benchmarks/calibrate.py --out costs.json

Prints each field of `leanconv.target.costs.Costs` that a small kernel can measure, beside the value
of the record in use, and names the fields that cannot be measured but only fitted to layers. A new
record begins as a copy of Zen 4's with the measured fields put in; see docs/architecture.md.

Everything runs on one core. Before and after each burst the rate of multiply-adds on registers is
probed: it tells the clock of that moment, by which times become cycles, and a burst is dropped if
the core was shared or slow around it. Takes about a minute.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from harness import effort, script
from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.parameters import Choice
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.select import choose
from leanconv.cli.engines import machine
from leanconv.cli.options import positive
from leanconv.cli.output import print_json, print_table, progress
from leanconv.codegen.compiler import load
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import host, usable_cores
from leanconv.runtime.calibration import chain_nanoseconds
from leanconv.runtime.program import Program, Stage
from leanconv.spec import ConvSpec, Format
from leanconv.spec.format import ceil_div
from leanconv.target import Target
from leanconv.target.costs import numbers
from leanconv.types import FLOAT32
from microkernel import Peak, aligned, packed, work
from stream_kernels import LINE, UNROLL, Nothing, Stream

_MB = 2**20
_PROBE_S = 0.002
_CLEAN = 0.9  # of the best probe: below, the core was shared or slow
_HELD = 0.7  # of the best rate beyond L2, which the size that L3 holds still has
_STAGES = 64
_WIDTH = 56  # of the maps of convolutions
Action = Literal["read", "write", "copy"]


@dataclass(frozen=True)
class Effort:
    """How long is measured, and how large buffers may be."""

    rounds: int
    seconds: float
    most_bytes: int


class Meter:
    """Cycles of calls, by the clock of the moment."""

    def __init__(self, target: Target, asked: Effort) -> None:
        self.target, self._asked = target, asked
        lanes, accumulators = target.lanes(FLOAT32), min(24, target.registers - 4)
        self._peak = work(
            "peak", Peak(lanes, accumulators), aligned(2 * lanes), aligned(accumulators * lanes)
        )
        self._flops_per_unit = 2 * lanes
        best = max(self._probe() for _ in range(5))
        self._best = best
        chain_ns = min(chain_nanoseconds() for _ in range(25))
        self.clock_hz = target.fma_latency / chain_ns * 1e9
        self.fma_units = max(0.5, round(2 * best / self._flops_per_unit / self.clock_hz) / 2)

    def _probe(self) -> float:
        return self._peak.rate(_PROBE_S)

    def cycles(self, call: Callable[[], object]) -> float:
        """The least cycles of a call, over the bursts around which the core was not disturbed."""
        call()
        clean: list[float] = []
        disturbed: list[float] = []
        for _ in range(self._asked.rounds):
            before, least = self._probe(), _least_seconds(call, self._asked.seconds)
            rates = before, self._probe()
            self._best = max(self._best, *rates)
            hz = sum(rates) / 2 / self._flops_per_unit / self.fma_units
            undisturbed = min(rates) >= _CLEAN * self._best
            (clean if undisturbed else disturbed).append(least * hz)
        return min(clean or disturbed)

    def stream(
        self, action: Action, size: int, lanes: int = 0, multiply_adds: int = 0, offset: int = 0
    ) -> float:
        """Bytes a cycle of a stream through a buffer of so many bytes, two for copies."""
        lanes = lanes or self.target.lanes(FLOAT32)
        steps = max(1, size // (4 * lanes * UNROLL))
        passes = ceil_div(4 * _MB, size)
        kernel = Stream(action, lanes, steps, passes, multiply_adds)
        elements = steps * UNROLL * lanes
        x = aligned(elements + offset)[offset:]
        y = np.zeros(elements, np.float32) if action != "read" else aligned(UNROLL * lanes)
        bound = work("stream", kernel, x, y)
        return kernel.moved_bytes / self.cycles(bound.call)


def _least_seconds(call: Callable[[], object], seconds: float) -> float:
    end, least = time.perf_counter() + seconds, float("inf")
    while True:
        begin = time.perf_counter_ns()
        call()
        now = time.perf_counter_ns()
        least = min(least, (now - begin) * 1e-9)
        if now * 1e-9 >= end:
            return least


def caches(meter: Meter) -> dict[str, float]:
    """What L1 gives, the rate of L2, and what unaligned vectors cost."""
    target = meter.target
    l1, l2 = target.l1_bytes // 2, target.l2_bytes // 2
    lanes = target.lanes(FLOAT32)
    found = {
        "loads_per_cycle": meter.stream("read", l1, min(lanes, 8)) / (4 * min(lanes, 8)),
        "l2_read": meter.stream("read", l2),
    }
    slots = found["loads_per_cycle"] * 4 * lanes / meter.stream("read", l1, offset=1)
    found["unaligned_line" if 4 * lanes == 4 * LINE else "unaligned_part"] = slots
    if lanes == LINE:
        rate = meter.stream("read", l1, lanes // 2, offset=1)
        found["unaligned_part"] = found["loads_per_cycle"] * 2 * lanes / rate
    return found


def sweep(meter: Meter, most_bytes: int) -> dict[int, float]:
    """Rates of reading, by the size of the buffer, from twice L2 on."""
    sizes, size = [], 2 * meter.target.l2_bytes
    while size <= most_bytes:
        sizes.append(size)
        size *= 2
    return {size: meter.stream("read", size) for size in sizes}


def beyond_l2(meter: Meter, rates: dict[int, float]) -> dict[str, float]:
    """Rates of L3 and DRAM, and what of L3 one core finds."""
    target, largest = meter.target, max(rates)
    best = max(rates.values())
    held = max(size for size, rate in rates.items() if rate >= _HELD * best)
    found = {
        "dram_read": rates[largest],
        "dram_copy": meter.stream("copy", largest // 2),
    }
    if target.l3_bytes and held < largest:
        inside = max(2 * target.l2_bytes, held // 4)
        stream = meter.stream("read", inside)
        adds = max(1, round(meter.fma_units * target.vector_bytes / stream))
        together = target.vector_bytes / meter.stream("read", inside, multiply_adds=adds)
        parts = adds / meter.fma_units, target.vector_bytes / stream
        found |= {
            "l3_read": stream,
            "l3_copy": meter.stream("copy", inside // 2),
            "l3_read_crowded": meter.stream("read", held * 5 // 8),
            "l3_most_bytes": float(held),
            "overlap_loss": max(0.0, together - max(parts)) / min(parts),
        }
    return found


def _pointwise(
    target: Target, inputs: int, pixels: tuple[int, int], planes: str
) -> tuple[DirectConv, tuple[np.ndarray, ...]]:
    """A 1x1 convolution to two vectors of channels, one of whose tensors may be in planes."""
    lanes = target.lanes(FLOAT32)
    (high, wide), outputs = pixels, 2 * lanes
    spec = ConvSpec.parse(f"ic{inputs}ih{high}iw{wide}oc{outputs}oh{high}ow{wide}kh1")
    x, y = (
        Access.of_format(shape, Format() if name == planes else Format(lanes))
        for name, shape in (("x", spec.input_shape), ("y", spec.output_shape))
    )
    blocked = Access.of_format(spec.output_shape, Format(lanes))
    problem = Problem.of(spec, Access.of_format(spec.input_shape, Format(lanes)), blocked)
    chosen = choose(problem, target, Choice("direct")).kernels[0].kernel
    assert isinstance(chosen, DirectConv)
    conv = replace(problem.conv, x=x, y=y)
    kernel = replace(chosen, conv=conv, rows=1, panels_inside=True)
    w = packed(kernel, np.ones((outputs, inputs, 1, 1, 1), np.float32), target)
    return kernel, (aligned(inputs * high * wide), w, aligned(outputs * high * wide))


def _more_in_planes(meter: Meter, inputs: int, pixels: tuple[int, int], planes: str) -> float:
    """Cycles that such a convolution takes more where one of its tensors is in planes."""
    cycles = []
    for form in (planes, ""):
        kernel, arrays = _pointwise(meter.target, inputs, pixels, form)
        bound = work("1x1", kernel, *arrays)
        cycles.append(meter.cycles(bound.call))
    return cycles[0] - cycles[1]


def planes(meter: Meter) -> dict[str, float]:
    """What it costs to read many planes and few of them, and to write results in planes."""
    target = meter.target
    size, pages = 4 * target.l2_bytes, target.costs.tlb_pages
    beyond = (size - target.l2_bytes) / (4 * LINE)  # lines that L2 does not hold

    def line(inputs: int) -> float:
        high = max(1, size // (4 * inputs * _WIDTH)) | 1  # odd: planes begin in different sets
        return max(0.0, _more_in_planes(meter, inputs, (high, _WIDTH), "x") / beyond)

    lanes, high = target.lanes(FLOAT32), 16
    store = _more_in_planes(meter, 4 * lanes, (high, _WIDTH), "y")
    return {
        "strided_line": line(8 * pages),
        "prefetched_line": line(pages // 2),
        "transposed_store": store / (2 * high * _WIDTH),
    }


def stage(meter: Meter) -> dict[str, float]:
    """Cycles of a stage's begin and end, of two threads where there are two."""
    kernel, room = Nothing(), aligned(1024)
    stages = [Stage(kernel, ())] * _STAGES
    threads = min(2, usable_cores())
    program = Program(stages, load([kernel]), 0, room.ctypes.data, 64, threads, paced=False)
    return {"stage": meter.cycles(lambda: program.run(())) / _STAGES}


def measure(asked: Effort) -> dict[str, Any]:
    """Measure everything; what of it belongs to the record is under `"measured"`."""
    target = host()
    meter = Meter(target, asked)
    found: dict[str, float] = {}
    with progress("measuring the machine") as shown:
        shown.say("L1 and L2")
        found |= caches(meter)
        shown.say("L3 and DRAM")
        rates = sweep(meter, asked.most_bytes)
        found |= beyond_l2(meter, rates)
        shown.say("planes and stages")
        found |= planes(meter)
        found |= stage(meter)
    record = numbers(target.costs)
    return {
        "clock_ghz": meter.clock_hz / 1e9,
        "fma_units": {"target": target.fma_units, "measured": meter.fma_units},
        "read_bytes_per_cycle": {str(size): rate for size, rate in rates.items()},
        "record": {"cpu": target.costs.cpu, **record},
        "measured": found,
        "fitted_only": sorted(set(record) - set(found)),
    }


def show(result: dict[str, Any]) -> None:
    """Print the table of the record beside what was measured."""
    record, found = result["record"], result["measured"]
    rows = [
        (
            name,
            "" if name not in record else f"{record[name]:g}",
            f"{value:.3g}" if value < 1e6 else f"{value / _MB:.0f} MiB",
        )
        for name, value in found.items()
    ]
    print_table(["field", f"record {record['cpu']}", "measured"], rows, title=result["title"])
    print("\nFitted to layers only: " + ", ".join(result["fitted_only"]))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=positive, default=9, help="bursts (default 9)")
    parser.add_argument("--seconds", type=float, default=0.03, help="of a burst (default 0.03)")
    parser.add_argument(
        "--most-mb", type=positive, default=256, help="largest buffer in MiB (default 256)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--out", type=Path, help="write the JSON to this file too")
    options = parser.parse_args()
    options.threads = 1
    busy = machine.wait_until_quiet()
    asked = Effort(options.rounds, options.seconds, options.most_mb * _MB)
    result = {
        "machine": machine.describe().to_json(),
        "effort": effort(options),
        "busy_cpus_before": round(busy, 2),
        **measure(asked),
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if options.json:
        print_json(result)
    else:
        facts = f"{result['clock_ghz']:.2f} GHz, {result['fma_units']['measured']:g} FMA units"
        show({**result, "title": f"{result['machine']['cpu']}, {facts}"})
    return 0


if __name__ == "__main__":
    script(main)
