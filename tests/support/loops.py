"""Models with loops, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

import leanconv as lc
from leanconv.graph.convert import loop_bodies
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import run_passes
from leanconv.graph.verify import verify
from support.control_flow import graph, node
from support.onnx_models import model, reference

X = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((3, 3, 3, 3)).astype(np.float32) / 6
TRUE = np.array(True)


def body(
    nodes: list[onnx.NodeProto],
    outputs: str,
    inputs: str = "i on s",
    kinds: Mapping[str, str] | None = None,
    **held: Any,
) -> onnx.GraphProto:
    """A body; its second input, whether to go on, is handed on."""
    names = dict.fromkeys(inputs.split(), "float")
    more = f"more_{inputs.split()[1]}"
    names.update(zip(inputs.split()[:2], ("int64", "bool"), strict=True))
    names.update({name: kind for name, kind in (kinds or {}).items() if name in names})
    handed = [node("Identity", inputs.split()[1], more)]
    return graph(
        [*handed, *nodes], f"{more} {outputs}", names, held, {more: "bool", **(kinds or {})}
    )


CONV = body([node("Conv", "s w", "c", pads=[1] * 4), node("Tanh", "c", "t")], "t")


def loop(inputs: str, outputs: str, inside: onnx.GraphProto) -> onnx.NodeProto:
    return node("Loop", inputs, outputs, body=inside)


def made(
    nodes: list[onnx.NodeProto],
    count: int | None = 5,
    outputs: str = "y",
    shape: tuple[int | str, ...] = ("N", 3, "H", "W"),
    **held: Any,
) -> onnx.ModelProto:
    constants = {"w": W, "true": TRUE, **held}
    if count is not None:
        constants["n"] = np.int64(count)
    return model(nodes, {"x": shape}, outputs.split(), constants)


def ops(proto: onnx.ModelProto, shape: tuple[int, ...] = X.shape) -> list[str]:
    read = read_model(proto.SerializeToString())
    return [each.op for each in verify(run_passes(read.bind({"x": shape}))).nodes]


def hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let loops of more than two iterations be held, and none of more be written out."""
    monkeypatch.setattr(loop_bodies, "FEW_WRITTEN_OUT", 0)
    monkeypatch.setattr(loop_bodies, "MOST_WRITTEN_OUT", 0)


def compiled(proto: onnx.ModelProto, x: np.ndarray = X, tolerance: float = 1e-5) -> lc.Network:
    """The network of one thread, equal to what ONNX Runtime says; two threads give the same."""
    plain, threads = (lc.load(proto.SerializeToString(), threads=n) for n in (1, 2))
    found, again = plain.run({"x": x}), threads.run({"x": x})
    for name, wanted in reference(proto, {"x": x}).items():
        most = max(1, np.abs(wanted).max())
        np.testing.assert_allclose(found[name], wanted, rtol=0, atol=tolerance * most)
        np.testing.assert_array_equal(again[name], found[name])
        np.testing.assert_array_equal(plain.run({"x": x})[name], found[name])
    return plain


STACKED = body(
    [
        node("Conv", "s w", "c", pads=[1] * 4),
        node("Add", "c outer", "a"),
        node("Tanh", "a", "t"),
        node("ReduceMean", "t", "m", axes=[2, 3], keepdims=0),
        node("Neg", "t", "b"),
    ],
    "t m b",
)


NESTED = body(
    [
        node("Tanh", "r", "e"),
        loop("many on_ e", "h p q", STACKED),
        node("ReduceMean", "p", "row", axes=[0, 1], keepdims=0),
        node("Add", "h outer", "v"),
    ],
    "v p row q",
    "j on_ r",
)


IMAGE = np.random.default_rng(4).standard_normal((1, 16, 14, 14)).astype(np.float32)


def scratch_model(count: int) -> onnx.ModelProto:
    """A loop over layers of many channels, which need scratch, beside a value that is read last."""
    random = np.random.default_rng(3)
    held = {
        name: (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("f4")
        for name, shape in (("a", (32, 16, 3, 3)), ("b", (16, 32, 3, 3)))
    }
    inside = body(
        [
            node("Add", "s outer", "p"),
            node("Conv", "p a", "q", pads=[1] * 4),
            node("Relu", "q", "r"),
            node("Conv", "r b", "v", pads=[1] * 4),
            node("Tanh", "v", "t"),
            node("GlobalAveragePool", "t", "m"),
        ],
        "t m",
    )
    nodes = [node("Neg", "x", "outer"), loop("n true x", "y z", inside)]
    held["n"], held["true"] = np.int64(count), np.array(True)
    return model(nodes, {"x": (1, 16, 14, 14)}, ["y", "z"], held)
