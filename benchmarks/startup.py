"""From an ONNX file to the first answer, with an empty and with a full cache of compiled code.

    python benchmarks/startup.py --record startup
    python benchmarks/startup.py mobilenetv2_int8    which benchmarks/quantised.py has made

Each measurement is a process of its own. leanconv plans and compiles when it knows the shapes, so
load and first run are counted together. Other engines are measured once each, for comparison;
what their own import takes is not counted for anybody. The peak of resident memory is that of the
whole process, Python, NumPy and the engine's import included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness import ALL_ENGINES, add_record_option, effort, model_file, script
from leanconv.cli.bench import add_measure_options, find_engines
from leanconv.cli.engines import machine
from leanconv.cli.engines.processes import EngineError, EngineProcess, Installed
from leanconv.cli.engines.rounds import OURS
from leanconv.cli.output import print_json, print_table, progress
from leanconv.units import format_bytes, format_ns


def start(installed: Installed, request: dict[str, Any], cache: Path | None) -> dict[str, int]:
    """Start an engine and return load and first run in nanoseconds, and its peak in bytes."""
    added = {"LEANCONV_CACHE_DIR": str(cache)} if cache else None
    with EngineProcess(installed, added) as process:
        reply = process.ask(request)
    return {key: reply[key] for key in ("load_ns", "first_ns", "peak_bytes")}


def medians(results: list[dict[str, int]]) -> dict[str, float]:
    """Return the median of each key and of the sum."""
    return {
        "load_ns": statistics.median(r["load_ns"] for r in results),
        "first_ns": statistics.median(r["first_ns"] for r in results),
        "peak_bytes": statistics.median(r["peak_bytes"] for r in results),
        "total_ns": statistics.median(r["load_ns"] + r["first_ns"] for r in results),
    }


def measure(
    installed: Sequence[Installed], options: argparse.Namespace, folder: Path
) -> dict[str, dict[str, float]]:
    """Measure every engine; returns its medians under a label."""
    inputs = folder / "inputs.npz"
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224), dtype=np.float32)
    np.savez(inputs, input=x)
    request = {
        "do": "load",
        "model": str(model_file(options.network)),
        "inputs": str(inputs),
        "threads": options.threads,
    }
    results: dict[str, dict[str, float]] = {}
    with progress("measuring") as shown:
        for one in installed:
            name = one.engine.name
            shown.say(f"{name} starts")
            try:
                if name != OURS:
                    times = [start(one, request, None) for _ in range(options.rounds)]
                    results[name] = medians(times)
                    continue
                caches = [folder / f"cache-{i}" for i in range(options.rounds)]
                results[f"{OURS}, empty cache"] = medians([start(one, request, c) for c in caches])
                results[f"{OURS}, full cache"] = medians([start(one, request, c) for c in caches])
            except EngineError as error:
                print(error)
    return results


def main() -> int:
    """Measure what the command line asks for; 3 if leanconv is slower than its limits."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", nargs="?", default="mobilenetv2")
    parser.add_argument("--empty-limit", type=float, default=1.5, metavar="S", help="seconds")
    parser.add_argument("--full-limit", type=float, default=0.2, metavar="S", help="seconds")
    add_measure_options(parser, threads=2)
    add_record_option(parser)
    options = parser.parse_args()
    installed, missing = find_engines(options, ALL_ENGINES)
    busy = machine.wait_until_quiet(patience_s=options.wait)
    with tempfile.TemporaryDirectory(prefix="leanconv-startup-") as folder:
        results = measure(installed, options, Path(folder))
    document = {
        "machine": machine.describe().to_json(),
        "busy_cpus_before": round(busy, 2),
        "network": options.network,
        "effort": effort(options, "threads", "rounds"),
        "missing": missing,
        "results": results,
    }
    if options.out is not None:
        options.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if options.json:
        print_json(document)
    else:
        print_table(
            ["", "load", "first run", "together", "peak memory"],
            [
                [
                    name,
                    *[format_ns(t[key]) for key in ("load_ns", "first_ns", "total_ns")],
                    format_bytes(int(t["peak_bytes"])),
                ]
                for name, t in results.items()
            ],
            title=f"{options.network}: from the file to the first answer",
        )
        for name, reason in missing.items():
            print(f"{name}: {reason}")
    limits = {"empty cache": options.empty_limit, "full cache": options.full_limit}
    kept = all(
        results.get(f"{OURS}, {label}", {}).get("total_ns", float("inf")) <= limit * 1e9
        for label, limit in limits.items()
    )
    return 0 if kept else 3


if __name__ == "__main__":
    script(main)
