"""Matrix tiles: Intel AMX, eight registers of 16 rows of 64 bytes, and their products.

    c[m][n] += sum over k < 64 of  a[m][k] · b[k // 4][4 n + k % 4]        bytes, summed in int32
    c[m][n] += sum over k < 32 of  a[m][k] · b[k // 2][2 n + k % 2]        bfloat16, in float32

`a` has up to 16 rows of 64 bytes, one for each row of `c`; `b` has 16 rows, each a group of four
bytes for each of the 16 columns of `c`. A product takes a cycle for each row of `a`. Products of
bfloat16 are exact in float32; their sums are rounded to nearest, and subnormal numbers are zeros.

Registers are named by numbers that are constants of the code. They are none of LLVM's: it keeps the
order of these instructions among each other and among loads and stores. A thread's registers are
configured before the first use and released after the last, so that a switch between threads saves
none; other code that is called in between must not use them.
"""

from __future__ import annotations

from collections.abc import Mapping

from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.target import Target
from leanconv.types import BFLOAT16, FLOAT32, INT8, INT32, UINT8, DType, Precision

ROWS = 16  # of a register, at most
ROW_BYTES = 64
TILE_BYTES = ROWS * ROW_BYTES
REGISTERS = 8
COLUMNS = 16  # of sums

_PRODUCTS: Mapping[tuple[DType, DType], str] = {
    (UINT8, INT8): "tdpbusd",
    (INT8, INT8): "tdpbssd",
    (UINT8, UINT8): "tdpbuud",
    (INT8, UINT8): "tdpbsud",
    (BFLOAT16, BFLOAT16): "tdpbf16ps",
}
_NARROWED: Mapping[DType, DType] = {FLOAT32: BFLOAT16}
_NEEDS: Mapping[DType, str] = {INT32: "amx_int8", FLOAT32: "amx_bf16"}  # by the type of sums


def factors(precision: Precision) -> tuple[DType, DType]:
    """Types of the factors of tiles: those of the operands, or bfloat16 for float32."""
    return _NARROWED.get(precision.x, precision.x), _NARROWED.get(precision.w, precision.w)


def multiplies(precision: Precision, target: Target) -> bool:
    """Return whether a target has products of tiles for operands and sums of these types."""
    needed = _NEEDS.get(precision.accumulate)
    known = factors(precision) in _PRODUCTS and precision.x.is_float == (needed == "amx_bf16")
    return known and needed in target.extensions


class Tiles:
    """The registers of a function under construction.

    Args:
        e: the function to append to.
        precision: types of the operands.
    """

    def __init__(self, e: Function, precision: Precision) -> None:
        self.e, self._product = e, _PRODUCTS[factors(precision)]

    def configure(self, rows: Mapping[int, int]) -> None:
        """Take the registers: each of `rows[register]` rows of 64 bytes."""
        counts = [rows.get(register, 0) for register in range(16)]
        widths = [ROW_BYTES if count else 0 for count in counts]
        palette, unused = 1, [0] * 15
        bytes_ = [palette, *unused, *(b for w in widths for b in (w, 0)), *counts]
        words = [int.from_bytes(bytes(bytes_[at : at + 4]), "little") for at in range(0, 64, 4)]
        self.e.effect("llvm.x86.ldtilecfg", self.e.table(words))

    def release(self) -> None:
        """Give the registers back."""
        self.e.effect("llvm.x86.tilerelease")

    def zero(self, register: int) -> None:
        """Fill a register with zeros."""
        self.e.effect("llvm.x86.tilezero", self._number(register))

    def load(self, register: int, address: Pointer, stride: Value | int) -> None:
        """Load a register's rows, `stride` bytes apart: 0 repeats one row."""
        where = address, self.e.i64(stride)
        self.e.effect("llvm.x86.tileloadd64", self._number(register), *where)

    def store(self, register: int, address: Pointer, stride: int = ROW_BYTES) -> None:
        """Store a register's rows, `stride` bytes apart."""
        where = address, self.e.i64(stride)
        self.e.effect("llvm.x86.tilestored64", self._number(register), *where)

    def multiply(self, c: int, a: int, b: int) -> None:
        """Add the product of two registers to a third."""
        self.e.effect(f"llvm.x86.{self._product}", *map(self._number, (c, a, b)))

    def _number(self, register: int) -> Value:
        return self.e.const("i8", register)
