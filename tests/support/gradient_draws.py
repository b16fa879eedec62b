"""Random problems of gradients by seed, those that other libraries got wrong, and their check."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from leanconv.algorithms import Problem, select
from leanconv.errors import SpecError
from leanconv.runtime.calibration import planning_target
from leanconv.spec import Format
from leanconv.spec.conv import ConvSpec, effective_extent
from leanconv.types import FLOAT32, FLOAT64
from support import gradients

# Channels beside the widths of vectors and of pairs of them.
_CHANNELS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 23, 24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 129)
_KINDS = ("dense", "dense", "dense", "grouped", "narrow", "depthwise", "multiplied")
_MOST_FLOPS, _MOST_ELEMENTS = 3e7, 400_000
THREADS = (1, 2, 5)
# Problems of which a public report says that some library's gradient was wrong, or crashed.
REPORTED = {
    "oneDNN-6035": "mb32ic4ih32oc8oh16kh1sh2ph0",
    "oneDNN-6035 larger": "mb32ic4ih64oc8oh32kh1sh2ph0",
    "oneDNN-6035 block": "mb32ic8ih32oc8oh16kh1sh2ph0",
    "oneDNN-4124": "g24mb1ic24ih6oc24oh3kh3sh2ph1",
    "oneDNN-4074": "g8ic8ih5iw1oc8oh2ow1kh5kw1sh2sw1ph2pw0",
    "oneDNN-542": "mb1ic9ih32oc3oh10kh5sh3ph1",
    "oneDNN-5730": "mb1ic128ih83iw11oc512oh28ow11kh5kw1sh3sw1ph2pw0",
    "fujitsu-43": "ic64ih1iw8oc17oh1ow4kh1kw3sh1sw2ph0pw1",
}


@dataclass(frozen=True)
class Draw:
    """A problem and what decides its arrays.

    Attributes:
        name: for people: the seed and the number, or who reported it.
        spec: the convolution.
        seed: of arrays and formats.
    """

    name: str
    spec: ConvSpec
    seed: int

    def arrays(self, whole: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """x, w and dy of the problem's type: small whole numbers, or normal ones."""
        rng, spec = np.random.default_rng(self.seed), self.spec
        shapes = spec.input_shape, spec.weight_shape, spec.output_shape
        made = (
            rng.integers(-3, 4, shape) if whole else rng.standard_normal(shape) for shape in shapes
        )
        x, w, dy = (array.astype(spec.dtype) for array in made)
        return x, w, dy

    def forms(self) -> tuple[Format, Format]:
        """A pair of formats of x and dy."""
        found = gradients.formats(self.spec, planning_target())
        return random.Random(self.seed).choice(found)


def drawn(seed: int, count: int) -> Iterator[Draw]:
    """Problems by number; the same for a seed on every machine."""
    for number in range(count):
        yield draw(seed, number)


def draw(seed: int, number: int) -> Draw:
    """One problem of those of a seed, small enough for NumPy."""
    rng = random.Random(f"{seed} {number}")
    while True:
        try:
            spec = _spec(rng)
        except SpecError:
            continue
        shapes = spec.input_shape, spec.weight_shape, spec.output_shape
        if spec.flops <= _MOST_FLOPS and max(map(prod, shapes)) <= _MOST_ELEMENTS:
            return Draw(f"{seed}:{number}", spec, rng.randrange(2**31))


def reported() -> list[Draw]:
    """The problems of public reports."""
    return [
        Draw(name, ConvSpec.parse(text), number)
        for number, (name, text) in enumerate(REPORTED.items())
    ]


def _spec(rng: random.Random) -> ConvSpec:
    rank = rng.choice((1, 2, 2, 2, 2, 3))
    groups, inputs, outputs = _channels(rng)
    axes = list(zip(*(_axis(rng, rank) for _ in range(rank)), strict=True))
    size, kernel, stride, dilation, begin, end = axes
    return ConvSpec(
        rng.choice((1, 1, 2, 3, 4, 5, 8, 16, 33)),
        groups * inputs,
        groups * outputs,
        size,
        kernel,
        stride,
        dilation,
        begin,
        end,
        groups,
        rng.choice((FLOAT32, FLOAT32, FLOAT32, FLOAT64)),
    )


def _channels(rng: random.Random) -> tuple[int, int, int]:
    """Groups, and input and output channels of one."""
    kind = rng.choice(_KINDS)
    if kind == "dense":
        return 1, rng.choice(_CHANNELS), rng.choice(_CHANNELS)
    if kind == "grouped":
        return rng.randint(2, 5), rng.choice(_CHANNELS[:16]), rng.choice(_CHANNELS[:16])
    if kind == "narrow":
        return rng.choice((4, 8, 16, 17, 32)), rng.randint(1, 4), rng.randint(1, 4)
    return rng.choice(_CHANNELS), 1, rng.randint(2, 4) if kind == "multiplied" else 1


def _axis(rng: random.Random, rank: int) -> tuple[int, ...]:
    """Size, kernel, stride, dilation, pads of one axis; pads may be larger than the image."""
    most = {1: 200, 2: 40, 3: 12}[rank]
    size = rng.choice((1, 2, 3, 4, 6, 7, 8, 12, 14, 16, 17, 28, rng.randint(1, most)))
    size = min(size, most)
    kernel = rng.choice((1, 1, 2, 3, 3, 3, 4, 5, 7, 11 if rank == 1 else 6))
    stride, dilation = rng.choice((1, 1, 1, 2, 2, 3, 4, 7)), rng.choice((1, 1, 1, 2, 3))
    span = effective_extent(kernel, dilation)
    kind = rng.choice(("none", "same", "same", "any", "beyond"))
    if kind == "none":
        begin, end = 0, 0
    elif kind == "same":
        begin = (span - 1) // 2
        end = span - 1 - begin
    else:
        reach = span + 2 if kind == "any" else size + span + 1
        begin, end = rng.randint(0, reach), rng.randint(0, reach)
    return size, kernel, stride, dilation, begin, max(end, span - size - begin)


def check(found: Draw, name: str, threads: Sequence[int] = THREADS) -> bool:
    """Check a method of dw on a problem, in formats of its own, by each number of threads.

    Args:
        found: the problem.
        name: of the method, with parameters or not.
        threads: numbers of them.

    Returns:
        False if the method refuses the problem.

    Raises:
        AssertionError: whole numbers are not exact, an error is above the stated one, or bits
            depend on the number of threads.
    """
    spec, forms, target = found.spec, found.forms(), planning_target()
    problem = gradients.gradient_problem(spec, *forms)
    choice = select.gradient_choice_named(name)
    if select.refusal(choice, problem, target):
        return False
    try:
        candidate = select.choose(problem, target, choice)
    except SpecError:
        return False
    transforms = select.transforms(candidate.choice, problem)
    for whole in (True, False):
        x, _, dy = found.arrays(whole)
        given = [gradients.in_format(a, form) for a, form in zip((x, dy), forms, strict=True)]
        wide = wider(x.dtype)
        x, dy = x.astype(wide), dy.astype(wide)
        exact, squares = (gradients.expected(spec, x**n, dy**n) for n in (1, 2))
        results = [gradients.run(candidate, problem, *given, threads=n) for n in threads]
        got = results[0].reshape(spec.weight_shape)
        for other in results[1:]:
            assert np.array_equal(results[0], other), f"bits depend on threads{_told(problem)}"
        if whole and not transforms:
            wrong = np.argwhere(got != exact)
            assert not len(wrong), (
                f"{len(wrong)} of {got.size} wrong, at {wrong[0]}{_told(problem)}"
            )
        error = error_of(got, exact, squares)
        stated = max(candidate.choice.error, 1e-30)
        assert error <= stated, f"error {error:.2e}, stated {stated:.2e}{_told(problem)}"
    return True


def wider(dtype: np.dtype) -> type:
    """A type whose sums are exact beside those of a dtype."""
    return np.float64 if dtype == np.float32 else np.longdouble


def error_of(got: np.ndarray, exact: np.ndarray, squares: np.ndarray) -> float:
    """The largest difference over the largest number, or what that were if no terms cancelled.

    Args:
        got: sums.
        exact: the same of a wider type.
        squares: the sums of the squares of their terms.
    """
    largest = max(np.abs(exact).max(initial=0.0), np.sqrt(squares.max(initial=0.0)))
    away = np.abs(got - exact).max(initial=0.0)
    return float(away / largest if largest else away)


def _told(problem: Problem) -> str:
    return f": {problem}, x {problem.conv.x}, dy {problem.conv.y}"


def smaller(found: Draw) -> Iterator[Draw]:
    """Problems with one thing less, to make a failing one small."""
    spec, channels = found.spec, ("in_channels", "out_channels")
    changes: list[dict[str, Any]] = [{"batch": n} for n in _less(spec.batch, 1)]
    for label in channels:
        own = getattr(spec, label) // spec.groups
        changes += [{label: fewer * spec.groups} for fewer in _less(own, 1)]
    own = {label: getattr(spec, label) // spec.groups for label in channels}
    for fewer in _less(spec.groups, 1):
        changes.append({"groups": fewer, **{label: n * fewer for label, n in own.items()}})
    for label in ("size", "kernel", "stride", "dilation", "pad_begin", "pad_end"):
        values = getattr(spec, label)
        for axis, value in enumerate(values):
            for fewer in _less(value, 0 if label.startswith("pad") else 1):
                changes.append({label: (*values[:axis], fewer, *values[axis + 1 :])})
    for change in changes:
        try:
            yield replace(found, spec=replace(spec, **change))
        except SpecError:
            continue


def _less(number: int, least: int) -> list[int]:
    """Smaller numbers to try, the smallest first."""
    return [n for n in sorted({least, number // 2, number - 1}) if least <= n < number]
