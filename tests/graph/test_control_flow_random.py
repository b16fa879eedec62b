"""Random networks with control flow, judged by ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

import leanconv as lc
from support.control_flow import RandomFlow
from support.onnx_models import agree, reference

SHAPES = ((1, 3, 4, 5), (2, 3, 7, 4), (1, 3, 9, 9))


@pytest.mark.parametrize("seed", range(12))
def test_what_is_bound(seed: int) -> None:
    proto = RandomFlow(seed).model()
    for shape in SHAPES:
        x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        agree(proto, {"x": x})


@pytest.mark.parametrize("seed", range(100, 103))
def test_what_is_compiled(seed: int) -> None:
    proto = RandomFlow(seed).model()
    net = lc.load(proto.SerializeToString(), threads=2)
    for shape in SHAPES:
        x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        for name, wanted in reference(proto, {"x": x}).items():
            np.testing.assert_allclose(
                net.run({"x": x})[name], wanted, atol=1e-4 * max(1, np.abs(wanted).max())
            )
