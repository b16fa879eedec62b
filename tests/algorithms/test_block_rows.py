"""Rows that fused blocks make and keep are counted without a walk along the image."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import cast

from leanconv.algorithms.fused.block import BlockKernels
from leanconv.algorithms.fused.cost import _inner_rows
from leanconv.algorithms.fused.forms import Form
from leanconv.algorithms.fused.stream import BlockShape, ring_rows


def test_rows_of_the_expanded_tensor_are_those_of_each_step() -> None:
    draw = random.Random(0)
    for _ in range(3000):
        height, out, step = (draw.randrange(1, 40) for _ in range(3))
        stride, pad, reach = (
            draw.randrange(1, 6),
            draw.choice((0, 1, 2, 5, 30)),
            draw.randrange(1, 12),
        )
        window = SimpleNamespace(size=(1, height), out=(1, out), stride=(1, stride), pad=(1, pad))
        depthwise = SimpleNamespace(conv=SimpleNamespace(window=window))
        block = SimpleNamespace(depthwise=depthwise, input_rows=reach)
        for name in ("rows", "panel"):
            total, made = 0, set()
            for first in range(0, out, step):
                last = min(first + step, out) - 1
                rows = set(range(first * stride - pad, last * stride - pad + reach))
                rows &= set(range(height))
                total += len(rows - made) if name == "rows" else len(rows)
                made |= rows
            form = Form(name, step, step)
            assert _inner_rows(cast(BlockKernels, block), form) == total


def test_rings_of_a_high_image_are_those_of_a_lower_one() -> None:
    """Both are as high as it takes to see every kind of chunk, whole steps apart."""
    draw = random.Random(1)
    for _ in range(60):
        step, warm, outs = draw.choice((1, 2, 4)), draw.randrange(1, 5), draw.randrange(30, 50)
        shapes = [(draw.choice((1, 1, 2)), draw.choice((3, 5))) for _ in range(3)]

        def blocks(out: int) -> list[BlockShape]:
            found: list[BlockShape] = []
            for stride, reach in reversed(shapes):  # noqa: B023
                height = out * stride
                found.insert(0, (height, out, stride, reach // 2, reach))
                out = height
            return found

        assert ring_rows(blocks(outs), step, warm) == ring_rows(
            blocks(outs + 2**40 * step), step, warm
        )
