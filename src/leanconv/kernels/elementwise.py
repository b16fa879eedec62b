"""Element by element: unary and binary operations with NumPy's broadcasting, in any format.

    y[i0, …, in] = f(x0[i0 s00 + … + in s0n], x1[…], …)

The index space is the result's memory, row-major; every operand has a stride for each of its axes,
0 where it is broadcast. Blocked tensors need nothing of their own: their lanes are the last axis,
and an operand of one channel has stride 0 along it. Axes with the same strides are merged,
so two tensors of one shape become a single axis, and a bias per channel at most four. Along the
last axis a vector is loaded (stride 1) or one element is broadcast (stride 0); what an inner loop
does not move is loaded outside of it.

Operands and the result may be of different types. A vector has as many lanes as a register has of
the widest type; values of narrower ones are parts of registers in memory order. Along a last axis
that is long, a vector fills a register with the narrowest type, and some with the widest; so does
that of several steps, whose instructions would wait for each other in one register.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np

from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Lowered
from leanconv.codegen.tails import where_any
from leanconv.graph.ir import Graph, Node, is_filled
from leanconv.graph.open_sizes import SizedArray
from leanconv.graph.ops import infer_term
from leanconv.graph.ops.pointwise import inner_nodes, term_types, terms_of
from leanconv.kernels import KernelContext, quantised_steps
from leanconv.kernels.copy_plan import to_format
from leanconv.kernels.expression import (
    Step,
    broadcast_strides,
    merged,
    row_major,
    step_of,
)
from leanconv.kernels.typed_steps import from_memory, in_memory, to_memory
from leanconv.records import dataclass, replace
from leanconv.spec.format import Format, ceil_div
from leanconv.symbolic import Extents, Scalars, Symbol
from leanconv.target import Target
from leanconv.types import FLOAT32, FLOATS, DType, as_dtype

# Elements of one chunk: 64 KiB of float, two microseconds of adding and ten of erf.
PIECE = 16384

CODES_IN_BLOCKS = True
# Of the widest type that a vector fills. Four erfs one after the other, 784 KiB: 0.42 ms by four
# registers, 0.51 by two, 0.50 by one (Sapphire Rapids); Softplus and Tanh 0.32, 0.38, 0.45.
_MOST_REGISTERS = 4
_LEAST_LANE = 4  # bytes: masks of narrower elements are registers of bits, or branches


@dataclass(frozen=True)
class Elementwise(Kernel):
    """A chain of steps over operands that are broadcast to the result.

    The grid: axis `cut` is cut into pieces, for each row of the axes before it.

    Attributes:
        dtype: the widest type; that of `numbers`.
        extents: of the result, axes merged, at least one.
        strides: in elements, one tuple per operand; 0 or 1 along the last axis.
        numbers: constants of the expression.
        steps: the expression; the last one is stored.
        types: of each operand and of the result; empty where all are `dtype`.
    """

    VARIES = True

    dtype: DType
    extents: Extents
    strides: tuple[Extents, ...]
    numbers: Scalars
    steps: tuple[Step, ...]
    types: tuple[DType, ...] = ()

    @property
    def operands(self) -> tuple[str, ...]:
        return (*(f"x{i}" for i in range(len(self.strides))), "y")

    @property
    def cut(self) -> int:
        """The first axis after which no more than a chunk's elements remain."""
        after = [prod(self.extents[axis + 1 :]) for axis in range(len(self.extents))]
        return next(axis for axis, count in enumerate(after) if count <= PIECE)

    def piece(self, axis: int) -> int:
        """Extent of a piece of an axis: about equal ones, whole vectors on every target.

        Before axis `cut` it is 1, after it all of the axis (of the last one, whole vectors).
        """
        pieces = ceil_div(prod(self.extents[axis:]), PIECE)
        even = ceil_div(self.extents[axis], pieces)
        return even if axis < len(self.extents) - 1 else ceil_div(even, 64) * 64

    @property
    def chunks(self) -> int:
        if not prod(self.extents):
            return 0
        return prod(self.extents[: self.cut]) * ceil_div(
            self.extents[self.cut], self.piece(self.cut)
        )

    @property
    def flops(self) -> int:
        return prod(self.extents) * len(self.steps)

    def emit(self, target: Target) -> str:
        return _Nest(self, target).emit()


class _Nest:
    def __init__(self, kernel: Elementwise, target: Target) -> None:
        self.k, self.e, self.target = kernel, Function(kernel.NAME), target
        self.types = kernel.types or (kernel.dtype,) * (len(kernel.strides) + 1)
        self.lanes = target.lanes(kernel.dtype)
        if not target.masks_are_bits:
            self.lanes = min(self.lanes, target.vector_bytes // _LEAST_LANE)
        filled = target.vector_bytes // min(dtype.bytes for dtype in self.types)
        most = _MOST_REGISTERS * target.lanes(kernel.dtype)
        self.wide = most if len(kernel.steps) > 1 else min(filled, most)
        self.inner = len(kernel.extents) - 1
        line = kernel.extents[-1]
        self.one_vector = not (self.inner == 0 and isinstance(line, Symbol)) and line <= self.lanes
        self.ranges: dict[int, tuple[Value | int, Value | int]] = {}  # else all of an axis
        contiguous = tuple(prod(kernel.extents[i + 1 :]) for i in range(len(kernel.extents)))
        self.strides = (*kernel.strides, contiguous)
        self.homes = [self._home(s) for s in kernel.strides]

    def _home(self, strides: tuple[int, ...]) -> int:
        """The axis in whose loop an operand is loaded, -1 for before all loops."""
        moving = strides[:-1] if self.one_vector else strides
        return max((axis for axis, s in enumerate(moving) if s), default=-1)

    def emit(self) -> str:
        e, k = self.e, self.k
        pointers = [e.pointer(i, in_memory(dtype)) for i, dtype in enumerate(self.types)]
        values: list[Value | None] = [None] * len(k.strides)
        self._load(-1, pointers, values)
        if any(isinstance(extent, Symbol) for extent in k.extents):
            self._pieces(pointers, values)
            return e.finish()
        pieces = ceil_div(k.extents[k.cut], k.piece(k.cut))
        with e.chunks(prod(k.extents[: k.cut]), pieces) as (row, piece):
            self._row(row, piece, pointers, values)
        return e.finish()

    def _pieces(self, pointers: list[Pointer], values: list[Value | None]) -> None:
        """Pieces of all axes: the same grid, in one code for all axes that could be cut.

        A last axis of less than a chunk is not cut unless it is the only one.
        """
        k = self.k
        whole = self.inner > 0 and k.extents[-1] <= PIECE
        axes = range(self.inner if whole else self.inner + 1)
        counts = [ceil_div(k.extents[axis], k.piece(axis)) for axis in axes]
        with self.e.chunks(*counts) as pieces:
            self.ranges = {axis: self._range(axis, piece) for axis, piece in enumerate(pieces)}
            self._axis(0, pointers, values)

    def _row(
        self, row: Value, piece: Value, pointers: list[Pointer], values: list[Value | None]
    ) -> None:
        """One row, or one piece of it: find where it starts, then run the remaining axes."""
        k, values = self.k, list(values)
        for axis in reversed(range(k.cut)):
            index = row % k.extents[axis] if axis else row
            row = row // k.extents[axis]
            pointers = self._advance(axis, index, pointers)
        for axis in range(k.cut):
            self._load(axis, pointers, values)
        if k.piece(k.cut) < k.extents[k.cut]:
            self.ranges[k.cut] = self._range(k.cut, piece)
        self._axis(k.cut, pointers, values)

    def _advance(self, axis: int, index: Value, pointers: list[Pointer]) -> list[Pointer]:
        steps = [s[axis] for s in self.strides]
        return [p.at(index * s) if s else p for p, s in zip(pointers, steps, strict=True)]

    def _load(
        self,
        axis: int,
        pointers: list[Pointer],
        values: list[Value | None],
        count: int | None = None,
        lanes: int = 0,
    ) -> None:
        """Load the operands whose place is this axis: whole vectors, or the first lanes."""
        lanes = lanes or self.lanes
        if count is None:
            line = self.k.extents[-1]
            count = self.target.lanes_of_tail(line) if self.one_vector else lanes
        for i, home in enumerate(self.homes):
            if home != axis:
                continue
            kind = vector(in_memory(self.types[i]), lanes)
            if self.strides[i][-1] == 0:
                loaded = self.e.broadcast(pointers[i], kind)
            else:
                loaded = self.e.load_first(pointers[i], kind, count)
            values[i] = from_memory(self.e, loaded, self.types[i])

    def _axis(self, axis: int, pointers: list[Pointer], values: list[Value | None]) -> None:
        if axis == self.inner:
            self._vectors(pointers, values)
            return
        start, stop = self.ranges.get(axis, (0, self.k.extents[axis]))
        with self.e.loop(f"i{axis}", stop, start=start) as i:
            moved, inside = self._advance(axis, i, pointers), list(values)
            self._load(axis, moved, inside)
            self._axis(axis + 1, moved, inside)

    def _range(self, axis: int, piece: Value) -> tuple[Value, Value]:
        k = self.k
        start = piece * k.piece(axis)
        return start, self.e.smin(start + k.piece(axis), k.extents[axis])

    def _vectors(self, pointers: list[Pointer], values: list[Value | None]) -> None:
        e, extent = self.e, self.k.extents[-1]
        if self.one_vector:
            self._compute(pointers, values, self.target.lanes_of_tail(extent))
            return
        tail = self.target.lanes_of_tail(extent % self.lanes)
        start, stop = self.ranges.get(self.inner, (0, extent))
        if isinstance(stop, Value) and isinstance(start, Value):
            whole = e.smin(stop, extent - tail)
            with e.when(start.compare("ult", whole)):
                self._vector_loop(pointers, values, start, whole)
            for _ in where_any(e, tail):
                with e.when(stop.compare("eq", extent)):
                    self._tail(pointers, values, tail)
            return
        self._vector_loop(pointers, values, 0, extent - tail)
        for _ in where_any(e, tail):
            self._tail(pointers, values, tail)

    def _vector_loop(
        self,
        pointers: list[Pointer],
        values: list[Value | None],
        start: Value | int,
        stop: Value | int,
    ) -> None:
        if self.wide <= self.lanes:
            self._vectors_of(self.lanes, pointers, values, start, stop)
            return
        split = start + (stop - start) // self.wide * self.wide
        for _ in self._where_more(start, split):
            wide = [v and self.e.shuffle(v, None, [0] * self.wide) for v in values]
            self._vectors_of(self.wide, pointers, wide, start, split)
        for _ in self._where_more(split, stop):
            self._vectors_of(self.lanes, pointers, values, split, stop)

    def _where_more(self, start: Value | int, stop: Value | int) -> Iterator[None]:
        if isinstance(start, Value) or isinstance(stop, Value):
            with self.e.when(self.e.i64(start).compare("ne", stop)):
                yield
        else:
            yield from where_any(self.e, stop - start)

    def _vectors_of(
        self,
        lanes: int,
        pointers: list[Pointer],
        values: list[Value | None],
        start: Value | int,
        stop: Value | int,
    ) -> None:
        with self.e.loop("v", stop, start=start, step=lanes) as i:
            moved, inside = self._advance(self.inner, i, pointers), list(values)
            self._load(self.inner, moved, inside, lanes=lanes)
            self._compute(moved, inside, lanes, lanes)

    def _tail(self, pointers: list[Pointer], values: list[Value | None], count: int) -> None:
        e, inside = self.e, list(values)
        i = e.i64(self.k.extents[-1] - count)
        moved = self._advance(self.inner, i, pointers)
        self._load(self.inner, moved, inside, count)
        self._compute(moved, inside, count)

    def _compute(
        self, pointers: list[Pointer], loaded: list[Value | None], count: int, lanes: int = 0
    ) -> None:
        e = self.e
        values = [v for v in loaded if v is not None]
        assert len(values) == len(loaded), "an operand was not loaded"
        kind = vector(self.k.dtype.llvm, lanes or self.lanes)
        values += [e.const(kind, number) for number in self.k.numbers]
        for step in self.k.steps:
            values.append(step.apply(e, values))
        e.store_first(to_memory(e, values[-1], self.types[-1]), pointers[-1], count)


def accepts_blocked(node: Node, graph: Graph, block: int) -> bool:
    """True if every operand has its channels where the result has them, or none at all."""
    del block
    result = graph.types[node.output].shape
    if len(result) < 3:
        return False
    for name in node.inputs:
        kind = graph.types[name]
        if name not in graph.constants and kind.elements != 1 and len(kind.shape) != len(result):
            return False
    return True


_Source = str | tuple[str, int]  # a value's name; an array of a term: its result's name, a number


@dataclass(frozen=True)
class _Term:
    """One operation of a node: itself, or one of an Expression's.

    Attributes:
        node: the operation.
        operands: names of values, some of them of terms before, and of arrays.
        types: of the operation's inputs and of its result.
        computes: the widest type in which it computes.
        stored: as `pointwise.Term` has it.
    """

    node: Node
    operands: Sequence[_Source]
    types: tuple[DType, ...]
    computes: DType
    stored: DType | None


class _Operands:
    """A kernel's operands: tensors, each once, and numbers for constants of one value.

    Args:
        dtype: of the numbers.
        terms: which read them, as each other's results.
        arrays: that terms read; they broadcast to the result.
    """

    def __init__(
        self,
        context: KernelContext,
        dtype: DType,
        terms: Sequence[_Term],
        arrays: Mapping[_Source, np.ndarray],
    ) -> None:
        node, graph, formats = context.node, context.graph, context.formats
        self.shape, self.format = graph.types[node.output].shape, formats[node.output]
        self.prefix, self.dtype = node.output, dtype
        self.constants: dict[str, np.ndarray] = {}
        self.names: list[str] = []
        self.types: list[DType] = []
        self.strides: list[tuple[int, ...]] = []
        self.numbers: list[float] = []
        self.sources: dict[_Source, tuple[bool, int]] = {}  # (is a number, index among its own)
        # Sizes decide a constant's numbers: it is read as it is, as any value.
        powers = any(term.node.op == "Pow" for term in terms)  # which look at exponents
        plain = not self.format.block and not powers
        made = {term.node.output for term in terms}
        read = dict.fromkeys(each for term in terms for each in term.operands)
        for position, source in enumerate(each for each in read if each not in made):
            if not isinstance(source, str):
                array = arrays[source]
                self.sources[source] = self._constant(position, as_dtype(array.dtype), array)
                continue
            kind, held = graph.types[source], graph.constants.get(source)
            if held is None or (plain and isinstance(held, SizedArray)):
                form = formats.get(source, Format())
                self.sources[source] = self._add(source, kind.dtype, kind.shape, form)
            else:
                self.sources[source] = self._constant(position, kind.dtype, held)

    def _add(
        self, name: str, dtype: DType, shape: tuple[int, ...], form: Format
    ) -> tuple[bool, int]:
        self.names.append(name)
        self.types.append(dtype)
        self.strides.append(broadcast_strides(shape, self.shape, form, self.format))
        return False, len(self.names) - 1

    def _constant(self, position: int, dtype: DType, array: np.ndarray) -> tuple[bool, int]:
        if is_filled(array):  # as many as it may repeat: they are neither read nor made
            array = array[(slice(1),) * array.ndim]
        shape, form = (1,) * (len(self.shape) - array.ndim) + array.shape, Format()
        if array.size and (array == array.flat[0]).all():
            if dtype == self.dtype and dtype in FLOATS:
                self.numbers.append(float(array.flat[0]))
                return True, len(self.numbers) - 1
            array = array.reshape(-1)[:1]
            shape = (1,) * len(self.shape)
        elif self.format.block and shape[1] > 1:
            array, form = to_format(array.reshape(shape), self.format), self.format
        name = f"{self.prefix}.constant{position}"
        self.constants[name] = np.ascontiguousarray(array)
        return self._add(name, dtype, shape, form)

    @property
    def places(self) -> dict[_Source, int]:
        """The numbers by which steps name the operands."""
        found = self.sources.items()
        return {each: len(self.names) + i if number else i for each, (number, i) in found}

    def of_line(self, operand: _Source, strides: Sequence[tuple[int, ...]]) -> bool:
        """True if one number of an operand holds for all of the last axis."""
        number, i = self.sources.get(operand, (False, -1))  # of a term: the result's strides
        return number or not strides[i][-1]

    def known(self, operand: _Source) -> float | None:
        """Return an operand's number if it is one known number."""
        if operand not in self.sources:
            return None
        number, i = self.sources[operand]
        if number:
            return self.numbers[i]
        held = self.constants.get(self.names[i])
        return float(held[0]) if held is not None and held.shape == (1,) else None


def _terms(node: Node, graph: Graph) -> tuple[list[_Term], dict[_Source, np.ndarray]]:
    """The operations of a node, and the arrays that they read beside values of the graph."""
    terms, inner = terms_of(node), inner_nodes(node, ())
    types = {name: graph.types[name] for name in (*node.inputs, node.output)}
    if node.op == "Expression":
        kinds = term_types([types[name] for name in node.inputs], terms, infer_term)
        types.update(zip((each.output for each in inner), kinds, strict=True))
    seen, found = replace(graph, types=types), list[_Term]()
    arrays: dict[_Source, np.ndarray] = {}
    for each, term in zip(inner, terms, strict=True):
        dtypes = tuple(types[name].dtype for name in (*each.inputs, each.output))
        sources, computes = list[_Source](each.inputs), max(dtypes, key=_width)
        if each.op in quantised_steps.OPS:
            sources, computes = [], quantised_steps.real_type(each, seen)
            for number, operand in enumerate(quantised_steps.operands(each, seen)):
                sources.append(operand if isinstance(operand, str) else (each.output, number))
                if not isinstance(operand, str):
                    arrays[each.output, number] = operand
        found.append(_Term(each, sources, dtypes, computes, term.stored))
    return found, arrays


def _width(dtype: DType) -> tuple[int, bool]:
    return dtype.bytes, dtype.is_float


def lower(context: KernelContext) -> Lowered:
    """One kernel; constants of one value become numbers in it, others are packed like the result.

    The result may take over the memory of an operand of its own shape whose elements are as large.
    """
    node, graph, out = context.node, context.graph, context.node.output
    kind, (terms, arrays) = graph.types[out], _terms(node, graph)
    widest = max((each.computes for each in terms), key=_width)
    operands = _Operands(context, widest, terms, arrays)
    memory = context.formats[out].physical_shape(kind.shape)
    extents, strides = merged(memory, [*operands.strides, row_major(memory)])
    steps = _steps(terms, operands, extents[-1], strides, context.target)
    held = (*operands.types, kind.dtype) if any(step.types for step in steps) else ()
    numbers = tuple(operands.numbers)
    kernel = Elementwise(widest, extents, strides[:-1], numbers, steps, held)
    in_place = tuple(
        i
        for i, (name, s) in enumerate(zip(operands.names, operands.strides, strict=True))
        if name not in operands.constants
        and name not in graph.constants
        and s == row_major(memory)
        and operands.types[i].bytes == kind.dtype.bytes
    )
    call = Call(kernel, (*operands.names, out), in_place)
    return Lowered((call,), operands.constants, algorithm="elementwise")


def _steps(
    terms: Sequence[_Term],
    operands: _Operands,
    line: int,
    strides: Sequence[tuple[int, ...]],
    target: Target,
) -> tuple[Step, ...]:
    """The steps of terms; what would be stored in halves is rounded to them."""
    first = len(operands.names) + len(operands.numbers)
    places, steps = operands.places, list[Step]()
    for term in terms:
        args = tuple(places[each] for each in term.operands)
        step = step_of(term.node, args, term.types, operands.known(term.operands[-1]))
        reciprocal = quantised_steps.is_by_reciprocal(term.node, term.types, line, target)
        if reciprocal and operands.of_line(term.operands[1], strides):
            step = replace(step, parameters=(1.0,))
        steps.append(step)
        if term.stored is not None:
            rounded = (FLOAT32, term.stored)
            steps.append(Step("Cast", (first + len(steps) - 1,), types=rounded))
        places[term.node.output] = first + len(steps) - 1
    return tuple(steps)
