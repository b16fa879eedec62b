"""Networks of open sizes that compute with them: every call is right or says why it is not."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import onnxruntime
import pytest

import leanconv
from support.shape_networks import ShapeNetwork, check_shapes, random_network, random_shapes


def _checked(seed: int, calls: int = 4) -> Counter[str]:
    random = Random(seed)
    data = random_network(random, random.randint(1, 6))
    return check_shapes(data, random_shapes(random, calls))


def test_random_networks_at_sizes_in_random_order() -> None:
    counts = sum((_checked(seed) for seed in range(16)), Counter[str]())
    assert counts["right"] > 10 * counts["refused"], counts
    assert counts["right"] > 2 * counts["failed"], counts


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_thousands_of_random_networks() -> None:
    for seed in range(100, 4000):
        _checked(seed, 6)


def test_a_size_halved_and_doubled_is_even() -> None:
    """As `interpolate(x, (h // 2 * 2, w // 2 * 2))` is exported."""
    net = ShapeNetwork(Random(0))
    halves = (net.node("Div", net.extent("x", axis), net.ints(2)) for axis in (2, 3))
    sizes = net.list_of(net.ints(1, 3), *(net.node("Mul", half, net.ints(2)) for half in halves))
    net.maps.append(net.node("Resize", "x", "", "", sizes))
    data = net.model().SerializeToString()
    loaded, session = leanconv.load(data), onnxruntime.InferenceSession(data)
    for height, width in ((12, 14), (13, 12), (9, 13), (2, 3)):
        x = np.random.default_rng(width).standard_normal((1, 3, height, width)).astype(np.float32)
        y = loaded(x)
        assert y.shape[2:] == (height // 2 * 2, width // 2 * 2)
        assert np.array_equal(y, session.run(None, {"x": x})[0])
