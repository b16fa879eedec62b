"""Weights that are read once are asked for by the convolution before, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leanconv.algorithms.common.conv import Conv
from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.geometry import Access, Window
from leanconv.codegen.lowered import Call
from leanconv.codegen.tiling import Tile
from leanconv.graph.ir import Graph
from leanconv.operators import Accuracy
from leanconv.planner.lowering import lower_graph
from leanconv.planner.weight_streaming import add_weight_prefetch
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, SINGLE
from support.graph_builder import Builder
from support.kernel_runner import run_kernel

TARGET = preset("znver4")


def product(inputs: int, outputs: int, columns: int, batch: int = 1, rows: int = 1) -> DirectConv:
    """A 1x1 convolution over rows of columns, in blocks of 16 channels."""
    size = (1, rows, columns)
    plane = rows * columns * 16
    access = [
        Access(-(-channels // 16) * plane, 16, plane, (plane, columns * 16, 16))
        for channels in (inputs, outputs)
    ]
    conv = Conv(
        batch=batch,
        groups=1,
        inputs=inputs,
        outputs=outputs,
        window=Window(size, size, (1, 1, 1), (1, 1, 1), (1, 1, 1), (0, 0, 0)),
        x=access[0],
        y=access[1],
        precision=SINGLE,
        epilogue=Epilogue(bias=True),
    )
    tile = Tile(min(7, columns), 2)
    return DirectConv(conv=conv, lanes=16, tile=tile, rows=rows, panels_inside=False)


def calls(host: DirectConv, stream: DirectConv) -> list[Call]:
    return [
        Call(host, ("x", "w1", "b1", "h")),
        Call(stream, ("h", "w2", "b2", "y")),
    ]


MOST = {  # bytes; a lone chunk asks for all of them, each line by an instruction of its own
    (33, 40, 49, 1, 1): 3_000_000,
    (160, 24, 13, 2, 3): 3_000_000,
    (16, 16, 1, 1, 1): 200_000,
}


@pytest.mark.parametrize(
    ("shape", "prefetch_bytes"),
    [(shape, count) for shape, most in MOST.items() for count in (64, 100_000, most)],
)
def test_what_follows_changes_no_bit(shape: tuple[int, ...], prefetch_bytes: int) -> None:
    plain = product(*shape)
    rng = np.random.default_rng(0)

    def normal(count: int) -> np.ndarray:
        return rng.standard_normal(count).astype(np.float32)

    x, w = normal(plain.conv.batch * plain.conv.x.image), normal(plain.group_weights)
    bias = normal(plain.panels * plain.panel_lanes)
    y = np.full(plain.conv.batch * plain.conv.y.image, np.nan, np.float32)
    wanted = run_kernel(plain, x, w, bias, y)
    asking = replace(plain, prefetch_bytes=prefetch_bytes)
    assert asking.emit(TARGET).count("call void @llvm.prefetch") > 0
    seen = run_kernel(asking, x, w, bias, normal(16), y)
    assert np.array_equal(seen.view(np.uint32), wanted.view(np.uint32))


def test_a_classifier_is_asked_for_by_the_layer_before() -> None:
    host, stream = product(320, 1280, 49), product(1280, 1000, 1)
    first, second = add_weight_prefetch(calls(host, stream), TARGET)
    assert first.kernel == replace(host, prefetch_bytes=4 * stream.group_weights)
    assert first.values == ("x", "w1", "b1", "w2", "h")
    assert len(first.values) == len(first.kernel.operands)
    assert second.kernel == stream


@pytest.mark.parametrize(
    ("host", "stream", "why"),
    [
        (product(320, 1280, 49), product(320, 512, 1), "the second cache holds its weights"),
        (product(320, 1280, 49), product(25088, 4096, 1), "no cache holds its weights"),
        (product(320, 1280, 49), product(1280, 1000, 49), "arithmetic hides the reading"),
        (product(32, 64, 49), product(1280, 1000, 1), "the layer before is too short"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_others_are_left_alone(host: DirectConv, stream: DirectConv, why: str) -> None:
    given = calls(host, stream)
    assert add_weight_prefetch(given, TARGET) == given, why


NEWER = preset("znver5")  # where layers prefetch what comes from DRAM
HOST, DEEP = product(2048, 512, 49), product(512, 2048, 49)
OTHERS = [Call(product(2048, 2048, 49), ("a", f"other {n}", "b", "c")) for n in range(2)]


@pytest.mark.parametrize(
    ("others", "target", "parts"),
    [(OTHERS, NEWER, 1), ([], NEWER, 0), (OTHERS, TARGET, 0)],
    ids=["weights of more than L3", "L3 holds them all", "not measured"],
)
def test_weights_from_dram_are_asked_for(others: list[Call], target: Target, parts: int) -> None:
    first = add_weight_prefetch([*calls(HOST, DEEP), *others], target)[0]
    size = 4 * DEEP.group_weights
    assert first.kernel == (replace(HOST, prefetch_bytes=size // parts) if parts else HOST)
    assert first.values == ("x", "w1", "b1", *(["w2"] if parts else []), "h")


def test_no_more_is_asked_for_than_dram_has_time_for() -> None:
    few = product(2048, 512, 28)
    budget = NEWER.costs.later_weights_read * few.flops / 2 / 16 / NEWER.fma_units
    size = 4 * DEEP.group_weights
    assert size > budget - 4 * few.group_weights > size / 4
    first, *_ = add_weight_prefetch([*calls(few, DEEP), *OTHERS], NEWER)
    assert first.kernel.prefetch_bytes in (size // 2, size // 4)


def test_computed_weights_are_not_asked_for() -> None:
    made = [Call(product(2048, 512, 49), ("a", "b", "c", "w2")), *calls(HOST, DEEP), *OTHERS]
    assert add_weight_prefetch(made, NEWER)[1].kernel == HOST


def small_network() -> Graph:
    """What MobileNetV2 ends with, narrower."""
    b = Builder(FLOAT32)
    x = b.input(1, 320, 7, 7)
    h = b.conv(x, b.normal(1280, 320, 1, 1))
    return b.graph(b.conv(b.pool(h, (7, 7)), b.normal(1000, 1280, 1, 1)))


def test_a_lowered_network_asks() -> None:
    lowered = lower_graph(small_network(), TARGET, Accuracy(1e-6))
    given = [call for step in lowered.steps for call in step.calls]
    asking = add_weight_prefetch(given, TARGET)
    assert [getattr(c.kernel, "prefetch_bytes", 0) > 0 for c in asking].count(True) == 1
    assert all(len(c.values) == len(c.kernel.operands) for c in asking)
