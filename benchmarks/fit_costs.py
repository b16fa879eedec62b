"""Fit a processor's record of costs to layers that were timed on it, by least squares.

    python benchmarks/fit_costs.py --measure        times layers, writes benchmarks/costs/CPU.csv
    python benchmarks/fit_costs.py                  fits the record in use to that file
    python benchmarks/fit_costs.py --fields store accumulator --data other.csv

A row of the file is a convolution, an algorithm, and nanoseconds of one core. An estimate is a sum
of numbers of the record times amounts of work, nearly: in each of a few rounds it is made linear in
factors of the chosen fields, and the factors that make the relative errors least are found, none
of them below zero (some minutes). A field that the rows hardly tell stays as it is. Printed are the
fields before and after, and what is left: estimate over measurement, by algorithm. Put the numbers
into `target/records` with this command as their source.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import leanconv as lc
from harness import HERE, script
from layer_shapes import SHAPES
from leanconv.algorithms.parameters import Choice
from leanconv.algorithms.select import choice_named, estimated_cycles
from leanconv.api.conv_choice import conv_problem
from leanconv.cli.output import print_table, progress
from leanconv.codegen.host import host
from leanconv.errors import InputError, SpecError
from leanconv.reference.layers import LAYERS
from leanconv.spec import ConvSpec
from leanconv.target import Target
from leanconv.target.costs import Costs, unit_of

FIELDS = (
    *("accumulator", "tile", "store", "vector_move", "transposed_store", "transposed_vector"),
    *("shuffle", "row_jump", "plane_return", "strided_line", "prefetched_line", "element_move"),
    *("winograd_input", "winograd_output", "winograd_gather", "winograd_row", "winograd_far"),
    *("l2_read_beside_fma", "l3_read", "dram_read", "copy"),
)
ALGORITHMS = ("direct", "planar", "depthwise", "winograd", "fft")
_RATE = "bytes a cycle"
_EVERY = 8  # of the layers of networks
_STEP = 0.05  # of a factor, by which estimates are made linear
_ROUNDS = 3
_KEPT = 0.02  # weight of a factor of 1 beside the rows: what they do not tell stays
_MOST = 2.0  # a factor of one round, up or down
_SECONDS = 0.2  # of one timing


@dataclass(frozen=True)
class Row:
    """A convolution that was timed: its problem string, an algorithm, nanoseconds of one core."""

    problem: str
    algorithm: str
    ns: float


def read(path: Path) -> list[Row]:
    """The rows of a file.

    Raises:
        InputError: there is no such file, or it is none of these.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = [
                Row(r["problem"], r["algorithm"], float(r["ns"])) for r in csv.DictReader(lines)
            ]
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"{path}: got {error!r}; expected rows of --measure") from error
    if not rows or not all(row.ns > 0 for row in rows):
        raise InputError(f"{path}: got no rows, or times of 0; expected those of --measure")
    return rows


def write(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows of a file."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as lines:
        out = csv.writer(lines)
        out.writerow(("problem", "algorithm", "ns"))
        out.writerows((row.problem, row.algorithm, round(row.ns)) for row in rows)


def measure() -> list[Row]:
    """Time layers of the MEC paper and of networks, by each algorithm that takes them."""
    texts = [*LAYERS.values(), *(str(shape.spec(1)) for shape in SHAPES[::_EVERY])]
    rows = []
    with progress("timing layers") as shown:
        for text in dict.fromkeys(texts):
            shown.say(text)
            for algorithm in ALGORITHMS:
                ns = _timed(ConvSpec.parse(text), algorithm)
                rows += [Row(text, algorithm, ns)] if ns else []
    return rows


def _timed(spec: ConvSpec, algorithm: str) -> float:
    """The least nanoseconds of a run on one thread; 0 where the algorithm refuses it."""
    random = np.random.default_rng(1)
    x, w = (random.standard_normal(s, np.float32) for s in (spec.input_shape, spec.weight_shape))
    padding = spec.pad_begin + spec.pad_end
    steps = spec.stride, padding, spec.dilation, spec.groups
    try:
        plan = lc.plan_conv2d(x.shape, w, None, *steps, algorithm=algorithm, threads=1)
    except SpecError:
        return 0.0
    out, times = plan(x), list[int]()
    end = time.perf_counter() + _SECONDS
    while time.perf_counter() < end or len(times) < 3:
        begin = time.thread_time_ns()
        plan(x, out=out)
        times.append(time.thread_time_ns() - begin)
    return float(min(times))


# -- the fit ------------------------------------------------------------------------------------
def scaled(costs: Costs, factors: dict[str, float]) -> Costs:
    """A record whose cycles are multiplied by factors, and whose rates are divided by them."""
    changed = {}
    for name, factor in factors.items():
        value = getattr(costs, name)
        changed[name] = value / factor if unit_of(name) == _RATE else value * factor
    return replace(costs, **changed)


def estimates(rows: Sequence[Row], target: Target) -> np.ndarray:
    """Nanoseconds by a target's record, float64 of shape (rows,)."""
    found = []
    for row in rows:
        choice: Choice = choice_named(row.algorithm)
        cycles = estimated_cycles(choice, conv_problem(ConvSpec.parse(row.problem), None), target)
        found.append(cycles / target.costs.ghz)
    return np.array(found)


def least_squares(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The x of no element below 0 that makes |a x - b| least, one element after the other."""
    gram, right = a.T @ a, a.T @ b
    x = np.ones(a.shape[1])
    for _ in range(2000):
        before = x.copy()
        for j in range(len(x)):
            rest = right[j] - gram[j] @ x + gram[j, j] * x[j]
            x[j] = max(0.0, rest / gram[j, j]) if gram[j, j] else x[j]
        if np.abs(x - before).max() < 1e-9:
            break
    return x


def fitted(rows: Sequence[Row], target: Target, names: Sequence[str]) -> Target:
    """A target whose record has the fields fitted."""
    measured = np.array([row.ns for row in rows])
    names = [name for name in names if getattr(target.costs, name)]
    for _ in range(_ROUNDS):
        now = estimates(rows, target)
        slopes = [_slope(rows, target, name, now) for name in names]
        columns = np.stack(slopes, axis=1) / measured[:, None]
        rest = 1 - now / measured + columns.sum(axis=1)
        weight = _KEPT * np.sqrt(len(rows) / len(names)) * np.eye(len(names))
        a, b = np.concatenate([columns, weight]), np.concatenate([rest, weight.sum(axis=1)])
        factors = np.clip(least_squares(a, b), 1 / _MOST, _MOST)
        changed = dict(zip(names, factors.tolist(), strict=True))
        target = replace(target, costs=scaled(target.costs, changed))
    return target


def _slope(rows: Sequence[Row], target: Target, name: str, now: np.ndarray) -> np.ndarray:
    """How estimates, which are `now`, grow with the factor of a field."""
    more = replace(target, costs=scaled(target.costs, {name: 1 + _STEP}))
    return np.asarray((estimates(rows, more) - now) / _STEP)


def residuals(rows: Sequence[Row], target: Target) -> list[tuple[str, ...]]:
    """By algorithm and of all: rows, geometric mean of estimate over measurement, its spread."""
    ratios = np.log(estimates(rows, target) / np.array([row.ns for row in rows]))
    names = np.array([row.algorithm for row in rows])
    found: list[tuple[str, ...]] = []
    for name in (*dict.fromkeys(names.tolist()), "all"):
        own = ratios if name == "all" else ratios[names == name]
        low, high = np.exp(own.min()), np.exp(own.max())
        mean, spread = np.exp(own.mean()), np.sqrt((own**2).mean())
        numbers = (f"{mean:.2f}", f"{spread:.1%}", f"{low:.2f} to {high:.2f}")
        found.append((name, str(len(own)), *numbers))
    return found


def show(rows: Sequence[Row], old: Target, new: Target, names: Sequence[str]) -> None:
    """Print the fields and what is left."""
    fields = [
        (name, f"{getattr(old.costs, name):g}", f"{getattr(new.costs, name):.3g}", unit_of(name))
        for name in names
    ]
    print_table(["field", "record", "fitted", "unit"], fields, title=f"record {old.costs.cpu}")
    columns = ["algorithm", "rows", "estimate / measured", "root mean square", "range"]
    for title, target in (("record", old), ("fitted", new)):
        print_table(columns, residuals(rows, target), title=title)


def main() -> int:
    """Measure, or fit and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    path = HERE / "costs" / f"{host().costs.cpu}.csv"
    parser.add_argument("--measure", action="store_true", help="time layers and write the file")
    parser.add_argument("--data", type=Path, default=path, help=f"the file (default {path.name})")
    parser.add_argument("--fields", nargs="+", choices=FIELDS, default=FIELDS, help="to be fitted")
    options = parser.parse_args()
    if options.measure:
        write(options.data, measure())
    rows = read(options.data)
    show(rows, host(), fitted(rows, host(), options.fields), options.fields)
    return 0


if __name__ == "__main__":
    script(main)
