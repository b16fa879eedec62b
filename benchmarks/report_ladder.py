"""The ladder of the MobileNetV2 report on the CPU: each of its steps, then our engine.

    python benchmarks/report_ladder.py                   writes docs/results/CPU/ladder.json and .md
    python benchmarks/report_ladder.py --quick           a look: two images, one round
    python benchmarks/report_ladder.py --page            write the page again from the JSON

The report went from 2278 to 7.78 ms in six steps on a V100, float64, ten images of 244 x 244. Its
kernels are emitted here with the steps as switches (`ladder/`): a CUDA thread is an item, a warp a
vector of items, a block a piece of work that the threads claim. Measured are its setting and
float32 at 224. In a round every version runs all images in turn; a number is the median over rounds
of the mean of an image. `scalar` has one item in a vector, a plain loop, on two of the images. All
answers are compared with the engine's before the first round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import leanconv
from harness import (
    ROOT,
    Document,
    Patience,
    effort,
    results_file,
    rewrite_pages,
    script,
    write_results,
)
from leanconv.types import FLOAT32, FLOAT64, DType

sys.path.insert(0, str(ROOT))

from examples.report.formats import Topology, weights
from ladder.forward import Forward, Spent
from ladder.kernels import RowCopy
from ladder.network import VERSIONS
from leanconv.cli.engines import machine
from leanconv.cli.options import positive
from leanconv.cli.output import print_json, print_table, progress
from leanconv.errors import InputError
from pages.ladder import page

NAME = "ladder"
SETTINGS = ((FLOAT64, 244), (FLOAT32, 224))
_SCALAR_IMAGES = 2
_TOLERANCE = {FLOAT64: 1e-12, FLOAT32: 2e-5}


@dataclass
class Runner:
    """One version, or the engine, with its times.

    Attributes:
        run: computes the logits of one image.
        images: how many of them a round runs.
        error: the largest difference to the engine's logits, relative to the largest of these.
        forward: the version, None for the engine.
        times: nanoseconds of an image, the mean of each round.
        spent: where they went, of a version.
        disturbed: rounds during which the threads had no cores of their own.
    """

    run: Callable[[np.ndarray], np.ndarray]
    images: int
    error: float = 0.0
    forward: Forward | None = None
    times: list[float] = field(default_factory=list)
    spent: list[Spent] = field(default_factory=list)
    disturbed: int = 0

    def round(self, images: np.ndarray, patience: Patience) -> None:
        """Run the images once, after one for warming up."""
        self.run(images[0])
        taken, alone = patience.undisturbed(lambda: self._mean(images[: self.images]))
        self.times.append(taken[0])
        self.spent.append(taken[1])
        self.disturbed += not alone

    def _mean(self, images: np.ndarray) -> tuple[float, Spent]:
        """Nanoseconds of an image, and where those of all went."""
        spent = Spent()
        if self.forward is not None:
            self.forward.spent = spent
        start = time.perf_counter_ns()
        for image in images:
            self.run(image)
        return (time.perf_counter_ns() - start) / len(images), spent

    @property
    def ms(self) -> float:
        """Milliseconds of an image."""
        return round(statistics.median(self.times) / 1e6, 3)

    def report(self) -> dict[str, Any]:
        """What is said of a version: its time, and where that of the middle round went."""
        result: dict[str, Any] = {"ms": self.ms, "error": self.error}
        if self.forward is None:
            return result
        middle = sorted(range(len(self.times)), key=self.times.__getitem__)[len(self.times) // 2]
        spent, launches = self.spent[middle], self.forward.launches
        split = {
            "copies_ms": spent.copies_ns,
            "kernels_ms": spent.kernels_ns,
            "host_ms": spent.total_ns - spent.copies_ns - spent.kernels_ns,
        }
        copies = [x.kernel.chunks for x in launches if isinstance(x.kernel, RowCopy)]
        return {
            **result,
            **{key: round(ns / spent.passes / 1e6, 3) for key, ns in split.items()},
            "allocated_bytes": spent.allocated_bytes // spent.passes,
            "row_copies": sum(copies),
            "launches": len(launches),
        }


def engine(topology: Topology, dtype: DType, threads: int) -> Callable[[np.ndarray], np.ndarray]:
    """Our own way of running the same network."""
    network = leanconv.load(topology.model(), dtype=dtype, threads=threads)
    compiled: Any = network.compiled
    compiled.network._program._paced = False  # stay on all threads whatever disturbs

    def run(image: np.ndarray) -> np.ndarray:
        logits: np.ndarray = network(image[None])[0]
        return logits

    return run


def measure(dtype: DType, size: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure all versions, with vectors and with scalars, and the engine.

    Raises:
        InputError: a version answers otherwise than the engine.
    """
    topology = Topology(image=size)
    params = weights(topology.model())
    rng = np.random.default_rng(0)
    images = rng.standard_normal((options.images, *topology.input_shape)).astype(dtype)
    ours = Runner(engine(topology, dtype, options.threads), options.images)
    right = ours.run(images[0])
    runners = {"engine": ours}
    for version in VERSIONS:
        for lanes in (None, 1):
            forward = Forward(topology, params, version, dtype, options.threads, lanes)
            label = version.name + ("" if lanes is None else " scalar")
            count = options.images if lanes is None else min(_SCALAR_IMAGES, options.images)
            error = float(np.abs(forward(images[0]) - right).max() / np.abs(right).max())
            if not error <= _TOLERANCE[dtype]:
                raise InputError(f"{label} in {dtype} differs from the engine by {error:.1e}")
            runners[label] = Runner(forward, count, error, forward)
    order = list(runners.values())
    for number in range(options.rounds):
        for runner in order[number:] + order[:number]:
            runner.round(images, options.patience)
    versions = []
    for version in VERSIONS:
        scalar = runners[f"{version.name} scalar"]
        described = {"name": version.name, "change": version.change}
        versions.append({**described, **runners[version.name].report(), "scalar_ms": scalar.ms})
    disturbed = sum(runner.disturbed for runner in order)
    return {
        "dtype": dtype,
        "image": size,
        "disturbed_rounds": disturbed,
        "versions": versions,
        "engine": ours.report(),
    }


def print_setting(setting: dict[str, Any]) -> None:
    """Print one setting's table."""
    keys = ("ms", "copies_ms", "kernels_ms", "host_ms", "scalar_ms")
    rows = [[v["name"], *(f"{v[key]:.2f}" for key in keys)] for v in setting["versions"]]
    rows.append(["engine", f"{setting['engine']['ms']:.2f}", *[""] * 4])
    heads = ["", "ms", "copies", "kernels", "host", "scalar"]
    print_table(heads, rows, title=f"{setting['dtype']}, {setting['image']} x {setting['image']}")


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=positive, default=10, metavar="N", help="default 10")
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="default 3")
    parser.add_argument("--threads", type=positive, default=2, metavar="N", help="default 2")
    parser.add_argument("--quick", action="store_true", help="two images, one round")
    parser.add_argument("--wait", type=float, default=60.0, metavar="S", help="for a quiet machine")
    parser.add_argument("--page", action="store_true", help="write the page of earlier results")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON to this file")
    options = parser.parse_args()
    if options.page:
        rewrite_pages(NAME, page)
        return 0
    if options.quick:
        options.images, options.rounds, options.wait = 2, 1, 0.0
    elif options.out is None:
        options.out = results_file(NAME)
    options.patience = Patience(options.threads)
    busy = machine.wait_until_quiet(patience_s=options.wait)
    document: Document = {
        "machine": machine.describe().to_json(),
        "busy_cpus_before": round(busy, 2),
        "effort": effort(options, "threads", "rounds", "images"),
        "settings": [],
    }
    with progress("measuring") as shown:
        for dtype, size in SETTINGS:
            shown.say(f"measuring {dtype} at {size}")
            document["settings"].append(measure(dtype, size, options))
            if not options.json:
                print_setting(document["settings"][-1])
    write_results(document, options.out, page)
    if options.json:
        print_json(document)
    return 0


if __name__ == "__main__":
    script(main)
