"""Random networks on data of many types, judged by ONNX Runtime: everything is exact."""

from __future__ import annotations

import numpy as np
import pytest

import leanconv as lc
from support.onnx_models import imported, reference
from support.typed_networks import TypedNetwork

SHAPES = ((1, 3, 4, 5), (2, 3, 7, 9), (1, 3, 1, 17))


@pytest.mark.parametrize("seed", range(40))
def test_what_is_bound(seed: int) -> None:
    net = TypedNetwork(seed)
    proto = net.model()
    for shape in SHAPES[:2]:
        given = net.inputs(shape)
        found = imported(proto, given)
        for name, wanted in reference(proto, given).items():
            assert found[name].dtype == wanted.dtype, name
            np.testing.assert_array_equal(found[name], wanted, err_msg=name)


@pytest.mark.parametrize("seed", range(100, 112))
def test_what_is_compiled(seed: int) -> None:
    net = TypedNetwork(seed, 16)
    proto = net.model()
    loaded = lc.load(proto.SerializeToString(), threads=2)
    for shape in SHAPES:
        given = net.inputs(shape)
        found = loaded.run(given)
        assert [each.dtype for each in loaded.outputs] == [y.dtype for y in found.values()]
        for name, wanted in reference(proto, given).items():
            assert found[name].dtype == wanted.dtype, name
            np.testing.assert_array_equal(found[name], wanted, err_msg=name)


@pytest.mark.parametrize("seed", [15, 106, *range(2000, 2008)])
def test_plans_do_not_depend_on_the_shapes_before(seed: int) -> None:
    """Of 15 and 106 equal constants became one array in all shapes but the first."""
    net = TypedNetwork(seed, 12 if seed % 2 else 16)
    data = net.model().SerializeToString()
    loaded = lc.load(data, threads=1)
    for shape in ((1, 3, 1, 6), (1, 3, 8, 8), (3, 3, 6, 1), *SHAPES):
        given, alone = net.inputs(shape), lc.load(data, threads=1)
        found, expected = loaded.run(given), alone.run(given)
        assert loaded.plan.memory_bytes == alone.plan.memory_bytes, shape
        assert loaded.explain() == alone.explain(), shape
        for name, array in expected.items():
            assert found[name].tobytes() == array.tobytes(), name
