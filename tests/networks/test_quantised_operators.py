"""ONNX's and ONNX Runtime's operators on codes, compiled, give ONNX Runtime's bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest

import leanconv as lc
from support.quantised_cases import GROUPS, Case, Draw, F
from support.quantised_models import microsoft, model, peer


def joined(cases: Mapping[str, Case]) -> tuple[onnx.ModelProto, dict[str, np.ndarray], list[str]]:
    """All cases as one network, whose names begin with the cases' names."""
    nodes, inputs, constants, outputs = [], {}, {}, []
    for case, (proto, given, held) in cases.items():
        own = onnx.NodeProto()
        own.CopyFrom(proto)
        own.input[:] = [name and f"{case}.{name}" for name in proto.input]
        own.output[:] = [f"{case}.{name}" for name in proto.output]
        nodes.append(own)
        inputs.update((f"{case}.{name}", np.asarray(array)) for name, array in given.items())
        constants.update((f"{case}.{name}", array) for name, array in held.items())
        outputs += own.output
    return model(nodes, inputs, constants, outputs), inputs, outputs


@pytest.mark.parametrize(("make", "dtype"), GROUPS)
def test_bits(make: Callable[[Draw], dict[str, Case]], dtype: Any) -> None:
    made, inputs, outputs = joined(make(Draw(dtype)))
    found = lc.load(made.SerializeToString()).run(inputs)
    for name, expected in zip(outputs, peer(made, inputs), strict=True):
        assert found[name].dtype == expected.dtype, name
        np.testing.assert_array_equal(found[name], expected, name)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_an_lstm_is_near_the_one_of_quantised_states(direction: str) -> None:
    """Its states are not quantised here: it is the more exact one."""
    rng, size, hidden = np.random.default_rng(0), 12, 8
    ways = 1 + (direction == "bidirectional")

    def weights(columns: int) -> np.ndarray:
        return rng.integers(-127, 128, (ways, columns, 4 * hidden)).astype(np.int8)

    scales = {name: rng.uniform(0.002, 0.01, ways).astype(F) for name in ("ws", "rs")}
    zeros = {name: np.zeros(ways, np.int8) for name in ("wz", "rz")}
    bias = rng.standard_normal((ways, 8 * hidden)).astype(F)
    held = {"w": weights(size), "r": weights(hidden), "b": bias, **scales, **zeros}
    names = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]
    outputs = ("y", "h", "c")
    proto = microsoft(
        "DynamicQuantizeLSTM", names, outputs, direction=direction, hidden_size=hidden
    )
    inputs = {"x": rng.standard_normal((5, 3, size)).astype(F)}
    made = model([proto], inputs, held, outputs)
    found = lc.load(made.SerializeToString()).run(inputs)
    for name, expected in zip(outputs, peer(made, inputs), strict=True):
        far = np.linalg.norm(found[name] - expected) / np.linalg.norm(expected)
        assert far < 0.01
