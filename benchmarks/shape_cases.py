"""What `shapes.py` measures: shapes drawn with a seed, in what order, and what is to be reached."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path

Shape = tuple[int, ...]

WIDTHS = (32, 2304)  # of a line of text, 48 rows high
OTHERS = 3  # shapes that a process has seen before one is measured
_SIDE, _LARGEST_SIDE = 32, 960  # a detector's sides are multiples of 32
_LEAST_FACE, _CELL, _SCALE = 20, 12, 0.709  # MTCNN's: the smallest face, P-net's window, the step
_IMAGE = (640, 480)
_SQUARE = (1, 3, 224, 224)
_YOLO = (1, 3, 640, 640)


@dataclass(frozen=True)
class Step:
    """One run of a network on a shape, the first on that shape in its process."""

    model: Path
    shape: Shape


@dataclass(frozen=True)
class Must:
    """What a case has to reach; None where nothing is asked.

    Attributes:
        median_s, worst_s: of what is measured, with an empty cache at the sequence's start.
        full_s: the median with a full cache.
        kernels: newly compiled by all that is measured.
        grown_bytes: resident memory that the measured shapes add.
    """

    median_s: float | None = None
    worst_s: float | None = None
    full_s: float | None = None
    kernels: int | None = None
    grown_bytes: int | None = None


@dataclass(frozen=True)
class Case:
    """Sequences of shapes, each through one process that begins with an empty cache.

    Attributes:
        name: what tables and JSON call it.
        sequences: what a process is given, one step after the other.
        before: how many steps of each sequence are not measured.
        must: what is to be reached.
        full: whether the sequences are run again with the cache that they have left.
    """

    name: str
    sequences: tuple[tuple[Step, ...], ...]
    before: int = 0
    must: Must = Must()
    full: bool = True


def widths(rng: random.Random, count: int) -> list[Shape]:
    """Distinct shapes of a recogniser, of any width."""
    return [(1, 3, 48, w) for w in rng.sample(range(WIDTHS[0], WIDTHS[1] + 1), count)]


def sizes(rng: random.Random, count: int) -> list[Shape]:
    """Distinct shapes of a detector, heights and widths drawn alike."""
    sides = range(_SIDE, _LARGEST_SIDE + 1, _SIDE)
    return rng.sample([(1, 3, height, width) for height in sides for width in sides], count)


def pyramid(width: int, height: int) -> list[Shape]:
    """The shapes that P-net is given for one image, as MTCNN scales it: (1, width, height, 3)."""
    scale = _CELL / _LEAST_FACE
    found: list[Shape] = []
    while min(width, height) * scale >= _CELL:
        found.append((1, ceil(width * scale), ceil(height * scale), 3))
        scale *= _SCALE
    return found


def levels(rng: random.Random, count: int) -> list[Shape]:
    """Distinct levels of the pyramids of images of any size."""
    found: list[Shape] = []
    while len(found) < count:
        width, height = (round(side * rng.uniform(0.5, 2)) for side in _IMAGE)
        found += [shape for shape in pyramid(width, height) if shape not in found]
    return found[:count]


Draw = Callable[[random.Random, int], list[Shape]]
DRAWS: Mapping[str, Draw] = {
    "recogniser": widths,
    "detector": sizes,
    "pnet": levels,
    "yolo": sizes,
}


def cases(
    models: Mapping[str, Path], seed: int, processes: int, many: int
) -> tuple[list[Case], dict[str, str]]:
    """All cases whose models are there.

    Args:
        models: files by name: `recogniser`, `detector`, `pnet`, `yolo`, and those of this
            repository: `mobilenetv2`, `resnet50`, `resnet101`.
        seed: shapes are drawn with it; the same seed draws the same for each case, whichever
            others are measured.
        processes: sequences of each case.
        many: shapes of the case that counts memory.

    Returns:
        The cases, and by name why the others are left out.
    """
    found: list[Case] = []
    missing: dict[str, str] = {}

    def add(name: str, needed: tuple[str, ...], make: Callable[[random.Random], Case]) -> None:
        absent = [model for model in needed if model not in models]
        if absent:
            missing[name] = f"needs {' '.join(f'--{model} FILE' for model in absent)}"
        else:
            found.append(make(random.Random(f"{seed} {name}")))

    def new_shapes(name: str, model: str, must: Must) -> None:
        def make(rng: random.Random) -> Case:
            shapes = (DRAWS[model](rng, OTHERS + 1) for _ in range(processes))
            sequences = tuple(_steps(models[model], each) for each in shapes)
            return Case(name, sequences, OTHERS, must)

        add(name, (model,), make)

    def first_answer(name: str, model: str, shape: Shape, must: Must) -> None:
        def make(_: random.Random) -> Case:
            return Case(name, (_steps(models[model], [shape]),) * processes, 0, must)

        add(name, (model,), make)

    def pyramid_levels(_: random.Random) -> Case:
        steps = _steps(models["pnet"], pyramid(*_IMAGE))
        return Case("pyramid", (steps,) * processes, OTHERS, Must(0.010, 0.010))

    def many_widths(rng: random.Random) -> Case:
        ends = [(1, 3, 48, WIDTHS[1]), (1, 3, 48, WIDTHS[0])]  # the arena has its full size then
        drawn = [shape for shape in widths(rng, many + OTHERS) if shape not in ends]
        steps = _steps(models["recogniser"], [*ends, *drawn[: many + OTHERS - len(ends)]])
        return Case("memory", (steps,), OTHERS, Must(grown_bytes=20_000_000), full=False)

    def deeper(_: random.Random) -> Case:
        steps = Step(models["resnet50"], _SQUARE), Step(models["resnet101"], _SQUARE)
        return Case("resnet101 after resnet50", (steps,), 1, Must(kernels=0))

    new_shapes("widths", "recogniser", Must(0.050, 0.100))
    new_shapes("sizes", "detector", Must(0.060, 0.120))
    new_shapes("yolo sizes", "yolo", Must(0.060, 0.120))
    add("pyramid", ("pnet",), pyramid_levels)
    add("memory", ("recogniser",), many_widths)
    first_answer("first mobilenetv2", "mobilenetv2", _SQUARE, Must(0.6, full_s=0.08))
    first_answer("first resnet50", "resnet50", _SQUARE, Must(1.0, full_s=0.25))
    first_answer("first yolo", "yolo", _YOLO, Must(1.0))
    first_answer("first recogniser", "recogniser", (1, 3, 48, 320), Must(full_s=0.15))
    add("resnet101 after resnet50", ("resnet50", "resnet101"), deeper)
    return found, missing


def _steps(model: Path, shapes: list[Shape]) -> tuple[Step, ...]:
    return tuple(Step(model, shape) for shape in shapes)
