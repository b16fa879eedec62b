"""Run cases in Triton's interpreter through a whole plan, and print what each found.

Run by `test_gpu_interpreter.py` in a process of its own, with TRITON_INTERPRET=1 and, as its
argument, lists of names by kind, in JSON. The driver is a fake one whose device memory is this
host's: poisoned before, guarded on both sides.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping

from leanconv.gpu.device.driver import Driver
from support.gpu.cases import KINDS_OF_CASES, run_case
from support.gpu.fake_cuda import FakeCuda
from support.gpu.interpreter import execute
from support.gpu.stand import Stand


def main(names: Mapping[str, list[str]]) -> None:
    fake = FakeCuda(execute=execute)
    stand = Stand(Driver(fake), fake.compile, fake.check_guards)
    for kind, wanted in names.items():
        for name, run in KINDS_OF_CASES[kind](stand):
            if name in wanted:
                start = time.perf_counter()
                row = run_case(run)
                row |= {"kind": kind, "name": name, "seconds": time.perf_counter() - start}
                sys.stdout.write(json.dumps(row) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
