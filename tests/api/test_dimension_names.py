"""Names of open extents: some say that two are equal, others only that nothing is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import leanconv as lc
from leanconv.errors import InputError
from support.hostile import node
from support.onnx_models import model, reference

R = np.random.default_rng(7)
W = R.standard_normal((4, 3, 3, 3)).astype("f4")
X = R.standard_normal((2, 3, 8, 11)).astype("f4")


def network(shape: Sequence[int | str]) -> lc.Network:
    nodes = [node("Conv", "x w", "y", pads=[1] * 4)]
    return lc.load(model(nodes, {"x": shape}, ["y"], {"w": W}), threads=1)


@pytest.mark.parametrize(
    "name",
    ["dynamic", "*", "unk", "unk__1", "unk__616", "?", "None", "", "-1", "DynamicDimension.0",
     "p2o.DynamicDimension.1", "unknown", "Dynamic", "dyn", "any", "dynamic_dim_3", "null"],
)  # fmt: skip
def test_names_that_say_nothing(name: str) -> None:
    found = network((name, 3, name, name))
    assert found.inputs[0].shape == (None, 3, None, None)
    proto = model([node("Conv", "x w", "y", pads=[1] * 4)], {"x": X.shape}, ["y"], {"w": W})
    np.testing.assert_allclose(found(X), reference(proto, {"x": X})["y"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["s", "N", "batch", "height", "unknowns", "dim_0", "dynamo", "x1"])
def test_names_that_mean_something(name: str) -> None:
    with pytest.raises(InputError, match=f"got the shape 2x3x8x11; expected .* {name} = "):
        network(("n", 3, name, name))(X)


def test_a_name_of_two_inputs_is_one_extent() -> None:
    proto = model([node("Add", "x z", "y")], {"x": ("n", 3), "z": ("n", 3)}, ["y"])
    found = lc.load(proto, threads=1)
    with pytest.raises(InputError, match="n = 2"):
        found(np.zeros((2, 3), "f4"), np.zeros((1, 3), "f4"))
    proto = model([node("Add", "x z", "y")], {"x": ("unk__0", 3), "z": ("unk__0", 3)}, ["y"])
    assert lc.load(proto, threads=1)(np.ones((2, 3), "f4"), np.ones((1, 3), "f4")).shape == (2, 3)
