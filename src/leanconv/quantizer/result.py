"""What quantising a network gives: the file, and what was measured."""

from __future__ import annotations

import os
from dataclasses import field
from pathlib import Path

from leanconv.errors import InputError
from leanconv.files import reason
from leanconv.quantizer.layers import Layer
from leanconv.records import dataclass
from leanconv.types import FLOAT32, INT8


@dataclass(frozen=True)
class LayerReport:
    """What is said of a layer.

    Attributes:
        name, op: of its node.
        weights: their number.
        precision: int8 or float32.
    """

    name: str
    op: str
    weights: int
    precision: str

    @classmethod
    def of(cls, layer: Layer, quantised: bool) -> LayerReport:
        """The report of a layer."""
        precision = INT8 if quantised else FLOAT32
        return cls(layer.name, layer.node.op, layer.weights.size, precision)


@dataclass(frozen=True)
class Quantized:
    """A quantised network.

    Attributes:
        data: an ONNX file with QuantizeLinear and DequantizeLinear, opset 13 or later.
        score_name: `"agreement"`, `"accuracy"` or `"metric"`.
        score, float_score: of the quantised network and of the one in float32, on samples that it
            was not calibrated on.
        error: of the outputs there, |y - y32| / |y32| in the Euclidean norm, root mean square.
        layers: those that can be quantised, in the network's order.
        samples: how many it was calibrated and verified on.
    """

    data: bytes = field(repr=False)
    score_name: str
    score: float
    float_score: float
    error: float
    layers: tuple[LayerReport, ...] = field(repr=False)
    samples: tuple[int, int]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file.

        Raises:
            InputError: it cannot be written.
        """
        try:
            Path(path).write_bytes(self.data)
        except OSError as error:
            raise InputError(f"{str(path)!r} cannot be written: {reason(error)}") from error

    @property
    def drop(self) -> float:
        """How much the score is below that of float32, in percent."""
        return 100.0 * (self.float_score - self.score)
