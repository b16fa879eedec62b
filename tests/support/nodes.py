"""Run the kernels of one operation of a graph on NumPy arrays, plain or in blocks of channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from leanconv.codegen.host import host
from leanconv.codegen.lowered import Lowered
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import evaluate, evaluate_node, infer_node
from leanconv.operators import NodeContext
from leanconv.spec.format import PLAIN, Format
from leanconv.target import Target, preset
from leanconv.types import BFLOAT16, FLOAT32, FLOAT64, DType, as_dtype
from support.kernel_runner import Guard, guarded_operand, run_kernel, run_results
from support.listing import assembly
from support.packing import packed_by

# This machine, and what its code can be run for here: narrower vectors, and NEON in an emulator.
TARGETS = [host()] if host().isa == "neon" else [host(), preset("haswell"), preset("neoverse-n1")]
DTYPES = [FLOAT32, FLOAT64]
Lower = Callable[[NodeContext], Lowered]
Arrays = Mapping[str, np.ndarray]


def integers(shape: tuple[int, ...], dtype: str, seed: int = 0, most: int = 9) -> np.ndarray:
    """Small whole numbers, with which sums and products are exact."""
    return np.random.default_rng(seed).integers(-most, most + 1, shape).astype(dtype)


def distinct(shape: tuple[int, ...], dtype: str, start: int = 0) -> np.ndarray:
    """Numbers that are all different, so that a misplaced element shows."""
    return np.arange(start, start + int(np.prod(shape)), dtype=dtype).reshape(shape)


def unset(size: int, dtype: DType) -> np.ndarray:
    """What a result's memory holds before: NaN; the largest number of a type that has none."""
    if dtype == BFLOAT16:
        return np.full(size, 0x7FFF, dtype.numpy)
    return np.full(size, np.nan if dtype.is_float else dtype.high, dtype.numpy)


def to_memory(array: np.ndarray, form: Format) -> np.ndarray:
    """An array as it lies in memory, unused lanes full of NaN, or of the largest integer."""
    if not form.block:
        return np.ascontiguousarray(array.transpose(form.axes(array.ndim)))
    size, dtype = form.elements(array.shape), as_dtype(array.dtype)
    physical = unset(size, dtype).reshape(form.physical_shape(array.shape))
    for c in range(array.shape[1]):
        physical[:, c // form.block, ..., c % form.block] = array[:, c]
    return physical


def from_memory(physical: np.ndarray, shape: tuple[int, ...], form: Format) -> np.ndarray:
    """The logical array of what lies in memory."""
    if not form.block:
        axes = form.axes(len(shape))
        order = [axes.index(axis) for axis in range(len(shape))]
        return physical.reshape(form.physical_shape(shape)).transpose(order)
    blocks = physical.reshape(form.physical_shape(shape))
    lanes = [blocks[:, c // form.block, ..., c % form.block] for c in range(shape[1])]
    return np.stack(lanes, axis=1)


def one_node(
    op: str, inputs: Arrays, constants: Arrays, order: Sequence[str], attributes: Mapping[str, Any]
) -> tuple[Node, Graph]:
    """A graph of one node with the result `y`, and `y1` …; its operands are in the given order."""
    arrays = {**inputs, **constants}
    types = {name: TensorType(a.shape, as_dtype(a.dtype)) for name, a in arrays.items()}
    found = infer_node(Node(op, tuple(order), ("y",), attributes), types)
    results = tuple(f"y{number or ''}" for number in range(len(found)))
    node = Node(op, tuple(order), results, attributes)
    types |= dict(zip(results, found, strict=True))
    return node, Graph(tuple(inputs), results, (node,), types, dict(constants))


def formats_of(
    graph: Graph, target: Target, blocked: bool, block_output: bool | None = None
) -> dict[str, Format]:
    """Blocks for what is of rank 3 and more and no constant, or all plain; `y` as it is asked."""
    form = Format(target.channel_block(graph.types["y"].dtype))
    wanted = {"y": blocked if block_output is None else block_output}
    return {
        name: form
        if wanted.get(name, blocked) and len(kind.shape) >= 3 and name not in graph.constants
        else PLAIN
        for name, kind in graph.types.items()
    }


def all_constants(lowered: Lowered) -> dict[str, np.ndarray]:
    """Tables and packed weights, which lowered nodes make when they are wanted."""
    packed = {name: array for p in lowered.packings for name, array in packed_by(p).items()}
    return {**lowered.constants, **packed}


def run_lowered(
    lowered: Lowered,
    graph: Graph,
    formats: Mapping[str, Format],
    inputs: Arrays,
    target: Target | None = None,
    cuts: Sequence[float] = (),
    order: Callable[[int], Sequence[int]] | None = None,
    guard: Guard = guarded_operand,
) -> np.ndarray:
    """Run a node's kernels on buffers full of NaN, and return the graph's first output.

    The arguments are those of `run_outputs`.
    """
    found = run_outputs(lowered, graph, formats, inputs, target, cuts, order, guard)
    return found[graph.outputs[0]]


def run_outputs(
    lowered: Lowered,
    graph: Graph,
    formats: Mapping[str, Format],
    inputs: Arrays,
    target: Target | None = None,
    cuts: Sequence[float] = (),
    order: Callable[[int], Sequence[int]] | None = None,
    guard: Guard = guarded_operand,
) -> dict[str, np.ndarray]:
    """Run a node's kernels on buffers full of NaN, and return the graph's outputs.

    Args:
        lowered: of a graph of one node.
        graph: that graph.
        formats: those that the node was lowered for.
        inputs: the graph's, as they are before they are brought into their formats.
        target: what to compile for, this machine by default.
        cuts: where to cut each kernel's grid, as fractions; the parts are run backwards.
        order: makes, of the number of chunks, the order in which they are done one by one.
        guard: what each array is copied into.
    """
    types = graph.types
    memory = {name: to_memory(array, formats[name]) for name, array in inputs.items()}
    memory |= {**graph.constants, **all_constants(lowered)}
    for name in graph.nodes[0].outputs:
        memory[name] = unset(formats[name].elements(types[name].shape), types[name].dtype)
    for name, view in lowered.views.items():
        memory[name] = memory[view.source].reshape(-1)[view.offset // types[name].dtype.bytes :]
    usual = types[graph.outputs[0]].dtype
    for name, size in lowered.temporaries.items():
        memory[name] = unset(-(-size // usual.bytes), usual)
    for call in lowered.calls:
        chunks = call.kernel.chunks
        for name, view in lowered.inner.items():
            base = memory[view.source].reshape(-1)
            memory[name] = base[view.offset // base.itemsize :]
        found = run_results(
            call.kernel,
            *(memory[name] for name in call.values),
            target=target,
            parts=sorted({int(chunks * cut) for cut in cuts}),
            singly=order(chunks) if order else None,
            guard=guard,
        )
        for name, result in zip(call.results, found, strict=True):
            if name in lowered.inner:
                memory[name][:] = result
            else:
                memory[name] = result
    return {
        name: from_memory(
            memory[name][: formats[name].elements(types[name].shape)],
            types[name].shape,
            formats[name],
        )
        for name in graph.outputs
    }


class Case:
    """One node over given arrays: its graph, and its result by kernels or by the reference."""

    def __init__(
        self,
        module: ModuleType,
        op: str,
        arrays: Sequence[np.ndarray | None],
        attributes: dict[str, Any],
        constants: Sequence[int] = (),
    ) -> None:
        order = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
        self.module = module
        self.values = {n: a for n, a in zip(order, arrays, strict=True) if a is not None}
        fixed = {f"x{i}": self.values[f"x{i}"] for i in constants}
        self.inputs = {n: a for n, a in self.values.items() if n not in fixed}
        self.node, self.graph = one_node(op, self.inputs, fixed, order, attributes)

    def accepts(self, target: Target) -> bool:
        """Whether the module would do this node in blocks."""
        block = target.channel_block(self.graph.types["y"].dtype)
        accepts = getattr(self.module, "accepts_blocked", None)
        return accepts is not None and bool(accepts(self.node, self.graph, block))

    def lower(self, target: Target, blocked: bool) -> Lowered:
        """The node's kernels."""
        formats = formats_of(self.graph, target, blocked)
        lowered: Lowered = self.module.lower(NodeContext(self.node, self.graph, formats, target))
        return lowered

    def run(self, target: Target, blocked: bool) -> np.ndarray:
        """The result of the kernels, each grid cut in three and run backwards."""
        formats, lowered = formats_of(self.graph, target, blocked), self.lower(target, blocked)
        return run_lowered(lowered, self.graph, formats, self.inputs, target, (1 / 3, 1 / 2))

    def run_all(self, target: Target, cuts: Sequence[float] = (1 / 3, 1 / 2)) -> list[np.ndarray]:
        """All results of the kernels, in plain formats."""
        formats, lowered = formats_of(self.graph, target, False), self.lower(target, False)
        found = run_outputs(lowered, self.graph, formats, self.inputs, target, cuts)
        return list(found.values())

    def expected(self, dtype: str | None = None) -> np.ndarray:
        """What the graph's reference computes, in another dtype if one is named."""
        values = {n: a.astype(dtype) if dtype else a for n, a in self.values.items()}
        return evaluate_node(self.node, values)[0]

    def expected_all(self) -> list[np.ndarray]:
        """All results of the reference."""
        return list(evaluate_node(self.node, self.values))

    def assembles(self, target: Target, blocked: bool) -> str:
        """The assembly of all kernels for a target that need not run here."""
        return "".join(assembly(c.kernel, target) for c in self.lower(target, blocked).calls)


@dataclass
class Outcome:
    """What a node's kernels computed, and what they should have."""

    y: np.ndarray
    expected: np.ndarray  # float64
    lowered: Lowered


def run_node(
    lower: Lower,
    op: str,
    inputs: Arrays,
    constants: Arrays | None = None,
    *,
    order: Sequence[str] = (),
    blocked: bool = False,
    block_output: bool | None = None,
    target: Target | None = None,
    parts: Sequence[float] = (),
    **attributes: Any,
) -> Outcome:
    """Lower one node by a function, run its kernels, and compute what they should in float64.

    Args:
        lower: the operation's lowering.
        op: the operation.
        inputs: values of the run.
        constants: values known at load.
        order: operands of the node, "" for none; the inputs, then the constants, by default.
        blocked: put every input of rank 3 or more, and the result, in blocks.
        block_output: whether the result is in blocks; as `blocked` by default.
        target: this machine by default.
        parts: where to cut each kernel's grid, as fractions.
        **attributes: the node's.
    """
    target, constants = target or host(), constants or {}
    order = tuple(order) or (*inputs, *constants)
    node, graph = one_node(op, inputs, constants, order, attributes)
    formats = formats_of(graph, target, blocked, block_output)
    lowered = lower(NodeContext(node, graph, formats, target))
    y = run_lowered(lowered, graph, formats, inputs, target, parts)
    given = {**inputs, **constants}
    wide = [given[name].astype(np.float64) if name else None for name in order]
    (expected,) = evaluate(op, wide, attributes)
    return Outcome(y, expected, lowered)


def run_in_place(outcome: Outcome, index: int, *arrays: np.ndarray) -> np.ndarray:
    """Run a one-call lowering with the result in the memory of one operand.

    Args:
        outcome: of the same node.
        index: an operand that the call lists in `in_place`.
        *arrays: the operands as they lie in memory, the result's left out.
    """
    (call,) = outcome.lowered.calls
    assert index in call.in_place
    return run_kernel(call.kernel, *arrays, in_place=index)
