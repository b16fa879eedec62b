"""Elementwise nodes that only each other read become one node, and one kernel, of the same bits.

So do reductions of magnitudes and squares.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import leanconv as lc
from leanconv.api import cpu_graphs
from leanconv.errors import ModelError
from leanconv.graph.ir import Graph, Node
from leanconv.graph.onnx_import import read_model
from leanconv.graph.ops.pointwise import MOST_OPERANDS, MOST_TERMS, Term, terms_of
from leanconv.graph.passes import GPU_PASSES, PASSES, run_passes, store_in_halves
from leanconv.graph.passes.fuse_chains import (
    fuse_chains,
    fuse_extremes,
    fuse_reductions,
    separated,
)
from leanconv.graph.verify import verify
from support.interpret import interpret
from support.onnx_models import model

_FUSING = (fuse_chains, fuse_extremes, fuse_reductions)
APART = tuple(each for each in PASSES if each not in _FUSING)
IMAGE = (1, 6, 5, 7)
RANDOM = np.random.default_rng(6)


def numbers(*shape: int, dtype: str = "f4") -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(dtype)


def bound(proto: onnx.ModelProto, passes: Any = PASSES) -> Graph:
    return run_passes(read_model(proto.SerializeToString()).bind(), passes, check=True)


def ops(proto: onnx.ModelProto, passes: Any = PASSES) -> list[str]:
    """The operations of a graph, those of expressions joined by signs."""
    return ["+".join(term.op for term in terms_of(node)) for node in bound(proto, passes).nodes]


def written(text: str, *outputs: str, held: Mapping[str, Any] | None = None, **inputs: Any) -> Any:
    """A model of lines such as `y = Add a b`; its inputs are of `IMAGE`'s shape if not given.

    The number behind a colon is that of a Cast's type.
    """
    nodes = []
    for line in filter(None, (each.strip() for each in text.split(";"))):
        out, _, call = line.partition(" = ")
        op, *operands = call.split()
        op, _, to = op.partition(":")
        nodes.append(helper.make_node(op, operands, [out], **({"to": int(to)} if to else {})))
    made, held = {out for node in nodes for out in node.output}, held or {}
    read = {name for node in nodes for name in node.input} - made - held.keys()
    shapes = {name: inputs.get(name, IMAGE) for name in sorted(read)}
    return model(nodes, shapes, outputs or ("y",), held, 22)


def reduced(op: str, *axes: int, **inputs: Any) -> Any:
    held = {"axes": np.array(axes, "i8")} if axes else {}
    return written(f"y = {op} x {'axes' * bool(axes)}", held=held, **inputs)


ONE = {"one": np.float32(1), "c": numbers(6, 1, 1), "d": numbers(6, 1, 1)}
CASES = {
    "softsign": (written("y = Softsign x"), ["Abs+Add+Div"]),
    "threshold": (written("y = ThresholdedRelu x"), ["Greater+Where"]),
    "mean": (written("y = Mean a b c"), ["Add+Add+Div"]),
    "mish": (written("y = Mish x"), ["Softplus+Tanh+Mul"]),
    "affine": (written("s = Mul x c; y = Add s d", held=ONE), ["Mul+Add"]),
    "logic": (
        written("a = Less x one; b = IsNaN x; o = Or a b; y = Where o x one", held=ONE),
        ["Less+IsNaN+Or+Where"],
    ),
    "flags": (written("a = Abs x; y = Less a one", held=ONE), ["Abs+Less"]),
    "flags of flags": (written("a = IsNaN x; b = Not a; y = And b a"), ["IsNaN+Not+And"]),
    "flags alone": (
        written("a = IsNaN x; b = Not a; y = And b a", "y", "a"),
        ["IsNaN", "Not+And"],
    ),
    "tree": (written("a = Exp x; b = Abs z; c = Sqrt b; y = Mul a c"), ["Exp+Abs+Sqrt+Mul"]),
    "read twice": (written("a = Mul x z; b = Sigmoid a; y = Mul a b"), ["Mul+Silu"]),
    "twice in a chain": (written("a = Exp x; b = Abs a; y = Div a b"), ["Exp+Abs+Div"]),
    "one": (written("y = Exp x"), ["Exp"]),
    "read by others": (
        written("a = Exp x; y = Abs a; z = ReduceSum a", "y", "z"),
        ["Exp", "Abs", "ReduceSum"],
    ),
    "an output": (written("a = Exp x; y = Abs a", "y", "a"), ["Exp", "Abs"]),
    "spread": (written("a = Exp s; y = Mul x a", s=(6, 1, 1)), ["Exp", "Mul"]),
    "spread later": (
        written("a = Exp s; b = Abs a; y = Mul x b; z = Neg y", "z", s=(6, 1, 1)),
        ["Exp+Abs", "Mul+Neg"],
    ),
    "of an axis more": (written("a = Exp s; y = Add a x", s=IMAGE[1:]), ["Exp", "Add"]),
    "many functions": (
        written("a = Exp x; b = Erf a; c = Tanh b; y = Neg c"),
        ["Exp+Erf", "Tanh+Neg"],
    ),
    "an activation": (
        written("h = Conv x w; r = Relu h; y = Exp r", held={"w": numbers(6, 6, 1, 1)}),
        ["Conv", "Exp"],
    ),
    "magnitudes": (reduced("ReduceL1"), ["ReduceL1"]),
    "magnitudes of rows": (reduced("ReduceL1", 3), ["ReduceL1"]),
    "squares": (reduced("ReduceSumSquare", 2, 3), ["ReduceSumSquare"]),
    "a length": (reduced("ReduceL2", 1, x=(3, 70, 33)), ["ReduceSumSquare", "Sqrt"]),
    "a mean of squares": (
        written("s = Mul x x; m = ReduceMean s i; a = Add m one; d = Sqrt a; y = Div x d",
                held={"one": np.float32(1), "i": np.array([-1])}),
        ["ReduceMeanSquare", "Add+Sqrt", "Div"],
    ),
    "a power": (
        written("s = Pow x two; y = ReduceMean s", held={"two": np.float32(2)}),
        ["ReduceMeanSquare"],
    ),
    "both ends": (
        written("a = ReduceMin x; b = ReduceMax x; y = Sub b a"),
        ["Extremes", "Slice", "Reshape", "Slice", "Reshape", "Sub"],
    ),
    "an end of rows": (
        written("a = ReduceMin x i; b = ReduceMax x; y = Sub b a", held={"i": np.array([-1])}),
        ["ReduceMin", "ReduceMax", "Sub"],
    ),
    "one end twice": (
        written("b = ReduceMax x; a = Neg x; c = ReduceMax a; y = Sub b c"),
        ["ReduceMax", "Neg", "ReduceMax", "Sub"],
    ),
    "casts": (
        written("a = Mul x c; b = Cast:6 a; e = Add b i; f = Cast:1 e; y = Abs f",
                held={**ONE, "i": np.int32(3)}),
        ["Mul+Cast+Add+Cast+Abs"],
    ),
    "codes between": (
        written("a = Abs x; b = QuantizeLinear a one u; e = DequantizeLinear b one u; y = Neg e",
                held={**ONE, "u": np.uint8(7)}),
        ["Abs+QuantizeLinear+DequantizeLinear+Neg"],
    ),
    "codes of channels": (
        written("a = Abs x; b = QuantizeLinear a s u; d = DequantizeLinear b s u; y = Neg d",
                held={"s": np.arange(1, 7, dtype="f4"), "u": np.arange(6, dtype="u1")}),
        ["Abs+QuantizeLinear+DequantizeLinear+Neg"],
    ),
    "codes of an image": (
        written("a = Abs x; b = QuantizeLinear a one u; e = Transpose b; y = Cast:1 e",
                x=(1, 3, 8, 9), held={**ONE, "u": np.uint8(7)}),
        ["Abs", "QuantizeLinear", "Transpose", "Cast"],
    ),
    "doubles": (
        written("a = Exp x; b = Cast:11 a; e = Sqrt b; y = Cast:1 e"),
        ["Exp", "Cast", "Sqrt", "Cast"],
    ),
    "no square": (written("s = Mul x z; y = ReduceSum s"), ["Mul", "ReduceSum"]),
    "a square for others": (
        written("s = Mul x x; y = ReduceSum s; z = Exp s", "y", "z"),
        ["Mul", "ReduceSum", "Exp"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_one_node(name: str) -> None:
    proto, expected = CASES[name]
    assert ops(proto) == expected
    others = {node.op for node in bound(proto, GPU_PASSES).nodes}
    assert not others & {"Expression", "Extremes", "ReduceL1", "ReduceSumSquare"}
    check_bits(proto, error=0.0 if "flags" in name else 1e-5)  # which are no floats


def test_integers_are_no_magnitudes() -> None:
    nodes = [
        helper.make_node("Add", ["x", "x"], ["a"]),
        helper.make_node("Mul", ["a", "x"], ["b"]),
        helper.make_node("ReduceL1", ["b"], ["y"]),
    ]
    proto = model(nodes, {"x": [4]}, ["y"], {}, 20, elem_type=TensorProto.INT32)
    assert ops(proto) == ["Add+Mul+Abs", "ReduceSum"]


def test_a_chain_has_so_many_terms_and_operands() -> None:
    chain = "; ".join(f"v{n + 1} = {('Neg', 'Abs', 'Sqrt')[n % 3]} v{n}" for n in range(40))
    lengths = [len(terms_of(node)) for node in bound(written(chain, "v40")).nodes]
    assert lengths == [MOST_TERMS, MOST_TERMS, 40 - 2 * MOST_TERMS]
    many = "v1 = Add x0 x1; " + "; ".join(f"v{n} = Sub v{n - 1} x{n}" for n in range(2, 20))
    graph = bound(written(many, "v19"))
    assert [len(node.inputs) for node in graph.nodes] == [MOST_OPERANDS] * 2 + [6]


def test_taken_apart_it_is_as_before() -> None:
    proto, _ = CASES["read twice"]
    fused, apart = bound(proto), bound(proto, APART)
    again = verify(separated(fused))
    assert [(n.op, n.inputs, n.outputs) for n in again.nodes] == [
        (n.op, n.inputs, n.outputs) for n in apart.nodes
    ]
    assert again.types == apart.types
    assert separated(apart) is apart


def test_terms_are_verified() -> None:
    (node,) = bound(CASES["softsign"][0]).nodes
    graph = bound(CASES["softsign"][0])
    for bad, said in (
        (Term("Add", (0, 9), (), "a"), "inputs, and terms before it"),
        (Term("Conv", (0, 0), (), "a"), "an elementwise operation"),
        (Term("And", (0, 0), (), "a"), "got inputs of float32; expected bool"),
    ):
        terms = {"terms": (*terms_of(node)[:-1], bad)}
        broken = Node("Expression", node.inputs, node.outputs, terms, "")
        with pytest.raises(ModelError, match=said):
            verify(Graph(graph.inputs, graph.outputs, (broken,), graph.types, graph.constants))


# -- bits -----------------------------------------------------------------------------------------
def check_bits(
    proto: onnx.ModelProto, *feeds: Mapping[str, np.ndarray], error: float = 0.0, **options: Any
) -> None:
    """The bits of a network's answers are those of its nodes one by one.

    Given an error, they are ONNX Runtime's up to that.
    """
    data, patch = proto.SerializeToString(), pytest.MonkeyPatch()
    fused = lc.load(data, threads=1, **options)
    with patch.context() as undo:
        undo.setattr(cpu_graphs, "UNFUSED_PASSES", APART[:-1])  # all but blocks of mobile networks
        undo.setattr(store_in_halves, "fuse_chains", lambda graph: graph)
        apart = lc.load(data, threads=2, **options)
        if not feeds:
            shapes = {each.name: each.shape or () for each in fused.inputs}
            feeds = ({n: numbers(*(int(e or 1) for e in shape)) for n, shape in shapes.items()},)
        expected = [apart.run(dict(feed)) for feed in feeds]
    found = [fused.run(dict(feed)) for feed in feeds]
    for given, wanted in zip(found, expected, strict=True):
        for name, array in given.items():
            assert np.array_equal(array, wanted[name], equal_nan=array.dtype.kind == "f"), name
    assert fused.plan.memory_bytes == fused.used_bytes
    if not error:
        return
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    for feed, given in zip(feeds, found, strict=True):
        for array, wanted in zip(given.values(), session.run(None, dict(feed)), strict=True):
            np.testing.assert_allclose(array, wanted, rtol=error, atol=error)


UNARY = "Neg Abs Relu Sigmoid HardSigmoid HardSwish Tanh Erf Softplus Elu LeakyRelu Floor Sign Atan"
BINARY = "Add Sub Mul Div Min Max PRelu"


def random_chain(seed: int, dtype: type = np.float32) -> tuple[onnx.ModelProto, list[Any]]:
    """Some elementwise nodes of a network with open sizes, and two feeds of other sizes."""
    random = Random(seed)
    rank = random.randint(1, 5)
    sizes = [random.choice([1, 1, 2, 3, 5, 15, 16, 17, 33, 64, 70]) for _ in range(rank)]
    sizes = [min(size, 5) if rank > 3 else size for size in sizes]
    axes = [(size > 1 and random.random() < 0.4, size) for size in sizes]
    declared: dict[str, list[Any]] = {"x": [f"n{n}" if o else s for n, (o, s) in enumerate(axes)]}
    held: dict[str, Any] = {}
    nodes: list[onnx.NodeProto] = []
    values = ["x"]

    def operand() -> str:
        way, name = random.randint(0, 4), f"o{len(declared) + len(held)}"
        if way == 0:
            held[name] = np.asarray(random.uniform(0.5, 2), dtype)
        elif way < 3:
            shape = [1 if is_open or random.random() < 0.4 else size for is_open, size in axes]
            shape = shape[random.randint(0, rank - 1) :]
            held[name] = np.random.default_rng(seed).uniform(0.5, 2, shape).astype(dtype)
        elif way == 3:
            first = random.randint(0, rank - 1)
            declared[name] = [1 if random.random() < 0.3 else s for s in declared["x"][first:]]
        else:
            return random.choice(values)
        return name

    def add(op: str, *inputs: str) -> str:
        nodes.append(helper.make_node(op, inputs, [f"v{len(nodes)}"]))
        return str(nodes[-1].output[0])

    for _ in range(random.randint(2, 20)):
        x = random.choice(values[-2:])
        way = random.random()
        if way < 0.45:
            values.append(add(random.choice(UNARY.split()), x))
        elif way < 0.9:
            op = random.choice(BINARY.split())
            second = operand()
            if op == "Div":
                second = add("Add", add("Abs", second), "one")
            values.append(add(op, x, second))
        else:
            flags = add(random.choice(["Less", "GreaterOrEqual"]), x, operand())
            values.append(add("Where", flags, x, operand()))
    held["one"] = np.asarray(1, dtype)
    kind = TensorProto.DOUBLE if dtype == np.float64 else TensorProto.FLOAT
    read = {name for node in nodes for name in node.input}
    given = {name: shape for name, shape in declared.items() if name in read}
    proto = model(nodes, given, [values[-1]], held, 20, elem_type=kind)
    feeds: list[Any] = []
    for more in (0, 3):
        at = {f"n{n}": size + more for n, size in enumerate(sizes)}
        generator = np.random.default_rng(seed)
        feeds.append(
            {
                name: generator.standard_normal([at.get(s, s) for s in shape]).astype(dtype)
                for name, shape in given.items()
            }
        )
    return proto, feeds


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(30))
def test_random_chains_have_the_bits_of_their_nodes(seed: int) -> None:
    proto, feeds = random_chain(seed)
    check_bits(proto, *feeds, error=1e-3)
    for feed in feeds:
        shapes = {name: array.shape for name, array in feed.items()}
        graph = read_model(proto.SerializeToString()).bind(shapes)
        one, other = (
            interpret(run_passes(graph, each, check=True), feed) for each in (PASSES, APART)
        )
        assert all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(100, 108))
def test_random_chains_of_doubles(seed: int) -> None:
    proto, feeds = random_chain(seed, np.float64)
    check_bits(proto, *feeds, dtype="float64")


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(1000, 1400, 20))
def test_many_random_chains_have_the_bits_of_their_nodes(first: int) -> None:
    for seed in range(first, first + 20):
        proto, feeds = random_chain(seed)
        check_bits(proto, *feeds, error=1e-2)


@pytest.mark.drawn
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("seed", range(200, 206))
def test_values_between_are_rounded_as_if_stored_in_halves(seed: int, precision: Any) -> None:
    proto, feeds = random_chain(seed)
    check_bits(proto, *feeds, precision=precision, reproducible=True)


def test_halves_between_are_in_the_plan() -> None:
    text = "a = Mul x z; b = Sigmoid a; c = Add b x; h = Conv c w; y = Exp h"
    proto = written(text, held={"w": numbers(6, 6, 1, 1)}, x=(1, 6, 40, 50), z=(1, 6, 40, 50))
    net = lc.load(proto.SerializeToString(), precision="float16", reproducible=True)
    plan: Any = net.plan
    graph = plan.graph
    (node,) = [node for node in graph.nodes if node.op == "Expression"]
    assert [term.stored for term in terms_of(node)][:-1] == ["float16"] * 2
    check_bits(proto, precision="float16", reproducible=True)


# -- what reads them ------------------------------------------------------------------------------
def test_a_plan_says_what_a_chain_is() -> None:
    net = lc.load(CASES["softsign"][0].SerializeToString(), threads=1)
    assert "Expression by elementwise Abs, Add, Div" in str(net.explain())
