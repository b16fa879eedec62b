"""The report of `leanconv run`: an object of JSON, or rows of a table.

An output is taken for class scores, one for each class of one image, where

- the model's labels, or the user's, are as many as its values,
- or it has the shape (1, classes) and holds probabilities: it went through a softmax (or its log),
- or it is the network's only output and has the shape (1, classes): what classifiers without a
  softmax end with. Its softmax is then shown.

Maps, boxes and sequences are none of these: their shape, their range and whether they hold NaN or
infinities are shown.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from leanconv.cli.images import Picture
from leanconv.cli.output import print_table, print_text
from leanconv.cli.preprocessing import Normalisation, Preprocessing
from leanconv.cli.table import Column
from leanconv.errors import InputError
from leanconv.records import dataclass
from leanconv.units import counted, format_bytes, format_ns, shape_text

_MOST_CLASSES = 100_000
_SUM_TOLERANCE = 1e-3
_AS_THEY_ARE = "the input, which takes integers"
_FITTED = {"stretch": "stretched", "letterbox": "framed", "crop": "cut"}


@dataclass(frozen=True)
class Summary:
    """A summary of one output for one image.

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
        """Return the summary as a JSON object."""
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
    """Summarise each output of one image.

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
    """Return whether values are probabilities that sum up to 1, or their logarithms."""
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


@dataclass(frozen=True)
class Answer:
    """The network's results for one image.

    Attributes:
        image: the file.
        inputs: shapes by name.
        picture: the place of the image in the input; None for arrays.
        notes: steps before, such as conversions.
        outputs: a summary of each.
        latency_ns: median of the repeated runs.
        memory_predicted_bytes, memory_used_bytes: of the plan for this size.
    """

    image: str
    inputs: Mapping[str, tuple[int, ...]]
    picture: Picture | None
    notes: tuple[str, ...]
    outputs: tuple[Summary, ...]
    latency_ns: int
    memory_predicted_bytes: int
    memory_used_bytes: int

    @property
    def as_predicted(self) -> bool:
        """True if the run used the memory that the plan predicted."""
        return self.memory_predicted_bytes == self.memory_used_bytes

    @property
    def classes(self) -> Summary | None:
        """The first output that holds class scores."""
        return next((summary for summary in self.outputs if summary.best), None)

    def to_json(self) -> dict[str, Any]:
        """Return the answer as a JSON object."""
        classes, picture = self.classes, self.picture
        document: dict[str, Any] = {
            "image": self.image,
            "latency_ns": self.latency_ns,
            "inputs": {name: list(shape) for name, shape in self.inputs.items()},
            "memory_predicted_bytes": self.memory_predicted_bytes,
            "memory_used_bytes": self.memory_used_bytes,
        }
        if picture is not None:
            document["image_size"] = list(picture.size)
            document["image_scale"] = list(picture.scale)
            document["image_offset"] = list(picture.offset)
        document["image_notes"] = list(self.notes)
        document["outputs"] = [summary.to_json() for summary in self.outputs]
        answers = classes.best if classes else ()
        document["answers"] = [{"label": label, "probability": p} for label, p in answers]
        return document


def preprocessing_json(
    answers: list[Answer], preprocessing: Preprocessing, options: argparse.Namespace
) -> dict[str, Any] | None:
    """Return the preprocessing as a JSON object; None if all files were arrays."""
    if not any(answer.picture for answer in answers):
        return None
    numbers = preprocessing.normalisation or Normalisation(source=_AS_THEY_ARE)
    return {
        "layout": preprocessing.layout,
        "channels": preprocessing.order,
        "scale": numbers.scale,
        "mean": list(numbers.mean),
        "std": list(numbers.std),
        "source": numbers.source,
        "fit": options.fit,
    }


def _preprocessing_lines(
    answers: list[Answer], preprocessing: Preprocessing, options: argparse.Namespace
) -> list[str]:
    shown = [answer for answer in answers if answer.picture]
    if not shown:
        return []
    numbers = preprocessing.normalisation or Normalisation(source=_AS_THEY_ARE)
    pictures = [answer.picture for answer in shown if answer.picture]
    channels = pictures[0].x.shape[1 if preprocessing.layout == "NCHW" else 3]
    order = "gray" if channels == 1 else preprocessing.order
    line = f"pictures: {order}, {numbers.formula}, from {numbers.source}"
    if any(picture.scale != (1.0, 1.0) for picture in pictures):
        line += f"; {_FITTED[options.fit]} to the network's size (--fit)"
    return [line]


def _memory_line(answers: list[Answer]) -> str:
    """The memory of the plan that takes most, where images have several sizes."""
    predicted = max(answer.memory_predicted_bytes for answer in answers)
    used = max(answer.memory_used_bytes for answer in answers)
    as_predicted = all(answer.as_predicted for answer in answers)
    several = len({tuple(answer.inputs.items()) for answer in answers}) > 1
    return (
        f"memory{' of the size that takes most:' if several else ''} predicted {predicted:,} bytes "
        f"({format_bytes(predicted)}), used {used:,} bytes ({format_bytes(used)}): "
        f"{'as predicted' if as_predicted else 'NOT as predicted'}"
    )


def print_answers(
    answers: list[Answer],
    report: Mapping[str, Any],
    preprocessing: Preprocessing,
    options: argparse.Namespace,
    footprint: str,
) -> None:
    """Print classes, or what the outputs hold, then what was done to pictures, times and memory."""
    if all(len(answer.outputs) == 1 and answer.classes for answer in answers):
        _print_classes(answers, options.wide)
    else:
        _print_outputs(answers, options.wide)
    ready = f"ready in {format_ns(report['ready_ns'])}"
    if options.verbose:
        ready = report["startup"]
    lines = [
        *_preprocessing_lines(answers, preprocessing, options),
        *(f"{each.image}: {'; '.join(each.notes)}" for each in answers if each.notes),
        f"{ready}; latency is the median of {counted(options.repeat, 'run')}",
        _memory_line(answers),
        *[f"process: {footprint}"] * options.verbose,
    ]
    if options.draw:
        boxes = report["drawn"]
        shown = ", ".join(f"{each['label']} {each['score']:.2f}".strip() for each in boxes)
        lines.append(f"{options.draw}: {counted(len(boxes), 'box', 'boxes')} {shown}".rstrip())
    if options.save:
        lines.append(f"outputs are in {options.save}")
    print_text("\n".join(lines), options.wide)


def _print_classes(answers: list[Answer], wide: bool) -> None:
    columns = [
        Column("image", "name"),
        Column("answer", "name"),
        Column("then", "name", optional=1),
        Column("probability"),
        Column("latency"),
    ]
    rows = []
    for answer in answers:
        (label, probability), *others = answer.outputs[0].best
        then = ", ".join(f"{other} {p:.1%}" for other, p in others)
        latency = format_ns(answer.latency_ns)
        rows.append([answer.image, label, then, f"{probability:.1%}", latency])
    print_table(columns, rows, wide=wide)
    output = answers[0].outputs[0]
    if output.because == "shape":
        print_text(
            f"(output {output.name} {shape_text(output.shape)} has no labels: its shape is that of "
            "class scores, of which the softmax is shown)",
            wide,
        )


def _print_outputs(answers: list[Answer], wide: bool) -> None:
    """Print a row for each output of each image: shape, range, and NaN or infinite numbers."""
    outputs = [summary for answer in answers for summary in answer.outputs]
    strange = [Column("no numbers", "name")] * any(s.nan or s.infinite for s in outputs)
    classes = [Column("answer", "name")] * any(s.best for s in outputs)
    columns = [
        Column("image", "name", optional=1 if len(answers) == 1 else 0),
        Column("output", "name"),
        Column("shape", "name"),
        Column("dtype", "name", optional=2),
        *(Column(heading) for heading in ("min", "mean", "max")),
        *strange,
        *classes,
        Column("latency"),
    ]
    rows = []
    for answer in answers:
        for number, summary in enumerate(answer.outputs):
            row = [answer.image, summary.name, shape_text(summary.shape), summary.dtype]
            row += [
                "-" if value is None else f"{value:.4g}"
                for value in (summary.least, summary.mean, summary.most)
            ]
            if strange:
                kinds = (("NaN", summary.nan), ("infinite", summary.infinite))
                row.append(", ".join(f"{count} {kind}" for kind, count in kinds if count))
            if classes:
                row.append(", ".join(f"{label} {p:.1%}" for label, p in summary.best[:1]))
            rows.append([*row, "" if number else format_ns(answer.latency_ns)])
    print_table(columns, rows, wide=wide)
