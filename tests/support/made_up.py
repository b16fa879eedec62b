"""Operations that nobody has, added to the table of operations and nowhere else.

Run as a process of its own, it adds them before any other module has read the table, and calls all
functions here whose names begin with `check_`: each says that something treats the operations as
their traits say.
"""

from __future__ import annotations

import gc
import math
import sys
from dataclasses import replace
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np

from leanconv.graph import ops
from leanconv.graph.ops.base import Arrays, Op, Types, broadcast, checked, first, required, single
from leanconv.graph.ops.quantised import CODES
from leanconv.types import DTYPES, FLOAT16, FLOAT32, FLOAT64, INT8, UINT8, DType, as_dtype


def _of_one(function: Any, **facts: Any) -> Op:
    """An operation of one input that keeps its type."""
    return single(lambda types, _: first(types), lambda arrays, _: function(arrays[0]), **facts)


def _of_two(function: Any, **facts: Any) -> Op:
    def infer(types: Types, _: Any) -> Any:
        return checked(broadcast(first(types).shape, required(types, 1).shape), first(types).dtype)

    return single(infer, lambda arrays, _: function(*arrays), "a, b", **facts)


def _reduction(function: Any, **facts: Any) -> Op:
    """An operation of the inputs, attributes and results of a reduction."""

    def evaluate(arrays: Arrays, given: Any) -> tuple[Any]:
        return (function(arrays[0], axis=given["axes"], keepdims=given["keepdims"]),)

    return replace(ops.OPS["ReduceSum"], evaluate=evaluate, **facts)


def _of_codes(of_floats: str, inputs: str, **facts: Any) -> Op:
    """An operation on codes; its values are never asked for."""

    def infer(types: Types, given: Any) -> Any:
        return checked(first(types).shape, given["dtype"])

    names, facts = ops.OPS["QLinearAdd"].attributes, {"dtypes": CODES, **facts}
    facts["of_floats"] = of_floats
    return single(infer, lambda arrays, _: arrays[0], inputs, names, **facts)


MADE_UP: dict[str, Op] = {
    "Exactly": _of_one(np.negative, halves="exact"),
    "Scaled": _of_one(lambda x: x * 3, halves="scaled"),
    "Widely": _of_one(np.exp2, halves="wide", precise=slice(1), magnifies="difference"),
    "Roundly": _of_one(np.tanh, halves="rounded"),
    "Float32": _of_one(np.arctan),
    "Doubled": _of_one(lambda x: x + x, halves="scaled", kernel="made_up"),
    "Rooted": _of_one(np.cbrt, halves="rounded", magnifies="root"),
    "Divided": _of_two(lambda a, b: a / b, halves="rounded", divides=True),
    "Differs": _of_two(lambda a, b: a - 2 * b, halves="scaled", magnifies="difference"),
    "Both": _of_two(
        lambda a, b: a + b + 1,
        halves="scaled",
        commutes=True,
        neutral=-1.0,
        affine=lambda c, _: (1.0, c + 1),
    ),
    "Moved": _of_one(lambda x: x[::-1].copy(), moves=slice(1), rearranges=True, dtypes=DTYPES),
    "Sorted": _of_one(lambda x: np.sort(x, axis=-1), selects=True, dtypes=DTYPES),
    "OnCodes": _of_codes("Roundly", "x"),
    "Shifting": _of_codes("Differs", "a, b", shifts=True),
    "Summed": _reduction(np.sum),
    "Squared": _reduction(lambda x, **given: np.square(x).sum(**given), keeps_single=False),
}
ops.OPS = MappingProxyType({**ops.OPS, **MADE_UP})

# What follows reads the table, and the modules that it imports do.
from onnx import helper  # noqa: E402

import leanconv as lc  # noqa: E402
from leanconv.codegen.lowered import Lowered  # noqa: E402
from leanconv.graph.builder import Builder as Binder  # noqa: E402
from leanconv.graph.convert import FILE_RULES, RULES, Rule  # noqa: E402
from leanconv.graph.halves import rounds_to_halves  # noqa: E402
from leanconv.graph.ir import Graph, Node, TensorType, is_filled  # noqa: E402
from leanconv.graph.limits import Limits  # noqa: E402
from leanconv.graph.passes.canonical_forms import global_pooling  # noqa: E402
from leanconv.graph.passes.coded_values import unsigned_codes  # noqa: E402
from leanconv.graph.passes.fold_batch_norm import fold_batch_norm  # noqa: E402
from leanconv.graph.passes.recognise_quantised import recognise_quantised  # noqa: E402
from leanconv.graph.passes.simplify import drop_dead, merge_common, simplify  # noqa: E402
from leanconv.graph.passes.store_in_halves import store_in_halves  # noqa: E402
from leanconv.graph.verify import verify  # noqa: E402
from leanconv.kernels import KernelContext, elementwise  # noqa: E402
from leanconv.planner.error_growth import NORMALISED, magnified_errors  # noqa: E402
from support.graph_builder import Builder, applied  # noqa: E402
from support.graph_builder import ops as ops_of  # noqa: E402
from support.onnx_models import model  # noqa: E402

SHAPE = (1, 8, 32, 32)  # values of more than 4096 elements are stored in halves


def _stored(*names: str) -> list[DType]:
    """In which types the results of operations one after the other are stored."""
    b = Builder(FLOAT32)
    values = [b.op("Roundly", b.input(*SHAPE))]
    for name in names:
        values.append(b.op(name, values[-1]))
    graph = verify(store_in_halves(b.graph(b.op("Roundly", values[-1])), FLOAT16))
    return [graph.types[value].dtype for value in values[1:]]


def check_stored_in_halves() -> None:
    """Results are stored in halves where nothing would be lost."""
    assert _stored("Exactly", "Scaled", "Roundly") == [FLOAT16] * 3
    assert _stored("Widely", "Exactly", "Scaled", "Moved") == [FLOAT32] * 4
    assert _stored("Widely", "Roundly") == [FLOAT32, FLOAT16]
    assert _stored("Moved", "Roundly") == [FLOAT16] * 2
    assert _stored("Float32", "Roundly") == [FLOAT32, FLOAT16]


def check_precise_where_errors_count() -> None:
    """Errors of exponents count, and of what they are multiples of."""
    assert _stored("Roundly", "Exactly", "Scaled", "Moved", "Widely") == [FLOAT32] * 5
    assert _stored("Roundly", "Roundly", "Widely") == [FLOAT16, FLOAT32, FLOAT32]


def check_rounded() -> None:
    """What chooses of halves rounds nothing."""
    for name, error in (("Exactly", 0.0), ("Roundly", FLOAT16.roundoff), ("Moved", 0.0)):
        b = Builder(FLOAT16)
        graph = b.graph(b.op(name, b.input(*SHAPE)))
        assert rounds_to_halves(graph.nodes[0], graph) == error, name


def _grown(make: Any) -> float:
    """By how much more the error of what is made first grows."""
    b = Builder(FLOAT32)
    start = b.op("Roundly", b.input(4))
    graph = b.graph(make(b, start))
    return magnified_errors(graph, FLOAT16.roundoff).get(graph.nodes[0].key, 1.0)


def check_errors() -> None:
    """Errors are magnified by what is behind them."""
    root = 1 / math.sqrt(FLOAT16.roundoff)
    assert _grown(lambda b, x: b.op("Scaled", x)) == 1.0
    assert _grown(lambda b, x: b.op("Widely", x)) == NORMALISED
    assert _grown(lambda b, x: b.op("Differs", x, b.input(4))) == NORMALISED
    assert _grown(lambda b, x: b.op("Differs", x, 2.0)) == 1.0
    assert _grown(lambda b, x: b.op("Rooted", x)) == root
    assert _grown(lambda b, x: b.op("Divided", b.input(4), b.op("Rooted", x))) == NORMALISED


def check_simplified() -> None:
    """What gives back its input is left out; of equal nodes one is left."""
    b = Builder()
    x, y = b.input(3, 1), b.input(3, 1)
    both = b.op("Both", b.op("Both", x, y), b.op("Both", y, x))
    graph = applied(drop_dead, applied(merge_common, b.graph(both)))
    assert ops_of(graph) == ["Both", "Both"]
    kept = b.op("Differs", b.op("Differs", x, y), b.op("Differs", y, x))
    assert ops_of(applied(merge_common, b.graph(kept))).count("Differs") == 3

    b = Builder()
    x = b.input(3, 1)
    summed = b.op("Summed", b.op("Both", x, -1.0), axes=(1,), keepdims=True)
    y = b.op("Squared", summed, axes=(1,), keepdims=True)
    assert ops_of(applied(drop_dead, applied(simplify, b.graph(y)))) == ["Squared"]


def check_folded() -> None:
    """What is affine becomes part of a convolution's weights."""
    b = Builder()
    y = b.op("Both", b.conv(b.input(1, 2, 5, 5), b.normal(3, 2, 1, 1)), b.normal(3, 1, 1))
    assert ops_of(applied(fold_batch_norm, b.graph(y))) == ["Conv"]


def check_reductions_keep_their_axes() -> None:
    """Reductions that drop their axes become others and Reshapes."""
    attributes = MappingProxyType({"axes": (1,), "keepdims": False})
    node = Node("Squared", ("x",), ("y",), attributes)
    types = MappingProxyType({"x": checked((3, 4), FLOAT64), "y": checked((3,), FLOAT64)})
    graph = verify(Graph(("x",), ("y",), (node,), types, MappingProxyType({})))
    assert ops_of(applied(global_pooling, graph)) == ["Squared", "Reshape"]


def check_constants() -> None:
    """What moves one number that is repeated repeats it."""
    binder, one = Binder(FLOAT32, Limits(), 1 << 20), np.ones(1, np.float32)
    moved, scaled = (binder.emit(op, [binder.filled(one, (8, 8))]) for op in ("Moved", "Scaled"))
    assert moved.array is not None
    assert scaled.array is not None
    assert is_filled(moved.array)
    assert not is_filled(scaled.array)


def _coded(b: Builder, x: str, scale: float, zero: int) -> list[str]:
    """Codes of a value in int8, and the floats for which they stand."""
    parts = [f"{x}.scale", f"{x}.zero"]
    for name, number in zip(parts, (np.float32(scale), np.int8(zero)), strict=True):
        b.constants[name] = np.asarray(number)
        b.types[name] = TensorType((), as_dtype(number.dtype))
    codes = b.op("QuantizeLinear", x, *parts, axis=0)
    return [codes, b.op("DequantizeLinear", codes, *parts, axis=0, dtype=FLOAT32)]


def check_codes_are_moved() -> None:
    """What moves or selects elements does so of codes, and floats are made behind it."""
    for name in ("Moved", "Sorted", "Scaled"):
        b = Builder(FLOAT32)
        y = b.op(name, _coded(b, b.input(*SHAPE), 0.1, 0)[1])
        found = ops_of(applied(recognise_quantised, b.graph(y)))
        moved = ["QuantizeLinear", name, "DequantizeLinear"]
        assert found == (moved if name != "Scaled" else [moved[0], moved[2], name]), name


def check_operations_on_codes() -> None:
    """Between codes an operation is computed on them, and stored as uint8 where it shifts."""
    for name, inputs, dtype in (("OnCodes", 1, INT8), ("Shifting", 2, UINT8)):
        b = Builder(FLOAT32)
        read = [_coded(b, b.input(*SHAPE), 0.1, zero)[1] for zero in range(inputs)]
        made = _coded(b, b.op(MADE_UP[name].of_floats, *read), 0.2, 3)
        graph = verify(recognise_quantised(b.graph(made[1])))
        assert ops_of(graph) == [*["QuantizeLinear"] * inputs, name, "DequantizeLinear"]
        graph = verify(unsigned_codes(graph))
        node = graph.nodes[inputs]
        assert {graph.types[each].dtype for each in (*node.inputs, *node.outputs)} == {dtype}
        assert node.attributes["zeros"] == tuple(
            zero + 128 * (dtype == UINT8) for zero in (*range(inputs), 3)
        )


def _lower(context: KernelContext) -> Lowered:
    node = replace(context.node, op="Add", inputs=context.node.inputs * 2)
    return elementwise.lower(replace(context, node=node))


def check_kernels_of_its_own() -> None:
    """A record, a rule and a module of kernels are all that an operation needs."""
    sys.modules["leanconv.kernels.made_up"] = ModuleType("leanconv.kernels.made_up")
    sys.modules["leanconv.kernels.made_up"].lower = _lower  # type: ignore[attr-defined]
    rule = Rule(lambda call: [call.emit("Doubled", [call.value()])])
    for table in (each for view in (RULES, FILE_RULES) for each in gc.get_referents(view)):
        table["Twice"] = rule
    proto = model([helper.make_node("Twice", ["x"], ["y"])], {"x": SHAPE}, ["y"])
    net, x = lc.load(proto.SerializeToString()), np.ones(SHAPE, np.float32)
    np.testing.assert_array_equal(net(x), 2 * x)
    assert "Twice_0: Doubled" in str(net.explain())


if __name__ == "__main__":
    for check in [each for name, each in globals().items() if name.startswith("check_")]:
        check()
