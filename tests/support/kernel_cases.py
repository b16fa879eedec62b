"""Run one operation of a graph through its kernels, in plain or blocked format, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from leanconv.codegen.compiler import assembly
from leanconv.codegen.host import host
from leanconv.codegen.lowered import Lowered
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import evaluate_node, infer_node
from leanconv.spec.format import PLAIN, Format
from leanconv.target import Target, preset
from support.kernel_runner import run_kernel

TARGETS = [host(), preset("haswell")]
DTYPES = ["float32", "float64"]


def to_memory(array: np.ndarray, form: Format) -> np.ndarray:
    """An array as it stands in memory, unused lanes full of NaN."""
    if not form.block:
        return np.ascontiguousarray(array)
    physical = np.full(form.physical_shape(array.shape), np.nan, array.dtype)
    for c in range(array.shape[1]):
        physical[:, c // form.block, ..., c % form.block] = array[:, c]
    return physical


def from_memory(physical: np.ndarray, shape: tuple[int, ...], form: Format) -> np.ndarray:
    """The logical array of what stands in memory."""
    if not form.block:
        return physical.reshape(shape)
    blocks = physical.reshape(form.physical_shape(shape))
    lanes = [blocks[:, c // form.block, ..., c % form.block] for c in range(shape[1])]
    return np.stack(lanes, axis=1)


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
        names = tuple("" if a is None else f"x{i}" for i, a in enumerate(arrays))
        self.module = module
        self.node = Node(op, names, ("y",), attributes)
        self.values = {n: a for n, a in zip(names, arrays, strict=True) if a is not None}
        types = {n: TensorType(a.shape, str(a.dtype)) for n, a in self.values.items()}
        types["y"] = infer_node(self.node, types)
        fixed = {f"x{i}": self.values[f"x{i}"] for i in constants}
        inputs = tuple(n for n in self.values if n not in fixed)
        self.graph = Graph(inputs, ("y",), (self.node,), types, fixed)

    def accepts(self, target: Target) -> bool:
        """Whether the module would do this node in blocks."""
        block = target.lanes(self.graph.types["y"].dtype)
        return bool(self.module.accepts_blocked(self.node, self.graph, block))

    def formats(self, target: Target, blocked: bool) -> dict[str, Format]:
        """Blocks for everything of rank 3 and more that is no constant, or all plain."""
        form = Format(target.lanes(self.graph.types["y"].dtype)) if blocked else PLAIN
        return {
            name: form if len(kind.shape) >= 3 and name not in self.graph.constants else PLAIN
            for name, kind in self.graph.types.items()
        }

    def lower(self, target: Target, blocked: bool) -> Lowered:
        """The node's kernels."""
        lowered: Lowered = self.module.lower(
            self.node, self.graph, self.formats(target, blocked), target
        )
        return lowered

    def run(self, target: Target, blocked: bool) -> np.ndarray:
        """The result of the kernels, each grid cut in three and run backwards."""
        formats = self.formats(target, blocked)
        lowered = self.lower(target, blocked)
        memory = {n: to_memory(a, formats[n]) for n, a in self.values.items()}
        memory.update(lowered.constants)
        result = self.graph.types["y"]
        dtype = np.dtype(result.dtype)
        if lowered.alias:
            flat = memory[lowered.alias].reshape(-1)[: formats["y"].elements(result.shape)]
            return from_memory(flat, result.shape, formats["y"])
        for name, size in lowered.temporaries.items():
            memory[name] = np.full(size // dtype.itemsize, np.nan, dtype)
        memory["y"] = np.full(formats["y"].elements(result.shape), np.nan, dtype)
        for call in lowered.calls:
            chunks = call.kernel.chunks
            operands = [memory[name] for name in call.values]
            memory[call.values[-1]] = run_kernel(
                call.kernel, *operands, target=target, parts=[chunks // 3, chunks // 2]
            )
        return from_memory(memory["y"], result.shape, formats["y"])

    def expected(self, dtype: str | None = None) -> np.ndarray:
        """What the graph's reference computes, in another dtype if one is named."""
        values = {n: a.astype(dtype) if dtype else a for n, a in self.values.items()}
        return evaluate_node(self.node, values)

    def assembles(self, target: Target, blocked: bool) -> str:
        """The assembly of all kernels for a target that need not run here."""
        return "".join(assembly(c.kernel, target) for c in self.lower(target, blocked).calls)


def integers(shape: tuple[int, ...], dtype: str, seed: int = 0, most: int = 9) -> np.ndarray:
    """Small whole numbers, with which sums and products are exact."""
    return np.random.default_rng(seed).integers(-most, most + 1, shape).astype(dtype)


def distinct(shape: tuple[int, ...], dtype: str, start: int = 0) -> np.ndarray:
    """Numbers that are all different, so that a misplaced element shows."""
    return np.arange(start, start + int(np.prod(shape)), dtype=dtype).reshape(shape)
