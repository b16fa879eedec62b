"""Every algorithm on cv1 to cv12 of the MEC paper: time, bytes, error, or the reason of refusal.

    python benchmarks/algorithms.py                  all of it; writes docs/results/CPU/algorithms.*
    python benchmarks/algorithms.py --layers cv4 --batches 1 --quick --method im2col --method mec
    python benchmarks/algorithms.py --page           write the page again from the JSON

float32, two threads, NCHW in and out. All methods of a layer run in this process in turn; a time is
the median over rounds of each turn's median. A method whose run takes seconds has one turn. The
workspace is predicted by the candidate, allocated by the runtime, and counted: it is filled with a
pattern before the first run, and the words that no longer hold it have been used. The error is that
of some output channels of the first and the last image against float64, relative to the largest.

Without --layers, --batches, --method and --quick the results are written to docs/results, with a
page that sets them beside the documents' figures (`pages/`).
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import leanconv as lc
from harness import Patience, effort, results_file, rewrite_pages, script, write_results
from leanconv.algorithms.select import choice_named, choose
from leanconv.api.conv_choice import conv_problem
from leanconv.cli.engines import machine
from leanconv.cli.options import positive
from leanconv.cli.output import print_json, print_table, progress
from leanconv.codegen.host import host
from leanconv.reference import direct, fft
from leanconv.reference.layers import LAYERS
from leanconv.spec import ConvSpec
from leanconv.types import FLOAT32
from leanconv.units import format_bytes, format_ns
from microkernel import Peak, aligned, work
from pages.algorithms import page

NAME = "algorithms"

CHOSEN, WHOLE_FFT = "chosen by leanconv", "fft of whole images (NumPy)"
METHODS = (
    "naive",
    "direct",
    "planar",
    "depthwise",
    "sparse",
    "separable",
    "im2col:rows=whole",
    "im2col",
    "im2col:lanes=pixels",
    "mec:solution=A",
    "mec:solution=B",
    "im2win:form=base",
    "im2win:form=vector",
    "im2win:rows=whole",
    "im2win",
    "winograd",
    "winograd:m=2",
    "winograd:m=4",
    "winograd:m=6",
    "winograd:form=stages,m=2",
    "winograd:form=stages,m=4",
    "fft:tile=16,products=4",
    "fft:tile=16,products=3",
    "fft:tile=32,products=4",
    "fft:tile=32,products=3",
    "fft:tile=image",
    WHOLE_FFT,
    CHOSEN,
)
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
SWEEP = tuple(f"ic3ih227oc96kh11sh{s}" for s in range(1, 11))  # cv1 with every stride: figure 4a
SWEPT = ("im2col:rows=whole", "mec")

_ONE_TURN_S = 1.0  # a method may take so long in all rounds, its first run apart
_SAMPLED = 8  # output channels whose error is measured
_PATTERN = 0xA5C3A5C3  # fills a workspace: a float32 that no layer here computes
_MOST_BYTES = 2**30  # packed weights, or transformed images: more is not run


@dataclass
class Subject:
    """One method made ready for one layer.

    Attributes:
        call: runs it once, into the output that all methods share.
        report: what does not change from round to round.
        first_ns: of the first run, whose answer was checked.
        plan: the plan, or None for what NumPy computes.
        times: nanoseconds of a run, the median of each turn's.
        stages: nanoseconds of each stage, the least so far; one run a turn.
        disturbed: turns during which the threads had no cores of their own.
    """

    call: Callable[[], object]
    report: dict[str, Any]
    first_ns: int
    plan: lc.ConvPlan | None = None
    times: list[int] = field(default_factory=list)
    stages: list[int] = field(default_factory=list)
    disturbed: int = 0

    def turn(self, addresses: list[int], seconds: float, patience: Patience) -> None:
        """Run for so long, at least once; not at all where the first run took too long."""
        if self.first_ns > _ONE_TURN_S * 1e9:
            self.times = self.times or [self.first_ns]
        elif sum(self.times) < _ONE_TURN_S * 1e9:
            time_ns, alone = patience.undisturbed(lambda: self._median_ns(seconds))
            self.times.append(time_ns)
            self.disturbed += not alone
            if self.plan is not None and self.plan.layer.program.stages > 1:
                given = [*addresses, self.plan.packed.block.address]
                now = self.plan.layer.program.time_stages(given)
                self.stages = [min(pair) for pair in zip(self.stages or now, now, strict=True)]

    def _median_ns(self, seconds: float) -> int:
        taken: list[int] = []
        end = time.perf_counter() + seconds
        while not taken or time.perf_counter() < end:
            start = time.perf_counter_ns()
            self.call()
            taken.append(time.perf_counter_ns() - start)
        return round(statistics.median(taken))

    def summary(self, spec: ConvSpec) -> dict[str, Any]:
        """What is reported."""
        time_ns = round(statistics.median(self.times))
        return {
            "time_ns": time_ns,
            "turns_ns": self.times,
            "disturbed_turns": self.disturbed,
            "gflops": round(spec.flops / time_ns, 3),
            "stages_ns": self.stages,
            **self.report,
        }


class Case:
    """One layer with its arrays and the exact answer of some of its outputs."""

    def __init__(self, spec: ConvSpec, options: argparse.Namespace) -> None:
        rng = np.random.default_rng(0)
        self.spec, self.options = spec, options
        self.x = rng.uniform(-1, 1, spec.input_shape).astype(spec.dtype)
        self.w = rng.uniform(-1, 1, spec.weight_shape).astype(spec.dtype)
        self.y = np.empty(spec.output_shape, spec.dtype)
        self._channels = np.unique(np.linspace(0, spec.out_channels - 1, _SAMPLED).astype(int))
        self._images = sorted({0, spec.batch - 1})
        self._exact = self._sampled_answer()

    def _sampled_answer(self) -> np.ndarray:
        """(images, channels, oh, ow) in float64."""
        few = replace(
            self.spec, batch=len(self._images), out_channels=len(self._channels), layout="NCHW"
        )
        x = direct.channels_first(self.spec, self.x)[self._images]
        return direct.convolve(few, x.astype(np.float64), self.w[self._channels].astype(np.float64))

    def error(self, y: np.ndarray) -> float:
        """The largest difference to float64 over the largest number, in the sample."""
        found = direct.channels_first(self.spec, y)[self._images][:, self._channels]
        return float(np.abs(found - self._exact).max() / np.abs(self._exact).max())

    @property
    def addresses(self) -> list[int]:
        """Of input and output, as programs take them."""
        return [self.x.ctypes.data, self.y.ctypes.data]

    def subject(self, method: str) -> Subject:
        """Make one method ready and check its answer.

        Raises:
            SpecError: the algorithm refuses the layer, or needs too much memory.
        """
        return self._whole_fft() if method == WHOLE_FFT else self._planned(method)

    def _planned(self, method: str) -> Subject:
        spec = self.spec
        plan = lc.plan_conv2d(
            spec.input_shape,
            self.w,
            stride=spec.stride,
            layout=spec.layout,
            algorithm=None if method == CHOSEN else method,
            threads=self.options.threads,
            memory_limit=4 * _MOST_BYTES,
        )
        assert isinstance(plan, lc.ConvPlan)
        workspace = plan.layer.arena.arena.block
        assert workspace is not None
        words = workspace.view(0, plan.workspace_bytes).view(np.uint32)
        words[:] = _PATTERN

        def call() -> None:
            plan.layer.program._pacing._rest_until = 0  # stay on all threads whatever disturbs
            plan(self.x, out=self.y)

        self.y.fill(np.nan)
        start = time.perf_counter_ns()
        call()
        first = time.perf_counter_ns() - start
        report = {
            "workspace_bytes": plan.workspace_bytes,
            "allocated_bytes": workspace.bytes,
            "touched_bytes": 4 * int(np.count_nonzero(words != _PATTERN)),
            "weight_bytes": plan.weight_bytes,
            "stated_error": plan.predicted_error,
            "error": self.error(self.y),
            "algorithm": plan.algorithm,
            "parameters": plan.parameters,
        }
        return Subject(call, report, first, plan)

    def _whole_fft(self) -> Subject:
        """The reference, in float64: a bin for each element of half an image, in every phase."""
        spec = self.spec
        phases = [min(s, k) for s, k in zip(spec.stride, spec.kernel, strict=True)]
        extents = [-(-i // s) for i, s in zip(spec.size, spec.stride, strict=True)]
        bins = math.prod(phases) * extents[0] * (extents[1] // 2 + 1)
        k, c, n = spec.out_channels, spec.in_channels, spec.batch
        needed = 16 * bins * (k * c + n * (c + k))
        if needed > _MOST_BYTES:
            raise lc.SpecError(
                f"not run: {format_bytes(needed)} of transforms, over {format_bytes(_MOST_BYTES)}"
            )
        x = direct.channels_first(spec, self.x)

        def call() -> np.ndarray:
            return fft.convolve(x, self.w, (spec.stride[0], spec.stride[1]))

        start = time.perf_counter_ns()
        y = call()
        first = time.perf_counter_ns() - start
        error = self.error(direct.channels_back(spec, y))
        report = {
            "workspace_bytes": 16 * bins * n * (c + k),
            "weight_bytes": 16 * bins * k * c,
            "error": error,
            "algorithm": "reference",
            "parameters": "NumPy, float64",
        }
        return Subject(call, report, first)


def _too_large(spec: ConvSpec, method: str) -> str:
    """Why a method is not even planned: its packed weights; empty if it is."""
    if method in (CHOSEN, WHOLE_FFT):
        return ""
    needed = choose(conv_problem(spec, None), host(), choice_named(method)).weight_bytes
    if needed <= _MOST_BYTES:
        return ""
    return f"not run: {format_bytes(needed)} of weights, over {format_bytes(_MOST_BYTES)}"


def measure(
    spec: ConvSpec, methods: Sequence[str], options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Measure methods on one layer.

    Returns:
        By method what `Subject.summary` says, or `{"refused": reason}`.
    """
    case = Case(spec, options)
    subjects: dict[str, Subject] = {}
    refused: dict[str, str] = {}
    for method in methods:
        try:
            reason = _too_large(spec, method)
            if not reason:
                subjects[method] = case.subject(method)
        except (lc.SpecError, lc.BudgetError) as error:
            reason = str(error)
        if reason:
            refused[method] = reason.removeprefix(
                f"algorithm {method.partition(':')[0]!r} cannot compute {spec}: "
            )
    order = list(subjects.values())
    for number in range(options.rounds):
        start = number % len(order) if order else 0
        for subject in order[start:] + order[:start]:
            subject.turn(case.addresses, options.seconds, options.patience)
    results: dict[str, dict[str, Any]] = {}
    for method in methods:
        if method in subjects:
            results[method] = subjects[method].summary(spec)
        else:
            results[method] = {"refused": refused[method]}
    subjects.clear()
    gc.collect()  # gigabytes of packed weights go before the next layer
    return results


def peak_gflops() -> float:
    """What one core does at most: independent multiply-adds on registers."""
    lanes, registers = host().lanes(FLOAT32), host().registers
    accumulators = min(24, registers - 4)
    kernel = Peak(lanes, accumulators)
    return work("peak", kernel, aligned(2 * lanes), aligned(accumulators * lanes)).rate(0.3) / 1e9


def print_case(title: str, results: dict[str, dict[str, Any]]) -> None:
    """Print one layer's table."""
    rows = []
    for method, r in results.items():
        if "refused" in r:
            rows.append([method, "-", "-", "-", "-", "-", "-", r["refused"][:60]])
            continue
        stated = r.get("stated_error")
        rows.append(
            [
                method,
                format_ns(r["time_ns"]),
                f"{r['gflops']:.1f}",
                format_bytes(r["workspace_bytes"]),
                format_bytes(r["weight_bytes"]),
                f"{r['error']:.1e}",
                f"{stated:.1e}" if stated else "-",
                r["parameters"],
            ]
        )
    heads = ["", "time", "GFLOP/s", "workspace", "weights", "error", "stated", "chosen or refused"]
    print_table(heads, rows, title=title)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; `complete` says whether everything is measured with full effort."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", nargs="+", choices=LAYERS, metavar="LAYER", help="cv1 to cv12")
    parser.add_argument("--batches", nargs="+", type=positive, metavar="N", help="default 1 8")
    parser.add_argument("--method", action="append", metavar="TEXT", help="only this (repeatable)")
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    parser.add_argument("--layout", choices=("NCHW", "NHWC"), default="NCHW")
    parser.add_argument("--threads", type=positive, default=2, metavar="N", help="default 2")
    parser.add_argument("--rounds", type=positive, default=5, metavar="N", help="default 5")
    parser.add_argument("--seconds", type=float, default=0.05, metavar="S", help="of one turn")
    parser.add_argument("--wait", type=float, default=60.0, metavar="S", help="for a quiet machine")
    parser.add_argument("--page", action="store_true", help="write the page of earlier results")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON to this file")
    options = parser.parse_args(arguments)
    options.patience = Patience(options.threads)
    options.complete = not (options.layers or options.batches or options.method or options.quick)
    if options.quick:
        options.rounds, options.seconds, options.wait = 2, 0.02, 0.0
    if options.complete and options.out is None:
        options.out = results_file(NAME)
    return options


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what the options say; tables are printed as they are done, unless `--json`."""
    batches = options.batches or [1, 8]
    busy = machine.wait_until_quiet(patience_s=options.wait)
    document: dict[str, Any] = {
        "machine": machine.describe().to_json(),
        "busy_cpus_before": round(busy, 2),
        "effort": effort(options),
        "layout": options.layout,
        "peak_gflops": round(peak_gflops(), 2),
        "cases": [],
        "sweep": [],
    }
    begin = time.monotonic()
    with progress("measuring") as shown:
        for batch in batches:
            methods = list(options.method or METHODS)
            methods += ABLATION if batch == batches[0] and not options.method else ()
            for name in options.layers or LAYERS:
                spec = ConvSpec.parse(LAYERS[name], batch=batch, layout=options.layout)
                shown.say(f"measuring {name} at batch {batch}")
                results = measure(spec, methods, options)
                case = {"layer": name, "batch": batch, "problem": str(spec), "methods": results}
                document["cases"].append(case)
                if not options.json:
                    print_case(f"{name}, batch {batch}: {spec}, {spec.layout}", results)
        for line in SWEEP if options.complete else ():
            spec = ConvSpec.parse(line, layout=options.layout)
            shown.say(f"measuring {line}")
            document["sweep"].append(
                {"problem": str(spec), "methods": measure(spec, SWEPT, options)}
            )
    document["minutes"] = round((time.monotonic() - begin) / 60, 1)
    return document


def main() -> int:
    """Measure what the command line asks for."""
    options = parse_options()
    if options.page:
        rewrite_pages(NAME, page)
        return 0
    document = run(options)
    write_results(document, options.out, page)
    if options.json:
        print_json(document)
    return 0


if __name__ == "__main__":
    script(main)
