"""Attention in one kernel against NumPy in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leanconv.graph.ops import evaluate
from leanconv.kernels.attention import lower
from leanconv.target import Target
from leanconv.types import FLOAT32, FLOAT64, DType
from support.nodes import TARGETS, run_node

# batch, queries, keys, their size, the size of values
SIZES = [
    ((), 1, 1, 1, 1),
    ((2,), 3, 5, 4, 7),
    ((1, 2), 17, 16, 16, 16),
    ((2,), 49, 49, 32, 32),
    ((1,), 50, 197, 20, 64),
    ((3,), 97, 33, 8, 130),
    ((2,), 1, 300, 64, 48),
    ((1,), 130, 600, 5, 31),
]
MASKS: tuple[Any, ...] = (None, (1, 1), (0, 1), (1, 0), (0, 0))


def operands(size: Any, dtype: DType, transposed: bool, mask: Any) -> dict[str, np.ndarray]:
    batch, m, n, d, w = size
    random = np.random.default_rng(m + n)
    shapes = {"q": (*batch, m, d), "k": (*batch, d, n), "v": (*batch, n, w)}
    if transposed:
        shapes["k"] = (*batch, n, d)
    if mask is not None:
        whole = (*batch[:1], *(1,) * len(batch[1:]), m, n)[-2 - len(batch) :]
        rows, columns = (extent if has else 1 for has, extent in zip(mask, (m, n), strict=True))
        shapes["mask"] = (*whole[:-2], rows, columns)
    return {name: random.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("size", "dtype", "target"),
    [
        pytest.param(size, dtype, target, id=f"{size}-{dtype}-{target.name}")
        for target in TARGETS
        for dtype in (FLOAT32, FLOAT64)
        for number, size in enumerate(SIZES)
        if target is TARGETS[0] or number % 2 == (dtype == FLOAT64)  # elsewhere in one type
    ],
)
def test_attention(size: Any, dtype: DType, target: Target) -> None:
    for number, mask in enumerate(MASKS if size[1] < 50 else MASKS[:2]):
        attributes = {"scale": 0.3, "transposed": bool((number + len(size[0])) % 2)}
        given = operands(size, dtype, attributes["transposed"], mask)
        outcome = run_node(lower, "Attention", given, target=target, parts=(0.4,), **attributes)
        wide = [array.astype(np.float64) for array in given.values()]
        (expected,) = evaluate("Attention", wide, attributes)
        np.testing.assert_allclose(
            outcome.y,
            expected,
            rtol=0,
            atol=40 * float(np.finfo(dtype).eps) * np.abs(expected).max(),
        )


def test_masks_that_shut_out() -> None:
    """-infinity leaves a key out; a row without keys is NaN, as of a softmax by itself."""
    given = operands(((1,), 5, 20, 4, 8), FLOAT32, False, (1, 1))
    given["mask"][..., 3:] = -np.inf
    given["mask"][..., 4, :] = -np.inf
    outcome = run_node(lower, "Attention", given, scale=1.0, transposed=False)
    with np.errstate(invalid="ignore"):
        (expected,) = evaluate(
            "Attention", list(given.values()), {"scale": 1.0, "transposed": False}
        )
    assert np.isnan(outcome.y[0, 4]).all()
    np.testing.assert_allclose(outcome.y[0, :4], expected[0, :4], rtol=1e-5)
