"""Runs a network in Python as `benchmarks/library.py` asks.

Arguments are ENGINE MODEL INPUTS OUTPUTS RUNS THREADS. Prints when the first answer was there,
what each run took, the peak of resident memory.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def prepared(engine: str, model: str, feed: dict[str, Any], threads: int) -> Callable[[], Any]:
    """Return what runs a model on its inputs, and gives its outputs."""
    if engine == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, feed)
    import leanconv

    shapes = {name: array.shape for name, array in feed.items()}
    net = leanconv.load(model, threads=threads, shapes=shapes)
    return lambda: list(net.run(feed).values())


def main() -> None:
    """Run."""
    engine, model, inputs, outputs, runs, threads = sys.argv[1:]
    with np.load(inputs) as file:
        run = prepared(engine, model, dict(file), int(threads))
    found = run()
    print(time.monotonic_ns())
    for _ in range(int(runs)):
        start = time.monotonic_ns()
        run()
        print(time.monotonic_ns() - start)
    with open(outputs, "wb") as file:
        for each in found:
            file.write(np.asarray(each).tobytes())
    with open("/proc/self/status", encoding="utf-8") as file:
        print(*(line.strip() for line in file if line.startswith("VmHWM:")))


if __name__ == "__main__":
    main()
