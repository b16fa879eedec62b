"""The forms of a fused chain: its kernels for given strips, steps and parts, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from leanconv.algorithms.common.conv import with_conv
from leanconv.algorithms.depthwise.algorithm import depthwise_kernel
from leanconv.algorithms.direct.algorithm import fitting_way, folds, with_excess
from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.direct.plan import tile_work
from leanconv.algorithms.fused.block import (
    NO_BORDER,
    BlockKernels,
    Border,
    ImageRows,
    input_rows,
    rows_access,
)
from leanconv.algorithms.fused.kernel import FusedChain, SumOfParts
from leanconv.algorithms.interface import KernelUse
from leanconv.algorithms.parameters import COUNT, Choice, Parameters, parameter
from leanconv.algorithms.problem import Excess, Problem
from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.geometry import Access
from leanconv.codegen.tiling import Tile, by_lane, rank_tiles
from leanconv.kernels.lookup import lookup_lanes
from leanconv.kernels.lookup import way_of as way_of_lookup
from leanconv.records import dataclass, field, replace
from leanconv.spec import ConvSpec
from leanconv.spec.format import ceil_div
from leanconv.spec.typical import ANY_COUNT
from leanconv.symbolic import least
from leanconv.target import Target
from leanconv.types import UINT8, DType

FORM_NAMES = ("rows", "panel", "split")
_LEAST_CHUNKS = 4  # of a block of an open size
_LEAST_ROWS, _BEST_ROWS, _MOST_ROWS = 7, 14, 16  # of tiles of one vector


@dataclass(frozen=True)
class Chain:
    """The convolutions of a block to be fused, with the layouts of their operands.

    Attributes:
        expand: the first convolution, None if there is none.
        depthwise, project: the others; the last one may add a residual.
        x, y: strides of input and output (and residual); y in blocks of one vector of channels, and
            x too if there is no first convolution. Of an image, those of its rows of codes.
        any_size: axes of the windows along which the code is to serve all sizes of the images.
        image: conversion of an image's rows to those that the first convolution reads, if any.
        border: of codes round the first convolution's result, which the depthwise one reads.
        tables: the stages whose codes are looked up in a table: `"expand"`, `"depthwise"`.
        excess: of each convolution, as of `Problem`; empty where that is not known.
    """

    expand: ConvSpec | None
    depthwise: ConvSpec
    project: ConvSpec
    x: Access
    y: Access
    any_size: tuple[int, ...] = ()
    image: ImageRows | None = None
    border: Border = NO_BORDER
    tables: tuple[str, ...] = ()
    excess: tuple[Excess | None, ...] = ()

    @property
    def specs(self) -> tuple[ConvSpec, ...]:
        """The convolutions in order."""
        inner = (self.depthwise, self.project)
        return inner if self.expand is None else (self.expand, *inner)

    def alone(self) -> Chain:
        """Return the same chain for one image."""
        expand = self.expand and replace(self.expand, batch=1)
        inner = replace(self.depthwise, batch=1)
        return replace(self, expand=expand, depthwise=inner, project=replace(self.project, batch=1))

    @property
    def dtype(self) -> DType:
        """Element type of all tensors, for a chain that has only one."""
        return self.depthwise.dtype

    @property
    def has_codes(self) -> bool:
        """True if the convolutions are of integer codes."""
        return not self.depthwise.precision.x.is_float

    def lanes(self, target: Target) -> int:
        """Lanes of a vector of sums, which are the channels of a block."""
        return target.lanes(self.depthwise.precision.accumulate)


@dataclass(frozen=True)
class ChainParameters(Parameters):
    """Output rows of a chunk, parts of the inner channels, output rows of a step."""

    rows: int | None = parameter(COUNT)
    parts: int | None = parameter(COUNT)
    step: int | None = parameter(COUNT)


@dataclass(frozen=True)
class Form:
    """One way to go through a chain.

    Attributes:
        name: `"rows"`, `"panel"` or `"split"`.
        rows: output rows of a chunk.
        step: output rows of a step.
        parts: into how many parts the inner channels are split.
    """

    name: str
    rows: int
    step: int
    parts: int = 1

    @property
    def choice(self) -> Choice:
        """The form as a plan names it: `"rows:rows=14,step=2"`, `"split:parts=2,step=1"`."""
        given = ChainParameters(step=self.step)
        if self.parts > 1:
            return Choice(self.name, replace(given, parts=self.parts))
        return Choice(self.name, replace(given, rows=self.rows))


def form_of_size(choice: Choice, chain: Chain, target: Target) -> Form:
    """A form that was chosen for another size, with chunks and steps that are equal here.

    There are `_LEAST_CHUNKS` at least of what takes long enough: of fewer rows, or in more parts
    where rows are too few or where fewer would expand some of the input twice.
    """
    given, count = choice.parameters, prod(chain.project.output_size[:-1])
    assert isinstance(given, ChainParameters)
    name, step, parts = choice.algorithm, given.step or given.rows or 1, given.parts or 1
    rows, batch = given.rows or step, chain.project.batch
    flops = sum(spec.flops for spec in chain.specs)
    each = _LEAST_CHUNKS * round(2 * target.fma_units * chain.lanes(target))  # flops, of a cycle
    if flops >= each * round(target.costs.least_chunk):
        divides = chain.expand is None or (name == "rows" and batch * count >= _LEAST_CHUNKS)
        pieces = batch * (count if divides else ceil_div(count, rows))
        if pieces * parts < _LEAST_CHUNKS and flops >= each * round(target.costs.chunk):
            more = (n for n in possible_parts(chain, target) if pieces * n >= _LEAST_CHUNKS)
            parts = next(more, parts)
            name = "split" if parts > 1 else name
        strips = ceil_div(_LEAST_CHUNKS, batch * parts)
        longest = ceil_div(count, strips)
        if longest > 1 and ceil_div(count, longest) < strips:
            longest -= 1
        step, rows = least(step, longest), least(rows, longest)
    step = _equal(count, step)
    return Form(name, ceil_div(_equal(count, rows), step) * step, step, parts)


def _equal(count: int, most: int) -> int:
    """About equal parts of a number, of at most `most` each."""
    return ceil_div(count, ceil_div(count, most))


@dataclass(frozen=True)
class ChainKernels:
    """The kernels of a form.

    Attributes:
        kernels: run one after the other.
        chain: the first of them.
        temporaries: bytes of each buffer between them.
    """

    kernels: tuple[KernelUse, ...]
    chain: FusedChain
    temporaries: Mapping[str, int] = field(default_factory=dict)


def inner_blocks(chain: Chain, target: Target) -> int:
    """Vectors of the channels between the convolutions."""
    return ceil_div(chain.depthwise.out_channels, chain.lanes(target))


def possible_parts(chain: Chain, target: Target) -> list[int]:
    """Into how many parts the inner channels can be split, all of whole vectors.

    None where sums become codes: only whole sums do.
    """
    blocks = inner_blocks(chain, target)
    if chain.has_codes or chain.depthwise.out_channels % chain.lanes(target):
        return []
    return [parts for parts in (2, 3, 4, 6, 8) if blocks % parts == 0]


def build(chain: Chain, form: Form, target: Target) -> ChainKernels:
    """The kernels of a form."""
    lanes, batch = chain.lanes(target), chain.depthwise.batch
    block = block_kernels(chain, target, form.step, form.name == "rows", form.parts)
    fused = FusedChain(batch, block, form.rows, form.parts)
    if form.parts == 1:
        return ChainKernels((KernelUse(fused, fused.operands),), fused)
    total = SumOfParts(
        parts=form.parts,
        batch=batch,
        blocks=ceil_div(chain.project.out_channels, lanes),
        pixels=prod(chain.project.output_size),
        dtype=chain.dtype,
        lanes=lanes,
        epilogue=Problem.of(chain.project, chain.y, chain.y).conv.epilogue,
    )
    size = form.parts * batch * chain.y.image * chain.dtype.bytes
    first = KernelUse(fused, (*fused.operands[:-1], "part"))
    return ChainKernels((first, KernelUse(total, total.operands)), fused, {"part": size})


def block_kernels(
    chain: Chain,
    target: Target,
    step: int,
    ring: bool,
    parts: int = 1,
    x_ring: int = 0,
    single: bool = False,
) -> BlockKernels:
    """The kernels of a chain's convolutions, with rows between them in the scratch.

    Args:
        chain: the convolutions.
        target: the machine.
        step: output rows that are done together.
        ring: whether e is a ring of rows of all channels, if there is an e.
        parts: into how many parts the channels in the middle are split; the kernels are of one,
            and leave bias, residual and activation to whoever adds the parts up.
        x_ring: rows of x that are kept, where it is no whole tensor.
        single: whether the last convolution's tiles must be of one vector of channels, as where
            the residual's blocks of channels do not lie like those of y.
    """
    lanes = chain.lanes(target)
    inner = chain.depthwise.out_channels // parts

    def problem(spec: ConvSpec, x: Access, y: Access, place: int) -> Problem:
        made, known = Problem.of(spec, x, y), chain.excess
        excess = known[place] if known else None
        return replace(made, any_size=chain.any_size, excess=excess, folds_shift=chain.has_codes)

    window = problem(chain.depthwise, chain.x, chain.y, -2).conv.window
    held = min(window.size[1], (step - 1) * window.stride[1] + input_rows(window))
    d = rows_access(step, window.out[2], lanes)
    expand, e, image = None, chain.x, chain.image
    if chain.expand is not None:
        e = rows_access(held, window.size[2], lanes)
        spec = replace(chain.expand, out_channels=inner)
        expand = _dense(problem(spec, chain.x, e, 0), target)
    keeps_expanded = ring and expand is not None
    spec = replace(chain.depthwise, in_channels=inner, out_channels=inner, groups=inner)
    depthwise = depthwise_kernel(problem(spec, e, d, -2), target)
    kept = held if keeps_expanded else 0 if expand else x_ring
    depthwise = replace(depthwise, ring=kept, rows=1)
    spec = replace(chain.project, in_channels=inner, size=(step, window.out[2]))
    last = problem(spec, d, chain.y, -1)
    projects = _projects(last if parts == 1 else with_conv(last, epilogue=Epilogue()), target)
    if single:
        projects = tuple(replace(p, tile=_single(target, _columns(last))) for p in projects)
    if image and expand:
        image = image.holding(
            (held - 1) * expand.conv.window.stride[1] + input_rows(expand.conv.window)
        )
    stages = expand, depthwise, projects
    way = (way_of_lookup(UINT8, target), lookup_lanes(UINT8, target)) if chain.tables else None
    block = BlockKernels(*stages, step, keeps_expanded, image, chain.border, chain.tables)
    block = replace(block, lookup=way) if way else block
    assert block.linked() == block, "the stages do not meet"
    return block


def _dense(problem: Problem, target: Target) -> DirectConv:
    """The direct kernel of a stage, with the register tile that the model likes best."""
    conv = problem.conv
    kernel = DirectConv(
        conv=conv,
        lanes=conv.lanes(target),
        tile=Tile(1, 1),
        rows=1,
        panels_inside=False,
        any_width=bool(problem.any_size),
        way=fitting_way(problem, target),
        folded=folds(problem),
    )
    kernel = with_excess(problem, kernel, target)
    tile = _tile(target, _columns(problem), kernel)
    lanes = kernel.dot_group == 1 and by_lane(target, tile.rows, tile.vectors)
    return replace(kernel, tile=tile, by_lane=lanes)


def _columns(problem: Problem) -> int:
    """Columns of a row for which a tile is chosen."""
    return ANY_COUNT if problem.any_size else problem.conv.window.out[2]


def _tile(target: Target, columns: int, kernel: DirectConv) -> Tile:
    """A register tile: of floats one vector of channels wide where a single unit multiplies.

    There loads have time to spare, and results that leave in one stream are as good as free: 14x1
    took 349 us where 6x3 took 397 (16 channels to 96 at 112x112, arithmetic alone 329).
    """
    if kernel.dot_group > 1 or not target.splits_vectors or columns < _LEAST_ROWS:
        vectors = ceil_div(kernel.conv.outputs, kernel.lanes)
        return rank_tiles(target, columns, vectors, kernel.steps, tile_work(kernel, target))[0][1]
    even = [rows for rows in range(_LEAST_ROWS, _MOST_ROWS + 1) if columns % rows == 0]
    if even:
        return Tile(min(even, key=lambda rows: abs(rows - _BEST_ROWS)), 1)
    return Tile(ceil_div(columns, ceil_div(columns, _MOST_ROWS)), 1)


def _single(target: Target, columns: int) -> Tile:
    """A tile of one vector for a row of so many columns."""
    most = min(_MOST_ROWS, target.accumulators - 2)
    return Tile(ceil_div(columns, ceil_div(columns, most)), 1)


def _projects(problem: Problem, target: Target) -> tuple[DirectConv, ...]:
    """The 1x1 convolution at the end; the last vector by itself if half a register does for it.

    Where one unit does a whole vector in the time of two halves, that is half the work.
    """
    conv, lanes = problem.conv, problem.conv.lanes(target)
    whole, rest = divmod(conv.out_channels, lanes)
    floats = conv.precision.x.is_float
    if not (floats and target.splits_vectors and 0 < rest <= lanes // 2):
        return (_dense(problem, target),)
    tail = with_conv(problem, outputs=rest, y_offset=conv.y.channel(whole * lanes))
    last = _dense(tail, target.with_half_vectors())
    if not whole:
        return (last,)
    head = with_conv(problem, outputs=whole * lanes)
    return (_dense(head, target), last)
