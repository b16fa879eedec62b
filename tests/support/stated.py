"""The error that plans state, as a sentence that can be false, and data to try it on.

    |y - exact| <= predicted_error · scale        for every output

with `scale` the largest |exact| of all outputs before the activation, or 2.5 times the largest
root-sum-square R of one output's terms (products, bias, residual), if that is more. An output of
terms of random sign has the standard deviation R, and the largest of 64 of them is 2.5 R on the
average: from some 64 outputs on the scale is the largest output, and where there are fewer, what
it would be if there were 64. For the same reason a weight that is below the root-mean-square of all
counts as that: where padding leaves single products, transforms round with the others' weights too.
An activation passes the error on, multiplied by its steepest slope.

The other way round, for sums of random sign the stated error is at most 100 times the largest
error found, both over the largest output. (Sums of positive numbers are larger by the root of their
length, and transforms round no more than before.) One output may be right by chance, so this is
asked of 64 outputs: a plan that has fewer runs several times, on other inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

import leanconv as lc
from leanconv.reference.direct import activate, channels_back, channels_first, convolve
from leanconv.types import FLOAT32, FLOAT64
from support.guarded import Guarded
from support.problems import Arrays, Problem

ROUNDOFF = {FLOAT32: 2.0**-24, FLOAT64: 2.0**-53}
# Algorithms that multiply transformed numbers, or factors: whole numbers do not stay whole.
ROUNDING = ("winograd", "fft", "separable")
# Numbers of random sign; inputs above zero, as after a ReLU; all above zero; whole numbers from 1
# to 3 of random sign (no zeros: transforms round with the terms that a zero takes out of a sum).
KINDS = ("normal", "uniform", "offset", "positive", "whole")
RANDOM_SIGN = ("normal", "uniform", "offset")  # of the sums, and none of them exact
ENOUGH = 64  # outputs whose largest error is no accident
LARGEST_OF_ENOUGH = 2.5  # of so many normal numbers, in standard deviations
LOOSE = 100.0
_HALF = 2.0**16  # numbers of float64 problems are multiples of its inverse square
_OWN = 16.0  # roundings of an activation, and of the oracle's, in units of the roundoff
_STEEPEST = {"sigmoid": 0.25, "silu": 1.1, "hard_swish": 1.5, "gelu": 1.13, "gelu_tanh": 1.13}


@dataclass(frozen=True)
class Data:
    """The operands of a problem's runs: x and residual are others in each run."""

    problem: Problem
    kind: str

    def _draw(self, stream: tuple[int, ...], shape: tuple[int, ...], above: bool) -> np.ndarray:
        rng = np.random.default_rng((self.problem.seed, *stream))
        if self.kind == "whole":
            values = rng.integers(1, 4, shape) * rng.choice([-1.0, 1.0], shape)
        elif self.kind == "normal":
            values = rng.standard_normal(shape)
        else:
            values = rng.uniform(0.0 if above else -1.0, 1.0, shape)
        if self.problem.spec.dtype == FLOAT64:
            values = np.round(values * _HALF**2) / _HALF**2
        return values.astype(self.problem.spec.dtype)

    def arrays(self, run: int) -> Arrays:
        """The operands of one run; its input stands between NaN."""
        spec, positive = self.problem.spec, self.kind == "positive"
        prelu = spec.activation is not None and spec.activation.kind == "prelu"
        channel = (spec.out_channels,)
        return Arrays(
            Guarded(
                self._draw((0, run), spec.input_shape, positive or self.kind == "offset"),
                aligned=False,
            ).array,
            self._draw((1,), spec.weight_shape, positive),
            self._draw((2,), channel, positive) if spec.bias else None,
            self._draw((3, run), spec.output_shape, positive) if spec.residual else None,
            self._draw((4,), channel, positive) if prelu else None,
        )


# -- what is exact -----------------------------------------------------------------------------
@dataclass(frozen=True)
class Exact:
    """Sums before the activation as high + low.

    Attributes:
        spread: root-sum-square of each sum's terms, or of what they are with weights of mean size.
        rounded: how many sums have a product in them.
    """

    high: np.ndarray
    low: np.ndarray
    spread: np.ndarray
    rounded: int

    @property
    def scale(self) -> float:
        """What errors are measured by."""
        if not self.high.size:
            return 0.0
        return float(max(np.abs(self.high).max(), LARGEST_OF_ENOUGH * self.spread.max()))


def exact_sums(problem: Problem, arrays: Arrays) -> Exact:
    """All sums, with an error far below the roundoff of the problem's dtype.

    Numbers of float64 problems are cut into two halves whose products can be added up in float64
    without any rounding; four sums of these make the exact one.
    """
    spec = replace(problem.spec, activation=None)
    bare = replace(spec, bias=False, residual=False)
    x, w = arrays.x.astype(np.float64), arrays.w.astype(np.float64)
    added = np.zeros(spec.output_shape)
    mean = np.full_like(w, np.square(w).mean())
    squares = convolve(bare, np.square(x), np.square(w))
    rounded = int(np.count_nonzero(squares))
    squares = np.maximum(squares, convolve(bare, np.square(x), mean))
    for term in _added(problem, arrays):
        added = added + term
        squares = squares + np.square(term)
    if spec.dtype == FLOAT32:
        high = convolve(bare, x, w) + added
        return Exact(high, np.zeros_like(high), np.sqrt(squares), rounded)
    (x1, x0), (w1, w0) = _halves(x), _halves(w)
    middle = convolve(bare, x1, w0) + convolve(bare, x0, w1)
    parts = (
        added,
        convolve(bare, x1, w1) / _HALF**2,
        middle / _HALF**3,
        convolve(bare, x0, w0) / _HALF**4,
    )
    high, low = np.zeros(spec.output_shape), np.zeros(spec.output_shape)
    for part in parts:
        total = high + part
        moved = total - high
        low = low + ((high - (total - moved)) + (part - moved))
        high = total
    return Exact(high, low, np.sqrt(squares), rounded)


def _halves(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers a, b with values = (a + b / HALF) / HALF."""
    upper = np.floor(values * _HALF)
    lower = (values * _HALF - upper) * _HALF
    assert (lower == np.round(lower)).all(), "more bits than two halves hold"
    return upper, lower


def _added(problem: Problem, arrays: Arrays) -> list[np.ndarray]:
    """Bias and residual as arrays of the output's shape."""
    terms = []
    if arrays.bias is not None:
        ones = (1,) * len(problem.spec.size)
        column = arrays.bias.astype(np.float64).reshape(1, -1, *ones)
        whole = np.broadcast_to(column, channels_first(problem.spec, _like(problem)).shape)
        terms.append(channels_back(problem.spec, whole))
    if arrays.residual is not None and not _is_outer(problem):
        terms.append(arrays.residual.astype(np.float64))
    return terms


def _is_outer(problem: Problem) -> bool:
    """Whether a residual is added to what the activation gives."""
    activation = problem.spec.activation
    return activation is not None and activation.before_residual


def _like(problem: Problem) -> np.ndarray:
    return np.broadcast_to(np.float64(0.0), problem.spec.output_shape)


# -- what is stated ----------------------------------------------------------------------------
def differences(problem: Problem, arrays: Arrays, exact: Exact, y: np.ndarray) -> np.ndarray:
    """y minus what is exact, element by element."""
    if problem.spec.activation is None:
        return (y - exact.high) - exact.low
    slope = None
    if arrays.slope is not None:
        spec = replace(problem.spec, bias=True, residual=False)
        alone = Arrays(arrays.x, arrays.w, arrays.slope, None, None)
        (slope,) = _added(Problem(spec, problem.seed), alone)
    expected = activate(exact.high, problem.spec.activation, slope)
    if arrays.residual is not None and _is_outer(problem):
        expected = expected + arrays.residual.astype(np.float64)
    return y - expected


def steepest(problem: Problem, arrays: Arrays) -> float:
    """The steepest slope of the activation."""
    activation = problem.spec.activation
    if activation is None:
        return 1.0
    if activation.affine:
        bare = replace(problem.spec, activation=replace(activation, affine=()))
        return abs(activation.affine[0]) * steepest(Problem(bare, problem.seed), arrays)
    if activation.kind in ("leaky_relu", "elu"):
        return max(1.0, abs(activation.parameters[0]))
    if activation.kind == "hard_sigmoid":
        return abs(activation.parameters[0])
    if arrays.slope is not None:
        return max(1.0, float(np.abs(arrays.slope).max()))
    return _STEEPEST.get(activation.kind, 1.0)


def check_stated(problem: Problem, kind: str, **options: object) -> lc.ConvPlan:
    """Plan with these options, run, and raise AssertionError where a plan breaks its word."""
    spec, data = problem.spec, Data(problem, kind)
    first = data.arrays(0)
    plan = lc.plan_conv2d(
        spec.input_shape,
        first.w,
        first.bias,
        residual=spec.residual,
        slope=first.slope,
        **problem.options,
        **options,
    )
    assert plan.used_bytes == plan.memory_bytes == plan.workspace_bytes + plan.weight_bytes
    label = f"{plan.explain()}\n{problem} {kind} {options}"
    largest = found = 0.0
    rounded = run = 0
    while rounded < ENOUGH and run < ENOUGH:
        arrays = data.arrays(run) if run else first
        exact = exact_sums(problem, arrays)
        error = _run(plan, problem, arrays, exact, kind, label)
        found, largest = max(found, error), max(largest, float(np.abs(exact.high).max()))
        rounded += exact.rounded
        run += 1
        if kind not in RANDOM_SIGN or spec.activation is not None or not exact.rounded:
            return plan
    stated = plan.predicted_error
    assert found > 0, f"{label}\nexact, {stated:.1e} stated"
    ratio = stated * largest / found
    assert ratio <= LOOSE, f"{label}\n{stated:.1e} stated, {ratio:.0f} times too large"
    return plan


def _run(
    plan: lc.ConvPlan, problem: Problem, arrays: Arrays, exact: Exact, kind: str, label: str
) -> float:
    """Run once into a guarded array full of NaN, and return the largest error."""
    spec = problem.spec
    out = Guarded.unwritten(spec.output_shape, spec.dtype)
    result = plan(arrays.x, out=out.array, residual=arrays.residual)
    assert result is out.array
    out.check()
    errors = np.abs(differences(problem, arrays, exact, result))
    assert not np.isnan(errors).any(), f"{label}\nNaN"
    error = float(errors.max())
    if kind == "whole" and plan.algorithm not in ROUNDING:
        assert error == 0, f"{label}\noff by {error} on whole numbers"
    allowed = plan.predicted_error * steepest(problem, arrays) * exact.scale
    if spec.activation is not None:
        largest = max(1.0, exact.scale)
        if spec.activation.affine or spec.activation.before_residual:  # what follows rounds, too
            largest = max(largest, float(np.abs(result).max(initial=0.0)))
            largest *= max(1.0, steepest(problem, arrays))
        allowed += _OWN * ROUNDOFF[spec.dtype] * largest
    assert error <= allowed, f"{label}\n{error / max(allowed, 1e-300):.3f} times the stated error"
    return error
