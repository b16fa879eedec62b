"""Load, plan and run so many damaged models: `fuzz_load_worker.py KIND SEED CASES`.

The process that starts this one sees a crash as an exit code, and the last seed that was begun as
the last line. `test_fuzz_load` says what counts as a failure.
"""

from __future__ import annotations

import faulthandler
import random
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np

import leanconv
from leanconv.errors import LeanConvError, OutOfMemoryError
from support.damaged_models import damaged_bytes, damaged_fields
from support.hostile import MIB, ResidentPeak
from support.replaced_numbers import replaced

MEMORY_LIMIT = "16 MiB"  # a plan's constants are packed from others of as many bytes, still there
FLOPS = 10**8  # what runs longer is planned only
PEAK_BYTES = 64 * MIB  # of a model of one huge number, over what there was before
LEFT_BYTES = 4096 * MIB  # of addresses: nothing may take a machine with it
_sound: set[str] = set()


def survive(data: bytes, runs: bool = True) -> str:
    """Load, plan and run; say how far it came. Anything but a LeanConvError gets through."""
    stage = "load"
    try:
        network = leanconv.load(data, memory_limit=MEMORY_LIMIT, threads=2)
        stage = "bind"
        declared = {port.name: port.shape or (1, 4, 8, 8) for port in network.inputs}
        shapes = {n: [e if isinstance(e, int) else 8 for e in s] for n, s in declared.items()}
        plan = network.bind(shapes)
        assert network.used_bytes == plan.memory_bytes
        if not runs or sum(step.flops for step in plan.steps) > FLOPS:
            return "planned"
        stage = "run"
        results = network.run({p.name: np.ones(shapes[p.name], p.dtype) for p in network.inputs})
        for name, array in results.items():
            kind = plan.outputs[name]
            assert kind is None or array.shape == kind.shape
    except LeanConvError as error:
        if isinstance(error, OutOfMemoryError):  # the limit is small
            raise
        if stage == "run" and not network.explain().count("NumPy"):  # what was planned must run
            raise
        return f"refused at {stage}"
    return "ran"


def survive_number(choose: random.Random) -> str:
    """Load and plan a model with one number replaced: in little memory, whatever it asks for."""
    name, whole, data = replaced(choose)
    say(name)
    if whole not in _sound:  # what is loaded or compiled with the first is none of the number's
        _sound.add(whole)
        survive(whole, runs=False)
    if not ResidentPeak.is_known():
        return survive(data, runs=False)
    peak = ResidentPeak()
    peak.begin()
    outcome = survive(data, runs=False)
    assert peak.bytes < PEAK_BYTES, f"{name}: took {peak.bytes} bytes"
    return outcome


DAMAGE: dict[str, Callable[[random.Random], str]] = {
    "bytes": lambda choose: survive(damaged_bytes(choose)),
    "fields": lambda choose: survive(damaged_fields(choose)),
    "numbers": survive_number,
}


def limit_addresses() -> None:
    """Let what asks for too much be refused by the system, which is an error here."""
    try:
        import resource
        from pathlib import Path

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return
    resource.setrlimit(resource.RLIMIT_AS, (used + LEFT_BYTES, resource.RLIM_INFINITY))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    kind, first, cases = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    faulthandler.enable()
    limit_addresses()
    if ResidentPeak.is_known():
        ResidentPeak.leave_out_llvm()
    warnings.simplefilter("error")  # such as an overflow in what is computed at load
    counts: dict[str, int] = {}
    slowest = 0.0
    for seed in range(first, first + cases):
        say(f"seed {seed}")
        begin = time.process_time()
        outcome = DAMAGE[kind](random.Random(seed))
        taken = time.process_time() - begin
        if taken > slowest:
            slowest = taken
            say(f"seed {seed} took {taken:.2f} s")
        counts[outcome] = counts.get(outcome, 0) + 1
    came = counts.get("ran", 0) + counts.get("planned", 0)
    say(f"done {cases} came {came} slowest {slowest:.1f} {counts}")


if __name__ == "__main__":
    main()
