"""A kernel applied to buffers, as data: what to compile, its grid and its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.types import DTYPES, FLOAT32, DType

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
        divisible: what is known to divide arguments, by name.
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
        """What runs, by the name that the planner knows."""
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
        """Other buffers whose memory must be nothing else's: none."""
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
        divisible: what divides arguments that are numbers; buffers are aligned to 16 bytes.
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
