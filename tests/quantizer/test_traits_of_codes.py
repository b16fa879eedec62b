"""The rule of an operation is all that the quantiser knows of it: codes, halves, factors."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.errors import ModelError
from leanconv.graph.convert import FILE_RULES, RULES
from leanconv.graph.onnx_graph import OnnxGraph
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import PASSES, run_passes
from leanconv.quantizer.emit import with_halves
from leanconv.quantizer.equalise import equalised
from leanconv.quantizer.float_network import network_of, read_graph
from leanconv.quantizer.layers import scheme
from leanconv.quantizer.samples import checked_samples
from support.network_models import by_onnxruntime
from support.networks_to_quantise import model, normal

SPREAD = np.geomspace(0.05, 20.0, 6).astype(np.float32)  # factors of six channels


@pytest.fixture
def made_up() -> Iterator[Any]:
    """Gives an operation that computes what Relu does a rule: in the tables, and nowhere else."""
    tables = [each for table in (RULES, FILE_RULES) for each in gc.get_referents(table)]
    known = replace(RULES["Relu"], codes="", homogeneous=False)

    def add(**traits: Any) -> None:
        for table in tables:
            table["MadeUp"] = replace(known, **traits)

    add()
    yield add
    for table in tables:
        del table["MadeUp"]


def network(op: str = "MadeUp", *more: str) -> bytes:
    """Two layers and an operation between them."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="first"),
        helper.make_node(op, ["c", *more], ["m"], name="between"),
        helper.make_node("Conv", ["m", "d"], ["y"], name="second", group=6),
    ]
    weights = {
        "w": normal(6, 4, 1, 1) * SPREAD.reshape(-1, 1, 1, 1),
        "d": normal(6, 1, 1, 1, seed=1) / SPREAD.reshape(-1, 1, 1, 1),
        "slope": np.full((6, 1, 1), 0.25, np.float32),
    }
    read = {name for node in nodes for name in node.input}
    held = {name: array for name, array in weights.items() if name in read}
    return model(nodes, ["n", 4, 8, 8], held)


@pytest.mark.parametrize(
    ("codes", "values", "scales"),
    [
        ("", ["x", "m"], 2),
        ("kept", ["x", "c", "m"], 2),
        ("mixed", ["x", "c", "m"], 3),
        ("bounded", ["x", "m"], 2),
    ],
)
def test_what_becomes_codes(made_up: Any, codes: str, values: list[str], scales: int) -> None:
    made_up(codes=codes)
    found = scheme(read_graph(network()), {"first", "second"})
    assert list(found.values) == values
    assert len(set(found.shares.values())) == scales


def test_what_takes_several_values_takes_codes_of_all(made_up: Any) -> None:
    made_up(codes="mixed", running=None, most=2)
    graph = read_graph(network("MadeUp", "x"))
    assert scheme(graph, {"first", "second"}).values == ("x", "c", "m")
    assert scheme(graph, {"second"}).values == ("m",)


@pytest.mark.parametrize("op", ["SpaceToDepth", "DepthToSpace", "Tile"])
def test_codes_of_what_keeps_them_are_moved(op: str) -> None:
    """The operation moves codes, and ONNX Runtime has the same ones."""
    more, given = (["repeats"], {}) if op == "Tile" else ([], {"blocksize": 2})
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="first"),
        helper.make_node(op, ["c", *more], ["m"], **given),
        helper.make_node("Conv", ["m", "d"], ["y"], name="second"),
    ]
    channels = {"SpaceToDepth": 32, "DepthToSpace": 2, "Tile": 16}[op]
    held = {"w": normal(8, 4, 1, 1), "d": normal(3, channels, 1, 1), "repeats": [1, 2, 1, 1]}
    held = {name: np.asarray(held[name]) for name in ("w", "d", *more)}
    made = lc.quantize(model(nodes, ["n", 4, 8, 8], held), normal(4, 4, 8, 8), threads=1)
    graph = run_passes(read_model(made.data).bind({"x": (1, 4, 8, 8)}), PASSES)
    *between, last = (graph.types[node.output].dtype for node in graph.nodes)
    assert (set(between), last) == ({"uint8"}, "float32")
    x = normal(1, 4, 8, 8, seed=3)
    exact = by_onnxruntime(made.data, {"x": x})["y"]
    np.testing.assert_allclose(lc.load(made.data)(x), exact, atol=0.02 * np.abs(exact).max())


def equal(graph: OnnxGraph) -> OnnxGraph:
    """The network with channels alike, which computes the same."""
    x = normal(4, 4, 8, 8, seed=9)
    made = equalised(graph, checked_samples([x], network_of(graph).inputs), 1)
    exact, found = (network_of(each).run({"x": x})["y"] for each in (graph, made))
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())
    return made


@pytest.mark.parametrize("homogeneous", [False, True])
def test_factors_pass_through_what_is_homogeneous(made_up: Any, homogeneous: bool) -> None:
    made_up(homogeneous=homogeneous)
    made = equal(read_graph(network()))
    assert [node.op for node in made.nodes] == ["Conv", "MadeUp", "Conv"]
    assert (made.nodes[0].inputs[1] != "w") == homogeneous


@pytest.mark.parametrize("op", ["PRelu", "GlobalMaxPool"])
def test_no_factor_is_inserted_behind_what_is_homogeneous(op: str) -> None:
    made = equal(read_graph(network(op, *["slope"][: op == "PRelu"])))
    assert [node.op for node in made.nodes] == ["Conv", op, "Conv"]
    assert made.nodes[0].inputs[1] != "w"


@pytest.mark.parametrize("op", ["Softplus", "Erf"])
def test_a_factor_follows_any_function_of_each_element(op: str) -> None:
    made = equal(read_graph(network(op)))
    assert [node.op for node in made.nodes] == ["Conv", op, "Mul", "Conv"]


@pytest.mark.parametrize("op", [op for op, rule in RULES.items() if rule.homogeneous])
def test_what_is_homogeneous_is_so(op: str) -> None:
    windows = {"kernel_shape": [2, 2]} if op in ("MaxPool", "AveragePool") else {}
    node = helper.make_node(op, ["x", *["slope"][: op == "PRelu"]], ["y"], **windows)
    held = {"slope": np.full((6, 1, 1), 0.25, np.float32)} if op == "PRelu" else {}
    computed = lc.load(model([node], ["n", 6, 8, 8], held), threads=1)
    x, factors = normal(2, 6, 8, 8), np.ldexp(np.float32(1), np.arange(6)).reshape(-1, 1, 1)
    np.testing.assert_array_equal(computed(x * factors), computed(x) * factors)


@pytest.mark.parametrize(
    ("traits", "casts"), [({}, 4), ({"halves": True}, 2), ({"codes": "kept"}, 2)]
)
def test_what_is_computed_in_halves(made_up: Any, traits: Any, casts: int) -> None:
    made_up(**traits)
    made = with_halves(read_graph(network()), {"first", "second"})
    assert sum(node.op == "Cast" for node in made.nodes) == casts


def test_moves_between_layers_in_halves_need_no_casts() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="first"),
        helper.make_node("DepthToSpace", ["c"], ["m"], blocksize=2),
        helper.make_node("Conv", ["m", "v"], ["y"], name="second"),
    ]
    data = model(nodes, ["n", 4, 8, 8], {"w": normal(8, 4, 1, 1), "v": normal(3, 2, 1, 1)})
    made = with_halves(read_graph(data), {"first", "second"})
    assert [n.op for n in made.nodes] == ["Cast", "Conv", "DepthToSpace", "Conv", "Cast"]
    x = normal(1, 4, 8, 8)
    exact, found = (lc.load(each, threads=1)(x) for each in (data, made.data()))
    np.testing.assert_allclose(found, exact, atol=0.02 * np.abs(exact).max())


def test_what_has_codes_is_not_quantised_again(made_up: Any) -> None:
    made_up(quantised=True)
    with pytest.raises(ModelError, match="quantised already: it has MadeUp nodes"):
        lc.quantize(network(), normal(4, 4, 8, 8), threads=1)


def test_products_of_codes_are_not_quantised_again() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("DynamicQuantizeLinear", ["c"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "codes"], ["m"]),
        helper.make_node("Cast", ["m"], ["y"], to=1),
    ]
    held = {"w": normal(6, 4, 1, 1), "codes": np.ones((8, 8), np.int8)}
    with pytest.raises(ModelError, match="quantised already"):
        lc.quantize(model(nodes, ["n", 4, 8, 8], held), normal(4, 4, 8, 8), threads=1)


def test_attributes_that_became_inputs_do_so() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Dropout", ["c"], ["d"], ratio=0.25),
        helper.make_node("Conv", ["d", "v"], ["y"]),
    ]
    held = {"w": normal(6, 4, 1, 1), "v": normal(3, 6, 1, 1)}
    made = lc.quantize(model(nodes, ["n", 4, 8, 8], held, opset=11), normal(4, 4, 8, 8), threads=1)
    assert made.error < 0.05
