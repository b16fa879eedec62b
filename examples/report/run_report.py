"""Do what the report's program did: read the text files, run, compare, state the average time.

    python examples/report/run_report.py --folder build/report

Every image runs once for the comparison and `--iterations` times for the clock. Exit code 0: every
output of every image lies within the tolerance; 1: one does not; 2: a file is missing or not as it
should be.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.report.formats import (
    INPUT_FILE,
    OUTPUT_FILE,
    PARAMS_FILE,
    REPORT,
    SMALL,
    Array,
    ReportFormatError,
    Topology,
    read_params,
    read_rows,
)

TOLERANCE = 1e-5
Run = Callable[[Any], Any]


@dataclass(frozen=True)
class Result:
    """What one run over all images gave.

    Attributes:
        dtype: "float32" or "float64".
        differences: largest absolute difference to the reference, per image.
        average_ns: mean time of one inference, 0 if none was timed.
    """

    dtype: str
    differences: tuple[float, ...]
    average_ns: int

    def within(self, tolerance: float) -> bool:
        """Whether every image is within `tolerance`; a NaN is not."""
        return all(difference <= tolerance for difference in self.differences)


def leanconv_engine(model: onnx.ModelProto, dtype: str, threads: int | None) -> Run:
    """Return a function from `(1, 3, h, w)` to `(1, classes)` that runs the model with leanconv.

    Raises:
        ValueError: leanconv refuses the model.
    """
    import leanconv
    from leanconv.errors import LeanConvError

    try:
        run: Run = leanconv.load(model, dtype=dtype, threads=threads)
    except LeanConvError as error:
        raise ValueError(f"leanconv: {error}") from error
    return run


def onnxruntime_engine(model: onnx.ModelProto, dtype: str, threads: int | None) -> Run:
    """As `leanconv_engine`, with onnxruntime, for comparison.

    Raises:
        ValueError: `dtype` is not float32; onnxruntime has no float64 convolution.
    """
    if dtype != "float32":
        raise ValueError(
            f"onnxruntime: got {dtype}, expected float32, the only type its convolutions know"
        )
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda x: session.run(None, {"input": x})[0]


ENGINES = {"leanconv": leanconv_engine, "onnxruntime": onnxruntime_engine}


def read_files(folder: Path, topology: Topology) -> tuple[onnx.ModelProto, Array, Array]:
    """Return the network that `params.txt` describes, the images and the reference outputs.

    Raises:
        ReportFormatError: a file is not as it should be.
        OSError: a file cannot be read.
    """
    params = read_params(folder / PARAMS_FILE, topology.layout())
    images = read_rows(folder / INPUT_FILE, topology.input_shape)
    outputs = read_rows(folder / OUTPUT_FILE, (topology.classes,))
    if len(images) != len(outputs):
        raise ReportFormatError(
            f"{OUTPUT_FILE}: got {len(outputs)} lines, expected {len(images)}, "
            f"one per image of {INPUT_FILE}"
        )
    return topology.model(params=params), images, outputs


def compare(run: Run, dtype: str, images: Array, outputs: Array, iterations: int) -> Result:
    """Run every image once against the reference and `iterations` times against the clock."""
    inputs = [np.ascontiguousarray(image[None], dtype=dtype) for image in images]
    differences = tuple(
        float(np.abs(np.asarray(run(x), dtype=np.float64)[0] - y).max())
        for x, y in zip(inputs, outputs, strict=True)
    )
    total_ns = 0
    for x in inputs:
        begun = time.perf_counter_ns()
        for _ in range(iterations):
            run(x)
        total_ns += time.perf_counter_ns() - begun
    return Result(dtype, differences, total_ns // max(1, iterations * len(inputs)))


def _print(result: Result, tolerance: float) -> None:
    print(f"{result.dtype}:")
    for index, difference in enumerate(result.differences):
        verdict = "ok" if difference <= tolerance else f"over {tolerance:g}"
        print(f"  image {index}: max difference {difference:.3e}  {verdict}")
    if result.average_ns:
        print(f"  Average Time is: {result.average_ns / 1e6:.6f} ms")


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison that the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(description="Run the files of the MobileNetV2 report.")
    parser.add_argument("--folder", type=Path, required=True, help="where the three text files are")
    parser.add_argument(
        "--dtype", nargs="+", choices=("float32", "float64"), default=["float32", "float64"]
    )
    parser.add_argument(
        "--iterations", type=int, default=500, help="per image, for the clock (default 500)"
    )
    parser.add_argument("--tolerance", type=float, default=TOLERANCE)
    parser.add_argument("--threads", type=int, help="default: the engine's own choice")
    parser.add_argument("--engine", choices=sorted(ENGINES), default="leanconv")
    parser.add_argument(
        "--small", action="store_true", help="the cut-down network of make_files.py --small"
    )
    options = parser.parse_args(arguments)
    try:
        model, images, outputs = read_files(options.folder, SMALL if options.small else REPORT)
        results = []
        for dtype in options.dtype:
            run = ENGINES[options.engine](model, dtype, options.threads)
            results.append(compare(run, dtype, images, outputs, options.iterations))
            _print(results[-1], options.tolerance)
    except (ValueError, OSError) as error:
        print(f"run_report: {error}", file=sys.stderr)
        return 2
    return 0 if all(result.within(options.tolerance) for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
