"""Convolutions whose padding is larger than a register tile or than the image, kernel by kernel.

A case is run twice, its arrays before a page that cannot be read and behind one, on small whole
numbers, which must be exact, and on numbers of random sign, whose error must be as stated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from leanconv.algorithms import select
from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.parameters import AUTO
from leanconv.algorithms.problem import Problem
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import host
from leanconv.errors import SpecError
from leanconv.graph.ops import evaluate_node
from leanconv.operators import NodeContext
from leanconv.operators.convolution import CONVOLUTION
from leanconv.reference.direct import convolve
from leanconv.spec import NHWC, ConvSpec, Format
from leanconv.types import FLOAT32, FLOAT64, as_dtype
from support import problems, stated
from support.block_chains import Block, Runner
from support.kernel_runner import Guard, run_kernel
from support.nodes import from_memory, one_node, run_lowered, to_memory
from support.packing import packed_constants
from support.paged import Paged

GUARDS: tuple[Guard, ...] = (Paged.before_end, Paged.after_start)


@dataclass(frozen=True)
class Padded:
    """A convolution by one algorithm.

    Attributes:
        spec: the problem; its own layout is not used.
        algorithm: with its parameters, or without.
        x, y: whether input and output lie in planes ("planes"), pixel by pixel ("last"), or in
            blocks of channels ("blocks").
        open: whether the code is that of all sizes.
    """

    spec: ConvSpec
    algorithm: str
    x: str = "planes"
    y: str = "planes"
    open: bool = False

    def candidate(self) -> Candidate:
        """The kernels.

        Raises:
            SpecError: the algorithm does not compute it.
        """
        spec = self.spec
        problem = Problem.of(
            spec, _access(spec.input_shape, self), _access(spec.output_shape, self, out=True), 1.0
        )
        if "blocks" in (self.x, self.y) and not self._takes_blocks():
            raise SpecError("the planner would not do this in blocks of channels")
        if self.open:
            problem = replace(problem, any_size=tuple(range(3 - len(spec.size), 3)))
        return select.choose(problem, host(), select.choice_named(self.algorithm))

    def _takes_blocks(self) -> bool:
        """Whether channels in blocks are such as a network may have here."""
        spec, block = self.spec, host().lanes(self.spec.dtype)
        if spec.groups == 1:
            return True
        shapes = {"x": spec.input_shape, "w": spec.weight_shape}
        arrays = {name: np.empty(shape, spec.dtype) for name, shape in shapes.items()}
        attributes = {
            "strides": spec.stride, "pads": spec.pad_begin + spec.pad_end,
            "dilations": spec.dilation, "group": spec.groups, "activation": None,
        }  # fmt: skip
        node, graph = one_node("Conv", arrays, {}, ("x", "w"), attributes)
        return self.x == self.y and CONVOLUTION.accepts_blocked(node, graph, block)

    def check(self) -> None:
        """Run it.

        Raises:
            AssertionError: a result is wrong.
            SpecError: the algorithm does not compute it.
        """
        chosen = self.candidate()
        label = f"{self} {[type(use.kernel).__name__ for use in chosen.kernels]}"
        for kind in ("whole", "normal"):
            problem = problems.Problem(self.spec, 5)
            arrays = stated.Data(problem, kind).arrays(0)
            given = (arrays.x, arrays.w, arrays.bias, arrays.residual)
            exact = convolve(self.spec, *(None if a is None else a.astype("f8") for a in given))
            rounds = kind == "normal" or chosen.choice.algorithm in stated.ROUNDING
            scale = _scale(problem, arrays) if rounds else 0.0
            for guard in GUARDS:
                error = np.abs(self._run(chosen, arrays, guard) - exact).max()
                assert error <= (allowed := chosen.choice.error * scale), (
                    f"{label}: {kind} numbers are off by {error}; at most {allowed} was stated"
                )

    def _run(self, chosen: Candidate, arrays: problems.Arrays, guard: Guard) -> np.ndarray:
        """The result, in planes."""
        spec = self.spec
        channels = {"bias": arrays.bias} if arrays.bias is not None else {}
        memory = {"x": _laid(arrays.x, self.x), **packed_constants(chosen, arrays.w, channels)}
        if arrays.residual is not None:
            memory["residual"] = _laid(arrays.residual, self.y)
        y = _laid(np.full(spec.output_shape, np.nan, self.spec.dtype), self.y)
        for name, size in chosen.temporaries.items():
            memory[name] = np.full(size // y.itemsize, np.nan, self.spec.dtype)
        memory["y"] = y
        for use in chosen.kernels:
            memory[use.roles[-1]] = run_kernel(
                use.kernel, *(memory[role] for role in use.roles), guard=guard
            )
        return _planes(memory["y"], spec.output_shape, self.y)


def _scale(problem: problems.Problem, arrays: problems.Arrays) -> float:
    """What errors are measured by; where no window touches the input, what it would be inside."""
    scale = stated.exact_sums(problem, arrays).scale
    each = np.sqrt(np.square(arrays.w, dtype=np.float64).reshape(len(arrays.w), -1).sum(axis=1))
    return scale or float(np.abs(arrays.x).max() * each.max())


def _block(dtype: str) -> Format:
    return Format(host().lanes(dtype))


def _access(shape: tuple[int, ...], case: Padded, out: bool = False) -> Access:
    layout = case.y if out else case.x
    if layout == "last":
        return Access.of_format(shape, NHWC)
    return Access.of_format(shape, _block(case.spec.dtype) if layout == "blocks" else Format())


def _laid(array: np.ndarray, layout: str) -> np.ndarray:
    """An array (N, C, spatial…) as it lies in memory."""
    if layout == "last":
        return np.ascontiguousarray(np.moveaxis(array, 1, -1))
    return to_memory(array, _block(as_dtype(array.dtype)) if layout == "blocks" else Format())


def _planes(memory: np.ndarray, shape: tuple[int, ...], layout: str) -> np.ndarray:
    if layout == "last":
        return np.moveaxis(memory.reshape(shape[0], *shape[2:], shape[1]), -1, 1)
    return from_memory(
        memory, shape, _block(as_dtype(memory.dtype)) if layout == "blocks" else Format()
    )


@dataclass(frozen=True)
class Transposed:
    """A transposed convolution, phase by phase or as one convolution."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    attributes: tuple[tuple[str, Any], ...]
    dtype: str = FLOAT32
    blocked: bool = False
    algorithm: str = ""

    def check(self) -> None:
        """Run it, as `Padded.check`."""
        draw = np.random.default_rng(3)
        rank = len(self.x) - 2
        usual: dict[str, Any] = {
            "strides": (1,) * rank, "pads": (0,) * (2 * rank), "dilations": (1,) * rank,
            "group": 1, "activation": None, "output_padding": (0,) * rank,
        }  # fmt: skip
        arrays = {"x": draw.integers(-3, 4, self.x).astype(self.dtype)}
        constants = {"w": draw.integers(-3, 4, self.w).astype(self.dtype)}
        node, graph = one_node(
            "ConvTranspose", arrays, constants, ("x", "w"), {**usual, **dict(self.attributes)}
        )
        form = _block(self.dtype) if self.blocked else Format()
        formats = {name: Format() if name == "w" else form for name in graph.types}
        choice = select.choice_named(self.algorithm) if self.algorithm else AUTO
        lowered = CONVOLUTION.lower(NodeContext(node, graph, formats, host()), choice)
        wide = {n: a.astype("f8") for n, a in {**arrays, **constants}.items()}
        (exact,) = evaluate_node(node, wide)
        rounds = any(word in lowered.algorithm for word in stated.ROUNDING)
        for guard in GUARDS:
            found = run_lowered(lowered, graph, formats, arrays, guard=guard)
            allowed = 1e-5 * np.abs(exact).max(initial=0.0) if rounds else 0.0
            error = np.abs(found - exact).max()
            assert error <= allowed, f"{self} {[c.kernel for c in lowered.calls]}: off by {error}"


@dataclass(frozen=True)
class Fused:
    """A mobile network's block in all its forms, of whole numbers."""

    block: Block

    def check(self) -> None:
        """Run it, as `Padded.check`."""
        runner, exact = Runner(self.block), self.block.expected()
        for choice in runner.choices():
            for guard in GUARDS:
                assert np.array_equal(runner.run(choice, guard=guard), exact), f"{self} {choice}"


Case = Padded | Transposed | Fused
Axis = tuple[int, int, int, int, int, int]  # size, kernel, stride, dilation, begin, end


def spec_of(
    axes: Sequence[Axis],
    channels: tuple[int, int, int] = (1, 16, 16),
    dtype: str = FLOAT32,
    batch: int = 1,
    added: bool = False,
) -> ConvSpec:
    """A convolution with these axes, and channels (groups, C, K); with a bias and a residual?"""
    size, kernel, stride, dilation, begin, end = zip(*axes, strict=True)
    groups, inputs, outputs = channels
    return ConvSpec(
        batch, inputs, outputs, size, kernel, stride, dilation, begin, end, groups, dtype,
        bias=added, residual=added,
    )  # fmt: skip


# -- chosen cases ------------------------------------------------------------------------------
_PATTERNS: tuple[tuple[Axis, ...], ...] = (
    ((5, 1, 1, 1, 0, 12),),  # one tap, more columns behind the image than a register tile has
    ((5, 1, 1, 1, 12, 0),),
    ((7, 3, 1, 1, 17, 19),),
    ((1, 2, 1, 1, 0, 33),),
    ((3, 5, 2, 3, 6, 40),),
    ((1, 3, 1, 1, 5, 7), (6, 1, 1, 1, 0, 29)),
    ((4, 1, 1, 1, 0, 9), (5, 3, 1, 1, 1, 1)),  # whole rows of padding
    ((9, 7, 3, 1, 12, 6), (13, 2, 3, 1, 0, 17)),
    ((5, 2, 1, 2, 7, 0), (5, 4, 1, 1, 13, 20)),
    ((2, 1, 1, 1, 0, 3), (3, 2, 1, 1, 4, 0), (5, 1, 1, 1, 0, 7)),
)
_PLANES, _LAST, _BLOCKS = ("planes", "planes"), ("last", "last"), ("blocks", "blocks")
_FORMS: tuple[tuple[str, tuple[str, str], bool], ...] = (
    ("direct", _PLANES, False),
    ("direct", _LAST, False),
    ("direct", _BLOCKS, False),
    ("direct", ("planes", "blocks"), False),
    ("direct", ("blocks", "planes"), False),
    ("direct", _PLANES, True),
    ("direct", _BLOCKS, True),
    ("planar", _PLANES, False),
    ("planar", _PLANES, True),
    ("depthwise", _LAST, False),
    ("depthwise", _BLOCKS, False),
    ("depthwise", _BLOCKS, True),
    ("naive", _PLANES, False),
    ("im2col", _PLANES, False),
    ("im2col", _BLOCKS, False),
    ("mec:solution=A", _PLANES, False),
    ("mec:solution=B", _LAST, False),
    ("mec:rows=2", _PLANES, False),
    ("mec:rows=3", _BLOCKS, False),
    ("im2win", _PLANES, False),
    ("im2win:form=high", _LAST, False),
    ("im2win:form=vector", _PLANES, False),
    ("im2win:form=printed", _PLANES, False),
    ("winograd", _PLANES, False),
    ("winograd", _BLOCKS, False),
    ("winograd:form=stages", ("planes", "blocks"), False),
    ("winograd:form=stages", _LAST, False),
    ("fft:tile=16", _PLANES, False),
    ("fft:tile=16", _BLOCKS, False),
    ("im2col:lanes=pixels", _PLANES, False),
)
_DEPTHWISE = 24, 24, 24


def chosen_cases() -> dict[str, list[Case]]:
    """By form: every method over some of the patterns, transposed convolutions, fused blocks."""
    found: dict[str, list[Case]] = {}
    for number, (algorithm, layouts, is_open) in enumerate(_FORMS):
        name = f"{algorithm} {'-'.join(layouts)}{' any size' if is_open else ''}"
        apart = algorithm == "depthwise" or (algorithm == "planar" and is_open)
        found[name] = [
            Padded(
                spec_of(
                    axes,
                    _DEPTHWISE if apart else (1, 3 + 14 * (place % 2), 17),
                    (FLOAT32, FLOAT64)[(place + number) % 2],
                    added=place % 3 == 0,
                ),
                algorithm,
                *layouts,
                is_open,
            )
            for place, axes in enumerate(_PATTERNS)
            if (place + number) % 2 == 0 or place == 0
        ]
    found["planar depthwise"] = [
        Padded(spec_of(axes, _DEPTHWISE), "planar") for axes in _PATTERNS[:6:2] + _PATTERNS[6:9]
    ]
    # A last tile that overlaps the one before it begins in the padding.
    found["added to"] = [
        Padded(spec_of([axis], (1, 2, 16), added=True), "direct", open=True)
        for axis in ((30, 1, 1, 1, 7, 5), (40, 5, 1, 1, 2, 2), (37, 5, 1, 1, 2, 2))
    ]
    found["transposed"] = [
        Transposed(x, w, tuple(given.items()), dtype, blocked)
        for dtype, blocked in ((FLOAT32, False), (FLOAT64, True))
        for x, w, given in (
            ((1, 16, 5), (16, 16, 1), {"strides": (3,), "output_padding": (2,)}),
            ((1, 3, 5, 2), (3, 17, 2, 7), {"pads": (0, 5, 4, 0), "dilations": (3, 1)}),
            ((2, 17, 1, 13), (17, 8, 4, 4), {"strides": (2, 2), "pads": (3, 0, 0, 11)}),
        )
    ]
    wide = {"pads": (0, 12, 17, 30), "residual": False}
    found["fused"] = [
        Fused(Block(16, 32, 16, (4, 5), integers=True, activations=(None,) * 3, **wide)),
        Fused(Block(8, 0, 17, (3, 1), integers=True, activations=(None,) * 3, **wide)),
    ]
    return found
