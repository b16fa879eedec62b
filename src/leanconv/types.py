"""Element types as records: one object for each, with all that anybody needs to know of it.

A type is its NumPy name, as text: it stands in keys, messages, files and NumPy calls without being
written out. What depends on a type is an attribute of it, never a table by its name. A `Precision`
says in which types a convolution is computed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from leanconv.errors import SpecError
from leanconv.records import dataclass

Kind = Literal["bool", "uint", "int", "float"]


class DType(str):
    """An element type: the text of its name, and facts. There is one object for each type.

    Attributes:
        bytes: of one element in memory.
        kind: truth values, unsigned or signed integers, or floats.
        llvm: LLVM's name of an element in memory; signs are those of the operations on it.
        numpy: NumPy's name of the elements in memory: `uint16` for bfloat16, which NumPy lacks.
        onnx: its number in ONNX's `TensorProto.DataType`.
        triton: Triton's name, `""` if no kernel of ours has such elements.
        roundoff: half of the spacing of its numbers at 1; 0.0 for integers, which are exact.
        least_normal: the smallest positive number of full precision; 1.0 for integers.
        low, high: the least and the largest finite number, exactly.
        held: the type of its codes at the borders of a file's network: its own, but for bfloat16
            and those of `NARROW`.
    """

    __slots__ = (
        "bytes",
        "held",
        "high",
        "kind",
        "least_normal",
        "llvm",
        "low",
        "numpy",
        "onnx",
        "roundoff",
        "triton",
    )

    bytes: int
    kind: Kind
    llvm: str
    numpy: str
    onnx: int
    triton: str
    roundoff: float
    least_normal: float
    low: float
    high: float
    held: DType

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return named_dtype, (str(self),)

    def __copy__(self) -> DType:
        return self

    def __deepcopy__(self, memo: object) -> DType:
        return self

    @property
    def is_float(self) -> bool:
        """True if its numbers are floating-point ones."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """True if its numbers are integers, signed or not; truth values are none."""
        return self.kind in ("int", "uint")

    def holds(self, other: DType) -> bool:
        """Return whether it has every number of another type; truth values are 0 and 1."""
        if self.is_float and other.is_float:
            return self.roundoff <= other.roundoff and self.high >= other.high
        if self.is_float:
            return other.high <= 1 / self.roundoff and other.high < self.high
        return not other.is_float and self.low <= other.low and other.high <= self.high

    def scaled_error(self, error: float) -> float:
        """An error that is usual in float32, as this type has it; 0.0 for integers."""
        return error * (self.roundoff / FLOAT32.roundoff)

    @property
    def accumulator(self) -> DType:
        """Type of sums of products of such elements."""
        return _ACCUMULATORS.get(self, self)


_TYPES: dict[str, DType] = {}


def _interned(name: str, llvm: str, onnx: int, triton: str = "", numpy: str = "") -> DType:
    made = DType(name)
    made.llvm, made.onnx, made.triton, made.numpy = llvm, onnx, triton, numpy or name
    made.held = made
    _TYPES[name] = made
    return made


def _integer(name: str, bits: int, onnx: int, triton: str = "") -> DType:
    made = _interned(name, f"i{bits}", onnx, triton)
    made.kind, made.bytes = "uint" if name[0] == "u" else "int", bits // 8
    made.roundoff, made.least_normal = 0.0, 1.0
    signed = made.kind == "int"
    made.low = -(2 ** (bits - 1)) if signed else 0
    made.high = 2 ** (bits - signed) - 1
    return made


def _float(name: str, llvm: str, onnx: int, triton: str, numpy: str = "", *, digits: int) -> DType:
    """A binary format of IEEE 754's kind with that many digits, the leading one counted."""
    made = _interned(name, llvm, onnx, triton, numpy)
    made.kind, made.bytes = "float", int(name[-2:]) // 8
    most = 2 ** (8 * made.bytes - digits - 1)  # the largest exponent is one less
    made.roundoff, made.least_normal = 2.0**-digits, 2.0 ** (2 - most)
    made.high = (2.0 - 2.0 ** (1 - digits)) * 2.0 ** (most - 1)
    made.low = -made.high
    return made


BOOL = _interned("bool", "i8", 9, "i1")
BOOL.kind, BOOL.bytes, BOOL.roundoff, BOOL.least_normal = "bool", 1, 0.0, 1.0
BOOL.low, BOOL.high = 0, 1
INT8, UINT8 = _integer("int8", 8, 3, "i8"), _integer("uint8", 8, 2, "u8")
INT16, UINT16 = _integer("int16", 16, 5), _integer("uint16", 16, 4)
# What two weights of one sign may be together whose products with unsigned bytes, added, fit int16.
MOST_OF_TWO = int(INT16.high) // int(UINT8.high)
INT32, UINT32 = _integer("int32", 32, 6, "i32"), _integer("uint32", 32, 12)
INT64, UINT64 = _integer("int64", 64, 7, "i64"), _integer("uint64", 64, 13)
FLOAT16 = _float("float16", "half", 10, "fp16", digits=11)
BFLOAT16 = _float("bfloat16", "bfloat", 16, "bf16", "uint16", digits=8)
BFLOAT16.held = UINT16
FLOAT32 = _float("float32", "float", 1, "fp32", digits=24)
FLOAT64 = _float("float64", "double", 11, "fp64", digits=53)

DTYPES: tuple[DType, ...] = tuple(_TYPES.values())
FLOATS = (FLOAT32, FLOAT64)  # in which a CPU computes
NUMBERS = (*(each for each in DTYPES if each.is_integer), *FLOATS)  # of which it has arithmetic
HALVES = (FLOAT16, BFLOAT16)
_ACCUMULATORS: dict[DType, DType] = {
    **dict.fromkeys((BOOL, INT8, UINT8, INT16, UINT16, UINT32), INT32),
    **dict.fromkeys(HALVES, FLOAT32),
    UINT64: INT64,
}


def _narrow(name: str, held: DType, onnx: int, low: float, high: float, digits: int = 0) -> DType:
    """A type of files of at most 8 bits, of which every element takes a byte in memory.

    Args:
        name: as messages have it.
        held: the type of its codes; integers are their own codes.
        onnx: its number.
        low, high: the least and the largest finite number.
        digits: of floats, the leading one counted; 0 for integers.
    """
    made = DType(name)
    made.held, made.onnx, made.bytes, made.triton = held, onnx, held.bytes, ""
    made.llvm, made.numpy, made.low, made.high = held.llvm, held.numpy, low, high
    made.kind = "float" if digits else held.kind
    made.roundoff, made.least_normal = (2.0**-digits if digits else 0.0), 1.0
    return made


INT4, UINT4 = _narrow("int4", INT8, 22, -8, 7), _narrow("uint4", UINT8, 21, 0, 15)
INT2, UINT2 = _narrow("int2", INT8, 26, -2, 1), _narrow("uint2", UINT8, 25, 0, 3)
FLOAT8E4M3FN = _narrow("float8e4m3fn", UINT8, 17, -448, 448, 4)
FLOAT8E4M3FNUZ = _narrow("float8e4m3fnuz", UINT8, 18, -240, 240, 4)
FLOAT8E5M2 = _narrow("float8e5m2", UINT8, 19, -57344, 57344, 3)
FLOAT8E5M2FNUZ = _narrow("float8e5m2fnuz", UINT8, 20, -57344, 57344, 3)
FLOAT8E8M0 = _narrow("float8e8m0", UINT8, 24, 2**-127, 2**127, 1)
FLOAT4E2M1 = _narrow("float4e2m1", UINT8, 23, -6, 6, 2)
# Types of files that networks neither compute in nor move: they convert from and to them.
NARROW = (
    *(INT4, UINT4, INT2, UINT2, FLOAT8E4M3FN, FLOAT8E4M3FNUZ, FLOAT8E5M2, FLOAT8E5M2FNUZ),
    *(FLOAT8E8M0, FLOAT4E2M1),
)


def named_dtype(name: str) -> DType:
    """Return any element type by its name."""
    return next((each for each in NARROW if each == name), None) or as_dtype(name)


def as_dtype(name: object) -> DType:
    """The element type of a name or of a NumPy dtype.

    Raises:
        SpecError: there is none of that name.
    """
    found = find_dtype(name)
    if found is None:
        raise SpecError(f"dtype is {str(name)!r}; expected one of {', '.join(DTYPES)}")
    return found


def find_dtype(name: object) -> DType | None:
    """Find an element type as `as_dtype` does, but return None for an unknown name."""
    if isinstance(name, DType):
        return name
    if isinstance(name, str):
        return _TYPES.get(name)
    try:
        return _spelled(name)
    except TypeError:  # what has no hash is no dtype
        return None


@lru_cache(maxsize=64)
def _spelled(kind: object) -> DType | None:
    """Return the type that an object spells; kept, as NumPy takes 5 us to spell a dtype."""
    return _TYPES.get(str(kind))


@dataclass(frozen=True)
class Precision:
    """The element types of a sum of products; written as one name where all are alike.

    Attributes:
        x: of the input.
        w: of the weights.
        accumulate: of the sums, of the bias, and of what the epilogue computes.
        y: of the output and of a residual.
    """

    x: DType
    w: DType
    accumulate: DType
    y: DType

    @staticmethod
    def of(given: object) -> Precision:
        """A precision as it is; of one type, or its name: that type for everything.

        Raises:
            SpecError: there is no type of that name.
        """
        if isinstance(given, Precision):
            return given
        kind = as_dtype(given)
        return _UNIFORM.get(kind) or Precision(kind, kind, kind, kind)

    @property
    def is_uniform(self) -> bool:
        """True if all four types are equal."""
        return self.x == self.w == self.accumulate == self.y

    @property
    def dtype(self) -> DType:
        """The one type of everything.

        Raises:
            SpecError: operands have types of their own.
        """
        if not self.is_uniform:
            raise SpecError(f"the precision is {self}; expected one dtype for everything")
        return self.x

    def __str__(self) -> str:
        if self.is_uniform:
            return str(self.x)
        return f"{self.x}*{self.w}+{self.accumulate}->{self.y}"


SINGLE = Precision(FLOAT32, FLOAT32, FLOAT32, FLOAT32)
DOUBLE = Precision(FLOAT64, FLOAT64, FLOAT64, FLOAT64)
_UNIFORM = {each.x: each for each in (SINGLE, DOUBLE)}
