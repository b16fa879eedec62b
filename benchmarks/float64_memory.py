"""cv1 to cv12 in float64 within a tenth of PyTorch's memory.

    python benchmarks/float64_memory.py --python TORCH_PYTHON --record float64_memory

For each layer PyTorch first, in a process of its own: how far `conv2d` makes its resident memory
grow beyond x, w and y at the most, and how long it takes. Then leanconv, whose plan may hold the
weights given (it keeps them packed) and a share of that growth: `plan.used_bytes`, as its runtime
counts them. The interpreter, libraries and compiled code are nobody's. Two threads; times are least
and median of the runs of all rounds, in which the two take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import ROOT, add_record_option, effort, script
from layers import paper_specs
from leanconv.cli.engines import machine
from leanconv.cli.engines.processes import absent_modules, interpreters
from leanconv.cli.options import positive
from leanconv.cli.output import print_table, progress
from leanconv.errors import InputError
from leanconv.spec import ConvSpec
from leanconv.types import FLOAT64
from leanconv.units import format_bytes, format_ns

_HEAD = """
import json, sys, time
import numpy as np
task = json.loads(sys.argv[1])
random = np.random.default_rng(0)
x, w = (random.standard_normal(task[name]) for name in ("x", "w"))

def times_of(call):
    call(), call()
    times, end = [], time.perf_counter() + task["seconds"]
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return times
"""
_TORCH = """
import torch
torch.set_num_threads(task["threads"])
torch.set_grad_enabled(False)

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

conv = torch.nn.functional.conv2d
conv(torch.zeros(1, 8, 16, 16).double(), torch.zeros(8, 8, 3, 3).double())  # threads, libraries
x, w = torch.from_numpy(x), torch.from_numpy(w)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak so far is forgotten
before = peak()
call = lambda: conv(x, w, stride=task["stride"], padding=task["padding"])
y_bytes = call().numel() * 8
call(), call()
grown = peak() - before - y_bytes
print(json.dumps({"bytes": grown, "times_ns": times_of(call)}))
"""
_OURS = """
import leanconv
plan = leanconv.plan_conv2d(
    x.shape, w, stride=task["stride"], padding=task["padding"], threads=task["threads"],
    memory_limit=task["limit"],
)
y = np.empty(plan.spec.output_shape)
times = times_of(lambda: plan(x, out=y))
print(json.dumps({
    "bytes": plan.used_bytes - w.nbytes, "times_ns": times, "algorithm": plan.algorithm,
    "parameters": plan.parameters,
}))
"""


def run(python: str, body: str, task: dict[str, Any]) -> dict[str, Any]:
    """Run a worker; returns what it printed.

    Raises:
        InputError: it failed.
    """
    done = subprocess.run(
        [python, "-c", _HEAD + body, json.dumps(task)],
        env={"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise InputError(f"{python} failed: {(done.stderr.splitlines() or ['no message'])[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(name: str, spec: ConvSpec, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one layer, the two in turn."""
    task = {
        "x": spec.input_shape,
        "w": spec.weight_shape,
        "stride": spec.stride,
        "padding": spec.pad_begin,
        "threads": options.threads,
        "seconds": options.seconds,
    }
    found: dict[str, dict[str, Any]] = {}
    times: dict[str, list[int]] = {"torch": [], "leanconv": []}
    for _ in range(options.rounds):
        torch = run(options.python, _TORCH, task)
        found.setdefault("torch", torch)
        room = int(found["torch"]["bytes"] * options.share)
        ours = run(sys.executable, _OURS, task | {"limit": spec.weight_bytes + room})
        found["leanconv"] = ours
        times["torch"] += torch["times_ns"]
        times["leanconv"] += ours["times_ns"]
    for engine, taken in times.items():
        del found[engine]["times_ns"]
        found[engine] |= {"least_ns": min(taken), "median_ns": statistics.median(taken)}
    ratios = {
        key: found["torch"][f"{key}_ns"] / found["leanconv"][f"{key}_ns"]
        for key in ("least", "median")
    }
    return {"name": name, "weight_bytes": spec.weight_bytes, "engines": found, "ratios": ratios}


def main() -> int:
    """Measure what the command line asks for; 3 below the goal."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("layers", nargs="*", metavar="LAYER", help="cv1 …")
    parser.add_argument("--python", metavar="FILE", help="interpreter with torch")
    parser.add_argument("--share", type=float, default=0.1, metavar="X", help="of torch's memory")
    parser.add_argument("--threads", type=positive, default=2, metavar="N")
    parser.add_argument("--rounds", type=positive, default=3, metavar="N")
    parser.add_argument("--seconds", type=float, default=0.5, metavar="S", help="of each turn")
    parser.add_argument("--goal", type=float, default=3.0, metavar="X", help="mean ratio (exit 3)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write JSON to a file")
    add_record_option(parser)
    options = parser.parse_args()
    options.python = interpreters(options.python)[-1]
    if absent_modules(options.python, ["numpy", "torch"]):
        raise InputError(
            f"torch is not installed in {options.python}; expected it there, or --python with the "
            "path of another interpreter that has it"
        )
    cases = []
    with progress("measuring") as shown:
        for name, spec in paper_specs(options.layers, 1, FLOAT64).items():
            shown.say(name)
            machine.wait_for_cores(options.threads, 2.0)
            cases.append(measure(name, spec, options))
    summary = {
        key: statistics.geometric_mean(case["ratios"][key] for case in cases)
        for key in ("least", "median")
    }
    document = {
        "machine": machine.describe().to_json(),
        "share": options.share,
        "effort": effort(options),
        "cases": cases,
        "summary": summary,
    }
    if options.out is not None:
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    rows = []
    for case in cases:
        torch, ours = case["engines"]["torch"], case["engines"]["leanconv"]
        rows.append(
            [
                case["name"],
                format_bytes(torch["bytes"]),
                format_ns(torch["median_ns"]),
                format_bytes(max(0, ours["bytes"])),
                format_ns(ours["median_ns"]),
                f"{case['ratios']['median']:.2f} ({case['ratios']['least']:.2f})",
                ours["algorithm"],
            ]
        )
    print_table(
        ["layer", "torch: beyond x, w, y", "median", "ours", "median", "ratio (least)", ""],
        rows,
        title=f"float64 within {options.share:.0%} of PyTorch's memory",
    )
    print(f"geometric mean {summary['median']:.2f}, of least times {summary['least']:.2f}")
    return 0 if summary["median"] >= options.goal else 3


if __name__ == "__main__":
    script(main)
