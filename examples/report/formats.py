"""The text files of the MobileNetV2 report.

- `params.txt`: one stream of numbers between white space: for each of 52 convolutions, batch norm
  folded, the weight (output channel, input channel, row, column) and then the bias; at the end the
  classifier's weight (1000 x 1280) and bias. 3,487,816 numbers.
- `mobilenetInput.txt`: a line per image, 3 x 244 x 244 numbers: channel, row, column. (244, not
  224.)
- `mobilenetOutput.txt`: a line per image, 1000 logits, written with `%.18e`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from examples.networks.mobilenet import MOBILENET_V2_STAGES, Stages, mobilenet_v2

PARAMS_FILE = "params.txt"
INPUT_FILE = "mobilenetInput.txt"
OUTPUT_FILE = "mobilenetOutput.txt"

Array = NDArray[np.float64]
Layout = dict[str, tuple[int, ...]]


class ReportFormatError(ValueError):
    """A file does not hold what it should; the message says where, and what was expected."""


@dataclass(frozen=True)
class Topology:
    """The network and image that the files belong to; the defaults are the report's.

    Attributes:
        image: height and width of the images.
        stem: channels of the first convolution.
        stages: expansion, channels, blocks, first stride of each stage.
        head: channels of the last convolution.
        classes: logits.
    """

    image: int = 244
    stem: int = 32
    stages: Stages = field(default=MOBILENET_V2_STAGES)
    head: int = 1280
    classes: int = 1000

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return (3, self.image, self.image)

    def model(
        self, *, params: Mapping[str, Array] | None = None, folded: bool = True, seed: int = 0
    ) -> onnx.ModelProto:
        """Return the network as ONNX for one image, with these weights or random ones."""
        return mobilenet_v2(
            image=self.image,
            batch=1,
            stem=self.stem,
            stages=self.stages,
            head=self.head,
            classes=self.classes,
            folded=folded,
            params=params,
            seed=seed,
        )

    def layout(self) -> Layout:
        """Return name and shape of every array in the order of `params.txt`."""
        return {name: array.shape for name, array in weights(self.model()).items()}


REPORT = Topology()
SMALL = Topology(
    image=32, stem=16, stages=((1, 8, 1, 1), (6, 16, 2, 2), (6, 24, 2, 2)), head=64, classes=10
)


def weights(model: onnx.ModelProto) -> dict[str, Array]:
    """Return the model's weights by name, in the file's order, as float64."""
    return {
        tensor.name: numpy_helper.to_array(tensor).astype(np.float64)
        for tensor in model.graph.initializer
        if "." in tensor.name  # the rest are bounds of clips
    }


def fold_batch_norm(params: Mapping[str, Array], epsilon: float = 1e-5) -> dict[str, Array]:
    """Fold every `x.bn.*` into `x.conv.*`; computed in float64, rounded to float32."""
    folded: dict[str, Array] = {}
    for name, array in params.items():
        stem, _, kind = name.rpartition(".conv.")
        if kind == "weight" and f"{stem}.bn.weight" in params:
            bn = {
                key: params[f"{stem}.bn.{key}"]
                for key in ("weight", "bias", "running_mean", "running_var")
            }
            slope = bn["weight"] / np.sqrt(bn["running_var"] + epsilon)
            folded[name] = array * slope[:, None, None, None]
            folded[f"{stem}.conv.bias"] = bn["bias"] - slope * bn["running_mean"]
        elif ".bn." not in name:
            folded[name] = array
    return {name: array.astype(np.float32).astype(np.float64) for name, array in folded.items()}


def _parse(data: bytes, where: str) -> Array:
    """Return the numbers of some text.

    Raises:
        ReportFormatError: something in it is not a finite number.
    """
    if not data.strip():
        return np.empty(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "error", DeprecationWarning
            )  # how NumPy reports text it cannot read
            numbers = np.fromstring(data.decode("ascii", "replace"), dtype=np.float64, sep=" ")
    except (DeprecationWarning, ValueError):
        for index, token in enumerate(data.split()):
            try:
                float(token)
            except ValueError:
                shown = token[:40].decode("ascii", "replace")
                raise ReportFormatError(
                    f"{where}: item {index + 1} is {shown!r}, expected a number"
                ) from None
        raise ReportFormatError(f"{where}: expected numbers between white space") from None
    finite = np.isfinite(numbers)
    if not finite.all():
        index = int(np.argmin(finite))
        raise ReportFormatError(
            f"{where}: item {index + 1} is {numbers[index]}, expected a finite number"
        )
    return numbers


def read_params(path: Path, layout: Layout) -> dict[str, Array]:
    """Read `params.txt` into arrays by name.

    Args:
        path: the file.
        layout: names and shapes in the file's order.

    Raises:
        ReportFormatError: the file has another count of numbers, or something that is not a number.
        OSError: it cannot be read.
    """
    numbers = _parse(path.read_bytes(), path.name)
    expected = sum(map(prod, layout.values()))
    if numbers.size != expected:
        raise ReportFormatError(
            f"{path.name}: got {numbers.size:,} numbers, expected {expected:,} "
            f"({len(layout)} arrays: weight and bias of every convolution with batch norm folded, "
            "then the classifier's)"
        )
    params, start = {}, 0
    for name, shape in layout.items():
        params[name] = numbers[start : start + prod(shape)].reshape(shape)
        start += prod(shape)
    return params


def read_rows(path: Path, shape: tuple[int, ...]) -> Array:
    """Read a file of one array a line; return `(lines, *shape)`.

    Raises:
        ReportFormatError: there is no line, or one holds another count of numbers, or something
            else.
        OSError: the file cannot be read.
    """
    rows = []
    sizes = " x ".join(map(str, shape))
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            row = _parse(line, f"{path.name}, line {number}")
            if row.size != prod(shape):
                raise ReportFormatError(
                    f"{path.name}, line {number}: got {row.size:,} numbers, "
                    f"expected {prod(shape):,} ({sizes})"
                )
            rows.append(row.reshape(shape))
    if not rows:
        raise ReportFormatError(
            f"{path.name}: got no line, expected one of {prod(shape):,} numbers per image"
        )
    return np.stack(rows)


def write_rows(path: Path, rows: Iterable[NDArray[np.floating]]) -> int:
    """Write one array a line, every number as `%.18e`; return the bytes. For all three files."""
    with path.open("w", encoding="ascii", newline="\n") as file:
        for row in rows:
            flat = row.ravel()
            for start in range(0, flat.size, 65536):
                part = flat[start : start + 65536].tolist()
                file.write((" " if start else "") + " ".join(["%.18e"] * len(part)) % tuple(part))
            file.write("\n")
    return path.stat().st_size
