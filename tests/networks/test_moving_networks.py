"""Random networks that move elements by index, judged by ONNX Runtime: everything is exact."""

from __future__ import annotations

import numpy as np
import pytest

import leanconv as lc
from support.moving_networks import MovingNetwork
from support.onnx_models import reference


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("empty", [False, True])
def test_what_is_compiled(seed: int, empty: bool) -> None:
    net = MovingNetwork(seed, 12, empty)
    proto = net.model()
    found = lc.load(proto.SerializeToString(), threads=1).run(net.given)
    for name, wanted in reference(proto, net.given).items():
        assert found[name].dtype == wanted.dtype, name
        np.testing.assert_array_equal(found[name], wanted, err_msg=name)
