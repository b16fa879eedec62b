"""Calls of the gradients of convolutions and transposed ones, against NumPy in float64."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

import leanconv as lc
from leanconv.algorithms import ALGORITHMS
from leanconv.algorithms.select import saves_products
from leanconv.api.gradient_graph import NEEDS, RESULTS
from leanconv.errors import SpecError
from leanconv.spec import ConvSpec
from support import gradients
from support.gradient_draws import THREADS, Draw, error_of, wider

# The algorithms that dx may have by name: not those that know the weights beforehand.
OF_DATA = (*(n for n in ALGORITHMS if not saves_products(n)), "col2im", "phases")
_INEXACT = ("Winograd", "Fft", "Tile")  # in the names of kernels that transform numbers


@dataclass(frozen=True)
class Call:
    """One call: a problem of a convolution, or the transposed one of the same window.

    Attributes:
        found: the problem; a transposed convolution leads from its output's shape to its input's.
        transposed: which of both.
        layout: "NCHW", or "NHWC" of a convolution.
        needs: the gradients that are asked for.
    """

    found: Draw
    transposed: bool = False
    layout: str = "NCHW"
    needs: tuple[str, ...] = NEEDS

    @classmethod
    def drawn(cls, found: Draw) -> Call:
        """The call of a problem that its seed draws."""
        rng = random.Random(found.seed)
        transposed = rng.random() < 0.3 and _extra(found.spec) is not None
        layout = "NCHW" if transposed else rng.choice(("NCHW", "NHWC"))
        kinds = (NEEDS, NEEDS, ("x",), ("w",), ("x", "w"), ("w", "bias"))
        return cls(found, transposed, layout, rng.choice(kinds))

    @cached_property
    def options(self) -> dict[str, Any]:
        """Arguments beside arrays, `needs` among them."""
        spec = self.found.spec
        given: dict[str, Any] = {
            "stride": spec.stride,
            "padding": (*spec.pad_begin, *spec.pad_end),
            "dilation": spec.dilation,
            "groups": spec.groups,
            "needs": self.needs,
        }
        if self.transposed:
            return {**given, "output_padding": _extra(spec)}
        return {**given, "layout": self.layout}

    def arrays(self, whole: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """x, w and dy as they are given."""
        large, w, small = self.found.arrays(whole)
        if self.transposed:
            return small, w, large
        return self._laid(large), w, self._laid(small)

    def expected(self, whole: bool, power: int = 1) -> dict[str, np.ndarray]:
        """The gradients that are needed, of a wider type, as they are given.

        Args:
            whole: as of `arrays`.
            power: of each factor; 2 gives the sums of the squares of the terms.
        """
        spec = self.found.spec
        large, w, small = (a.astype(wider(a.dtype)) ** power for a in self.found.arrays(whole))
        x, dy = (small, large) if self.transposed else (large, small)
        found = {"w": gradients.expected(spec, large, small)}
        if "x" in self.needs:
            dx = gradients.convolved(spec, large, w) if self.transposed else None
            dx = gradients.expected_data(spec, w, small) if dx is None else dx
            assert dx.shape == x.shape
            found["x"] = self._laid(dx)
        found["bias"] = dy.sum((0, *range(2, dy.ndim)))
        return {need: found[need] for need in self.needs}

    def plan(self, **options: Any) -> Any:
        """A plan of it."""
        x, w, _ = self.arrays(True)
        given = {**self.options, **options, "dtype": str(x.dtype)}
        return self._call("plan_conv2d_backward")(x.shape, w.shape, **given)

    def called(self, whole: bool, **options: Any) -> lc.Gradients:
        """What the function gives."""
        found: lc.Gradients = self._call("conv2d_backward")(
            *self.arrays(whole), **self.options, **options
        )
        return found

    def _call(self, name: str) -> Any:
        return getattr(lc, name.replace("conv2d", "conv_transpose2d") if self.transposed else name)

    def _laid(self, array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if self.layout == "NHWC" else array


def _extra(spec: ConvSpec) -> tuple[int, ...] | None:
    """The output padding with which a transposed convolution gives a problem's input."""
    axes = zip(
        spec.output_size, spec.kernel, spec.stride, spec.dilation, spec.pad_begin, spec.pad_end,
        spec.size, strict=True,
    )  # fmt: skip
    found = []
    for out, kernel, stride, dilation, begin, end, size in axes:
        reach = (out - 1) * stride + (kernel - 1) * dilation + 1 - begin - end
        extra = size - reach
        if not 0 <= extra < max(stride, dilation):
            return None
        found.append(extra)
    return tuple(found)


def named(found: lc.Gradients) -> dict[str, np.ndarray | None]:
    """Gradients by what needs them."""
    return dict(zip(NEEDS, found, strict=True))


def check_call(call: Call, threads: Sequence[int] = THREADS, **options: Any) -> Any:
    """Check a plan: exact or within its error, bits of any threads, bytes; inputs unchanged.

    Returns:
        The plan of the first number of threads.

    Raises:
        AssertionError: one of these does not hold.
    """
    plans = [call.plan(threads=n, **options) for n in threads]
    exact = not any(word in kernel for kernel in kernels_of(plans[0]) for word in _INEXACT)
    for whole in (True, False):
        given, wanted, squares = call.arrays(whole), call.expected(whole), call.expected(whole, 2)
        kept = [array.copy() for array in given]
        results = [named(run(plan, given, wanted)) for plan in plans]
        for need in NEEDS:
            of_need = [result[need] for result in results]
            if need not in call.needs:
                assert of_need == [None] * len(of_need), need
                continue
            told = f"{need} of {call}, {plans[0].algorithms}"
            first = of_need[0]
            assert first is not None
            for other in of_need[1:]:
                assert np.array_equal(first, other), f"bits depend on threads: {told}"
            wrong = np.argwhere(first != wanted[need])
            if whole and exact and len(wrong):
                raise AssertionError(f"{len(wrong)} of {first.size} wrong, at {wrong[0]}: {told}")
            error = error_of(first, wanted[need], squares[need])
            stated = plans[0].predicted_errors[RESULTS[need]]
            assert error <= stated, f"error {error:.2e}, stated {stated:.2e}: {told}"
        for array, copy in zip(given, kept, strict=True):
            assert np.array_equal(array, copy), f"an input was changed: {call}"
    for plan in plans:
        assert plan.used_bytes == plan.memory_bytes, f"{plan.used_bytes} used: {call} {plan}"
    return plans[0]


def check_data(found: Draw, name: str, threads: Sequence[int] = THREADS) -> bool:
    """The same of dx by an algorithm; False if that refuses the problem."""
    call = replace(Call.drawn(found), needs=("x",))
    try:
        call.plan(algorithm=name)
    except SpecError:
        return False
    check_call(call, threads, algorithm=name)
    return True


def kernels_of(plan: Any) -> list[str]:
    """The names of all kernels of a plan."""
    steps = [step for part in plan.parts for step in part.made.lowered.steps]
    return [type(call.kernel).__name__ for step in steps for call in step.calls]


def run(plan: Any, given: Sequence[np.ndarray], wanted: Mapping[str, np.ndarray]) -> lc.Gradients:
    """Run a plan into arrays full of NaN."""
    made = (_unwritten(wanted.get(need), given[1]) for need in NEEDS)
    out = lc.Gradients(*made)
    found: lc.Gradients = plan(*given, out=out)
    assert all(one is other for one, other in zip(found, out, strict=True))
    return found


def _unwritten(like: np.ndarray | None, w: np.ndarray) -> np.ndarray | None:
    return None if like is None else np.full(like.shape, np.nan, w.dtype)


def all_needs(of: Collection[str] = NEEDS) -> list[tuple[str, ...]]:
    """Every choice of gradients."""
    names = list(of)
    masks = range(1, 2 ** len(names))
    return [tuple(n for i, n in enumerate(names) if mask >> i & 1) for mask in masks]
