"""MNN in float32, from the ONNX file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

# Not MNN.tools.mnnconvert: that one installs a package by itself and reports each conversion.
import _tools
import MNN
import numpy as np


def load(
    model: str, inputs: dict[str, np.ndarray], threads: int
) -> tuple[Callable[[], list[np.ndarray]], str]:
    """Convert and load the network; see `leanconv.cli.engines.worker`."""
    if any(x.dtype != np.float32 for x in inputs.values()):
        raise ValueError("only float32")
    with tempfile.TemporaryDirectory(prefix="mnn-model-") as folder:
        file = str(Path(folder) / "model.mnn")
        command = ["mnnconvert", "-f", "ONNX", "--modelFile", model, "--MNNModel", file]
        _tools.mnnconvert([*command, "--bizCode", "MNN"])
        interpreter = MNN.Interpreter(file)
    session = interpreter.createSession(
        {"backend": "CPU", "precision": "high", "numThread": threads}
    )
    for name, x in inputs.items():
        interpreter.resizeTensor(interpreter.getSessionInput(session, name), x.shape)
    interpreter.resizeSession(session)
    sources = [
        (interpreter.getSessionInput(session, name), _tensor(x)) for name, x in inputs.items()
    ]
    results = []
    for output in interpreter.getSessionOutputAll(session).values():
        y = np.empty(output.getShape(), np.float32)
        results.append((output, _tensor(y)))

    def run() -> list[np.ndarray]:
        for destination, source in sources:
            destination.copyFrom(source)
        interpreter.runSession(session)
        for output, tensor in results:
            output.copyToHostTensor(tensor)
        return [tensor.getNumpyData() for _, tensor in results]

    return run, str(MNN.version())


def _tensor(array: np.ndarray) -> MNN.Tensor:
    """An NCHW tensor of MNN's with the array's values."""
    kind = MNN.Tensor_DimensionType_Caffe
    return MNN.Tensor(array.shape, MNN.Halide_Type_Float, array, kind)
