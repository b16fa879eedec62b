"""Results of quantising a network: the file, measurements, and precisions of layers.

| precision | weights | what a layer reads  | how leanconv computes it                    |
|-----------|---------|---------------------|---------------------------------------------|
| `int8`    | int8    | uint8 codes         | on integers                                 |
| `w8a16`   | int8    | uint16 codes        | in float32: only bytes of the file are less |
| `float16` | float16 | halves              | in float32, weights and values as halves    |
| `float32` | float32 | floats              | in float32                                  |

A choice of precisions names that of each layer that is not in float32.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from leanconv.errors import InputError
from leanconv.files import reason, refuse_without_folder
from leanconv.records import dataclass, field

INT8, W8A16, FLOAT16, FLOAT32 = "int8", "w8a16", "float16", "float32"
RUNGS = (INT8, W8A16, FLOAT16, FLOAT32)  # from the smallest numbers to the largest
FINER = (W8A16, FLOAT16)  # rungs between the two that every layer has

Rungs = Mapping[str, str]
"""The precision of layers by the nodes' names; of those that are not there it is float32."""
RUNS_ON = ("any", "vnni")  # CPUs on which other engines give what was measured
ALL_BITS, SATURATING = "weights of all 8 bits", "sums that saturate"


def all_in(names: Iterable[str], rung: str = INT8) -> dict[str, str]:
    """Return the choice in which layers have the same precision."""
    return dict.fromkeys(names, rung)


def named(rungs: Rungs, *wanted: str) -> set[str]:
    """Return the layers that have one of some precisions."""
    return {name for name, rung in rungs.items() if rung in wanted}


def key(rungs: Rungs) -> tuple[tuple[str, str], ...]:
    """Return a key of a choice that can be hashed."""
    return tuple(sorted((name, rung) for name, rung in rungs.items() if rung != FLOAT32))


@dataclass(frozen=True)
class LayerReport:
    """Precision, sensitivity and times of a layer.

    Attributes:
        name, op: of its node.
        weights: their number.
        precision: `"int8"`, `"w8a16"`, `"float16"` or `"float32"`; see above.
        sensitivity: the error of the outputs with this layer alone in int8; None if not measured.
        time_ns: in the file made, with the operations that are fused with it; None if not known.
        gain_ns: predicted saving in int8; None where layers were not chosen.
    """

    name: str
    op: str
    weights: int
    precision: str
    sensitivity: float | None = None
    time_ns: float | None = None
    gain_ns: int | None = None


@dataclass(frozen=True)
class Trial:
    """A choice of precisions that was run.

    Attributes:
        samples: `"calibrated"` or `"held out"`: which half it was scored on.
        precisions: how many layers had each.
        score, float_score: of it and of float32 there.
        error: of the outputs, |y - y32| / |y32|, root mean square.
        time_ns: of the fastest of some runs of the first sample; of a choice that was scored on
            calibrated samples what plans predict. None where neither is known.
        how: empty for what leanconv computes of the file; `"weights of all 8 bits"` for the same
            choice with those; `"sums that saturate"` for what other engines answer on x86 CPUs
            without VNNI, computed with NumPy on some of the samples.
        count: of the samples.
    """

    samples: str
    precisions: Mapping[str, int]
    score: float
    float_score: float
    error: float
    time_ns: int | None
    how: str = ""
    count: int = 0

    @property
    def drop(self) -> float:
        """Drop of the score below that of float32."""
        return self.float_score - self.score


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
        trials: the choices of layers that were run, in their order.
        time_ns, float_ns: of one run of the file and of the network in float32 here, with the
            threads given; None where leanconv cannot run the file itself.
        runs_on: `"any"` where no sum of two products of an int8 layer can be more than 16 bits
            hold, so that engines give the same on x86 CPUs without VNNI; else `"vnni"`.
        elsewhere: what these engines answer there; None where they answer the same, or where it
            is not known.
        warnings: what should be known before the file is used, a sentence each.
    """

    data: bytes = field(repr=False)
    score_name: str
    score: float
    float_score: float
    error: float
    layers: tuple[LayerReport, ...] = field(repr=False)
    samples: tuple[int, int]
    trials: tuple[Trial, ...] = field(repr=False)
    time_ns: int | None
    float_ns: int
    runs_on: str = "any"
    elsewhere: Trial | None = None
    warnings: tuple[str, ...] = ()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file.

        Raises:
            InputError: it cannot be written.
        """
        refuse_without_folder(path)
        try:
            Path(path).write_bytes(self.data)
        except OSError as error:
            raise InputError(f"{str(path)!r} cannot be written: {reason(error)}") from error

    @property
    def drop(self) -> float:
        """Drop of the score below that of float32, in percent."""
        return 100.0 * (self.float_score - self.score)
