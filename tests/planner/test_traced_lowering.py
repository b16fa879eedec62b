"""Nodes lowered once with symbols are what lowering gives for each size, and seldom done again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.codegen.host import host
from leanconv.codegen.lowered import Lowered
from leanconv.graph.ir import Graph
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import run_passes
from leanconv.graph.template import Templates
from leanconv.operators import Accuracy, operator_of
from leanconv.planner.decisions import remembered
from leanconv.planner.lowering import TracedLowering, lower_graph, usual_choices
from leanconv.target import PRESETS, Target
from leanconv.types import FLOAT32
from support.onnx_models import model, reference
from support.packing import packed_by

ACCURACY = Accuracy(1e-5)
SIZES = ((32, 64), (64, 96), (40, 200), (96, 64), (32, 328), (128, 128), (48, 56), (256, 512))


def node(op: str, inputs: list[str], output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs, [output], **attributes)


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def templates() -> Templates:
    """What text recognisers and detectors have: blocks, gates, larger maps, attention."""
    held = {
        "w0": weights(16, 3, 3, 3),
        "w1": weights(16, 1, 3, 3),
        "w2": weights(48, 16, 1, 1),
        "w3": weights(48, 48, 1, 1),
        "w4": weights(48, 48, 3, 3),
        "w5": weights(48, 16, 2, 2),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "shape": np.array([0, 64, -1]),
    }
    nodes = [
        node("Conv", ["x", "w0"], "a", pads=[1] * 4, strides=[2, 2]),
        node("Conv", ["a", "w1"], "b", pads=[1] * 4, group=16),
        node("Conv", ["b", "w2"], "c"),
        node("GlobalAveragePool", ["c"], "g"),
        node("Conv", ["g", "w3"], "h"),
        node("Sigmoid", ["h"], "s"),
        node("Mul", ["c", "s"], "d"),
        node("Conv", ["d", "w4"], "e", pads=[1] * 4),
        node("Relu", ["e"], "r"),
        node("MaxPool", ["r"], "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("ConvTranspose", ["p", "w5"], "t", strides=[2, 2]),
        node("Resize", ["p", "", "scales"], "u", coordinate_transformation_mode="asymmetric"),
        node("Concat", ["t", "u"], "v", axis=1),
        node("AveragePool", ["v"], "q", kernel_shape=[4, 4], strides=[4, 4]),
        node("Reshape", ["q", "shape"], "m"),
        node("Transpose", ["m"], "n", perm=[0, 2, 1]),
        node("MatMul", ["n", "m"], "o"),
        node("Softmax", ["o"], "y", axis=-1),
    ]
    proto = model(nodes, {"x": (1, 3, "H", "W")}, ["y"], held)
    read = read_model(proto.SerializeToString())
    return Templates(read, lambda shapes: run_passes(read.bind(shapes, dtype=FLOAT32)))


def same(traced: Lowered, plain: Lowered) -> bool:
    calls = [
        [(call.kernel, call.values, call.in_place) for call in each.calls]
        for each in (traced, plain)
    ]
    packings = [[(dict(p.bytes), p.recipe) for p in each.packings] for each in (traced, plain)]
    assert calls[0] == calls[1]
    assert packings[0] == packings[1]
    assert dict(traced.temporaries) == dict(plain.temporaries)
    assert {n: a.tolist() for n, a in traced.constants.items()} == {
        n: a.tolist() for n, a in plain.constants.items()
    }
    return (traced.algorithm, traced.views) == (plain.algorithm, plain.views)


@pytest.mark.parametrize("target", [host(), PRESETS["znver4"], PRESETS["haswell"]], ids=str)
def test_traced_nodes_are_those_of_plain_lowering(target: Target) -> None:
    made = templates()
    for height, width in (*SIZES, *SIZES):
        graph = made.graph([(1, 3, height, width)])
        lower = TracedLowering(graph, target, ACCURACY)
        decisions = usual_choices(graph, target, ACCURACY)
        for each, decision in zip(graph.nodes, decisions, strict=True):
            context = decision.context(each, graph, target, ACCURACY)
            plain = operator_of(each).lower(context, decision.choice)
            assert same(lower(each, decision), plain), each


def test_known_sizes_are_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    made, target = templates(), host()
    for height, width in SIZES[:4]:
        lowered(made.graph([(1, 3, height, width)]), target)
    plainly: list[str] = []
    lower = TracedLowering._plainly

    def counted(self: TracedLowering, each: Any, decision: Any) -> Lowered:
        plainly.append(each.op)
        return lower(self, each, decision)

    monkeypatch.setattr(TracedLowering, "_plainly", counted)
    for height, width in ((64, 104), (72, 200), (104, 64)):
        lowered(made.graph([(1, 3, height, width)]), target)
    assert set(plainly) <= {"Resize", "ConvTranspose"}  # these have tables of the sizes


def lowered(graph: Graph, target: Target) -> int:
    decisions = usual_choices(graph, target, ACCURACY)
    return len(lower_graph(graph, target, ACCURACY, decisions).steps)


def test_weights_are_packed_alike() -> None:
    made, target = templates(), host()
    packed = []
    for height, width in SIZES[:4]:
        graph = made.graph([(1, 3, height, width)])
        decisions = usual_choices(graph, target, ACCURACY)
        constants = lower_graph(graph, target, ACCURACY, decisions).constants
        each = (packed_by(packing) for packing in constants.packings)
        packed.append({name: a.tobytes() for one in each for name, a in one.items()})
    names = [name for name in packed[0] if name.rpartition("/")[2].startswith("w")]
    assert len(names) >= 3
    for name in names:
        assert len({each[name] for each in packed}) == 1, name


def test_answers_are_remembered_for_sizes_that_answer_alike() -> None:
    made, asked = templates(), []

    def answer(graph: Graph) -> str:
        width = graph.types["x"].shape[3]
        asked.append(width)
        return "wide" if width > 100 else "narrow"

    widths = (64, 72, 200, 96, 208, 328)
    graphs = [made.graph([(1, 3, 32, width)]) for width in widths]
    found = [remembered(graph, "width", answer) for graph in graphs]
    assert found == ["wide" if width > 100 else "narrow" for width in widths]
    assert len(asked) == 4  # each answer is found once with numbers, once with symbols


def test_open_channels(caplog: pytest.LogCaptureFixture) -> None:
    """A part of a network that is compiled in a run has them; weights say how many there are."""
    nodes = [
        node("ConvTranspose", ["x", "w"], "t", strides=[2, 2]),
        node("Round", ["t"], "y"),
        node("Conv", ["x", "v"], "c", pads=[1] * 4),
        node("Round", ["c"], "z"),
        node("Conv", ["x", "u"], "k"),
    ]
    held = {"w": np.ones((3, 2, 2, 2)), "v": np.ones((3, 3, 3, 3)), "u": np.ones((4, 3, 1, 1))}
    held = {name: array.astype("f4") for name, array in held.items()}
    proto = model(nodes, {"x": ("N", "C", "H", "W")}, ["y", "z", "k"], held)
    net = lc.load(proto.SerializeToString(), threads=1)
    for shape in ((2, 3, 1, 1), (1, 3, 1, 1), (3, 3, 1, 1), (3, 3, 4, 5), (2, 3, 7, 4)):
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        found = net.run({"x": x})
        for name, wanted in reference(proto, {"x": x}).items():
            np.testing.assert_allclose(found[name], wanted, 1e-5, err_msg=name)
    assert not caplog.records
