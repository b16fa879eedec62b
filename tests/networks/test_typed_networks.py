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
