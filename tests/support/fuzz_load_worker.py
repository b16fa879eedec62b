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

import numpy as np

import leanconv
from leanconv.errors import LeanConvError
from support.damaged_models import damaged_bytes, damaged_fields

MEMORY_LIMIT = "32 MiB"
FLOPS = 10**8  # what runs longer is planned only
DAMAGE = {"bytes": damaged_bytes, "fields": damaged_fields}


def survive(data: bytes) -> str:
    """Load, plan and run; say how far it came. Anything but a LeanConvError gets through."""
    stage = "load"
    try:
        network = leanconv.load(data, memory_limit=MEMORY_LIMIT, threads=2)
        stage = "bind"
        declared = {port.name: port.shape or (1, 4, 8, 8) for port in network.inputs}
        shapes = {n: [e if isinstance(e, int) else 8 for e in s] for n, s in declared.items()}
        plan = network.bind(shapes)
        assert network.used_bytes == plan.memory_bytes
        if sum(step.flops for step in plan.steps) > FLOPS:
            return "planned"
        stage = "run"
        results = network.run({p.name: np.ones(shapes[p.name], p.dtype) for p in network.inputs})
        for name, array in results.items():
            kind = plan.outputs[name]
            assert kind is None or array.shape == kind.shape
    except LeanConvError:
        if stage == "run" and not network.explain().count("NumPy"):  # what was planned must run
            raise
        return f"refused at {stage}"
    return "ran"


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    kind, first, cases = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    faulthandler.enable()
    warnings.simplefilter("error")  # such as an overflow in what is computed at load
    counts: dict[str, int] = {}
    slowest = 0.0
    for seed in range(first, first + cases):
        say(f"seed {seed}")
        begin = time.process_time()
        outcome = survive(DAMAGE[kind](random.Random(seed)))
        taken = time.process_time() - begin
        if taken > slowest:
            slowest = taken
            say(f"seed {seed} took {taken:.2f} s")
        counts[outcome] = counts.get(outcome, 0) + 1
    say(f"done {cases} ran {counts.get('ran', 0)} slowest {slowest:.1f} {counts}")


if __name__ == "__main__":
    main()
