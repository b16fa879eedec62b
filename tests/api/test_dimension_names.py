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
def test_a_name_that_is_wrong_is_told_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    found = network(("n", 3, name, name))
    assert found.inputs[0].shape == ("n", 3, name, name)
    square = X[..., :8]
    found(square)
    assert not caplog.messages
    proto = model([node("Conv", "x w", "y", pads=[1] * 4)], {"x": X.shape}, ["y"], {"w": W})
    np.testing.assert_allclose(found(X), reference(proto, {"x": X})["y"], rtol=1e-4, atol=1e-4)
    found(X[..., 1:, :])
    (message,) = caplog.messages
    assert "input 'x' got the shape 2x3x8x11; expected nx3x" in message
    assert f" with n = 2, {name} = 8; the network takes it all the same" in message
    with pytest.raises(InputError, match=r"float32.2x4x8x8.; expected"):
        found(np.zeros((2, 4, 8, 8), "f4"))


def added(names: str) -> lc.Network:
    proto = model([node("Add", "x z", "y")], {"x": (names, 3), "z": (names, 3)}, ["y"])
    return lc.load(proto, threads=1)


def test_a_name_of_two_inputs_is_one_extent_where_the_network_needs_that() -> None:
    ones = {n: np.ones((n, 3), "f4") for n in (1, 2, 3, 5)}
    for name in ("unk__0", "n"):
        assert added(name)(ones[2], ones[1]).shape == (2, 3)
    with pytest.raises(InputError, match="input 'z' got the shape 3x3; expected nx3 with n = 2"):
        added("n")(ones[2], ones[3])
    with pytest.raises(lc.ModelError):
        added("?")(ones[2], ones[3])


def test_wrong_names_do_not_hide_what_fits_again() -> None:
    found = added("n")
    for first, second in ((2, 1), (3, 3), (5, 1), (5, 5), (1, 5)):
        x, z = np.full((first, 3), 2, "f4"), np.full((second, 3), 3, "f4")
        np.testing.assert_array_equal(found(x, z), x + z)
