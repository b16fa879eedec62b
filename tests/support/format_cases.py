"""Nodes of every operator, with every pair of operands that may be one value, in all formats."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pytest

from leanconv.algorithms.parameters import Choice
from leanconv.codegen.host import host
from leanconv.errors import SpecError
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import OPS, infer_node
from leanconv.graph.ops.quantised import CODES
from leanconv.graph.ops.recurrent import Cell, Gate
from leanconv.graph.passes.fuse_blocks import fuse_blocks, merge_blocks
from leanconv.graph.verify import verify
from leanconv.operators import NodeContext, operator_of
from leanconv.planner.formats import FormatRules
from leanconv.spec import PLAIN, Activation, Format
from leanconv.target import Target
from leanconv.types import FLOAT32, FLOAT64, FLOATS, INT8, INT32, UINT8
from support import quantised_convs, single_nodes
from support.code_chains import CodeNet
from support.drawn import a_third, of_tree
from support.graph_builder import Builder, feed
from support.interpret import interpret
from support.nodes import one_node, run_lowered

IMAGE = (2, 20, 5, 4)  # more channels than lanes, and no multiple of them
RECURRENT = {"cells": (Cell("RNN", (Gate("Tanh"),)),), "results": ("Y", "Y_h")}
MANY_RUNS = 12
ALL = pytest.param(True, marks=pytest.mark.exhaustive, id="all")  # else those that are drawn
OPERANDS = ((2, 20, 1, 1), (1, 20, 1, 1), (2, 1, 5, 4), (1, 1, 1, 4), (1, 1, 1, 1), (1,))


@dataclass(frozen=True)
class Case:
    """A graph of one node, and values for its inputs."""

    node: Node
    graph: Graph
    inputs: dict[str, np.ndarray]

    @property
    def operands(self) -> tuple[str, ...]:
        """The values that have formats."""
        return (*self.graph.inputs, *self.node.outputs)

    @property
    def reads_twice(self) -> bool:
        """Whether an input has two readers, of which the node's inputs may show only one."""
        names = [name for name in self.node.inputs if name]
        hidden = self.node.op == "BlockChain" and self.node.attributes["blocks"][0].adds
        return len(set(names)) < len(names) or hidden

    def __str__(self) -> str:
        shapes = [self.graph.types[name].shape for name in self.graph.inputs]
        return f"{self.node.op}{self.node.inputs} of {shapes}"

    def contexts(self, target: Target) -> Iterator[NodeContext]:
        """The node in all formats that its operator accepts."""
        rules = FormatRules(self.graph, Format(target.lanes(FLOAT32)), CODES)
        for reads, writes in rules.possible(self.node):
            formats = dict.fromkeys(self.graph.types, PLAIN) | reads
            formats |= dict.fromkeys(self.node.outputs, writes)
            yield NodeContext(self.node, self.graph, formats, target)

    def expected(self) -> np.ndarray:
        """What the node computes, in float64, if all its values are of floats."""
        graph = self.graph
        if any(kind.dtype not in FLOATS for kind in graph.types.values()):
            return interpret(graph, self.inputs)[graph.outputs[0]].astype(np.float64)
        types = {n: TensorType(t.shape, FLOAT64) for n, t in graph.types.items()}
        constants = {n: a.astype(np.float64) for n, a in graph.constants.items()}
        wide = replace(graph, types=types, constants=constants)
        inputs = {name: array.astype(np.float64) for name, array in self.inputs.items()}
        return interpret(wide, inputs)[graph.outputs[0]]

    def run(self, context: NodeContext, choice: Choice) -> np.ndarray:
        """What its kernels compute by one of the operator's choices."""
        lowered, formats = operator_of(self.node).lower(context, choice), context.formats
        found = run_lowered(lowered, self.graph, formats, self.inputs, context.target, (1 / 3,))
        return found.astype(np.float64)


def choices(case: Case, context: NodeContext) -> list[Choice]:
    """The choices for a node, and the algorithms that some nodes take on request only.

    Those are asked for 3x3 kernels without groups alone: each reads every kernel in the same way.
    """
    node, operator = case.node, operator_of(case.node)
    found = list(operator.choices(context, vary_parameters=False))
    if node.op != "Conv" or case.graph.types[node.inputs[1]].shape != (20, 20, 3, 3):
        return found
    for name in sorted(operator.algorithms.keys() - {choice.algorithm for choice in found}):
        with contextlib.suppress(SpecError):
            found.append(operator.estimated(context, operator.choice_named(name)))
    return found


@dataclass(frozen=True)
class Run:
    """One of the operator's choices for a case, in some formats."""

    case: Case
    context: NodeContext
    choice: Choice


def runs(given: Sequence[Case]) -> list[Run]:
    """All there are, on this machine."""
    return [
        Run(case, context, choice)
        for case in given
        for context in case.contexts(host())
        for choice in choices(case, context)
    ]


def drawn_runs(found: Sequence[Run]) -> list[Run]:
    """Of many runs a third that the tree draws: all cases, algorithms and formats of operands."""
    if len(found) < MANY_RUNS:
        return list(found)
    kinds = [
        (id(run.case), run.choice.algorithm, *map(run.context.formats.get, run.case.operands))
        for run in found
    ]
    names = [f"{run.case.node.op} {number}" for number, run in enumerate(found)]
    return [found[number] for number in sorted(a_third(names, kinds, of_tree()))]


def cases(op: str) -> list[Case]:
    """Nodes of an operation, those of which some operands are the same value among them."""
    found = [
        *_shared(op),
        *_splits(op),
        *_of_images(op),
        *_typed(op),
        *_quantised(op),
        *_moved(op),
        *_indexed(op),
        *_convolutions(op),
        *_data_convolutions(op),
        *_weight_gradients(op),
        *_transposed(op),
        *_chains(op),
        *_of_codes(op),
    ]
    return found + [same for case in found for same in _repeated(case)]


def _of_codes(op: str) -> Iterator[Case]:
    if op == "QLinearConv":
        for made in quantised_convs.some():
            yield Case(made.node, made.graph, dict(made.inputs))
    for name, inputs, attributes, *rest in single_nodes.nodes():
        if name == op and OPS[op].kernel == "layout" and not rest:
            codes = {f"x{i}": (40 * array).astype(INT8) for i, array in enumerate(inputs)}
            yield Case(*one_node(op, codes, {}, tuple(codes), attributes), codes)


def _repeated(case: Case) -> Iterator[Case]:
    """The same node, reading one value by two operands of one type."""
    node, graph = case.node, case.graph
    given = [i for i, name in enumerate(node.inputs) if name in graph.inputs]
    for first, other in combinations(given, 2):
        kept, gone = node.inputs[first], node.inputs[other]
        if kept == gone or graph.types[kept] != graph.types[gone]:
            continue
        names = tuple(kept if name == gone else name for name in node.inputs)
        one = replace(node, inputs=names)
        inputs = tuple(name for name in graph.inputs if name != gone)
        types = {name: kind for name, kind in graph.types.items() if name != gone}
        values = {name: case.inputs[name] for name in inputs}
        yield Case(one, replace(graph, nodes=(one,), inputs=inputs, types=types), values)


def _shared(op: str) -> Iterator[Case]:
    for name, inputs, attributes, *rest in single_nodes.nodes():
        if name == op:
            constants, order = (*rest, {}, ())[:2]
            given = {f"x{number}": array for number, array in enumerate(inputs)}
            names = tuple(order) or (*given, *constants)
            yield Case(*one_node(op, given, constants, names, attributes), given)


def _of_images(op: str) -> Iterator[Case]:
    """Operations on one number each, on images and on what is spread over them."""
    row = next((row for row in single_nodes.nodes() if row[0] == op), None)
    if row is None or OPS[op].kernel != "elementwise":
        return
    _, inputs, attributes, *_ = row
    x = single_nodes.array(*IMAGE, positive=True)
    if op in ("Asin", "Acos", "Atanh"):
        x = np.tanh(x)
    if op == "Acosh":
        x = 1 + x
    if len(inputs) == 1:
        yield Case(*one_node(op, {"x0": x}, {}, ("x0",), attributes), {"x0": x})
        return
    for shape in (IMAGE, *OPERANDS):
        other = single_nodes.array(*shape, positive=True)
        for order in (("x0", "x1"), ("x1", "x0")):
            if op == "PRelu" and order[0] == "x1" and shape != IMAGE:
                continue  # slopes are not spread the other way
            given = {"x0": x, "x1": other}
            yield Case(*one_node(op, given, {}, order, attributes), given)
            inputs_of = {"x0": x}
            yield Case(*one_node(op, inputs_of, {"x1": other}, order, attributes), inputs_of)


def _moved(op: str) -> Iterator[Case]:
    """Operations whose operands may be in blocks: all of these are."""
    for name, shapes, attributes in (
        ("ReduceMax", (IMAGE,), {"axes": (2, 3), "keepdims": False}),
        ("ReduceMin", (IMAGE,), {"axes": (0, 3), "keepdims": True}),
        ("ReduceSum", (IMAGE,), {"axes": (2,), "keepdims": True}),
        ("ReduceProd", (IMAGE,), {"axes": (2,), "keepdims": True}),
        ("ReduceL1", (IMAGE,), {"axes": (2, 3), "keepdims": True}),
        ("ReduceSumSquare", (IMAGE,), {"axes": (2, 3), "keepdims": False}),
        ("ReduceMeanSquare", (IMAGE,), {"axes": (2,), "keepdims": True}),
        ("Expand", ((1, 20, 1, 4),), {"shape": IMAGE}),
        ("Reshape", ((2, 32, 5, 4),), {"shape": (2, 32, 20)}),
        ("Reshape", ((1, 20, 1, 1),), {"shape": (1, 20)}),
        ("Reshape", ((1, 20),), {"shape": (1, 20, 1)}),
        ("Concat", (IMAGE, IMAGE, IMAGE), {"axis": 1}),
        ("Concat", ((1, 32, 3, 4), (1, 32, 3, 4)), {"axis": 1}),
        ("Concat", (IMAGE, IMAGE), {"axis": 2}),
        (
            "Slice",
            (IMAGE,),
            {"starts": (0, 16, 4, 0), "steps": (1, 1, -2, 1), "sizes": (2, 3, 3, 4)},
        ),
        ("Pad", (IMAGE,), {"pads": (0, 3, 1, 0, 0, 2, 0, 1), "mode": "constant", "value": 1.5}),
        ("Transpose", (IMAGE,), {"perm": (0, 1, 3, 2)}),
    ):
        if name == op:
            given = {
                f"x{number}": single_nodes.array(*shape) for number, shape in enumerate(shapes)
            }
            yield Case(*one_node(op, given, {}, tuple(given), attributes), given)


def _typed(op: str) -> Iterator[Case]:
    """Operations between element types on images, and on what is spread over them."""
    x, spread = single_nodes.array(*IMAGE), single_nodes.array(1, 20, 1, 1)
    numbers = np.round(2 * x).astype(np.float32)
    whole = numbers.astype(np.int8)
    place = {"axis": 1, "keepdims": True, "last": False}
    pooled = {**single_nodes.WINDOW, **single_nodes.POOL}
    apart = np.arange(72, dtype=np.float32).reshape(2, 9, 4)  # boxes that are all kept
    boxes = [apart, single_nodes.array(2, 3, 9), np.array([9]), np.float32([0.5])]
    for names, inputs, attributes in (
        (("Floor", "Ceil", "Round", "Sign", "IsNaN"), [x], {}),
        (("IsInf",), [x], {"positive": True, "negative": True}),
        (("Mod",), [x, spread], {"fmod": True}),
        (("Mod",), [x, x[::-1]], {"fmod": False}),
        (("Equal", "Less", "LessOrEqual", "Greater"), [numbers, numbers[::-1]], {}),
        (("GreaterOrEqual", "Less"), [numbers, spread], {}),
        (("And", "Or", "Xor"), [x > 0, spread > 0], {}),
        (("Not",), [x > 0], {}),
        (("BitwiseAnd", "BitwiseOr", "BitwiseXor"), [whole, whole[::-1]], {}),
        (("BitwiseNot",), [whole], {}),
        (("BitShift",), [whole.view(np.uint8), np.array([3], np.uint8)], {"left": True}),
        (("BitCast",), [x], {"to": INT32}),
        (("Where",), [x > 0, x, spread], {}),
        (("Cast",), [3 * x], {"to": INT32}),
        (("Cast",), [(3 * x).astype(np.int8)], {"to": FLOAT32}),
        (("ArgMax", "ArgMin"), [x], place),
        (("ArgMax", "ArgMin"), [numbers], {**place, "axis": 3, "keepdims": False, "last": True}),
        (("MaxPoolWithIndices",), [x], {**pooled, "storage_order": 1}),
        (("MaxPool",), [numbers.astype(np.int8)], pooled),
        (("TopK",), [x], {"axis": 1, "k": 3, "largest": True, "sorted": True}),
        (("NonMaxSuppression",), boxes, {"most": 9, "centred": False}),
        (("NonZero",), [x], {"rows": True}),
        (("Compress",), [x, np.ones(20, bool)], {"axis": 1}),  # else the room is not full
        (("Recurrence",), [x[0], x[:1, :4, 0]], RECURRENT),
        (("TopK",), [numbers], {"axis": 1, "k": 20, "largest": False, "sorted": True}),
    ):
        if op in names:
            given = {f"x{number}": array for number, array in enumerate(inputs)}
            node, graph = one_node(op, given, {}, tuple(given), attributes)
            for out in graph.outputs:
                yield Case(node, replace(graph, outputs=(out,)), given)
    if op == "Where":
        for chosen in (x > 0, spread > 0, np.array([True])):
            given = {"x0": x, "x1": x[::-1]}
            yield Case(*one_node(op, given, {"c": chosen}, ("c", "x0", "x1"), {}), given)


def _quantised(op: str) -> Iterator[Case]:
    """Operations on codes."""
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 256, IMAGE).astype(np.uint8)
    spread = generator.integers(0, 256, (1, 20, 1, 1)).astype(np.uint8)
    along = {"scale": generator.uniform(0.01, 0.1, 20).astype(np.float32)}
    along["zero"] = generator.integers(90, 160, 20).astype(np.uint8)
    steps = generator.uniform(0.01, 0.1, (1, 20, 1, 1)).astype(np.float32)
    two = {"scales": (0.01, 0.02, 0.03), "zeros": (3, 90, 60)}
    one, pool = (
        {"scales": (0.02, 0.015), "zeros": (7, 90)},
        {**single_nodes.WINDOW, **single_nodes.POOL},
    )
    bounds = {"low": 3, "high": 250, "dtype": UINT8}
    packed = {"codes": codes.reshape(-1)[:160], "scales": along["scale"][:10]}
    of_words = {"bits": 4, "block": 32, "inner": 32, "outputs": 10, "middle": 8, "bytes": False}
    for name, inputs, constants, attributes in (
        ("QuantizeLinear", [single_nodes.array(*IMAGE)], along, {"axis": 1}),
        ("QuantizeFloats", [single_nodes.array(*IMAGE), steps, steps[:, :1] * 900], {}, bounds),
        ("DequantizeLinear", [codes], along, {"axis": 1, "dtype": FLOAT32}),
        ("Lookup", [codes], {"table": np.arange(256, dtype=np.uint8)[::-1]}, {}),
        ("QLinearAdd", [codes, codes[::-1]], {}, {**two, **bounds}),
        ("QLinearMul", [codes, spread], {}, {**two, **bounds}),
        ("QLinearMatMul", [codes, codes.swapaxes(2, 3).copy()], {}, {**two, **bounds}),
        ("MatMulNBits", [single_nodes.array(3, 32)], packed, of_words),
        ("QLinearGlobalAveragePool", [codes], {}, {**one, **bounds}),
        ("QLinearAveragePool", [codes], {}, {**one, **bounds, **pool}),
        (
            "QLinearSoftmax",
            [codes],
            {},
            {"scales": (0.02, 1 / 256), "zeros": (7, 3), **bounds, "axis": 1},
        ),
        ("MaxPool", [codes], {}, {**single_nodes.WINDOW, **single_nodes.POOL}),
        ("MaxPool", [codes.view(np.int8)], {}, {**single_nodes.WINDOW, **single_nodes.POOL}),
    ):
        if name == op:
            given = {f"x{number}": array for number, array in enumerate(inputs)}
            order = (*given, *constants)
            yield Case(*one_node(op, given, constants, order, attributes), given)


def _indexed(op: str) -> Iterator[Case]:
    """Operations that find elements of images by indices which are data."""
    x, half = single_nodes.array(*IMAGE), (IMAGE[0], 10, *IMAGE[2:])
    each = np.resize(np.arange(20)[::-1], half)
    updates, lists = single_nodes.array(*half), np.array([[1, 3], [0, -1], [-1, 2]])
    rows = single_nodes.array(3, *IMAGE[2:])
    grid = {"mode": "linear", "padding_mode": "zeros", "align_corners": False, "sizes": (2, 3)}
    pool = {"mode": "avg", "half_pixel": True, "sampling_ratio": 2, "spatial_scale": 1.0}
    window = {"kernel_shape": (2, 2), "strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1)}
    wide = single_nodes.array(2, 32, 3, 4)
    for name, inputs, attributes in (
        ("Gather", [x, np.array([[3, -1], [0, 7]])], {"axis": 1}),
        ("GatherElements", [x, each], {"axis": 1}),
        ("GatherND", [x, lists], {"batch_dims": 0}),
        ("ScatterElements", [x, each, updates], {"axis": 1, "reduction": "add", "padded": False}),
        ("ScatterND", [x, lists, rows], {"reduction": "none"}),
        ("GridSample", [x, single_nodes.array(12, 2)], grid),
        ("RoiAlign", [x, single_nodes.array(3, 4), np.array([0, 1, 1])], {**pool, "sizes": (2, 2)}),
        (
            "DeformColumns",
            [wide, single_nodes.array(16, 6), single_nodes.array(8, 6)],
            {**window, "offset_group": 1, "run": 16},
        ),
    ):
        if name == op:
            given = {f"x{number}": array for number, array in enumerate(inputs)}
            yield Case(*one_node(op, given, {}, tuple(given), attributes), given)


def _data_convolutions(op: str) -> Iterator[Case]:
    """Convolutions whose weights, and in some whose bias, are data."""
    if op not in ("DataConv", "DataConvTranspose"):
        return
    upward = op == "DataConvTranspose"
    for inputs, outputs, groups, kernel, strides, taps_first in (
        (20, 20, 1, (3, 3), (1, 1), False),
        (32, 64, 2, (1, 1), (1, 1), False),
        (20, 40, 20, (3, 3), (2, 1), False),
        (3, 20, 1, (5, 5), (1, 1), True),
        (20, 20, 1, (4, 2), (2, 2), True),
    ):
        pads = tuple((k - 1) // 2 for k in kernel) * 2
        rows, columns = (inputs, outputs) if upward else (outputs, inputs)
        given = {
            "x0": single_nodes.array(2, inputs, 9, 8),
            "x1": single_nodes.array(rows, columns // groups * kernel[0] * kernel[1]),
            "x2": single_nodes.array(outputs),
        }
        window = {"strides": strides, "pads": pads, "dilations": (1, 1), "group": groups}
        window |= {"kernel_shape": kernel, "taps_first": taps_first}
        window |= {"output_padding": tuple(s - 1 for s in strides)} if upward else {}
        for exact, names in ((False, ("x0", "x1", "x2")), (True, ("x0", "x1"))):
            held = {name: given[name] for name in names}
            yield Case(*one_node(op, held, {}, names, {**window, "exact": exact}), held)


def _weight_gradients(op: str) -> Iterator[Case]:
    """Gradients of weights, of one group or several."""
    if op != "ConvWeightGradient":
        return
    for inputs, outputs, groups, kernel, strides, with_bias in (
        (20, 20, 1, (3, 3), (1, 1), True),
        (32, 64, 2, (1, 1), (1, 1), False),
        (20, 40, 20, (3, 3), (2, 1), True),
        (3, 20, 1, (5, 5), (1, 1), False),
    ):
        pads = tuple(k // 2 for k in kernel) * 2
        out = tuple(-(-size // step) for size, step in zip((9, 8), strides, strict=True))
        given = {
            "x0": single_nodes.array(2, inputs, 9, 8),
            "x1": single_nodes.array(2, outputs, *out),
        }
        attributes = {"strides": strides, "pads": pads, "dilations": (1, 1), "group": groups}
        attributes |= {"kernel_shape": kernel, "with_bias": with_bias}
        yield Case(*one_node(op, given, {}, tuple(given), attributes), given)


def _splits(op: str) -> Iterator[Case]:
    """A Split along each axis, and what it gives for each of its parts."""
    if op != "Split":
        return
    x = single_nodes.array(*IMAGE)
    for axis, sizes in ((0, (1, 1)), (1, (4, 16)), (1, (16, 4)), (2, (2, 1, 2)), (3, (3, 1))):
        parts = tuple(f"y{number}" for number in range(len(sizes)))
        node = Node("Split", ("x0",), parts, {"axis": axis, "sizes": sizes})
        types = {"x0": TensorType(x.shape, FLOAT32)}
        types |= dict(zip(parts, infer_node(node, types), strict=True))
        for part in parts:
            yield Case(node, Graph(("x0",), (part,), (node,), types, {}), {"x0": x})


def _one(builder: Builder, out: str) -> Case:
    graph = builder.graph(out)
    (node,) = graph.nodes
    return Case(node, graph, feed(graph))


def _convolutions(op: str) -> Iterator[Case]:
    """Images of one to three axes, one group or several, with a residual or without."""
    if op != "Conv":
        return
    relu, clip = Activation("relu"), Activation("clip", (0.0, 6.0))
    for inputs, outputs, groups, size, kernel, activation in (
        (20, 20, 1, (7, 9), (3, 3), relu),
        (20, 20, 1, (7, 9), (1, 1), None),
        (3, 20, 1, (9, 11), (5, 5), clip),
        (32, 64, 2, (7, 6), (1, 1), None),
        (32, 32, 8, (7, 6), (3, 3), clip),
        (8, 4, 2, (7, 6), (3, 3), None),  # of two vectors of inputs one is there
        (24, 12, 6, (5, 6), (3, 3), None),
        (20, 20, 20, (9, 8), (3, 3), relu),
        (20, 40, 20, (9, 8), (3, 3), None),
        (20, 20, 1, (19,), (3,), None),
        (20, 20, 1, (3, 5, 4), (3, 1, 3), relu),
    ):
        b = Builder(FLOAT32)
        x = b.input(2, inputs, *size)
        more = (b.normal(outputs), b.input(2, outputs, *size))
        w = b.normal(outputs, inputs // groups, *kernel)
        pads = tuple(k // 2 for k in kernel) * 2
        yield _one(b, b.conv(x, w, *more, group=groups, pads=pads, activation=activation))
    b, random = Builder(FLOAT32), np.random.default_rng(0)
    filters = random.normal(size=(20, 1, 7, 1)) * random.normal(size=(20, 1, 1, 7))
    x, w = b.input(1, 20, 40, 40), b.const(filters.astype(FLOAT32.numpy))  # separable ones
    yield _one(b, b.conv(x, w, group=20, pads=(3,) * 4))
    for residual in (False, True):
        b = Builder(FLOAT32)
        x = b.input(1, 20, 8, 7)
        added = b.input(1, 20, 8, 7) if residual else ""
        w, prelu = b.normal(20, 20, 3, 3), Activation("prelu")
        more = (b.normal(20), added, b.normal(20))
        yield _one(b, b.conv(x, w, *more, pads=(1,) * 4, activation=prelu))


def _transposed(op: str) -> Iterator[Case]:
    """Phases of one window and of several, of one group and of more."""
    if op != "ConvTranspose":
        return
    for inputs, outputs, groups, kernel, stride, pad in (
        (20, 20, 1, 2, 2, 0),
        (20, 20, 1, 3, 2, 1),
        (20, 3, 1, 4, 2, 1),
        (32, 32, 2, 2, 2, 0),
        (16, 16, 16, 3, 2, 1),
    ):
        b = Builder(FLOAT32)
        x = b.input(2, inputs, 5, 6)
        w, bias = b.normal(inputs, outputs // groups, kernel, kernel), b.normal(outputs)
        settings = {"strides": (stride,) * 2, "pads": (pad,) * 4, "group": groups}
        yield _one(b, b.conv(x, w, bias, op=op, **settings))


def _chains(op: str) -> Iterator[Case]:
    """Blocks with a first convolution or without, each with no residual, its input or another."""
    if op not in ("ConvChain", "BlockChain"):
        return
    yield from _code_chains(op)
    for channels, inners in ((20, (0, 40)), (32, (48,))):
        for inner in inners:
            for adds in ("nothing", "itself", "another"):
                b = Builder(FLOAT32)
                x = b.input(1, channels, 9, 8)
                added = (x,) if adds == "itself" else ()
                if adds == "another":
                    added = (b.input(1, channels, 9, 8),)
                y = _block(b, x, inner, added)
                if op == "ConvChain":
                    yield _fused(b, y, 1)
                elif adds != "another":
                    for second in (False, True):
                        held = _copied(b)
                        z = _block(held, y, 32, (y,) if second else ())
                        yield _fused(held, z, 2)


def _code_chains(op: str) -> Iterator[Case]:
    """The same of codes: of an image of floats, of few channels, of more."""
    for image, channels, inner in ((True, 3, 24), (False, 3, 24), (False, 20, 40), (False, 20, 0)):
        for adds in (False, True):
            net = CodeNet((2, channels, 9, 8))
            x = net.image(channels, (1, 0, 1, 2), (9, 8)) if image else "x"
            added = "x" if adds and not image else ""
            y = net.block(x, inner, channels if added else 20, residual=added)
            if op == "BlockChain":
                y = net.block(y, 32, net.types[y].shape[1], residual=y if adds else "")
            graph = net.fused(y, merged=op == "BlockChain")
            (node,) = graph.nodes
            yield Case(node, graph, net.values())


def _copied(builder: Builder) -> Builder:
    """A builder with the same nodes, to which others are added."""
    made = Builder(builder.dtype)
    made.types, made.constants = dict(builder.types), dict(builder.constants)
    made.inputs, made.nodes = list(builder.inputs), list(builder.nodes)
    return made


def _block(b: Builder, x: str, inner: int, added: tuple[str, ...]) -> str:
    width, relu = b.types[x].shape[1], Activation("relu")
    y, channels = x, inner or width
    if inner:
        y = b.conv(y, b.normal(inner, width, 1, 1), b.normal(inner), activation=relu)
    depthwise = {"group": channels, "pads": (1,) * 4, "activation": relu}
    y = b.conv(y, b.normal(channels, 1, 3, 3), b.normal(channels), **depthwise)
    return b.conv(y, b.normal(width, channels, 1, 1), b.normal(width), *added)


def _fused(b: Builder, out: str, blocks: int) -> Case:
    graph = fuse_blocks(b.graph(out))
    graph = verify(graph if blocks == 1 else merge_blocks(graph, blocks))
    (node,) = graph.nodes
    return Case(node, graph, feed(graph))
