"""Kernels for the tests: a tiny one, and convolutions from a problem string."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.direct.plan import plan_direct
from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.parameters import Choice
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.select import choose
from leanconv.codegen.emitter import Function
from leanconv.codegen.geometry import Access
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.tiling import Tile
from leanconv.records import dataclass
from leanconv.spec import ConvSpec, Format
from leanconv.target import Target


@dataclass(frozen=True)
class Scale(Kernel):
    """y[i] = factor · x[i] for eight float32."""

    factor: float

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "y")

    @property
    def chunks(self) -> int:
        return 8

    def emit(self, target: Target) -> str:
        e = Function(self.NAME)
        x, y = e.pointer(0, "float"), e.pointer(1, "float")
        with e.chunks(8) as (i,):
            e.store(e.load(x.at(i)) * self.factor, y.at(i))
        return e.finish()


@dataclass(frozen=True)
class Shifted(Kernel):
    """y[i] = x[i + by] for eight float32, wherever that leads."""

    by: int

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "y")

    @property
    def chunks(self) -> int:
        return 8

    def emit(self, target: Target) -> str:
        e = Function(self.NAME)
        x, y = e.pointer(0, "float"), e.pointer(1, "float")
        with e.chunks(8) as (i,):
            e.store(e.load(x.at(i + self.by)), y.at(i))
        return e.finish()


def problem(text: str, target: Target, blocked: bool, **changes: Any) -> Problem:
    """A problem whose tensors stand plain or in blocks of the target's lanes."""
    spec = ConvSpec.parse(text, **changes)
    form = Format(target.lanes(spec.dtype) if blocked else 0)
    return Problem.of(
        spec,
        Access.of_format(spec.input_shape, form),
        Access.of_format(spec.output_shape, form),
    )


def candidate(
    text: str, target: Target, blocked: bool, algorithm: str = "direct", **changes: Any
) -> Candidate:
    """How an algorithm of one kernel would compute a problem."""
    found = choose(problem(text, target, blocked, **changes), target, Choice(algorithm))
    assert len(found.kernels) == 1
    return found


def kernel_of(
    text: str, target: Target, blocked: bool, algorithm: str = "direct", **changes: Any
) -> Kernel:
    """That kernel."""
    return candidate(text, target, blocked, algorithm, **changes).kernels[0].kernel


def conv_kernel(text: str, target: Target, blocked: bool = False, **changes: Any) -> DirectConv:
    """The direct convolution of a problem, by the kernel that takes any."""
    given = problem(text, target, blocked, **changes).conv
    kernel = DirectConv(
        conv=given, lanes=given.lanes(target), tile=Tile(1, 1), rows=1, panels_inside=False
    )
    return plan_direct(kernel, target)


def with_tile(kernel: DirectConv, rows: int, vectors: int) -> DirectConv:
    """The same convolution by another register tile."""
    return replace(kernel, tile=Tile(rows, vectors))


def reference(x: np.ndarray, w: np.ndarray, spec: ConvSpec) -> np.ndarray:
    """A 2-D convolution in float64, from its definition."""
    (top, left), (bottom, right) = spec.pad_begin, spec.pad_end
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    rows, columns = spec.output_size
    y = np.zeros(spec.output_shape)
    inputs = spec.in_channels // spec.groups
    outputs = spec.out_channels // spec.groups
    for r in range(spec.kernel[0]):
        for s in range(spec.kernel[1]):
            top, left = r * spec.dilation[0], s * spec.dilation[1]
            part = padded[:, :, top:, left:][:, :, :: spec.stride[0], :: spec.stride[1]]
            part = part[:, :, :rows, :columns]
            for g in range(spec.groups):
                cut = slice(g * inputs, (g + 1) * inputs)
                out = slice(g * outputs, (g + 1) * outputs)
                y[:, out] += np.einsum("nchw,kc->nkhw", part[:, cut], w[out, :, r, s])
    return y
