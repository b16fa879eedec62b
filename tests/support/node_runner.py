"""Lower one node by itself and run its kernels on NumPy arrays, plain or in blocks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from leanconv.codegen.compiler import load
from leanconv.codegen.host import host
from leanconv.codegen.lowered import Lowered
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import evaluate, infer
from leanconv.spec.format import Format, ceil_div
from leanconv.target import Target
from support.kernel_runner import SIGNATURE, Guarded, run_kernel

Lower = Callable[[Node, Graph, Mapping[str, Format], Target], Lowered]
Arrays = Mapping[str, np.ndarray]


def all_constants(lowered: Lowered) -> dict[str, np.ndarray]:
    """Tables and packed weights, which lowered nodes make when they are wanted."""
    packed = {name: array for p in lowered.packings for name, array in p.make().items()}
    return {**lowered.constants, **packed}


def one_node(
    op: str, inputs: Arrays, constants: Arrays, order: Sequence[str], attributes: Mapping[str, Any]
) -> tuple[Node, Graph]:
    """A graph of one node; its operands stand in the given order."""
    arrays = {**inputs, **constants}
    types = {name: TensorType(a.shape, a.dtype.name) for name, a in arrays.items()}
    types["y"] = infer(op, [types[name] for name in order], attributes)
    node = Node(op, tuple(order), ("y",), attributes)
    return node, Graph(tuple(inputs), ("y",), (node,), types, dict(constants))


def pack(array: np.ndarray, block: int) -> np.ndarray:
    """Put channels in blocks, with NaN in the unused lanes."""
    n, c, *spatial = array.shape
    padded = np.full((n, ceil_div(c, block) * block, *spatial), np.nan, array.dtype)
    padded[:, :c] = array
    return np.moveaxis(padded.reshape(n, -1, block, *spatial), 2, -1).copy()


def unpack(array: np.ndarray, channels: int) -> np.ndarray:
    """Undo `pack`."""
    moved = np.moveaxis(array, -1, 2)
    n, blocks, lanes, *spatial = moved.shape
    return moved.reshape(n, blocks * lanes, *spatial)[:, :channels].copy()


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
    """Run one node's kernels.

    Args:
        lower: the operation's lowering.
        op: the operation.
        inputs: values of the run.
        constants: values known at load.
        order: operands of the node; the inputs, then the constants, by default.
        blocked: put every input of rank 3 or more, and the result, in blocks.
        block_output: whether the result is in blocks; as `blocked` by default.
        target: this machine by default.
        parts: where to cut each kernel's grid, as fractions.
        **attributes: the node's.
    """
    target, constants = target or host(), constants or {}
    order = tuple(order) or (*inputs, *constants)
    node, graph = one_node(op, inputs, constants, order, attributes)
    kind = graph.types["y"]
    block = target.lanes(kind.dtype)
    formats = {
        name: Format(block if blocked and len(graph.types[name].shape) >= 3 else 0)
        for name in inputs
    }
    formats["y"] = Format(block if (blocked if block_output is None else block_output) else 0)
    lowered = lower(node, graph, formats, target)
    memory: dict[str, np.ndarray] = {**constants, **lowered.constants}
    for packing in lowered.packings:
        memory.update(packing.make())
    memory.update(
        {name: pack(a, block) if formats[name].block else a for name, a in inputs.items()}
    )
    memory["y"] = np.full(formats["y"].physical_shape(kind.shape), np.nan, kind.dtype)
    for name, size in lowered.temporaries.items():
        memory[name] = np.full(size // memory["y"].itemsize, np.nan, kind.dtype)
    for call in lowered.calls:
        cuts = [int(p * call.kernel.chunks) for p in parts]
        result = call.values[-1]
        memory[result] = run_kernel(
            call.kernel, *(memory[v] for v in call.values), target=target, parts=cuts
        )
    y = memory["y"]
    wide = [{**inputs, **constants}[name].astype(np.float64) for name in order]
    expected = evaluate(op, wide, attributes)
    y = unpack(y, kind.shape[1]) if formats["y"].block else y.reshape(kind.shape)
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
    library = load([call.kernel])
    guarded = [Guarded(a) for a in arrays]
    addresses = [g.array.ctypes.data for g in guarded]
    table = (ctypes.c_int64 * (len(arrays) + 1))(*addresses, addresses[index])
    scratch = Guarded(np.zeros(max(1, call.kernel.scratch_bytes), np.uint8))
    function = SIGNATURE(library.address(call.kernel))
    function(ctypes.addressof(table), 0, call.kernel.chunks, scratch.array.ctypes.data)
    for g in guarded:
        g.check()
    return guarded[index].array.copy()
