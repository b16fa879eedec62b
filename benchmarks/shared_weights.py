"""Packed weights in a file: how much memory processes of one network take together.

    python benchmarks/shared_weights.py --record shared_weights
    python benchmarks/shared_weights.py vgg16 --processes 4

Each process loads the network and answers one image; when all have, each says what the system
counts for it (`/proc/self/smaps_rollup`): a page that several processes map counts for each by its
share (PSS), so that the sum is what all of them take. First with weights of their own, then in a
file that is not there yet (all start at once, one packs), then in the file. Load is all up to the
first answer, packing included; a run is the median of one process's while the others rest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import ROOT, add_record_option, effort, model_file, script
from leanconv.cli.engines import machine
from leanconv.cli.options import positive
from leanconv.cli.output import print_table, progress
from leanconv.errors import InputError
from leanconv.units import format_bytes, format_ns

_WORKER = """
import json, statistics, sys, time
import numpy as np
import leanconv

task = json.loads(sys.argv[1])

def held():
    with open("/proc/self/smaps_rollup") as file:
        rows = [line.split() for line in file if line.startswith(("Rss:", "Pss:", "Private_"))]
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows}

def run():
    start = time.perf_counter_ns()
    net(x)
    return time.perf_counter_ns() - start

empty = held()
start = time.perf_counter_ns()
net = leanconv.load(task["model"], threads=task["threads"], shared_weights=task["folder"] or False)
x = np.random.default_rng(0).standard_normal([e if isinstance(e, int) else 1
    for e in net.inputs[0].shape]).astype(np.float32)
run()
loaded = time.perf_counter_ns() - start
print(json.dumps({"load_ns": loaded, "weight_bytes": net.plan.weight_bytes,
                  "memory_bytes": net.plan.memory_bytes}), flush=True)
for line in sys.stdin:
    if "run" in line:
        print(json.dumps(statistics.median(run() for _ in range(task["runs"]))), flush=True)
    else:
        print(json.dumps({"empty": empty, "held": held()}), flush=True)
"""


def measure(model: Path, folder: Path | None, options: argparse.Namespace) -> dict[str, Any]:
    """Start all processes at once and return what they hold and how long they took."""
    task = {
        "model": str(model),
        "folder": None if folder is None else str(folder),
        "threads": options.threads,
        "runs": options.runs,
    }
    command = [sys.executable, "-c", _WORKER, json.dumps(task)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with contextlib.ExitStack() as started:
        workers = [
            started.enter_context(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(options.processes)
        ]
        for worker in workers:
            started.callback(worker.kill)
        loads = [_said(worker) for worker in workers]
        times = [_asked(worker, "run") for worker in workers[:1]]
        held = [_asked(worker, "held") for worker in workers]
    return {
        "weight_bytes": loads[0]["weight_bytes"],
        "memory_bytes": loads[0]["memory_bytes"],
        "load_ns": statistics.median(each["load_ns"] for each in loads),
        "run_ns": times[0],
        "pss_bytes": sum(each["held"]["Pss"] for each in held),
        "rss_bytes": statistics.median(each["held"]["Rss"] for each in held),
        "without_network_bytes": sum(each["empty"]["Pss"] for each in held),
    }


def _said(worker: subprocess.Popen[str]) -> Any:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise InputError(f"a process has ended with exit code {worker.wait()}")
    return json.loads(line)


def _asked(worker: subprocess.Popen[str], what: str) -> Any:
    assert worker.stdin is not None
    print(what, file=worker.stdin, flush=True)
    return _said(worker)


def main() -> int:
    """Measure; 3 if all processes together hold the weights more than once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", nargs="?", default="resnet50")
    parser.add_argument("--processes", type=positive, default=8, metavar="N")
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="of each")
    parser.add_argument("--runs", type=positive, default=20, metavar="N", help="that are timed")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result as JSON")
    add_record_option(parser)
    options = parser.parse_args()
    if sys.platform != "linux":
        raise InputError("what processes share is read from /proc: expected Linux")
    model, results = model_file(options.network), {}
    with progress("measuring") as shown, tempfile.TemporaryDirectory(prefix="leanconv-") as folder:
        where = Path(folder) / "weights"
        for name, given in {"compiling": None, "each its own": None, "first": where}.items():
            shown.say(name)
            results[name] = measure(model, given, options)
        shown.say("from the file")
        results["from the file"] = measure(model, where, options)
        files = [file.stat().st_size for file in where.glob("*.weights")]
    del results["compiling"]  # which fills the cache of compiled code
    document = {
        "machine": machine.describe().to_json(),
        "network": options.network,
        "effort": effort(options, "threads", "processes", "runs"),
        "file_bytes": files,
        "results": results,
    }
    if options.out is not None:
        options.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print_table(
        ["weights", "PSS of all", "RSS of one", "load and first run", "run"],
        [
            [
                name,
                *[format_bytes(int(each[key])) for key in ("pss_bytes", "rss_bytes")],
                *[format_ns(each[key]) for key in ("load_ns", "run_ns")],
            ]
            for name, each in results.items()
        ],
        title=f"{options.network}, {options.processes} processes, weights of "
        f"{format_bytes(results['first']['weight_bytes'])}",
    )
    own, shared = (results[name]["pss_bytes"] for name in ("each its own", "from the file"))
    saved = (options.processes - 1) * results["first"]["weight_bytes"]
    return 0 if len(files) == 1 and own - shared >= 0.95 * saved else 3


if __name__ == "__main__":
    script(main)
