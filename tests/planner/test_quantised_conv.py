"""Convolutions of codes: the operator in all formats that it accepts, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from leanconv.codegen.host import host
from leanconv.graph.edit import frozen
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import evaluate_node, infer_node
from leanconv.graph.passes import run_passes
from leanconv.graph.verify import verify
from leanconv.operators import Accuracy, NodeContext
from leanconv.operators.convolution import CONVOLUTION_OF_CODES
from leanconv.planner.budget import Planner
from leanconv.planner.compiled_network import CompiledNetwork
from leanconv.planner.formats import format_rules
from leanconv.planner.lowered_graph import OwnedGraph
from leanconv.planner.lowering import lower_graph
from leanconv.spec import PLAIN
from leanconv.spec.requantise import ResidualCodes
from leanconv.target import Target
from leanconv.types import FLOAT32, INT8, UINT8, DType, as_dtype
from support.interpret import interpret
from support.nodes import TARGETS, run_lowered
from support.quantised_convs import QuantisedConv, cases, numbers, quantised_conv

_NONE = {"residual": None, "activation": None}
CASES = list(cases())
VECTORS = tuple(name for name in host().extensions if not name.startswith("amx"))
MACHINES = [*TARGETS, replace(host(), name="vectors", extensions=VECTORS)]


def contexts(case: QuantisedConv, target: Target) -> Iterator[NodeContext]:
    """The node in the formats that a plan may give it."""
    rules = format_rules(case.graph, target)
    for reads, writes in rules.possible(case.node):
        formats = dict.fromkeys(case.graph.types, PLAIN) | reads
        formats |= dict.fromkeys(case.node.outputs, writes)
        yield NodeContext(case.node, case.graph, formats, target)


@pytest.mark.drawn
@pytest.mark.once  # machines of other vectors are among these
@pytest.mark.parametrize("target", MACHINES, ids=lambda target: target.name)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_bits_are_those_of_the_definition(number: int, target: Target) -> None:
    case = CASES[number]
    (expected,) = evaluate_node(case.node, {**case.inputs, **case.graph.constants})
    found_contexts = list(contexts(case, target))
    for context in found_contexts:
        for choice in CONVOLUTION_OF_CODES.choices(context, vary_parameters=False):
            lowered = CONVOLUTION_OF_CODES.lower(context, choice)
            found = run_lowered(lowered, case.graph, context.formats, case.inputs, target, (1 / 3,))
            np.testing.assert_array_equal(found, expected, f"{choice} {context.formats}")


@pytest.mark.drawn
@pytest.mark.parametrize("text", ["winograd:m=4", "winograd:m=2", "winograd:form=stages,m=3"])
@pytest.mark.parametrize("number", [4, 9, 11])
def test_an_algorithm_that_is_named_has_the_same_bits(number: int, text: str) -> None:
    case = quantised_conv(number, residual=True, seed=1)
    choice = CONVOLUTION_OF_CODES.choice_named(text)
    (expected,) = evaluate_node(case.node, {**case.inputs, **case.graph.constants})
    for context in contexts(case, host()):
        lowered = CONVOLUTION_OF_CODES.lower(context, choice)
        assert lowered.algorithm == "winograd"
        found = run_lowered(lowered, case.graph, context.formats, case.inputs, host(), (1 / 3,))
        np.testing.assert_array_equal(found, expected)


def network(zero: int, dtype: DType) -> tuple[Graph, dict[str, np.ndarray]]:
    """A small residual network of codes: its convolutions, a residual, and floats at its end."""
    rng = np.random.default_rng(zero)
    held: dict[str, np.ndarray] = {"x": numbers(rng, (2, 3, 13, 11), dtype)}
    types = {"x": TensorType(held["x"].shape, dtype)}
    nodes: list[Node] = []

    def conv(x: str, outputs: int, kernel: int, stride: int = 1, **given: Any) -> str:
        inputs, name = types[x].shape[1], f"y{len(nodes)}"
        arrays = {
            "w": numbers(rng, (outputs, inputs, kernel, kernel), INT8),
            "bias": rng.integers(-4000, 4000, outputs, np.int32),
            "scale": (rng.random(outputs) / (100 * kernel * inputs**0.5)).astype(np.float32),
        }
        names = [x]
        for role, array in arrays.items():
            names.append(f"{name}.{role}")
            held[names[-1]] = array
            types[names[-1]] = TensorType(array.shape, as_dtype(array.dtype))
        names += [given.pop("added")] if "added" in given else []
        pad = (kernel // 2,) * 4
        window = {"strides": (stride,) * 2, "pads": pad, "dilations": (1, 1), "group": 1}
        codes = {"x_zero": zero, "y_zero": zero, "low": int(dtype.low), "high": int(dtype.high)}
        attributes = frozen({**window, **codes, "dtype": dtype, **_NONE, **given})
        node = Node("QLinearConv", tuple(names), (name,), attributes, f"conv {len(nodes)}")
        (types[name],) = infer_node(node, types)
        nodes.append(node)
        return name

    bounds = int(dtype.low), int(dtype.high)
    first = conv("x", 20, 3, 2)
    second = conv(first, 40, 1)
    third = conv(second, 40, 3)
    own = ResidualCodes(zero, *bounds, 0.03, 0.02, 0.04, zero)
    fourth = conv(third, 40, 1, residual=own, added=second)
    floats = conv(fourth, 17, 1, dtype=FLOAT32, y_zero=0, low=-1.0, high=float("inf"))
    outputs = (fourth, floats)
    x = {"x": held.pop("x")}
    graph = Graph(("x",), outputs, tuple(nodes), frozen(types), frozen(held))
    return verify(graph), x


@pytest.mark.parametrize("dtype", [UINT8, INT8])
@pytest.mark.parametrize("zero", [0, 93])
def test_a_network_has_the_bits_of_the_interpreter(zero: int, dtype: DType) -> None:
    made, inputs = network(zero, dtype)
    wanted = interpret(made, inputs)
    graph = run_passes(made, check=True)
    for threads in (1, 2):
        compiled = CompiledNetwork(OwnedGraph(graph), Planner(graph, host(), threads, Accuracy()))
        results = {n: np.empty(k.shape, k.dtype) for n, k in compiled.plan.results.items()}
        given = [np.ascontiguousarray(array) for array in inputs.values()]
        compiled.run([array.ctypes.data for array in (*given, *results.values())])
        for name, array in wanted.items():
            np.testing.assert_array_equal(results[name], array)
    steps = lower_graph(graph, host(), Accuracy()).steps
    reordered = [step.output for step in steps if step.op == "Reorder"]
    assert len(reordered) == len(graph.outputs), f"only outputs leave blocks: {reordered}"
