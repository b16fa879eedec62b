"""Whole quantised networks: are leanconv's answers onnxruntime's, bit by bit?

    python benchmarks/quantised_bits.py                        the networks of examples/networks
    python benchmarks/quantised_bits.py FILE.onnx … --only vgg  these files as well; some of them

onnxruntime's own quantiser makes two files of each network, of DequantizeLinear and QuantizeLinear
round float operations (QDQ) and of QLinear operators (QOperator), with weights of a scale for each
channel and without; three random images go through both engines, one thread. A table of equal,
different and refused follows; the exit code is 1 where an answer differs.

One of onnxruntime's passes is turned off: it makes codes of float weights between quantised tensors
(of a ConvTranspose that its quantiser left in float32), which changes what the file says.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

import leanconv
from harness import ROOT, script

Feed = dict[str, np.ndarray]
FORMS = {"QDQ": QuantFormat.QDQ, "QOperator": QuantFormat.QOperator}
_SIZE = 64
_QUANTISES = "WeightBiasQuantization"  # a pass of onnxruntime


def networks(files: list[Path]) -> Iterator[tuple[str, Callable[[], onnx.ModelProto]]]:
    """Yield a name, and what makes the network."""
    sys.path.insert(0, str(ROOT))
    from examples.networks import NETWORKS
    from examples.networks.fitting import fitted_detector, fitted_recogniser, fitted_segmenter

    yield from NETWORKS.items()
    yield "detector", fitted_detector
    yield "recogniser", fitted_recogniser
    yield "segmenter", fitted_segmenter
    digits = ROOT / "examples" / "digits" / "digits.onnx"
    for file in (digits, *files):
        yield file.stem, partial(onnx.load, file)


def feeds(file: Path, count: int, size: int) -> list[Feed]:
    """Return random inputs of a file; axes that it leaves open have `size`, the first of them 1."""
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)

    def shape(port: Any) -> list[int]:
        opened = [size if axis else 1 for axis in range(len(port.shape))]
        return [n if isinstance(n, int) else opened[i] for i, n in enumerate(port.shape)]

    shapes = {port.name: shape(port) for port in session.get_inputs()}
    return [
        {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
        for _ in range(count)
    ]


def quantised(file: Path, form: str, per_channel: bool, samples: list[Feed], out: Path) -> None:
    """Write what onnxruntime's quantiser makes of a file."""

    class Samples:
        left = iter(samples)

        def get_next(self) -> Feed | None:
            return next(self.left, None)

    with contextlib.redirect_stdout(io.StringIO()):
        quantize_static(
            str(file),
            str(out),
            Samples(),
            quant_format=FORMS[form],
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=per_channel,
        )


def compared(file: Path, samples: list[Feed]) -> str:
    """Return "equal", "refused: …", or how many outputs differ and by how much."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(file), options, ["CPUExecutionProvider"], disabled_optimizers=[_QUANTISES]
    )
    try:
        net = leanconv.load(file, threads=1)
    except leanconv.LeanConvError as refusal:
        return f"refused: {str(refusal).splitlines()[0][:90]}"
    names = [port.name for port in session.get_outputs()]
    worst, different, elements = 0.0, 0, 0
    for feed in samples:
        answer = net.run(feed)
        for name, theirs in zip(names, session.run(names, feed), strict=True):
            ours = answer[name]
            away = ~((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)))
            different, elements = different + int(away.sum()), elements + theirs.size
            if away.any():
                largest = float(np.abs(theirs).max()) or 1.0
                worst = max(worst, float(np.abs(ours - theirs)[away].max()) / largest)
    return f"{different} of {elements} differ, by {worst:.1e} at most" if different else "equal"


def outcomes(
    make: Callable[[], onnx.ModelProto], folder: Path, size: int
) -> Iterator[tuple[str, str]]:
    """Yield each form of a network and what became of it."""
    file = folder / "float.onnx"
    onnx.save(make(), file)
    prepared = folder / "prepared.onnx"
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            quant_pre_process(str(file), str(prepared), skip_symbolic_shape=True)
    except Exception:  # what a quantiser prepares is optional
        prepared = file
    samples = feeds(prepared, 3, size)
    for form in FORMS:
        for per_channel in (True, False):
            label = f"{form}, a scale for each {'channel' if per_channel else 'tensor'}"
            made = folder / "codes.onnx"
            try:
                quantised(prepared, form, per_channel, samples, made)
                outcome = compared(made, samples)
            except Exception as failure:  # onnxruntime's, of any kind: no answer to compare with
                if isinstance(failure, leanconv.LeanConvError):
                    raise
                text = f"{type(failure).__name__}: {failure}".splitlines()[0]
                outcome = f"onnxruntime fails: {text[:90]}"
            yield label, outcome


def main() -> int:
    """Compare what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--only", default="", metavar="PATTERN", help="a regular expression")
    parser.add_argument("--size", type=int, default=_SIZE, help="of open axes (%(default)s)")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    onnxruntime.set_default_logger_severity(4)
    counts: Counter[str] = Counter()
    for name, make in networks(options.files):
        if not re.search(options.only, name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            for label, outcome in outcomes(make, Path(folder), options.size):
                print(f"{name:24}  {label:30}  {outcome}", flush=True)
                counts[re.split(r"[:,]| of", outcome)[0] if outcome != "equal" else "equal"] += 1
    kinds = {"equal": 0, "different": 0, "refused": 0, "onnxruntime fails": 0}
    for kind, count in counts.items():
        kinds[kind if kind in kinds else "different"] += count
    print(", ".join(f"{kind} {count}" for kind, count in kinds.items()))
    return 1 if kinds["different"] else 0


if __name__ == "__main__":
    script(main)
