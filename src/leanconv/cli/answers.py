"""What a network's outputs say: class scores where they are that, else shapes and ranges.

An output is taken for class scores, one for each class of one image, where

- the model's labels, or the user's, are as many as its values,
- or it has the shape (1, classes) and holds probabilities: it went through a softmax (or its log),
- or it is the network's only output and has the shape (1, classes): what classifiers without a
  softmax end with. Its softmax is then shown.

Maps, boxes and sequences are none of these: their shape, their range and whether they hold NaN or
infinities are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from leanconv.errors import InputError
from leanconv.records import dataclass

_MOST_CLASSES = 100_000
_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Summary:
    """What one output of one image holds.

    Attributes:
        name, shape, dtype: of the output.
        least, mean, most: of its finite values; None where there are none.
        nan, infinite: how many values are no numbers.
        best: (label, probability) of the likeliest classes, in this order; empty where it is no
            class scores.
        because: why it is taken for class scores: `"labels"`, `"probabilities"` or `"shape"`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    least: float | None
    mean: float | None
    most: float | None
    nan: int
    infinite: int
    best: tuple[tuple[str, float], ...] = ()
    because: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        classes = [{"label": label, "probability": p} for label, p in self.best]
        return {
            "name": self.name,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "min": self.least,
            "mean": self.mean,
            "max": self.most,
            "nan": self.nan,
            "infinite": self.infinite,
            "classes": classes or None,
            "classes_because": self.because or None,
        }


def summarise(
    outputs: Mapping[str, np.ndarray], labels: Sequence[str], top: int
) -> tuple[Summary, ...]:
    """Say what outputs of one image hold.

    Args:
        outputs: by name.
        labels: the classes' names; empty where nobody gave them.
        top: how many classes are shown.

    Raises:
        InputError: class scores hold NaN or infinity.
    """
    found = []
    for name, array in outputs.items():
        because = class_scores(array, len(outputs) == 1, len(labels))
        chances = probabilities(name, array) if because else np.zeros(0)
        order = np.argsort(-chances, kind="stable")[:top]
        names = labels if because == "labels" else ()
        best = tuple((names[i] if names else str(i), float(chances[i])) for i in order.tolist())
        found.append(_summary(name, array, best, because))
    return tuple(found)


def class_scores(array: np.ndarray, only: bool, labels: int) -> str:
    """Why an output is taken for class scores; empty if it is not.

    Args:
        array: of one image.
        only: whether the network has no other output.
        labels: how many classes have names; 0 if nobody named any.
    """
    shape, size = array.shape, array.size
    if array.dtype.kind not in "fiu" or not 2 <= size <= _MOST_CLASSES:
        return ""
    flat = len(shape) >= 1 and size in shape  # all other extents are 1
    if flat and labels == size:
        return "labels"
    if flat and shape in ((1, size), (1, size, 1, 1)) and _are_probabilities(array):
        return "probabilities"
    return "shape" if only and shape == (1, size) else ""


def probabilities(name: str, scores: np.ndarray) -> np.ndarray:
    """Return class probabilities, float64; scores that are none yet go through softmax."""
    flat = scores.astype(np.float64).ravel()
    if not np.all(np.isfinite(flat)):
        raise InputError(
            f"the network's output {name} holds NaN or infinity for this image; expected numbers: "
            "look at the model's input_mean and input_std, or try --dtype float64"
        )
    if _are_probabilities(flat) and flat.min() >= 0.0:
        return flat
    exponentials = np.exp(flat - flat.max())
    result: np.ndarray = exponentials / exponentials.sum()
    return result


def _are_probabilities(array: np.ndarray) -> bool:
    """Whether values are probabilities of classes that exclude each other, or their logarithms."""
    values = array.astype(np.float64).ravel()
    if not np.all(np.isfinite(values)):
        return False
    if values.min() < 0.0:
        values = np.exp(values) if values.max() <= 0.0 else values * np.nan
    return bool(abs(values.sum() - 1.0) < _SUM_TOLERANCE)


def _summary(
    name: str, array: np.ndarray, best: tuple[tuple[str, float], ...], because: str
) -> Summary:
    finite = array[np.isfinite(array)].astype(np.float64)
    least, mean, most = (
        float(pick(finite)) if finite.size else None for pick in (np.min, np.mean, np.max)
    )
    nan = int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0
    infinite = int(np.isinf(array).sum()) if array.dtype.kind == "f" else 0
    return Summary(
        name, array.shape, str(array.dtype), least, mean, most, nan, infinite, best, because
    )
