"""Convolutions whose weights are computed when the network runs: each run packs them first.

    DataConv(x, w, bias) -> y         w: (K, C / g · taps); w or bias may be constants

What packs constants once for other convolutions is here calls before the convolution's own, from
the value into memory that the run works in. What packing takes is part of the estimated time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from leanconv.algorithms import select
from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.parameters import AUTO, Choice, Parameters
from leanconv.algorithms.problem import Problem
from leanconv.codegen.lowered import Call, Calls, Lowered, PackCall, Packing, View
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops.conv import unfolded
from leanconv.operators.convolution import CONVOLUTION, attributes_spec
from leanconv.operators.operator import FormatPolicy, NodeContext, Operator
from leanconv.records import replace

_PACKING_CYCLES = 2  # of an element that is packed, on one core


class DataConvolution(Operator):
    """Convolutions of data by data."""

    ops = ("DataConv",)
    format_policy = FormatPolicy.PREFER_BLOCKED
    algorithms: Mapping[str, type[Parameters]] = select.PARAMETERS

    def accepts_blocked(self, node: Node, graph: Graph, block: int) -> bool:
        """As other convolutions."""
        return CONVOLUTION.accepts_blocked(node, graph, block)

    def accepts_mixed(self, node: Node) -> bool:
        """True without groups."""
        return CONVOLUTION.accepts_mixed(node)

    def choices(self, context: NodeContext, vary_parameters: bool = True) -> list[Choice]:
        """Those of the convolution, the cheapest first with what packing takes."""
        problem, target = _problem(context), context.target
        reproducible = context.accuracy.reproducible
        if vary_parameters and not reproducible:
            found = select.choices(problem, target)
        else:
            ranked = select.ranked(problem, target, reproducible=reproducible)
            found = [(each.choice, each) for each in ranked]
        if context.node.attributes["exact"]:
            found = [each for each in found if not select.transforms(each[0], problem)]
        if not found:
            named = select.choice_named("direct") if context.node.attributes["exact"] else AUTO
            candidate = select.choose(problem, target, named, reproducible)
            found = [(candidate.choice, candidate)]
        costed = [_with_packing(choice, each, problem, context) for choice, each in found]
        return sorted(costed, key=lambda choice: choice.cycles)

    def estimated(self, context: NodeContext, choice: Choice) -> Choice:
        """What an algorithm costs, with parameters or without."""
        problem = _problem(context)
        candidate = select.choose(problem, context.target, choice, context.accuracy.reproducible)
        return _with_packing(candidate.choice, candidate, problem, context)

    def rejections(self, context: NodeContext) -> dict[str, str]:
        """Why algorithms do not compute a node, or are not considered for it, by name."""
        return select.rejections(_problem(context), context.target)

    def lower(self, context: NodeContext, choice: Choice = AUTO) -> Lowered:
        """What packs the weights, then the kernels of the algorithm."""
        node = context.node
        choice = self.default_choice(context) if choice == AUTO else choice
        reproducible = context.accuracy.reproducible
        candidate = select.choose(_problem(context), context.target, choice, reproducible)
        roles = (*candidate.temporaries, *candidate.constant_bytes)
        values = {role: f"{node.output}/{role}" for role in roles}
        values |= {"x": node.inputs[0], "y": node.output}
        made = _Packed(context, candidate, values)
        own = [Call(use.kernel, tuple(values[r] for r in use.roles)) for use in candidate.kernels]
        temporaries = {values[r]: size for r, size in candidate.temporaries.items()}
        return Lowered(
            (*made.calls, *own),
            made.tables,
            temporaries | made.temporaries,
            candidate.choice.algorithm,
            packings=tuple(made.packings),
            inner=made.inner,
        )


DATA_CONVOLUTION = DataConvolution()


class _Packed:
    """What packs the constants of a candidate: those made of values in each run, others once.

    Attributes:
        calls: of each run.
        tables: what these read beside values.
        temporaries: bytes of what they pack.
        inner: bytes of values that they read, and of what they pack.
        packings: of what follows from constants alone.
    """

    def __init__(
        self, context: NodeContext, candidate: Candidate, values: Mapping[str, str]
    ) -> None:
        self.calls: list[Call] = []
        self.tables: dict[str, np.ndarray] = {}
        self.temporaries: dict[str, int] = {}
        self.inner: dict[str, View] = {}
        self.packings: list[Packing] = []
        given = _operands(context)
        arrays, known = dict(given.values()), context.graph.constants
        bias = {"bias": arrays["bias"]} if "bias" in arrays else {}
        self._data = {name: array for name, (_, array) in given.items() if name not in known}
        sizes = candidate.constant_bytes
        for role, pieces in candidate.packing(arrays["w"], bias).items():
            if any(self._read(each) for each in pieces):
                self.temporaries[values[role]] = sizes[role]
                self._pack(values[role], pieces)
            else:
                made: Calls = {values[role]: pieces}
                self.packings.append(Packing({values[role]: sizes[role]}, partial(dict, made)))

    def _read(self, piece: PackCall) -> View | None:
        """Where a piece reads a value; None if it reads a constant."""
        address = piece.source().ctypes.data + piece.first
        for name, array in self._data.items():
            if 0 <= address - array.ctypes.data < array.nbytes:
                return View(name, address - array.ctypes.data)
        return None

    def _pack(self, packed: str, pieces: list[PackCall]) -> None:
        offset = 0
        for number, piece in enumerate(pieces):
            read, name = self._read(piece), f"{packed}.{number}"
            assert read is not None, "a constant is made of values and of constants"
            self.inner |= {f"{name}.source": read, name: View(packed, offset)}
            tables = {f"{name}.table{i}": table for i, table in enumerate(piece.tables())}
            self.tables |= tables
            self.calls.append(Call(piece.kernel, (f"{name}.source", *tables, name)))
            offset += piece.bytes


def _operands(context: NodeContext) -> dict[str, tuple[str, np.ndarray]]:
    """Role and array of weights and bias, by name; of data an array of any content."""
    node, graph = context.node, context.graph
    found = {}
    for role, name in zip(("w", "bias"), node.inputs[1:], strict=False):
        if not name:
            continue
        kind = graph.types[name]
        array = graph.constants.get(name)
        array = np.empty(kind.shape, kind.dtype.numpy) if array is None else array
        shape = unfolded(node.attributes, kind).shape if role == "w" else kind.shape
        found[name] = role, np.ascontiguousarray(array).reshape(shape)
    return found


def _problem(context: NodeContext) -> Problem:
    node, graph = context.node, context.graph
    x, w = (graph.types[name] for name in node.inputs[:2])
    weights, bias = unfolded(node.attributes, w), bool(node.input(2))
    attributes = {**node.attributes, "activation": None}
    spec = attributes_spec(x.shape, weights.shape, attributes, x.dtype, bias, residual=False)
    places = context.access(node.inputs[0]), context.access(node.output)
    problem = Problem.of(spec, *places, context.accuracy.layer_error)
    return replace(problem, any_size=context.any_size)


def _with_packing(
    choice: Choice, candidate: Candidate, problem: Problem, context: NodeContext
) -> Choice:
    """A choice with the cycles that packing takes as well."""
    cycles = select.estimated_cycles(choice, problem, context.target)
    elements = sum(candidate.constant_bytes.values()) / problem.itemsize
    return replace(choice, cycles=cycles + _PACKING_CYCLES * elements)
