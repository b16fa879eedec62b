"""A kernel applied to buffers, as data: what to compile, its grid and its arguments; copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from leanconv.errors import UnsupportedError
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.types import DTYPES, FLOAT32, FLOAT64, DType
from leanconv.units import shape_text

Constant = int | bool | str
Argument = str | int | float

DTYPES_OF_TRITON = {dtype.triton: dtype for dtype in DTYPES if dtype.triton}
TENSOR_MAP = "tensordesc"  # prefix of Triton's type of a tensor map
_MOST_DIVISIBLE = 16


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a row-major array."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


@dataclass(frozen=True)
class Code:
    """A kernel to compile. Equal codes are compiled once.

    Attributes:
        function: module and name in `leanconv.gpu.kernels`: `"gemm.segment_gemm"`.
        types: name and Triton's type of every argument at run time, in the function's order.
        constants: arguments that are part of the code, by name.
        warps: groups of 32 threads of a program.
        stages: how many loads of a loop are under way at once.
        divisible: numbers that are known to divide arguments, by name.
    """

    function: str
    types: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Constant], ...]
    warps: int
    stages: int
    divisible: tuple[tuple[str, int], ...]

    @property
    def scratch_bytes(self) -> int:
        """Memory for each thread beside its registers: kernels here need none."""
        return 0

    def __str__(self) -> str:
        shown = ",".join(f"{name}={value}" for name, value in self.constants)
        pointers = "/".join(sorted({kind for _, kind in self.types if kind[0] == "*"}))
        known = ",".join(f"{name}%{factor}" for name, factor in self.divisible)
        return f"{self.function}[{shown}|{pointers}|w{self.warps}s{self.stages}|{known}]"


@dataclass(frozen=True)
class Pointer:
    """A buffer as an argument.

    Attributes:
        name: of the buffer; `""` for one that the code does not touch.
        dtype: of its elements, NumPy's name.
    """

    name: str
    dtype: DType


@dataclass(frozen=True)
class TensorMap:
    """A buffer as an argument that the kernel reads in boxes, through a tensor map (TMA).

    Attributes:
        name, dtype: as of `Pointer`.
        shape: of the tensor; cells outside are read as zeros.
        box: extents of what one copy brings.
        strides: in elements, 1 the last; None for row-major. They may be smaller than the extents
            behind them: then cells overlap, and one element is several cells of the tensor.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    box: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    @property
    def element_strides(self) -> tuple[int, ...]:
        """Strides in elements."""
        return dense_strides(self.shape) if self.strides is None else self.strides

    @property
    def kind(self) -> str:
        """Triton's type."""
        return f"{TENSOR_MAP}<{self.dtype.triton}[{', '.join(map(str, self.box))}]>"


@dataclass(frozen=True, eq=False)
class Launch:
    """One run of a kernel.

    Attributes:
        code: the kernel.
        grid: programs along three axes.
        arguments: for each of `code.types` a buffer's name or a number.
        values: the buffers that it touches; the last one is what it writes.
        in_place: buffers (indices of `reads`) whose memory the first result may take over.
        flops: floating point operations.
        tensors: shape and strides of the arguments that are tensor maps, in order.
    """

    code: Code
    grid: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    values: tuple[str, ...]
    in_place: tuple[int, ...] = ()
    flops: int = 0
    tensors: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()

    @property
    def kernel(self) -> Code:
        """The code of the kernel, by the name that the planner knows."""
        return self.code

    @property
    def reads(self) -> tuple[str, ...]:
        """The buffers that it reads."""
        return self.values[:-1]

    @property
    def results(self) -> tuple[str, ...]:
        """The buffer that it writes."""
        return self.values[-1:]

    @property
    def alive(self) -> tuple[str, ...]:
        """Other buffers that share no memory during the launch: none."""
        return ()

    @property
    def programs(self) -> int:
        """Programs of the whole grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


def by_axis(**extents: Sequence[int]) -> dict[str, int]:
    """Kernel arguments of the two axes of a plane: `pad=(1, 2)` is `pad_h` 1 and `pad_w` 2."""
    pairs = ((name, zip("hw", values, strict=True)) for name, values in extents.items())
    return {f"{name}_{axis}": value for name, pair in pairs for axis, value in pair}


def divisor(*numbers: int) -> int:
    """The largest power of two up to 16 that divides all of the numbers."""
    found = _MOST_DIVISIBLE
    while any(number % found for number in numbers):
        found //= 2
    return found


def make_launch(
    function: str,
    grid: tuple[int, ...],
    arguments: Mapping[str, Pointer | TensorMap | int | float],
    constants: Mapping[str, Constant],
    *,
    writes: str,
    warps: int = 4,
    stages: int = 1,
    divisible: Mapping[str, int] | None = None,
    in_place: str = "",
    flops: int = 0,
    numbers: DType = FLOAT32,
) -> Launch:
    """Describe one run of a kernel.

    Args:
        function: as in `Code`.
        grid: one to three extents.
        arguments: in the function's order.
        constants: as in `Code`.
        writes: the argument that is written.
        warps, stages: as in `Code`.
        divisible: numbers that divide numeric arguments; buffers are aligned to 16 bytes.
        in_place: the argument whose memory the result may take over, if any.
        flops: floating point operations.
        numbers: dtype of the arguments that are floats.
    """
    types, values, pointers = [], [], []
    for name, value in arguments.items():
        if isinstance(value, Pointer):
            types.append((name, "*" + value.dtype.triton))
            pointers.append((name, _MOST_DIVISIBLE))
        elif isinstance(value, TensorMap):
            types.append((name, value.kind))
        else:
            small = isinstance(value, float) or -(2**31) <= value < 2**31
            kind = numbers.triton if isinstance(value, float) else "i32" if small else "i64"
            types.append((name, kind))
        values.append(value.name if isinstance(value, (Pointer, TensorMap)) else value)
    result = arguments[writes]
    assert isinstance(result, Pointer)
    buffers = [a for a in arguments.values() if isinstance(a, (Pointer, TensorMap))]
    touched = [a.name for a in buffers if a.name]
    reads = [name for name in dict.fromkeys(touched) if name != result.name]
    taken = arguments.get(in_place, 0)
    # What is read in another place too, such as around each output, must stay.
    replaced = [taken.name] if isinstance(taken, Pointer) and taken.name else []
    in_turn = tuple(reads.index(n) for n in replaced if touched.count(n) == 1)
    known = [(name, factor) for name, factor in (divisible or {}).items() if factor > 1]
    code = Code(
        function,
        tuple(types),
        tuple(constants.items()),
        warps,
        stages,
        tuple(pointers + known),
    )
    x, y, z = (*grid, 1, 1)[:3]
    return Launch(
        code,
        (x, y, z),
        tuple(values),
        (*reads, result.name),
        in_turn,
        flops,
        tuple((a.shape, a.element_strides) for a in buffers if isinstance(a, TensorMap)),
    )


def blocks(count: int, size: int) -> int:
    """Programs that cover `count` elements, `size` each."""
    return ceil_div(count, size)


BOX_RANK = 6
_BLOCK = 512


def merged(shape: Sequence[int], *strides: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """A box with as few axes as possible, padded with ones to `BOX_RANK`: shape, then strides.

    Raises:
        UnsupportedError: more than `BOX_RANK` axes are left.
    """
    kept: list[list[int]] = []  # extent, then a stride of each operand
    for extent, *steps in zip(shape, *strides, strict=True):
        if extent == 1:
            continue
        if kept and all(
            outer == inner * extent for outer, inner in zip(kept[-1][1:], steps, strict=True)
        ):
            kept[-1] = [kept[-1][0] * extent, *steps]
        else:
            kept.append([extent, *steps])
    if len(kept) > BOX_RANK:
        raise UnsupportedError(
            f"a tensor of shape {shape_text(shape)} is moved along {len(kept)} separate axes; "
            f"expected at most {BOX_RANK}; use device='cpu'"
        )
    kept = [[1] + [0] * len(strides)] * (BOX_RANK - len(kept)) + kept
    return tuple(tuple(column) for column in zip(*kept, strict=True))


def box_arguments(
    extents: Sequence[int], first: Sequence[int], second: Sequence[int]
) -> dict[str, int]:
    """Kernel arguments of a box that `merged` returned: extents, and strides of two operands."""
    return {
        **{f"e{i}": extents[i] for i in range(1, BOX_RANK)},
        **{f"s{i}": first[i] for i in range(BOX_RANK)},
        **{f"t{i}": second[i] for i in range(BOX_RANK)},
    }


def is_wide(*offsets: int) -> bool:
    """Return whether kernels must count elements in 64 bits; they look one block past the end."""
    return any(abs(offset) >= 2**31 - 2**16 for offset in offsets)


def _reach(extents: Sequence[int], strides: Sequence[int]) -> int:
    """The distance of a box's last element from its first, and at least the box's size."""
    far = sum((e - 1) * abs(s) for e, s in zip(extents, strides, strict=True))
    return max(far, prod(extents))


def copy_box(
    x: str,
    y: str,
    dtype: DType,
    shape: Sequence[int],
    x_strides: Sequence[int],
    y_strides: Sequence[int],
    x_start: int = 0,
    y_start: int = 0,
) -> Launch:
    """y[box] = x[box], each with strides and a first element of its own."""
    extents, of, to = merged(shape, x_strides, y_strides)
    arguments: dict[str, Pointer | int | float] = {
        "x": Pointer(x, dtype),
        "y": Pointer(y, dtype),
        "count": prod(shape),
        "x_start": x_start,
        "y_start": y_start,
        **box_arguments(extents, of, to),
    }
    grid = (blocks(prod(shape), _BLOCK),)
    wide = is_wide(*(_reach(extents, steps) for steps in (of, to)), x_start, y_start)
    return make_launch(
        "data_movement.copy", grid, arguments, {"BLOCK": _BLOCK, "WIDE": wide}, writes="y"
    )


def permute(x: str, y: str, dtype: DType, shape: Sequence[int], order: Sequence[int]) -> Launch:
    """y = x.transpose(order), dense on both sides; tiles where two axes change places."""
    swapped = _planes(shape, order)
    if swapped is not None:
        return _transpose(x, y, dtype, *swapped)
    strides = dense_strides(shape)
    result = [shape[axis] for axis in order]
    return copy_box(x, y, dtype, result, [strides[axis] for axis in order], dense_strides(result))


def _planes(shape: Sequence[int], order: Sequence[int]) -> tuple[int, int, int] | None:
    """(batch, rows, columns) if the order moves a block of last axes before the one before it."""
    rank, first = len(shape), 0
    while first < rank and order[first] == first:
        first += 1
    rest = [axis - first for axis in order[first:]]
    for cut in range(1, len(rest)):
        if rest == [*range(cut, len(rest)), *range(cut)]:
            return (
                prod(shape[:first]),
                prod(shape[first : first + cut]),
                prod(shape[first + cut :]),
            )
    return None


def _transpose(x: str, y: str, dtype: DType, batch: int, rows: int, columns: int) -> Launch:
    tile_r, tile_c = (32, 32) if min(rows, columns) > 8 else (4, 256) if rows <= 8 else (256, 4)
    return make_launch(
        "data_movement.transpose",
        (blocks(rows, tile_r) * blocks(columns, tile_c), batch),
        {"x": Pointer(x, dtype), "y": Pointer(y, dtype), "rows": rows, "columns": columns},
        {"BR": tile_r, "BC": tile_c},
        writes="y",
        divisible={"rows": divisor(rows), "columns": divisor(columns)},
    )


def fill(y: str, dtype: DType, count: int, value: float) -> Launch:
    """y[...] = value."""
    return make_launch(
        "data_movement.fill",
        (blocks(count, _BLOCK),),
        {"y": Pointer(y, dtype), "count": count, "value": float(value)},
        {"BLOCK": _BLOCK},
        writes="y",
        numbers=FLOAT64,
    )
