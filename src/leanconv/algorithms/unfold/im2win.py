"""im2win: the rows of a window's height are interleaved, so that a window is one run (Lu Shuai).

    I^[n, c, d, oh, iw, u] = x[n, c, d, oh·sh + u·dh - ph, iw]              algorithm 2, planes
    y[n, k, od, oh, ow] = act(bias + residual + sum over c, kd, v, u of
        I^[n, c, od·sd + kd·dd - pd, oh, ow·sw + v·dw - pw, u] · w[k, c, kd, u, v])

Where channels are neighbours (NHWC) they stay the innermost axis: I^[n, d, oh, iw, u, c]; the form
`high` makes them so if there are 8 or more, because one long run is read faster from memory than a
short one for each channel. Windows that overlap along the width share their elements: they are only
strides. Padding above and below is stored as zeros in I^; the product leaves out columns of
padding.

The thesis' index of a window's start, n·s·W_f, is right for square kernels only; here it is
ow·sw·H_f. If `kh <= sh` no element is in two windows of different rows: there is no I^, and windows
are read in x by their own strides.

Forms: `base` is algorithm 4, seven scalar loops over I^; `vector` algorithm 5, one dot product for
each window; `printed` algorithm 6 as it stands in the text, register tiles of windows whose vectors
lie along the height of the kernel; `high` what algorithm 6 becomes with lanes along the output
channels: the register tile over output columns and channels that the model of section 3.2.2 picks.
`rows=whole` transforms the whole batch first, `rows=N` a few output rows into a thread's scratch.
Each optimisation of `high` can be switched off with `=off`:
- `reorder`: I^ stays as printed, and the reduction runs over u, v, c across its runs.
- `vectorise`: one lane.
- `register`: one accumulator.
- `cache`: the loops over rows and output channels are exchanged.
- `threads`: every stage is one piece of work.
Only `unroll` is off by default. With `on`, loops over a window of at most 12 steps are unrolled,
and LLVM hoists loads until registers spill (6 % of cv10).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import numpy as np

from leanconv.algorithms.interface import Algorithm, Candidate, KernelUse
from leanconv.algorithms.naive import NaiveConv, naive
from leanconv.algorithms.parameters import (
    COUNT_OR_WHOLE,
    ON_OR_OFF,
    Choice,
    Parameters,
    one_of,
    parameter,
)
from leanconv.algorithms.problem import Problem, sum_error
from leanconv.algorithms.unfold import candidates
from leanconv.algorithms.unfold.im2win_layout import Layout, transformed_elements, transforms
from leanconv.algorithms.unfold.kernels import Serial, Unfold
from leanconv.algorithms.unfold.window_kernels import WindowDot, WindowTile
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import PackCall
from leanconv.codegen.microkernel import UNROLL_LIMIT
from leanconv.codegen.tiling import Tile
from leanconv.errors import SpecError
from leanconv.kernels.packing import copied, rows
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import require_numbers
from leanconv.target import Target

SWITCHES = ("reorder", "vectorise", "register", "cache", "threads")
_MANY_CHANNELS = 8
_BESIDE_WINDOWS = 2  # registers: the sum and a temporary
_MOST_CHANNELS = 32  # of a block, C_o,b


@dataclass(frozen=True)
class Im2winParameters(Parameters):
    """The thesis' form, output rows at a time, and switches of the optimisations of `high`."""

    form: str | None = parameter(one_of("base", "vector", "printed", "high"))
    rows: int | str | None = parameter(COUNT_OR_WHOLE)
    reorder: bool | None = parameter(ON_OR_OFF)
    vectorise: bool | None = parameter(ON_OR_OFF)
    register: bool | None = parameter(ON_OR_OFF)
    cache: bool | None = parameter(ON_OR_OFF)
    threads: bool | None = parameter(ON_OR_OFF)
    unroll: bool | None = parameter(ON_OR_OFF)

    def changed(self) -> Im2winParameters:
        """The switches that differ from their defaults."""
        on: dict[str, None] = {name: None for name in SWITCHES if getattr(self, name)}
        return replace(self, form=None, rows=None, unroll=self.unroll or None, **on)


def _choice(problem: Problem, parameters: Im2winParameters) -> Choice:
    return Choice("im2win", parameters, error=sum_error(problem))


# -- the input itself, where nothing is gained by a transform --------------------------------
def _input_dots(problem: Problem) -> candidates.UnfoldedView:
    """The input's own windows as rows of pieces."""
    conv, x, inputs = problem.conv, problem.conv.x, problem.conv.inputs
    if x.block > 1:
        raise SpecError(
            "algorithm im2win: form=vector got channels in blocks, and reads windows of a kernel "
            "no higher than its stride in place; expected a plain layout, or use form=high"
        )
    if x.block_stride == 1:
        x = replace(x, block_stride=inputs)
        return candidates.UnfoldedView(conv.window, x, 1, (2, 3, 4, 1))
    return candidates.UnfoldedView(conv.window, x, inputs, (1, 2, 3, 4))


# -- forms -------------------------------------------------------------------------------------
def _base(problem: Problem, target: Target) -> Candidate:
    """Algorithm 4."""
    if not transforms(problem):
        return _scalar(problem, (naive(problem),), None, "base")
    layout = _whole_layout(problem)
    view = layout.written()
    kernel = NaiveConv(view.conv(problem))
    return _scalar(problem, (_unfold(layout, target), kernel), view, "base")


def _dots(
    problem: Problem, target: Target
) -> tuple[WindowDot, Layout | None, candidates.UnfoldedView]:
    """Algorithm 5's kernel, the layout of I^ if it is made, and how windows are read."""
    layout = _whole_layout(problem)
    made = transforms(problem)
    view = layout.dots() if made else _input_dots(problem)
    unit = layout.column if made else 1 if view.inputs > 1 or not layout.interleaved else layout.tap
    kernel = WindowDot(view.conv(problem), unit, problem.conv.lanes(target))
    return kernel, layout if made else None, view


def _vector(problem: Problem, target: Target) -> Candidate:
    """Algorithm 5."""
    kernel, layout, view = _dots(problem, target)
    stages = (_unfold(layout, target),) if layout else ()
    return _scalar(problem, (*stages, kernel), view, "vector")


def _printed(problem: Problem, target: Target) -> Candidate:
    """Algorithm 6 as it is printed."""
    dots, layout, view = _dots(problem, target)
    if layout is None or layout.interleaved:
        raise SpecError(
            "algorithm im2win: form=printed is of the thesis' tensor, planes whose windows are "
            f"interleaved; got {'channels innermost' if layout else 'windows that share no rows'}; "
            "expected layout NCHW and a kernel higher than its stride, or use form=vector"
        )
    vectors = ceil_div(dots.unit, dots.lanes)
    room = target.registers - _BESIDE_WINDOWS
    taps = max(1, min(dots.conv.window.kernel[2], room // (2 * vectors)))
    columns = max(1, room // (taps * vectors) - 1)
    weights = dots.reduction * problem.conv.dtype.bytes
    channels = max(1, min(dots.conv.outputs, target.l2_bytes // 2 // weights, _MOST_CHANNELS))
    common = {field.name: getattr(dots, field.name) for field in fields(dots)}
    kernel = WindowTile(**common, channels=channels, columns=columns, taps=taps)
    return _scalar(problem, (_unfold(layout, target), kernel), view, "printed")


def _scalar(
    problem: Problem, kernels: tuple[Kernel, ...], view: candidates.UnfoldedView | None, form: str
) -> Candidate:
    """A candidate whose weights are only reordered."""
    order = (0, *(view.order if view else (1, 2, 3, 4)))

    def packing(w: np.ndarray, channels: Mapping[str, np.ndarray]) -> dict[str, list[PackCall]]:
        taps = problem.weights_3d(w).transpose(order)
        numbers = {name: copied(values) for name, values in channels.items()}
        return {"w": rows(taps, problem.conv.precision.w), **numbers}

    source = ("unfolded",) if len(kernels) == 2 else ("x",)
    uses = [KernelUse(kernels[-1], (*source, *kernels[-1].operands[1:]))]
    if len(kernels) == 2:
        uses.insert(0, KernelUse(kernels[0], kernels[0].operands))
    temporaries = _temporaries(problem) if len(kernels) == 2 else {}
    return Candidate(
        _choice(problem, Im2winParameters(form=form)),
        tuple(uses),
        packing,
        temporaries,
        f"form={form}",
    )


def _high(problem: Problem, target: Target, changed: Im2winParameters) -> Candidate:
    """Algorithm 6 on the whole batch, with the given optimisations switched off."""
    conv, made = problem.conv, transforms(problem)
    reorder = changed.reorder is None
    layout = _high_layout(problem) if reorder else _whole_layout(problem)
    if not (reorder or made):
        raise SpecError(
            "algorithm im2win: reorder=off is about the transformed tensor, and a kernel of height "
            f"{conv.window.kernel[1]} at stride {conv.window.stride[1]} makes none; leave "
            "reorder out"
        )
    view = None
    if made:
        view = layout.view() if reorder else layout.written()
    input_view = candidates.UnfoldedView(conv.window, conv.x, conv.inputs, (1, 2, 3, 4))
    kernel = candidates.product(problem, view or input_view, target)
    if changed.vectorise is False:
        kernel = replace(kernel, lanes=1)
        target_ = replace(target, vector_bytes=conv.dtype.bytes)
    else:
        target_ = target
    kernel = candidates.tiled(kernel, target_)
    if changed.register is False:
        kernel = replace(kernel, tile=Tile(1, 1))
    if changed.cache is False:
        kernel = replace(kernel, panels_inside=not kernel.panels_inside)
    kernel = replace(kernel, unroll=UNROLL_LIMIT if changed.unroll else 0)
    kernels: list[Kernel] = [_unfold(layout, target)] if made else []
    kernels.append(kernel)
    serial = changed.threads is False
    roles = [k.operands for k in kernels]
    roles[-1] = ("unfolded" if made else "x", *kernel.operands[1:])
    uses = tuple(
        KernelUse(Serial(k) if serial else k, role) for k, role in zip(kernels, roles, strict=True)
    )
    details = f"form=high,{changed}".strip(",").replace(",", ", ")
    return Candidate(
        _choice(problem, replace(changed, rows="whole")),
        uses,
        candidates.packing(kernel, view, problem),
        _temporaries(problem) if made else {},
        f"{details}, tile {kernel.tile.rows}x{kernel.tile.vectors}",
    )


def _blocked(problem: Problem, target: Target, rows: int | None) -> Candidate:
    """Algorithm 6, a few output rows at a time.

    Without `rows` a tensor that fits L2 is transformed as a whole if that is cheaper: few rows make
    few blocks, and several threads would each transform the same block.
    """
    conv = problem.conv
    require_numbers("the choice of blocks", conv.batch, *conv.window.out)
    height = conv.window.out[1]
    row = Layout(problem, conv.window.kernel[0], 1).elements * conv.dtype.bytes
    sizes = [rows] if rows else candidates.sizes_to_try(height, max(1, target.l2_bytes // 2 // row))
    choices = [_blocks(problem, target, min(height, size)) for size in sizes]
    cut = candidates.cheapest_cut(problem, target, choices)
    elements = transformed_elements(problem)
    if not rows and elements * conv.dtype.bytes <= target.l2_bytes:
        view = _high_layout(problem).view()
        if candidates.whole_cost(problem, target, view, elements) < cut.cost:
            return _high(problem, target, Im2winParameters())
    choice = _choice(problem, Im2winParameters(rows=cut.blocks.shape[0]))
    return candidates.by_blocks(choice, problem, cut)


def _blocks(problem: Problem, target: Target, count: int) -> candidates.Blocks:
    conv = problem.conv
    _, height, width = conv.window.out
    layout = Layout(problem, conv.window.kernel[0], count)
    whole = layout.view(block=True)

    def view(rows: int, columns: int) -> candidates.UnfoldedView:
        del columns
        d, _, w = whole.window.out
        return replace(whole, window=replace(whole.window, out=(d, rows, w)))

    return candidates.Blocks(
        layout.unfolding(conv.lanes(target), block=True),
        layout.elements,
        (count, width),
        (height % count or count, width),
        view,
        f"form=high, rows={count}",
    )


# -- parts -------------------------------------------------------------------------------------
def _whole_layout(problem: Problem) -> Layout:
    return Layout(problem, problem.conv.window.size[0], problem.conv.window.out[1])


def _high_layout(problem: Problem) -> Layout:
    """The whole tensor, with channels innermost if they are many."""
    channels_innermost = problem.conv.inputs >= _MANY_CHANNELS
    return replace(_whole_layout(problem), channels_innermost=channels_innermost)


def _temporaries(problem: Problem) -> dict[str, int]:
    return {"unfolded": transformed_elements(problem) * problem.conv.dtype.bytes}


def _unfold(layout: Layout, target: Target) -> Unfold:
    batch, groups = layout.problem.conv.batch, layout.problem.conv.groups
    unfolding = layout.unfolding(layout.problem.conv.lanes(target), block=False)
    rows = candidates.unfold_rows(unfolding, batch * groups * unfolding.view.out[0], target.costs)
    return Unfold(unfolding, batch, groups, layout.image, layout.elements, rows)


def _candidate(problem: Problem, target: Target, parameters: Im2winParameters) -> Candidate:
    form, whole = parameters.form, isinstance(parameters.rows, str)
    rows = None if isinstance(parameters.rows, str) else parameters.rows
    changed = parameters.changed()
    switched = changed != Im2winParameters()
    if form in ("base", "vector", "printed") and (rows or switched):
        raise SpecError(
            f"algorithm im2win: form={form} is computed as written; expected rows=N and switches "
            "with form=high only: leave them out, or take form=high"
        )
    if switched and rows:
        raise SpecError(
            f"algorithm im2win: got switches with rows={rows}; expected them with rows=whole"
        )
    if form == "base":
        return _base(problem, target)
    if form == "vector":
        return _vector(problem, target)
    if form == "printed":
        return _printed(problem, target)
    if not transforms(problem) or (not rows and (form or whole or switched)):
        return _high(problem, target, changed)
    return _blocked(problem, target, rows)


IM2WIN = Algorithm(
    "im2win",
    Im2winParameters,
    candidates.reject,
    candidates.cost(transformed_elements),
    _candidate,
    automatic=False,
    copied_taps=2,
)
