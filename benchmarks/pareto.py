"""Time against memory: networks planned within limits, beside other engines on the same files.

    python benchmarks/pareto.py --python TORCH_PYTHON mobilenetv2 resnet50
    python benchmarks/pareto.py --python TORCH_PYTHON vgg16

Each network is planned for limits from the smallest that works to none, all plans are run in turn,
round by round, and so is every other engine, in a process of its own. The peak of resident memory
(`VmHWM`, Linux) is that of a fresh process over its bare imports: load, and three runs. Results of
the networks that are named replace those in docs/results/CPU/pareto.json; the page is written anew.
float32, batch 1, random weights; `error` is measured against the network in float64.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import leanconv as lc
from harness import (
    ALL_ENGINES,
    ROOT,
    Patience,
    effort,
    model_file,
    results_file,
    rewrite_pages,
    script,
    write_results,
)
from leanconv.cli.engines import machine
from leanconv.cli.engines.processes import EngineError, EngineProcess, Installed, find, interpreters
from leanconv.cli.options import positive, thread_count
from leanconv.cli.output import progress
from leanconv.errors import BudgetError, InputError
from leanconv.graph.onnx_import import read_model
from leanconv.planner.network_plan import NetworkPlan
from leanconv.types import FLOAT64
from pages.pareto import page

NETWORKS = ("mobilenetv2", "resnet50", "vgg16")
OTHERS = ("onnxruntime", "openvino", "torch")
SHARES = (0.0, 0.05, 0.15, 0.3, 0.5, 0.75)  # of the way from the least limit to none at all
BEYOND_BYTES = 8 * 2**20  # room beside the weights that is asked about
NAME = "pareto"
_TURN_S = 0.2

_PEAK = """
import importlib.util, json, sys
import numpy as np
file, paths, model, inputs, threads, limit = json.loads(sys.argv[1])
sys.path[0:0] = paths

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

with np.load(inputs) as archive:
    given = {name: archive[name] for name in archive.files}
if file:
    spec = importlib.util.spec_from_file_location("engine", file)
    engine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(engine)
    bare = peak()
    run, _ = engine.load(model, given, threads)
else:
    import leanconv
    bare = peak()
    network = leanconv.load(model, threads=threads, memory_limit=limit)
    run = lambda: network.run(given)
for _ in range(3):
    run()
print(json.dumps(peak() - bare))
"""


@dataclass
class Entrant:
    """What is measured: one of our plans, or another engine.

    Attributes:
        turn: runs for a while, and returns the nanoseconds of each run.
        facts: what is known of it beside its time.
        medians, least: of each turn.
    """

    turn: Callable[[], list[int]]
    facts: dict[str, Any]
    medians: list[float] = field(default_factory=list)
    least: list[int] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Everything, with the median and the tenth percentile of the turns' medians."""
        low = float(np.percentile(self.medians, 10))
        return {
            **self.facts,
            "median_ns": statistics.median(self.medians),
            "low_ns": low,
            "least_ns": min(self.least),
            "round_medians_ns": self.medians,
        }


def limits(least: int, most: int, held: int) -> list[tuple[str, int | None]]:
    """What the plans are to keep, by label.

    Args:
        least, most: bytes of the smallest plan, and of the one without a limit.
        held: bytes of the weights in the file.
    """
    found: list[tuple[str, int | None]] = []
    for share in SHARES:
        label = "least" if share == 0 else f"{share:.0%} of the way"
        found.append((label, least + int(share * (most - least))))
    return [*found, ("weights + 8 MiB", max(least, held + BEYOND_BYTES)), ("none", None)]


def smallest(file: Path, shape: Sequence[int], threads: int) -> int:
    """The smallest limit that works."""
    try:
        lc.load(str(file), memory_limit=1, threads=threads).bind(shape)
    except BudgetError as error:
        return error.smallest_bytes
    raise AssertionError("one byte was enough")


def our_plan(
    file: Path, label: str, limit: int | None, x: np.ndarray, exact: np.ndarray, threads: int
) -> Entrant:
    """Plan a network within a limit."""
    network = lc.load(str(file), memory_limit=limit, threads=threads)
    y = network(x)
    plan = network.plan
    assert isinstance(plan, NetworkPlan)
    assert network.used_bytes == plan.memory_bytes <= (limit or plan.memory_bytes)

    def turn() -> list[int]:
        network(x)
        return _timed(lambda: network(x))

    facts = {
        "label": label,
        "limit_bytes": limit,
        "arena_bytes": plan.arena_bytes,
        "weight_bytes": plan.weight_bytes,
        "predicted_ns": plan.predicted_ns,
        "predicted_error": plan.predicted_error,
        "error": float(np.abs(y - exact).max() / np.abs(exact).max()),
    }
    return Entrant(turn, facts)


def _timed(run: Callable[[], object]) -> list[int]:
    clock = time.perf_counter_ns
    found: list[int] = []
    end = clock() + int(_TURN_S * 1e9)
    while len(found) < 3 or clock() < end:
        begin = clock()
        run()
        found.append(clock() - begin)
    return found


def other_engine(process: EngineProcess, request: dict[str, Any]) -> Entrant:
    """Load a network in another engine's process."""
    version = process.ask({"do": "load", **request})["version"]
    asked = {"do": "run", "seconds": _TURN_S, "warmup_seconds": 0.02, "least": 3}
    return Entrant(lambda: list(process.ask(asked)["ns"]), {"version": version})


def peak_bytes(installed: Installed | None, request: dict[str, Any], limit: int | None) -> int:
    """The peak of resident memory over bare imports, in a fresh process; ours without an engine.

    Raises:
        InputError: the process failed.
    """
    engine = installed.engine if installed else None
    paths = [str(path) for path in engine.paths] if engine else [str(ROOT / "src")]
    argument: list[Any] = [str(engine.file) if engine else "", paths]
    argument += [request["model"], request["inputs"], request["threads"], limit]
    done = subprocess.run(
        [installed.python if installed else sys.executable, "-c", _PEAK, json.dumps(argument)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise InputError(f"the memory could not be measured: {done.stderr.strip()[-500:]}")
    return int(done.stdout.splitlines()[-1])


def take_rounds(entrants: Iterable[Entrant], rounds: int, patience: Patience) -> None:
    """Give everybody one turn a round; who begins changes."""
    order = list(entrants)
    for _ in range(rounds):
        for entrant in order:
            durations, _ = patience.undisturbed(entrant.turn)
            entrant.medians.append(statistics.median(durations))
            entrant.least.append(min(durations))
        order = [*order[1:], order[0]]


def measure(
    name: str, others: Sequence[Installed], options: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """Measure one network; returns its part of the document."""
    file, threads = model_file(name), options.threads
    source = read_model(file)
    (port,) = source.inputs
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224), dtype=np.float32)
    inputs = folder / f"{name}.npz"
    arrays: dict[str, Any] = {port.name: x}
    np.savez(inputs, **arrays)
    request = {"model": str(file), "inputs": str(inputs), "threads": threads}
    exact = lc.load(str(file), dtype=FLOAT64, threads=threads)(x.astype(np.float64))
    held = sum(array.nbytes for array in source.constants.values())
    least = smallest(file, x.shape, threads)
    most = lc.load(str(file), threads=threads).bind(x.shape).memory_bytes
    wanted = limits(least, most, held)
    ours = [our_plan(file, label, limit, x, exact, threads) for label, limit in wanted]
    running: dict[str, EngineProcess] = {}
    engines: dict[str, Entrant] = {}
    try:
        for one in others:
            running[one.engine.name] = EngineProcess(one)
            engines[one.engine.name] = other_engine(running[one.engine.name], request)
        take_rounds([*ours, *engines.values()], options.rounds, Patience(threads, options.patience))
    finally:
        for process in running.values():
            process.close()
    for entrant in ours:
        entrant.facts["peak_bytes"] = peak_bytes(None, request, entrant.facts["limit_bytes"])
    for one in others:
        engines[one.engine.name].facts["peak_bytes"] = peak_bytes(one, request, None)
    return {
        "weights_in_file_bytes": held,
        "smallest_bytes": least,
        "plans": [entrant.to_json() for entrant in ours],
        "engines": {label: entrant.to_json() for label, entrant in engines.items()},
    }


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", default=NETWORKS, metavar="NETWORK")
    parser.add_argument("--python", metavar="PYTHON", help="an interpreter that has other engines")
    parser.add_argument("--threads", type=thread_count, default=2)
    parser.add_argument("--rounds", type=positive, default=9)
    parser.add_argument("--patience", type=float, default=30.0, metavar="S", help="for free cores")
    parser.add_argument("--out", type=Path, metavar="FILE", help="in place of docs/results")
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    options = parser.parse_args()
    if options.page:
        rewrite_pages(NAME, page)
        return 0
    out = options.out or results_file(NAME)
    document: dict[str, Any] = {"networks": {}}
    if out.exists():
        document = json.loads(out.read_text(encoding="utf-8"))
    chosen = [engine for engine in ALL_ENGINES if engine.name in OTHERS]
    others, missing = find(chosen, interpreters(options.python))
    with tempfile.TemporaryDirectory() as folder, progress("measuring") as shown:
        for name in options.networks:
            shown.say(f"{name} is planned, and measured")
            try:
                found = measure(name, others, options, Path(folder))
            except EngineError as error:
                raise InputError(f"{name}: {error}") from error
            document["networks"][name] = found
            document.update(
                machine=machine.describe().to_json(),
                effort=effort(options, "threads", "rounds"),
                missing=missing,
            )
            write_results(document, out, page, indent=2)
    return 0


if __name__ == "__main__":
    script(main)
