"""An activation that nobody has: a record of its kind and its code, and nothing else.

Run as a process of its own, it adds them before any other module has read the table of kinds, and
calls all functions here whose names begin with `check_`.
"""

from __future__ import annotations

from leanconv.codegen import activations
from leanconv.codegen import math as vector_math
from leanconv.spec.activation import KINDS, Activation, Kind

KINDS["squashed"] = Kind(
    "Squashed", lambda np, x, size: size * np.tanh(x / 2), {"size": 3.0}, bounded=True, since=17
)
activations._BODIES["squashed"] = lambda e, x, size: vector_math.tanh(e, x * 0.5) * size

# What follows reads the table, and the modules that it imports do.
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from onnx import helper  # noqa: E402

import leanconv as lc  # noqa: E402
from leanconv.graph.ops import OPS  # noqa: E402
from leanconv.reference.direct import activate  # noqa: E402
from support.onnx_models import model  # noqa: E402


def check_it_ends_convolutions() -> None:
    """A user names it, with its parameter."""
    x = np.linspace(-1, 1, 75, dtype=np.float32).reshape(1, 3, 5, 5)
    w = np.linspace(-1, 1, 18, dtype=np.float32).reshape(6, 3, 1, 1)
    plain, y = lc.conv2d(x, w), lc.conv2d(x, w, activation="squashed:2")
    np.testing.assert_allclose(y, 2 * np.tanh(plain / 2), atol=1e-6)
    np.testing.assert_allclose(y, activate(plain, Activation("squashed", (2.0,))), atol=1e-6)


def check_errors_name_it() -> None:
    """A name that there is not is answered with those that there are."""
    with pytest.raises(lc.SpecError, match="squashed"):
        Activation.parse("squeezed")


def check_it_is_an_operation() -> None:
    """Files have it by the operation's name; a convolution before it takes it in."""
    x, w = np.linspace(-2, 2, 400, dtype=np.float32).reshape(1, 2, 10, 20), np.ones((4, 2, 1, 1))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["sums"]),
        helper.make_node("Squashed", ["sums"], ["y"], size=2.0),
        helper.make_node("Squashed", ["x"], ["z"]),
    ]
    proto = model(nodes, {"x": x.shape}, ["y", "z"], {"w": w.astype(np.float32)})
    net = lc.load(proto.SerializeToString())
    found = net.run({"x": x})
    np.testing.assert_allclose(found["y"][0, 0], 2 * np.tanh(x[0].sum(0) / 2), atol=1e-6)
    np.testing.assert_allclose(found["z"], 3 * np.tanh(x / 2), atol=1e-6)
    assert [each in str(net.explain()) for each in ("Squashed_1", "Squashed_2")] == [False, True]
    assert (OPS["Squashed"].halves, OPS["Squashed"].series) == ("rounded", False)


if __name__ == "__main__":
    for check in [each for name, each in globals().items() if name.startswith("check_")]:
        check()
