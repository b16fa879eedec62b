"""What the cost model chooses: shared by equal nodes, and recalled by later processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from examples.networks import FULL_NETWORKS
from leanconv.algorithms.parameters import AUTO, Choice
from leanconv.canonical import canonical_text
from leanconv.codegen.cache import DiskCache
from leanconv.codegen.host import host
from leanconv.graph.ir import Graph
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import run_passes
from leanconv.operators import Accuracy, NodeContext, Operator, operator_of
from leanconv.operators.chains import BlockChain, ConvChain
from leanconv.operators.convolution import Convolution
from leanconv.planner import decisions
from leanconv.planner.decisions import Decision
from leanconv.planner.formats import default_decisions, format_rules
from leanconv.planner.lowering import lower_graph
from leanconv.types import FLOAT32
from support.onnx_models import model

pytestmark = pytest.mark.once  # any plan will do

ACCURACY = Accuracy(1e-5)


def _counted(
    operator: type[Operator], found: list[str]
) -> Callable[[Operator, NodeContext], Choice]:
    default_choice = operator.default_choice

    def counted(self: Operator, context: NodeContext) -> Choice:
        found.append(str(context.node))
        return default_choice(self, context)

    return counted


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The nodes that the model was asked about, and a store of this test's own."""
    store, found = DiskCache(tmp_path, suffix=".json"), []
    monkeypatch.setattr(decisions, "_store", lambda: store)
    for operator in (Convolution, ConvChain, BlockChain):
        monkeypatch.setattr(operator, "default_choice", _counted(operator, found))
    return found


@cache
def graph(batch: int) -> Graph:
    built = FULL_NETWORKS["mobilenetv2"](width=0.25, image=64).SerializeToString()
    return run_passes(read_model(built).bind({"input": (batch, 3, 64, 64)}, dtype=FLOAT32))


def decided(batch: int, accuracy: Accuracy = ACCURACY) -> tuple[list[Decision], list[Decision]]:
    """Decisions before and after."""
    before = default_decisions(format_rules(graph(batch), host()))
    return before, decisions.resolved_choices(graph(batch), host(), accuracy, before)


def test_equal_nodes_are_asked_about_once(asked: list[str]) -> None:
    before, after = decided(1)
    several = [n for n in graph(1).nodes if operator_of(n).algorithms]
    assert 0 < len(asked) < len(several)
    for node, old, new in zip(graph(1).nodes, before, after, strict=True):
        assert (new.choice != AUTO) == bool(operator_of(node).algorithms)
        assert (old.reads, old.writes) == (new.reads, new.writes)


def test_named_choices_are_what_the_model_takes(asked: list[str]) -> None:
    before, after = decided(1)
    for node, old, new in zip(graph(1).nodes, before, after, strict=True):
        context = old.context(node, graph(1), host(), ACCURACY)
        kernels = [
            [canonical_text(call.kernel) for call in operator_of(node).lower(context, choice).calls]
            for choice in (AUTO, new.choice)
        ]
        assert kernels[0] == kernels[1], node.name


def test_later_processes_need_not_ask(asked: list[str], tmp_path: Path) -> None:
    first = lower_graph(graph(1), host(), ACCURACY)
    asked.clear()
    again = lower_graph(graph(1), host(), ACCURACY)
    assert not asked
    assert [canonical_text(c.kernel) for s in first.steps for c in s.calls] == [
        canonical_text(c.kernel) for s in again.steps for c in s.calls
    ]
    (entry,) = tmp_path.glob("*.json")
    entry.write_bytes(entry.read_bytes()[:-3])
    decided(1)
    assert asked


@pytest.mark.parametrize("body", [b"", b"{", b"7", b"{}", b"[1]", b"[]", b"[" * 100_000])
def test_what_is_no_list_of_choices_is_asked_again(
    asked: list[str], tmp_path: Path, body: bytes
) -> None:
    _, right = decided(1)
    (entry,) = tmp_path.glob("*.json")
    asked.clear()
    DiskCache(tmp_path, suffix=".json").put(entry.stem, body)
    assert decided(1)[1] == right
    assert asked


@pytest.mark.parametrize(
    ("batch", "accuracy"), [(2, ACCURACY), (1, Accuracy(1e-3)), (1, Accuracy(1e-5, True))]
)
def test_another_question_has_an_answer_of_its_own(
    asked: list[str], batch: int, accuracy: Accuracy
) -> None:
    decided(1)
    asked.clear()
    decided(batch, accuracy)
    assert asked


@pytest.mark.parametrize("channels", [6, "c"])
def test_open_sizes_are_asked_about_apart_from_the_same_numbers(
    asked: list[str], channels: int | str
) -> None:
    """One kernel for all phases of a size may be none of any size: it was refused then."""
    w, x = np.ones((6, 1, 5, 4), np.float32), np.ones((2, 6, 8, 16), np.float32)
    node = helper.make_node("ConvTranspose", ["x", "w"], ["a"], group=6, strides=[2, 2])
    elu = helper.make_node("Elu", ["a"], ["y"])
    answers = []
    for shape in (x.shape, ("n", channels, "h", "width")):
        asked.clear()
        net = lc.load(model([node, elu], {"x": shape}, ["y"], {"w": w}))
        answers.append(net(x))
        assert asked
    assert np.allclose(*answers, rtol=1e-5)


def test_what_is_named_is_kept(asked: list[str]) -> None:
    _, after = decided(1)
    asked.clear()
    assert decisions.resolved_choices(graph(1), host(), ACCURACY, after) == after
    assert not asked


def test_open_sizes_whose_choices_make_room_for_others(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network takes one choice that is known, and one for which all that is known is let go."""
    monkeypatch.setattr(decisions, "_MOST_KNOWN", 0)
    nodes = [helper.make_node("Conv", ["x", w], [y]) for w, y in ("va", "wb")]
    held = {"v": np.ones((7, 5, 1, 1), np.float32), "w": np.ones((3, 5, 1, 1), np.float32)}
    x = np.ones((1, 5, 4, 6), np.float32)
    for count in (1, 2):
        net = lc.load(model(nodes[:count], {"x": (1, 5, "h", "w")}, ["a", "b"][:count], held))
        assert all(np.all(y == 5) for y in net.run({"x": x}).values())
