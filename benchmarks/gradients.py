"""Gradients of convolutions, dw and dx, against torch's `convolution_backward`.

    TORCH_PYTHON benchmarks/gradients.py --record gradients      all groups, one thread
    TORCH_PYTHON benchmarks/gradients.py "dw 3x3" resnet         these groups alone (`--list`)
    TORCH_PYTHON benchmarks/gradients.py --threads 2             by the clock on the wall
    TORCH_PYTHON benchmarks/gradients.py --methods direct,winograd:m=4 "dw 3x3"
                                             these methods of dw alone, in every layout

The Python is one that has torch, NumPy and llvmlite. torch gets contiguous tensors and, in another
process, channels last; leanconv's plans get the same two, as NCHW and NHWC. All are measured in
turns, by the CPU time of the thread where there is one, so that other work on the machine matters
little. Everybody makes its results anew in each run, and leanconv is given its weights anew: it
packs them in each run. Errors are against float64, over the largest number.

A ratio is the time of torch's faster layout over leanconv's faster layout in the same round; what
is printed is the median of rounds. In the table a group's number is the geometric mean, of a step
the ratio of the sums. Exit code 3: a group or a case is below what it must reach.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gradient_cases import DW, GROUPS, Case, Group
from gradient_engines import (
    BLOCKS,
    NCHW,
    NHWC,
    exact,
    leanconv_engine,
    method_engine,
    torch_engine,
)
from harness import Patience, Peers, Run, add_record_option, effort, script, write_results
from leanconv.algorithms import WEIGHT_GRADIENTS
from leanconv.cli import EXIT_NOT_MET
from leanconv.cli.engines import machine
from leanconv.cli.options import positive
from leanconv.errors import InputError
from pages.gradients import page

Document = dict[str, Any]
Prepare = Callable[[Case], tuple[Run, str]]
THEIRS = ("torch", "torch nhwc")
OURS = ("leanconv", "leanconv nhwc")


def engines(threads: int, methods: Sequence[str]) -> dict[str, Prepare]:
    """Who takes part, by name.

    Args:
        threads: of each.
        methods: of dw that run alone; plans do where there are none.
    """
    found: dict[str, Prepare] = {
        name: partial(torch_engine, layout=layout, threads=threads)
        for name, layout in zip(THEIRS, (NCHW, NHWC), strict=True)
    }
    if not methods:
        for name, layout in zip(OURS, (NCHW, NHWC), strict=True):
            found[name] = partial(leanconv_engine, layout=layout, threads=threads)
    for method in methods:
        for layout in (NCHW, NHWC, BLOCKS):
            made = partial(method_engine, method=method, layout=layout, threads=threads)
            found[f"{method} {layout}"] = made
    return found


class Bench:
    """Processes of engines, and how long each is measured."""

    def __init__(self, options: argparse.Namespace, methods: Sequence[str]) -> None:
        self._engines = engines(options.threads, methods)
        clock = time.thread_time if options.threads == 1 else time.perf_counter
        self._peers = Peers(self._engines, clock)
        self._patience = Patience(options.threads)
        self._options = options

    def stop(self) -> None:
        """End the processes."""
        self._peers.stop()

    def measure(self, case: Case) -> Document:
        """One row: milliseconds by engine, the ratio, errors, what each said or why it refused."""
        sums = exact(case)
        row: Document = {
            "name": case.name,
            "layer": case.layer,
            "problem": case.problem,
            "batch": case.batch,
            "what": case.what,
            "count": case.count,
            "gflop": case.spec.flops / 1e9,
            "said": {},
            "refused": {},
            "errors": {},
        }
        for name in self._engines:
            try:
                row["said"][name], found = self._peers.prepare(name, case)
            except InputError as error:
                row["refused"][name] = str(error)
                continue
            row["errors"][name] = float(np.abs(found - sums).max() / np.abs(sums).max())
        rounds, seconds = self._options.rounds, self._options.seconds
        take = partial(self._peers.times, row["said"], rounds, seconds)
        if self._options.threads == 1:
            times = take()
        else:
            times, row["alone"] = self._patience.undisturbed(take)
        row["ms"] = {name: 1e3 * min(of) for name, of in times.items()}
        row["ratios"] = ratios(times)
        row["ratio"] = statistics.median(row["ratios"]) if row["ratios"] else None
        return row


def ratios(times: Mapping[str, Sequence[float]]) -> list[float]:
    """By round, the faster torch's time over the fastest other engine's."""
    theirs = [times[name] for name in THEIRS if name in times]
    ours = [of for name, of in times.items() if name not in THEIRS]
    if not (theirs and ours):
        return []
    pairs = zip(zip(*theirs, strict=True), zip(*ours, strict=True), strict=True)
    return [min(torch) / min(own) for torch, own in pairs]


def summary(group: Group, rows: Sequence[Document]) -> Document:
    """The number of a group, its least case, and what it does not reach."""
    known = [row for row in rows if row["ratio"]]
    found: Document = {"title": group.title, "must": group.mean, "must_least": group.least}
    found["cases"], found["refused"] = len(rows), len(rows) - len(known)
    if not known:
        return {**found, "ratio": None, "least": None, "least_case": "", "reached": False}
    if group.summed:
        found["ratio"] = total(known, THEIRS) / total(known, OURS)
    else:
        found["ratio"] = statistics.geometric_mean(row["ratio"] for row in known)
    least = min(known, key=lambda row: row["ratio"])
    found |= {"least": least["ratio"], "least_case": least["name"]}
    kept = found["ratio"] >= group.mean and found["least"] >= group.least
    return {**found, "reached": kept and not found["refused"]}


def total(rows: Iterable[Document], engines: Sequence[str]) -> float:
    """Milliseconds of a step: each case as often as it occurs, by the faster of some engines."""
    return sum((row["count"] * fastest(row, engines) for row in rows), 0.0)


def fastest(row: Document, engines: Sequence[str]) -> float:
    """Milliseconds of the fastest of these that did not refuse."""
    times = [row["ms"][name] for name in engines if name in row["ms"]]
    return float(min(times or [ms for name, ms in row["ms"].items() if name not in THEIRS]))


def line(row: Document) -> str:
    """A row for people."""
    times = "  ".join(f"{name} {ms:.3f}" for name, ms in row["ms"].items())
    worst = max((e for n, e in row["errors"].items() if n not in THEIRS), default=0.0)
    torch = max((e for n, e in row["errors"].items() if n in THEIRS), default=0.0)
    ratio = f"{row['ratio']:5.2f}" if row["ratio"] else "    -"
    text = f"{ratio}  {row['name']:34} {times}  error {worst:.1e} (torch {torch:.1e})"
    for name, why in row["refused"].items():
        text += f"\n         {name}: {why[:160]}"
    return text


def chosen(names: Sequence[str], layers: Sequence[str], dw_alone: bool) -> dict[str, Group]:
    """The groups of these names, of their cases those of layers whose name has one of the parts.

    Raises:
        InputError: a name is none of them, or no case is left.
    """
    unknown = sorted(set(names) - GROUPS.keys())
    if unknown:
        raise InputError(f"groups {unknown} are not known; expected {', '.join(GROUPS)}")
    found = {}
    for name in names or GROUPS:
        cases = tuple(
            case
            for case in GROUPS[name].cases
            if not layers or any(part in case.layer for part in layers)
            if not dw_alone or case.what == DW
        )
        if cases:
            found[name] = replace(GROUPS[name], cases=cases)
    if not found:
        raise InputError(f"no case's layer has {' or '.join(layers)}")
    return found


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="names; see --list")
    parser.add_argument("--list", action="store_true", help="name the groups and their cases")
    parser.add_argument("--layer", action="append", default=[], metavar="PART", help="of names")
    parser.add_argument("--methods", metavar="A,B:p=1", help="of dw, alone; all: every one")
    parser.add_argument("--threads", type=positive, default=1, metavar="N")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a turn")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON to this file")
    add_record_option(parser)
    options = parser.parse_args()
    methods = (options.methods or "").split(",") if options.methods else []
    if methods == ["all"]:
        methods = [name for name in WEIGHT_GRADIENTS if name != "naive"]
    groups = chosen(options.groups, options.layer, bool(methods))
    if options.list:
        for name, group in groups.items():
            print(f"{name}: {group.title}", *(case.name for case in group.cases), sep="\n    ")
        return 0
    document: Document = {"machine": machine.describe().to_json(), "effort": effort(options)}
    document["busy_cpus_before"] = round(machine.busy_cpus(), 2)
    document |= {"methods": methods, "rows": [], "groups": {}}
    bench, known = Bench(options, methods), dict[str, Document]()
    for name, group in groups.items():
        print(group.title, flush=True)
        for case in group.cases:
            if case.name not in known or case.count > 1:
                known[case.name] = bench.measure(case)
                print(line(known[case.name]), flush=True)
        rows = [known[case.name] for case in group.cases]
        document["groups"][name] = {**summary(group, rows), "rows": [row["name"] for row in rows]}
        print(verdict(document["groups"][name]), flush=True)
        document["rows"] = list(known.values())
        write_results(document, options.out, page)  # of all groups up to this one
    bench.stop()
    return 0 if all(found["reached"] for found in document["groups"].values()) else EXIT_NOT_MET


def verdict(found: Document) -> str:
    """A group for people."""
    if found["ratio"] is None:
        return f"  {found['title']}: nothing could be measured"
    asked = f", must {found['must']:g}" if found["must"] else ""
    least = f", must {found['must_least']:g}" if found["must_least"] else ""
    return (
        f"  {found['title']}: {found['ratio']:.2f} times torch{asked}; least "
        f"{found['least']:.2f} ({found['least_case']}{least}); {found['refused']} refused"
    )


if __name__ == "__main__":
    script(main)
