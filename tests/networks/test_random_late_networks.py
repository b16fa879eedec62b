"""Random networks whose extents, operands and branches follow from values, as ONNX Runtime has it.

Numbers are whole: whatever is found and chosen is the same, and so are all outputs.
"""

from __future__ import annotations

import numpy as np
import pytest

import leanconv as lc
import leanconv.onnxruntime
from support.late_networks import LateNetwork
from support.onnx_models import Array

SEEDS = range(24)


def check(found: dict[str, Array], expected: dict[str, Array]) -> None:
    """The same names, shapes, types and numbers; what is found is spoiled after that."""
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype), name
        np.testing.assert_allclose(found[name], array, 1e-4, 1e-4, err_msg=name)
        found[name][...] = 1  # it is the user's


@pytest.mark.parametrize("seed", SEEDS)
def test_random_networks(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    case = LateNetwork(seed)
    data = case.proto.SerializeToString()
    network = lc.load(data, threads=1 + seed % 2)
    needed = 0
    for feed, expected in [*zip(case.feeds, case.expected, strict=True)] * 2:
        kept = feed["x"].copy()
        check(network.run(feed), expected)
        np.testing.assert_array_equal(feed["x"], kept)
        needed = max(needed, network.plan.memory_bytes)
    if seed % 3 == 0:
        session = leanconv.onnxruntime.InferenceSession(data)
        names = list(case.expected[0])
        for feed, expected in zip(case.feeds, case.expected, strict=True):
            check(dict(zip(names, session.run(names, feed), strict=True)), expected)
    if seed % 3 == 1:
        unbounded = "nothing bounds its arrays" in network.explain()
        limited = lc.load(data, threads=1, memory_limit=needed + (unbounded << 20))
        for feed, expected in zip(case.feeds, case.expected, strict=True):
            check(limited.run(feed), expected)
    assert not caplog.records
