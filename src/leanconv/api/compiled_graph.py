"""Layers that a network of one node computes: convolutions of integers, and transposed ones."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from leanconv.algorithms.magnitudes import are_small, sum_bits
from leanconv.api.conv_arguments import Constants, check_kinds, kinds_of
from leanconv.api.layer_plan import CompiledLayer, LayerPlan, LayerSpec
from leanconv.api.options import PlanOptions
from leanconv.codegen import compiler
from leanconv.codegen.linking import Library
from leanconv.codegen.lowered import PackCall
from leanconv.errors import InputError, memory_reported
from leanconv.graph.builder import Builder
from leanconv.graph.codes import signed_weights
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.limits import Limits
from leanconv.graph.value import Value
from leanconv.operators.conv_node import pairs_in
from leanconv.operators.operator import Accuracy
from leanconv.planner.budget import Planner
from leanconv.planner.compiled_network import lower, place, planned, running_calls
from leanconv.planner.decisions import Decision
from leanconv.planner.found_plans import Decided, decide
from leanconv.planner.lowered_graph import LoweredGraph
from leanconv.planner.lowering import lower_graph
from leanconv.planner.network_plan import NetworkPlan
from leanconv.planner.packing import Preparation, placed_calls
from leanconv.planner.weight_streaming import lay_out
from leanconv.planner.weights import fill_weights
from leanconv.records import dataclass
from leanconv.runtime.calibration import planning_target
from leanconv.runtime.memory import Block
from leanconv.runtime.pool import default_threads
from leanconv.runtime.portable import PortableProgram
from leanconv.spec import NHWC, ConvSpec
from leanconv.spec.transposed import TransposedSpec
from leanconv.target import Target
from leanconv.types import FLOAT32, UINT8

_INTEGERS = "conv"  # the node of a convolution of integers
_NO_ZERO = np.zeros(1, np.int8)


@dataclass(frozen=True, eq=False)
class CompiledNodes:
    """The program of a graph of few nodes, whose runs are told where its constants are.

    Attributes:
        plan, decided: steps, bytes and expected error; how each node is computed.
        lowered: its calls and constants.
        program, library: compiled; the program takes the addresses of inputs, outputs, constants.
    """

    plan: NetworkPlan
    decided: Decided
    lowered: LoweredGraph
    program: PortableProgram
    library: Library


def compiled(
    graph: Graph,
    planner: Planner,
    memory_limit: int | None = None,
    decisions: Sequence[Decision] | None = None,
) -> CompiledNodes:
    """Plan and compile a graph.

    Args:
        graph: of few nodes.
        planner: of its plans.
        memory_limit: of bytes, if there is one.
        decisions: how each node is computed, where that is decided.

    Raises:
        BudgetError: nothing keeps the limits.
    """
    decided = decide(graph, planner, memory_limit, None, decisions)
    plain = decided.planner
    lowered = lower(graph, decided)
    layout = lay_out(lowered, plain.threads)
    plan = planned(graph, lowered, layout, decided, memory_limit)
    calls = running_calls(lowered, plain)
    library = compiler.load([call.kernel for call in calls], plain.target)
    program = place(lowered, layout, calls, library.form, plain.threads)
    return CompiledNodes(plan, decided, lowered, program, library)


class CompiledGraph(CompiledLayer):
    """A layer as a network of one node, with those that its layout and bias need around it.

    Args:
        spec: of integers, or transposed.
        constants: any of the shapes and types that are packed; of transposed convolutions the
            algorithm follows from whether all weights are small.
        options: within which limits.

    Attributes:
        plan: of the network of one node: steps, bytes, expected error.
    """

    @memory_reported("planning a convolution")
    def __init__(self, spec: LayerSpec, constants: Constants, options: PlanOptions) -> None:
        graph = _graph_of(spec, constants)
        target, threads = planning_target(), options.threads or default_threads()
        accuracy = Accuracy(reproducible=options.reproducible).of_network(graph, target)
        accuracy = accuracy.within(options.max_error, graph.dtype)
        planner = Planner(graph, target, threads, accuracy, options.max_error)
        decisions = None
        if options.algorithm is not None:
            from leanconv.planner.overrides import with_algorithms  # which knows nodes of files

            decisions = with_algorithms(graph, target, accuracy, {_INTEGERS: options.algorithm})
        made = compiled(graph, planner, options.memory_limit, decisions)
        self.plan, self._decided = made.plan, made.decided
        x, y = (graph.types[name].dtype for name in ("x", "y"))
        super().__init__(spec, x, y, made.program, made.library)
        step = max(self.plan.steps, key=lambda step: step.flops)
        keys = [node.key for node in graph.nodes]
        choice = str(self.plan.decisions[keys.index(step.output)].choice)
        self.algorithm, self.selector = step.algorithm, choice or step.algorithm
        self.parameters = self.selector.partition(":")[2]
        # What other constants are packed by, too: where they are but moved, a program.
        self._library: Library | None = None
        self._preparation: Preparation | None = None
        self._kinds = kinds_of(constants)
        self._accuracy, self._target = accuracy, target
        self._traits = weight_traits(spec, constants.w, target)

    def pack(self, constants: Constants, block: Block) -> None:
        """Pack constants into a block.

        Raises:
            InputError: one has another shape or type than those that this was made for; or the
            weights are such that they would be computed otherwise.
        """
        check_kinds(constants, self._kinds)
        if weight_traits(self.spec, constants.w, self._target) != self._traits:
            raise InputError(
                "w has sums of more or fewer bits, or is far smaller or larger, than the weights "
                "that were planned for; expected such: plan it once more"
            )
        graph = _graph_of(self.spec, constants)
        given = list(graph.constants.values())
        if self._preparation is None:
            lowered = lower_graph(graph, self._target, self._accuracy, self.plan.decisions)
            pool = lowered.constants
            self._library = library = compiler.load(pool.kernels(), self._target)
            places, _ = pool.places()
            calls = {n: each for packing in pool.packings for n, each in packing.calls().items()}
            pieces = placed_calls(calls, places)
            if pool.arrays or not all(_reads(call, given) for call, _ in pieces):
                fill_weights(block, pool, places, library, self.threads)
                return
            self._preparation = Preparation(pieces, library, self.threads, given, moving=True)
        self._preparation.run(given, block.address)

    @property
    def predicted_error(self) -> float:
        """Expected relative error in the max norm, for data of random sign."""
        return self.plan.predicted_error

    def explain(self, plan: LayerPlan) -> str:
        """Say how the layer is computed, with its bytes."""
        from leanconv.planner.explain import summary  # which knows operations of files

        del plan
        return summary(self.plan, self._decided)


def _reads(call: PackCall, given: Sequence[np.ndarray]) -> bool:
    """Return whether a packing call reads one of the arrays itself, and nothing made of them."""
    address = call.source().ctypes.data + call.first
    return any(0 <= address - array.ctypes.data < array.nbytes for array in given)


def weight_traits(spec: LayerSpec, w: np.ndarray, target: Target) -> Hashable:
    """Return the properties of weights that decide how a layer is computed with them."""
    if isinstance(spec, TransposedSpec):
        return are_small(w)
    x = spec.precision.x
    codes, left = signed_weights(w, _NO_ZERO, x == UINT8)
    return str(codes.dtype), left is None, sum_bits(codes, x), pairs_in(codes, target)


def _graph_of(spec: LayerSpec, constants: Constants) -> Graph:
    """The graph of a layer, from the input "x" to the output "y"."""
    if isinstance(spec, TransposedSpec):
        return _transposed(spec, constants)
    return _integer(spec, constants)


def _integer(spec: ConvSpec, constants: Constants) -> Graph:
    """A convolution of codes, with the nodes that bias and layout need around it."""
    types, rank, last = spec.precision, len(spec.kernel), spec.format == NHWC
    builder = Builder(FLOAT32, Limits(), sum(each.nbytes for each in constants if each is not None))
    given = value = Value(TensorType(spec.input_shape, types.x))
    names = [("x", given)]
    if last:
        order = (0, rank + 1, *range(1, rank + 1))
        value = builder.emit("Transpose", [value], "to_planes", perm=order)
        names.append(("planes", value))
    # Of weights that 8 bits do not hold as kernels take them, what is left is computed beside.
    codes, left = signed_weights(np.ascontiguousarray(constants.w), _NO_ZERO, types.x == UINT8)
    window = _window(spec)
    sums = builder.emit("QLinearConv", [value, builder.constant(codes), None], _INTEGERS, **window)
    if left is not None:
        one = np.ones((1 if spec.groups == 1 else len(codes), *codes.shape[1:]), np.int8)
        ones, rest = builder.constant(one), left.astype(np.int32).reshape(1, -1, *(1,) * rank)
        around = builder.emit("QLinearConv", [value, ones, None], _INTEGERS, **window)
        away = builder.emit("Mul", [around, builder.constant(rest)], _INTEGERS)
        sums = builder.emit("Sub", [sums, away], _INTEGERS)
    value = sums
    names.append(("sums", sums))
    if constants.bias is not None:
        bias = builder.constant(np.ascontiguousarray(constants.bias).reshape(-1, *(1,) * rank))
        value = builder.emit("Add", [value, bias], "add_bias")
        names += [("bias", bias), ("biased", value)]
    if last:
        value = builder.emit("Transpose", [value], "to_last", perm=(0, *range(2, rank + 2), 1))
    return builder.finish({"x": given}, {"y": value}, names)


def _window(spec: ConvSpec) -> dict[str, Any]:
    return {
        "strides": spec.stride,
        "dilations": spec.dilation,
        "pads": (*spec.pad_begin, *spec.pad_end),
        "group": spec.groups,
        "x_zero": 0,
        "residual": None,
        "activation": None,
        "y_zero": 0,
        "low": -math.inf,
        "high": math.inf,
        "dtype": spec.precision.y,
    }


def _transposed(spec: TransposedSpec, constants: Constants) -> Graph:
    arrays = {"w": np.ascontiguousarray(constants.w)}
    if constants.bias is not None:
        arrays["bias"] = constants.bias.copy()  # so that no two share memory
    attributes = {
        "strides": spec.stride,
        "dilations": spec.dilation,
        "pads": spec.pads,
        "group": spec.groups,
        "output_padding": spec.output_padding,
        "activation": None,
    }
    read, given = ("x", *arrays), MappingProxyType(attributes)
    node = Node("ConvTranspose", read, ("y",), given, "conv_transpose")
    shapes = {"x": spec.input_shape, "y": spec.output_shape}
    shapes |= {name: array.shape for name, array in arrays.items()}
    types = {name: TensorType(shape, spec.dtype) for name, shape in shapes.items()}
    return Graph(("x",), ("y",), (node,), MappingProxyType(types), MappingProxyType(arrays))
