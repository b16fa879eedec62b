"""Latency while another process takes one CPU, against the latency on a quiet machine.

    python benchmarks/contention.py --record contention
    python benchmarks/contention.py resnet50 --beside memory --record contention_memory

For each engine, in turn: quiet, disturbed, quiet, disturbed … in one process of the engine. The
number that counts is disturbed over quiet; `--limit` (2.5) is leanconv's. The other process spins,
or adds up a large array again and again (`--beside memory`), so that it also takes its share of
the L3 cache and of DRAM.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from harness import ALL_ENGINES, add_record_option, effort, model_file, script
from leanconv.cli.bench import add_measure_options, find_engines
from leanconv.cli.engines import machine
from leanconv.cli.engines.processes import EngineError, EngineProcess, Installed
from leanconv.cli.engines.rounds import OURS
from leanconv.cli.options import positive
from leanconv.cli.output import print_json, print_table, progress
from leanconv.units import format_ns

_BESIDE = {"spin": "pass", "memory": "array.sum()"}
_BUSY = """
import os, sys
import numpy as np
array = np.ones(2**{bits} if {body!r} != "pass" else 1)
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {{int(sys.argv[1])}})
print(flush=True)
while True:
    {body}
"""
_BITS = 25  # of the number of doubles of the array: 256 MiB, more than an L3 cache


@contextmanager
def busy(cpu: int, beside: str) -> Iterator[None]:
    """Keep one CPU busy with another process, of a kind of `_BESIDE`."""
    code = _BUSY.format(body=_BESIDE[beside], bits=_BITS)
    process = subprocess.Popen([sys.executable, "-c", code, str(cpu)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def last_cpu() -> int:
    """The highest number among the CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(os.sched_getaffinity(0))
    return (os.cpu_count() or 1) - 1


def disturb(
    installed: Installed, request: dict[str, Any], rounds: int, seconds: float, beside: str
) -> dict[str, Any]:
    """Measure one engine quiet and disturbed; returns medians, 99th percentiles and the ratio."""
    run = {"do": "run", "seconds": seconds, "warmup_seconds": 0.3, "least": 5}
    quiet: list[int] = []
    disturbed: list[int] = []
    ratios = []
    with EngineProcess(installed) as process:
        version = process.ask(request)["version"]
        for _ in range(rounds):
            calm = process.ask(run)["ns"]
            with busy(last_cpu(), beside):
                rough = process.ask(run)["ns"]
            quiet += calm
            disturbed += rough
            ratios.append(statistics.median(rough) / statistics.median(calm))
    return {
        "version": version,
        "quiet_median_ns": statistics.median(quiet),
        "quiet_p99_ns": float(np.percentile(quiet, 99)),
        "disturbed_median_ns": statistics.median(disturbed),
        "disturbed_mean_ns": statistics.fmean(disturbed),
        "disturbed_p99_ns": float(np.percentile(disturbed, 99)),
        "ratio": statistics.median(ratios),
    }


def measure(installed: Sequence[Installed], options: argparse.Namespace) -> dict[str, Any]:
    """Measure every engine; a failure is an entry of its own."""
    x = np.random.default_rng(0).standard_normal((options.batch, 3, 224, 224), dtype=np.float32)
    model = model_file(options.network)
    engines: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory(prefix="leanconv-contention-") as folder,
        progress("measuring") as shown,
    ):
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, input=x)
        request = {
            "do": "load",
            "model": str(model),
            "inputs": str(inputs),
            "threads": options.threads,
        }
        for one in installed:
            shown.say(f"{one.engine.name}: quiet and disturbed")
            try:
                engines[one.engine.name] = disturb(
                    one, request, options.rounds, options.seconds, options.beside
                )
            except EngineError as error:
                engines[one.engine.name] = {"error": str(error)}
    return engines


def main() -> int:
    """Measure what the command line asks for; 3 if leanconv's ratio is above the limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", nargs="?", default="mobilenetv2")
    parser.add_argument("--batch", type=positive, default=1)
    parser.add_argument("--beside", choices=_BESIDE, default="spin", help="what the other one does")
    parser.add_argument("--limit", type=float, default=2.5, help="of leanconv's ratio")
    add_measure_options(parser, threads=2)
    add_record_option(parser)
    parser.set_defaults(rounds=5, seconds=2.0)
    options = parser.parse_args()
    installed, missing = find_engines(options, ALL_ENGINES)
    busy = machine.wait_until_quiet(patience_s=options.wait)
    facts = machine.describe().to_json()
    document = {
        "machine": facts,
        "busy_cpus_before": round(busy, 2),
        "network": options.network,
        "batch": options.batch,
        "beside": options.beside,
        "effort": effort(options),
        "missing": missing,
        "engines": measure(installed, options),
    }
    if options.out is not None:
        options.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if options.json:
        print_json(document)
    else:
        show(document)
    ours = document["engines"].get(OURS, {"error": "leanconv was not measured"})
    return 0 if ours.get("ratio", float("inf")) <= options.limit else 3


def show(document: dict[str, Any]) -> None:
    """Print the table."""
    rows = []
    for name, engine in document["engines"].items():
        if "error" in engine:
            print(engine["error"])
            continue
        times = ("quiet_median_ns", "disturbed_median_ns", "disturbed_mean_ns", "disturbed_p99_ns")
        rows.append([name, *[format_ns(engine[key]) for key in times], f"{engine['ratio']:.2f}"])
    network = f"{document['network']} batch {document['batch']}"
    print_table(
        ["", "quiet median", "disturbed median", "mean", "99 %", "disturbed/quiet"],
        rows,
        title=f"{network}, one CPU taken by another process ({document['beside']})",
    )
    rough = {n: e.get("disturbed_median_ns") for n, e in document["engines"].items()}
    ours, others = rough.pop(OURS, None), [ns for ns in rough.values() if ns]
    if ours and others:
        print(f"disturbed, best other/ours: {min(others) / ours:.2f}")
    for name, reason in document["missing"].items():
        print(f"{name}: {reason}")


if __name__ == "__main__":
    script(main)
