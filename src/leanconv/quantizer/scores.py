"""Scores of a quantised network, from 0 to 1: agreement with float32, labels, a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from leanconv.errors import InputError, LeanConvError, SpecError, short
from leanconv.graph.onnx_graph import OnnxGraph
from leanconv.quantizer.samples import Arrays
from leanconv.records import dataclass

Metric = Callable[[Arrays, Arrays, Arrays], float]
"""A user's function of (outputs, outputs in float32, inputs): a score, the larger the better."""

_LIKELY = 0.5  # above it a probability means yes


@dataclass(frozen=True, eq=False)
class Score:
    """A way to score the answers of a network.

    Attributes:
        name: for reports.
        of: the score, of a sample's number, its outputs, outputs in float32, and inputs.
        classes: the classes of a sample, of its number and outputs in float32; empty where
            answers are no classes.
    """

    name: str
    of: Callable[[int, Arrays, Arrays, Arrays], float]
    classes: Callable[[int, Arrays], set[int]] = lambda *_: set()


def score_of(
    graph: OnnxGraph, metric: Metric | None, labels: Any, rows: Sequence[int] | None
) -> Score:
    """Return the score that is asked for; agreement with float32 where none is.

    Args:
        graph: in float32.
        metric: a user's function.
        labels: the right class of each image, over all samples.
        rows: how many images each sample holds, known where labels are given.

    Raises:
        SpecError: both are given, or the one that is given is not usable.
    """
    if metric is not None and labels is not None:
        raise SpecError("got metric together with labels; expected one of them")
    if metric is not None:
        return _by_metric(metric)
    if labels is not None:
        return _by_labels(labels, rows or [])
    return _by_agreement(graph)


def _by_metric(metric: Metric) -> Score:
    if not callable(metric):
        raise SpecError(
            f"metric is {short(metric)}; expected a function of (outputs, outputs in float32, "
            "inputs) that gives a number"
        )

    def of(_: int, found: Arrays, exact: Arrays, inputs: Arrays) -> float:
        try:
            value = float(metric(found, exact, inputs))
        except LeanConvError:
            raise
        except Exception as error:
            raise InputError(
                f"the metric failed with {type(error).__name__}: {error}; expected a number for "
                "(outputs, outputs in float32, inputs), each arrays by name"
            ) from error
        if not np.isfinite(value):
            raise InputError(f"the metric gave {value}; expected a finite number")
        return value

    return Score("metric", of)


def _by_labels(labels: Any, rows: Sequence[int]) -> Score:
    right = np.asarray(labels)
    if right.ndim != 1 or right.dtype.kind not in "iu" or len(right) != sum(rows):
        raise InputError(
            f"labels is {right.dtype} of shape {right.shape}; expected a whole number for each of "
            f"the {sum(rows)} images"
        )
    begins = np.cumsum([0, *rows])

    def of(number: int, found: Arrays, _: Arrays, __: Arrays) -> float:
        wanted = right[begins[number] : begins[number + 1]]
        scores = next(iter(found.values()))
        if scores.ndim < 2 or len(scores) != len(wanted):
            raise InputError(
                f"the first output has shape {scores.shape}; expected (images, classes) for labels"
            )
        answers = scores.reshape(len(scores), -1).argmax(axis=1)
        return float(np.mean(answers == wanted))

    def classes(number: int, _: Arrays) -> set[int]:
        return set(right[begins[number] : begins[number + 1]].tolist())

    return Score("accuracy", of, classes)


def _by_agreement(graph: OnnxGraph) -> Score:
    made = {name: node.op for name, node in graph.producers().items()}

    def of(_: int, found: Arrays, exact: Arrays, __: Arrays) -> float:
        values = [_agreement(found[name], exact[name], made.get(name, "")) for name in exact]
        return float(np.mean(values)) if values else 1.0

    def classes(_: int, exact: Arrays) -> set[int]:
        found = (
            array.argmax(axis=-1)
            for name, array in exact.items()
            if array.size and array.dtype.kind == "f" and _are_classes(array, made.get(name, ""))
        )
        return {int(number) for numbers in found for number in numbers.flat}

    return Score("agreement", of, classes)


def _agreement(found: np.ndarray, exact: np.ndarray, op: str) -> float:
    """Return the agreement of an output with that in float32.

    Of classes, how often the same one is the largest; of probabilities, the intersection over
    union of what is more likely than not; of whole numbers, how many are equal; of other numbers,
    1 - |found - exact| / |exact|.
    """
    if found.shape != exact.shape:
        return 0.0
    if not exact.size:
        return 1.0
    if exact.dtype.kind != "f":
        return float(np.mean(found == exact))
    if _are_classes(exact, op):
        return float(np.mean(found.argmax(axis=-1) == exact.argmax(axis=-1)))
    if op == "Sigmoid":
        first, second = found > _LIKELY, exact > _LIKELY
        union = int((first | second).sum())
        return float((first & second).sum() / union) if union else 1.0
    return max(0.0, 1.0 - relative_difference(found, exact))


def _are_classes(exact: np.ndarray, op: str) -> bool:
    """True if the last axis of an output has a number for each class."""
    return (op in ("Softmax", "LogSoftmax") or exact.ndim == 2) and exact.shape[-1] > 1


def relative_difference(found: np.ndarray, exact: np.ndarray) -> float:
    """Return |found - exact| / |exact| in the Euclidean norm; infinite if not finite."""
    with np.errstate(all="ignore"):
        difference = np.linalg.norm((found.astype(np.float64) - exact).reshape(-1))
        size = np.linalg.norm(exact.astype(np.float64).reshape(-1))
        value = float(difference / size) if size else float(difference)
    return value if np.isfinite(value) else float("inf")


def output_error(found: Arrays, exact: Arrays) -> float:
    """The largest relative difference of an output that is a float."""
    floats = [name for name, array in exact.items() if array.dtype.kind == "f" and array.size]
    errors = [
        relative_difference(found[name], exact[name])
        if found[name].shape == exact[name].shape
        else float("inf")
        for name in floats
    ]
    return max(errors, default=0.0)
