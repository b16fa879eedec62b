"""Every kernel that `gpu.py` will run, compiled before anything is measured, on all cores.

A cubin takes seconds; one after another they would take most of the benchmark's time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures import TimeoutError as OutOfTime
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from leanconv.gpu.device.compiler import compile_cubin
from leanconv.gpu.launch import Code
from leanconv.gpu.lowering import lower_graph
from leanconv.gpu.lowering.conv import choose_algorithm
from leanconv.gpu.lowering.conv_problem import ConvProblem, Epilogue
from leanconv.gpu.machine import Machine, choices
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import GPU_PASSES, run_passes
from leanconv.spec import ConvSpec
from leanconv.types import FLOAT64, DType


def conv_codes(
    spec: ConvSpec, precision: str | None, algorithm: str | None, machine: Machine
) -> list[Code]:
    """The kernels of one convolution, channels last."""
    arithmetics = choices(spec.dtype, precision)
    conv = ConvProblem(spec, spec.dtype, arithmetics, "x", "y", Epilogue(), "conv")
    w = np.ones(spec.weight_shape, np.float32)
    return [launch.code for launch in choose_algorithm(conv, w, machine, algorithm).launches]


def network_codes(
    source: Path | bytes,
    shape: tuple[int, ...],
    dtype: DType,
    precision: str | None,
    machine: Machine,
) -> list[Code]:
    """The kernels of a network of one input."""
    model = read_model(source)
    kept = model.runtime_dtype(FLOAT64 if dtype == FLOAT64 else None)
    graph = run_passes(model.bind({model.inputs[0].name: shape}, dtype=kept), GPU_PASSES)
    made = lower_graph(graph, machine, dtype, choices(dtype, precision))
    return [call.code for step in made.steps for call in step.calls]


def compile_one(code: Code, arch: int) -> str:
    """Compile into the cache on disk; what went wrong, or nothing."""
    try:
        compile_cubin(code, arch)
    except Exception as error:
        return f"{code}: {error}"[:300]
    return ""


def compile_all(codes: Iterable[Code], arch: int, seconds: float) -> dict[str, object]:
    """Compile on all cores for so long; the rest is compiled where it is needed."""
    wanted, begun = list(dict.fromkeys(codes)), time.monotonic()
    failures: list[str] = []
    done = 0
    pool = ProcessPoolExecutor(os.cpu_count(), get_context("spawn"))
    try:
        futures = [pool.submit(compile_one, code, arch) for code in wanted]
        for future in as_completed(futures, seconds):
            done += 1
            if future.result():
                failures.append(future.result())
    except OutOfTime:
        failures.append(f"{len(wanted) - done} kernels were left after {seconds:.0f} s")
    finally:
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            process.terminate()  # nothing may compile while something is measured
        pool.shutdown(wait=False, cancel_futures=True)
    spent = time.monotonic() - begun
    return {"kernels": len(wanted), "compiled": done, "seconds": spent, "failures": failures}
