"""`conv2d` with images of sizes that change: right, compiling nothing, within its limits."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
import pytest

import leanconv as lc
from leanconv.api import kept_plans
from leanconv.api.layer_plan import PackedConstants
from leanconv.codegen import compiler
from leanconv.reference.direct import convolve as reference
from leanconv.spec.arguments import ConvArguments, spec_of
from leanconv.types import find_dtype

# What a layer is: shape of w, groups, sizes of images from and to, and what differs from others.
LAYERS: dict[str, tuple[tuple[int, ...], int, tuple[int, int], dict[str, Any]]] = {
    "winograd": ((16, 16, 3, 3), 1, (2, 40), {"padding": 1}),
    "last": ((16, 16, 3, 3), 1, (3, 40), {"layout": "NHWC", "activation": "relu"}),
    "filter": ((1, 1, 9, 9), 1, (9, 60), {"padding": 4, "activation": "prelu"}),
    "pointwise": ((24, 20, 1, 1), 1, (1, 30), {"residual": True}),
    "depthwise": ((20, 1, 3, 3), 20, (4, 60), {"stride": 2, "padding": (1, 0, 2, 1)}),
    "pixels": ((40, 20, 1, 1), 1, (1, 50), {"bias": True, "activation": "relu"}),
    "planes": ((12, 1, 5, 3), 12, (1, 70), {"padding": (2, 1)}),
    "groups": ((18, 3, 3, 3), 3, (5, 30), {"dilation": 2, "padding": 2, "layout": "NHWC"}),
    "rows": ((5, 6, 4), 1, (8, 300), {"stride": 3, "padding": "same"}),
    "volumes": ((4, 3, 2, 3, 3), 1, (3, 12), {"padding": 1, "bias": True}),
    "float64": ((6, 5, 5, 5), 1, (5, 40), {"padding": 2, "dtype": "float64"}),
    "bordered": ((64, 3, 1, 1), 16, (2, 40), {"padding": 1}),
    "far": ((4, 1, 7, 7), 4, (9, 65), {"dilation": 2, "padding": 7, "dtype": "float64"}),
    "blur": ((3, 1, 19, 19), 3, (9, 90), {"padding": 9, "bias": True}),
    "large": ((3, 2, 17, 17), 1, (17, 70), {"padding": 8}),
}


@pytest.fixture(autouse=True)
def _new(monkeypatch: pytest.MonkeyPatch) -> None:
    """No layer is known, no plan is kept."""
    kept_plans._layer.cache_clear()
    cache = kept_plans.PlanCache[kept_plans.KeptPlan](2**28, keep_newest=False)
    monkeypatch.setattr(kept_plans, "kept_plans", lambda: cache)


def whole(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.integers(-2, 3, shape).astype(dtype)


class Layer:
    """One layer of the table with its arrays."""

    def __init__(self, name: str) -> None:
        shape, self.groups, self.sizes, options = LAYERS[name]
        self.rng = np.random.default_rng(len(name))
        self.options = dict(options)
        self.dtype = self.options.pop("dtype", "float32")
        self.residual = self.options.pop("residual", False)
        self.w = whole(self.rng, shape, self.dtype)
        self.bias = whole(self.rng, shape[:1], self.dtype) if self.options.pop("bias", 0) else None
        prelu = self.options.get("activation") == "prelu"
        self.slope = whole(self.rng, shape[:1], self.dtype) if prelu else None

    def image(self, batch: int, *size: int) -> np.ndarray:
        channels = self.w.shape[1] * self.groups
        last = self.options.get("layout") == "NHWC"
        shape = (batch, *size, channels) if last else (batch, channels, *size)
        return whole(self.rng, shape, self.dtype)

    def drawn(self) -> np.ndarray:
        size = self.rng.integers(*self.sizes, self.w.ndim - 2, endpoint=True)
        return self.image(int(self.rng.integers(1, 4)), *map(int, size))

    def check(self, x: np.ndarray, **limits: Any) -> None:
        options = self.options
        arguments = {name: options[name] for name in ConvArguments._fields if name in options}
        kind = find_dtype(np.dtype(self.dtype))
        assert kind is not None
        bias = self.bias is not None
        given = ConvArguments(1)._replace(**arguments, groups=self.groups)
        spec = spec_of(x.shape, self.w.shape, given, kind, bias, self.residual)
        added = whole(self.rng, spec.output_shape, self.dtype) if self.residual else None
        y = lc.conv2d(
            x, self.w, self.bias, groups=self.groups, residual=added, slope=self.slope,
            **options, **limits,
        )  # fmt: skip
        right = reference(spec, x, self.w, self.bias, added, self.slope)
        least = 1e-3 if self.dtype == "float32" else 1e-9
        np.testing.assert_allclose(y, right, 0, least * max(1, np.abs(right).max()))


@pytest.mark.drawn
@pytest.mark.parametrize("name", LAYERS)
def test_every_size_is_right(name: str) -> None:
    layer = Layer(name)
    for _ in range(12):
        layer.check(layer.drawn())
    kept = kept_plans.kept_plans()
    shared = [each.plan.shares for each, _ in kept._plans.values()]
    assert shared.count(False) <= 3, "sizes share nothing"
    assert kept.held_bytes <= sum(
        each.plan.memory_bytes + each.copy.bytes + 2**16 for each, _ in kept._plans.values()
    )


@pytest.mark.drawn
@pytest.mark.parametrize(
    "name", ["winograd", "last", "filter", "blur", "pixels", "volumes", "depthwise"]
)
def test_few_codes_serve_all_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their code is not even made again, whatever a cache on disk holds."""
    layer, made = Layer(name), compiler.emitted_instance
    codes: list[str] = []

    def emitted(*kernel: Any) -> Any:
        found = made(*kernel)
        codes.append(found[0].digest)
        return found

    layer.check(layer.image(1, *[31] * (layer.w.ndim - 2)))
    monkeypatch.setattr(compiler, "emitted_instance", emitted)
    for _ in range(16):
        size = layer.rng.integers(10, 40, layer.w.ndim - 2, endpoint=True)
        layer.check(layer.image(1, *map(int, size)))
    assert len(codes) <= 8
    assert len(set(codes)) <= (8 if name == "depthwise" else 7)


def test_weights_are_packed_once_for_all_sizes_of_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[Any] = []
    fill = PackedConstants.fill
    monkeypatch.setattr(PackedConstants, "fill", lambda p, w: (packed.append(w), fill(p, w))[1])
    layer = Layer("winograd")
    for size in range(17, 28):
        layer.check(layer.image(1, size, size))
    once = len(packed)
    assert once <= 5  # for the first size, and for the tiles of all others
    # Weights that change in place are seen by every size.
    for step in range(3):
        layer.w += 1
        for size in (17, 18, 19):
            layer.check(layer.image(1, size, size))
        assert len(packed) <= once * (step + 2)


def test_the_first_size_keeps_its_plan_and_others_their_bits() -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((16, 16, 3, 3)).astype(np.float32)
    images = [rng.standard_normal((1, 16, n, 21)).astype(np.float32) for n in (20, 23, 27, 31)]
    run = functools.partial(lc.conv2d, w=w, padding=1)
    first = [run(x) for x in images]
    own = lc.plan_conv2d(images[0].shape, w, padding=1)(images[0])
    np.testing.assert_array_equal(first[0], own)
    kept_plans._layer.cache_clear()
    kept_plans.kept_plans()._plans.clear()
    again = [run(images[n]) for n in (0, 3, 2, 1)]
    for n, y in zip((0, 3, 2, 1), again, strict=True):
        np.testing.assert_array_equal(y, first[n])


@pytest.mark.parametrize("limit", ["error", "bytes", "reproducible", "algorithm"])
def test_limits_hold_for_every_size(limit: str) -> None:
    layer = Layer("winograd")
    x = layer.image(2, 24, 25)
    shape = x.shape
    least = None
    if limit == "bytes":
        with pytest.raises(lc.BudgetError) as found:
            lc.plan_conv2d(shape, layer.w, padding=1, memory_limit=1)
        least = found.value.smallest_bytes
    options: dict[str, Any] = {
        "error": {"max_error": 1e-6},
        "bytes": {"memory_limit": least},
        "reproducible": {"reproducible": True},
        "algorithm": {"algorithm": "direct"},
    }[limit]
    for size in (30, 24, 25, 9):
        layer.check(layer.image(2, size, 25) if size != 24 else x, **options)
    plans = [each.plan for each, _ in kept_plans.kept_plans()._plans.values()]
    assert len(plans) == 4
    for plan in plans:
        assert plan.used_bytes == plan.memory_bytes
        assert plan.predicted_error <= options.get("max_error", 1)
        assert plan.memory_bytes <= (options.get("memory_limit") or plan.memory_bytes)
        assert plan.algorithm == options.get("algorithm", plan.algorithm)
        assert not (plan.shares and limit in ("reproducible", "bytes"))
    with pytest.raises(lc.BudgetError, match=r"give m(ax_error|emory_limit)="):
        lc.conv2d(x[:1], layer.w, padding=1, max_error=1e-12)


def test_threads_have_plans_of_their_own() -> None:
    layer = Layer("filter")
    rng, wrong = np.random.default_rng(1), []
    images = [whole(rng, (1, 1, 20 + n, 31), "float32") for n in range(5)]
    run = functools.partial(lc.conv2d, w=layer.w, padding=4, threads=1)
    right = [run(x) for x in images]

    def use(number: int) -> None:
        for turn in range(40):
            n = (number + turn) % len(images)
            if not np.array_equal(run(images[n]), right[n]):
                wrong.append(n)

    threads = [threading.Thread(target=use, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
