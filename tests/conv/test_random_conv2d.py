"""Random convolutions of arrays: right, and with the same bits in whatever order sizes come."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import leanconv as lc
from leanconv.api import kept_plans
from leanconv.reference.direct import convolve as reference
from leanconv.spec.arguments import ConvArguments, spec_of
from leanconv.types import find_dtype

Shape = tuple[int, ...]


def drawn(shape: Shape, dtype: str, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


class Layer:
    """A convolution of one to three axes with its arrays.

    Attributes:
        options: of `conv2d`.
    """

    def __init__(
        self, random: Random, kernel: Shape, group: int, inputs: int, outputs: int
    ) -> None:
        rank, reach = len(kernel), min(kernel)
        self.dtype = random.choice(("float32", "float32", "float64"))
        self.w = drawn((group * outputs, inputs, *kernel), self.dtype)
        self.bias = drawn(self.w.shape[:1], self.dtype) if random.random() < 0.5 else None
        self.activation = random.choice((None, "relu", "prelu"))
        self.slope = drawn(self.w.shape[:1], self.dtype) if self.activation == "prelu" else None
        self.has_residual = random.random() < 0.3
        given = ConvArguments(1)._replace(
            stride=random.choice((1, 1, 1, 2, 3)),
            padding=tuple(random.randint(0, reach) for _ in range(2 * rank)),
            dilation=random.choice((1, 1, 2)),
            groups=group,
            activation=self.activation,
        )
        self.given = given

    def shape(self, batch: int, size: Shape) -> Shape:
        return (batch, self.w.shape[1] * self.given.groups, *size)

    def fits(self, size: Shape) -> bool:
        """Whether a window meets the image, which is not all padding."""
        padding = self.given.padding
        ends = zip(size, padding[: len(size)], padding[len(size) :], self.w.shape[2:], strict=True)
        return all(n + a + b > self.given.dilation * (k - 1) for n, a, b, k in ends)

    def spec(self, shape: Shape) -> Any:
        kind = find_dtype(np.dtype(self.dtype))
        assert kind is not None
        return spec_of(
            shape, self.w.shape, self.given, kind, self.bias is not None, self.has_residual
        )

    def wanted(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The sums in long double, and what is added to them."""
        spec = self.spec(x.shape)
        added = drawn(spec.output_shape, self.dtype, 1) if self.has_residual else None
        wide = [
            None if each is None else each.astype(np.longdouble)
            for each in (x, self.w, self.bias, added, self.slope)
        ]
        return reference(spec, *wide), added

    @property
    def options(self) -> dict[str, Any]:
        names = ("stride", "padding", "dilation", "groups", "activation")
        return {**{name: getattr(self.given, name) for name in names}, "slope": self.slope}


def random_layer(random: Random) -> tuple[Layer, list[Shape]]:
    """A layer of any channels, and shapes of images, large ones first."""
    rank, group = random.choice((1, 2, 2, 3)), random.choice((1, 1, 1, 2, 4, 16))
    taps = (1, 1, 2, 3) if rank == 3 else (1, 1, 2, 3, 5, 9)
    kernel = tuple(random.choice(taps) for _ in range(rank))
    inputs, outputs = random.choice((1, 1, 3, 8, 17)), random.choice((1, 1, 2, 5, 16, 32))
    layer = Layer(random, kernel, group, inputs, outputs)
    extents = (1, 2, 5, 12) if rank == 3 else (1, 2, 5, 13, 31, 50)
    sizes = [(17 if rank == 3 else 40,) * rank]
    sizes += [tuple(random.choice(extents) for _ in range(rank)) for _ in range(4)]
    return layer, [layer.shape(random.randint(1, 2), s) for s in sizes if layer.fits(s)]


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(8))
def test_sizes_in_any_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    layer, shapes = random_layer(random)
    found: dict[int, np.ndarray] = {}
    first, *others = range(len(shapes))
    for order in ((first, *others), (first, *reversed(others))):
        kept_plans._layer.cache_clear()
        cache = kept_plans.PlanCache[kept_plans.KeptPlan](2**28, keep_newest=False)
        monkeypatch.setattr(kept_plans, "kept_plans", lambda cache=cache: cache)
        for number in order:
            x = drawn(shapes[number], layer.dtype)
            wanted, added = layer.wanted(x)
            y = lc.conv2d(x, layer.w, layer.bias, residual=added, threads=1, **layer.options)
            bound = 1e-4 if layer.dtype == "float32" else 1e-11
            np.testing.assert_allclose(y, wanted, 0, bound * max(1, np.abs(wanted).max()))
            assert np.array_equal(y, found.setdefault(number, y)), "another size decides on bits"


@pytest.mark.parametrize("seed", range(6))
def test_large_filters(seed: int) -> None:
    """Of one channel, for which transforms have bands of rows: as exact as the plan states."""
    random = Random(seed)
    kernel = random.choice((3, 9, 15, 31)), random.choice((1, 3, 9, 15, 31))
    layer = Layer(random, kernel, 1, 1, 1)
    size = random.randint(100, 300), random.choice((1, 3, 17, 40, 90))
    if not layer.fits(size):
        size = size[0], 90
    x = drawn(layer.shape(random.randint(1, 2), size), layer.dtype)
    wanted, added = layer.wanted(x)
    for algorithm in (None, "fft"):
        plan = lc.plan_conv2d(
            x.shape, layer.w, layer.bias, residual=added is not None, algorithm=algorithm,
            threads=random.randint(1, 2), **layer.options,
        )  # fmt: skip
        y = plan(x, residual=added)
        assert np.abs(y - wanted).max() <= 10 * plan.predicted_error * np.abs(wanted).max()
        assert plan.used_bytes == plan.memory_bytes
