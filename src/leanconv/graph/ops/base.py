"""The record of an operation, and the checks that all of them share.

Integers of shapes are arrays of numbers, or of objects where there are symbols among them. An array
of objects holds Python's integers and symbols; the type beside it says which of ONNX's dtypes they
are. What is computed with symbols must be what NumPy gives of the numbers: quotients are rounded
towards zero, and a result that would wrap around is refused, whereupon the network is bound to
numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes, TensorType
from leanconv.records import cached_property, dataclass
from leanconv.symbolic import NeedsNumberError, Symbol, plain
from leanconv.types import FLOATS, INT32, INT64, DType, as_dtype
from leanconv.units import shape_text

Array = npt.NDArray[Any]
Types = Sequence["TensorType | None"]
Arrays = Sequence["Array | None"]
Infer = Callable[[Types, Attributes], tuple[TensorType, ...]]
Evaluate = Callable[[Arrays, Attributes], tuple[Array, ...]]
Work = Callable[[Types, Attributes, tuple[TensorType, ...]], int]
Halves = Literal["", "exact", "scaled", "wide", "rounded"]
Combines = Literal["mean", "sum", "prod", "max", "min"]
MAX_RANK = 16
MANY = 1 << 31
PAIR = "a, b (broadcast)"
MAX_TENSOR_BYTES = 1 << 40
_most_bytes = ContextVar("leanconv.tensor_bytes", default=MAX_TENSOR_BYTES)
SYMBOLIC_DTYPES = (INT32, INT64)  # others hold numbers


@dataclass(frozen=True)
class Op:
    """One operation.

    Attributes:
        infer: the types of its outputs from the input types (None for an absent one) and
            attributes; that also says how many outputs it has.
        evaluate: the outputs from input arrays; computes in the dtype it is given.
        signature: its inputs in words, "?" behind one that may be absent (None), "..." behind what
            there may be any number of; after a semicolon what else there is to say of it, and what
            it gives where that is not one such tensor. `docs/operations.md` prints it.
        attributes: the names of its attributes in the normal form, all of them required.
        work: multiply-adds or comparisons beyond one per element read and written.
        tables: bytes in which constants are made whose sizes are the attributes', not a tensor's:
            by kernels, and where it is computed.
        takes_symbols: whether `evaluate` gives of integers with symbols among them, arrays of
            objects, what it gives of the numbers; to other operations symbols are their numbers.
        dtypes: what its inputs may hold at run time; of constants it computes everything.
        moves: the inputs whose elements it moves as they lie in memory, and does nothing else.
        rearranges: whether it moves elements of its one input, and adds none of its own.
        selects: whether it gives elements of its one input, the nearest or the largest of some, so
            that any increasing function may follow it instead; of integers, where there are modes.
        shifts: whether its codes may all be larger by one number, if their zero points, bounds and
            tables are, too.
        converts: whether it gives the numbers that it reads in another type.
        of_floats: of an operation on codes that of the floats for which they stand.
        halves: what its results are where it computes in float32 of values that may be stored in
            halves; "" where it does not. "exact": numbers that it reads, their opposites or signs;
            "scaled": as large as what it reads; "wide": large or small where that is not, so that
            they stay float32; "rounded": all others, such as sums by weights.
        precise: the inputs of which absolute errors count, as of exponents and of places in images:
            large ones have too few digits in halves.
        magnifies: cause of larger relative errors: a "difference" of nearly equal numbers, or an
            operation that errs like one, as an exponential; the "root" of numbers near 0.
        divides: whether it divides by its last input.
        commutes: whether its two inputs may change places.
        neutral: the second input with which it gives back the first, if there is one.
        affine: of a constant input and whether that is the first: the factor and the summand that
            make its results of the other input.
        series: whether it takes some ten multiply-adds for each element.
        working: the memory in which NumPy works while it computes the operation, beside operands
            and results, in times the bytes of these together: measured, and rounded up.
        places: the same where places are computed: times 8 bytes for each of their elements.
        reduces: of a reduction, how it makes one number of many, and the step that it takes of each
            element before, "" for none.
        keeps_single: whether it gives back a number that it reduces, or pools, by itself.
        activation: of an activation function, its kind in `spec.activation`, whose parameters are
            the attributes; "" for any other operation.
        routes: how axes run from its inputs to its results: a kind of `graph.fields.routes`; ""
            where each element of a result may follow from all elements of the inputs.
        size_attributes: the attributes that follow from the extents of its inputs or results.
        convolves: whether it is a convolution, or several.
        fitting: makes the types of its inputs fit that of the first, where the sizes of this one
            stand for others; None where inputs are fit that have the same sizes.
        kernel: the module of `kernels` that computes it; "" where several may, or operations that
            take its place.
        blocked: from how many channels on that is better in blocks of them, whatever its inputs
            are in; 0: never.
        since: the opset from which on files have it by its name, with one input and the parameters
            of its activation; 0 where a rule says what becomes of a node of a file.
        single: the inputs that hold float32 where other floats are float64: scales of codes.
    """

    infer: Infer
    evaluate: Evaluate
    signature: str = "x"
    attributes: tuple[str, ...] = ()
    work: Work | None = None
    tables: Work | None = None
    takes_symbols: bool = False
    dtypes: tuple[DType, ...] = FLOATS
    moves: slice | None = None
    rearranges: bool = False
    selects: bool = False
    shifts: bool = False
    converts: bool = False
    of_floats: str = ""
    halves: Halves = ""
    precise: slice | None = None
    magnifies: Literal["", "difference", "root"] = ""
    divides: bool = False
    commutes: bool = False
    neutral: float | None = None
    affine: Callable[[Array, bool], tuple[Any, Any] | None] | None = None
    series: bool = False
    working: int = 2
    places: int = 0
    reduces: tuple[Combines, str] | None = None
    keeps_single: bool = False
    activation: str = ""
    routes: str = ""
    size_attributes: tuple[str, ...] = ()
    convolves: bool = False
    fitting: Callable[[Types, Attributes], Types] | None = None
    kernel: str = ""
    blocked: int = 0
    since: int = 0
    single: tuple[int, ...] = ()

    @cached_property
    def least(self) -> int:
        """How many inputs there are at least; those past them may be absent."""
        return sum(not name.endswith(("?", "...")) for name in self._inputs)

    @cached_property
    def most(self) -> int:
        """How many inputs there may be."""
        return MANY if self._inputs[-1].endswith("...") else len(self._inputs)

    @property
    def _inputs(self) -> list[str]:
        return re.sub(r"\([^)]*\)", "", self.signature.partition(";")[0]).split(",")


def single(
    infer: Callable[[Types, Attributes], TensorType],
    evaluate: Callable[[Arrays, Attributes], Array],
    signature: str = "x",
    attributes: tuple[str, ...] = (),
    work: Callable[[Types, Attributes, TensorType], int] | None = None,
    **facts: Any,
) -> Op:
    """An operation with one output, made of functions of that one.

    Args:
        infer, evaluate, work: as `Op` has them, but of one type and one array.
        signature, attributes, facts: as `Op` has them.
    """

    def infer_all(types: Types, given: Attributes) -> tuple[TensorType, ...]:
        return (infer(types, given),)

    def evaluate_all(arrays: Arrays, given: Attributes) -> tuple[Array, ...]:
        return (evaluate(arrays, given),)

    def work_of(types: Types, given: Attributes, results: tuple[TensorType, ...]) -> int:
        assert work is not None
        return work(types, given, results[0])

    given = None if work is None else work_of
    return Op(infer_all, evaluate_all, signature, attributes, given, **facts)


def given(items: Sequence[Any], index: int) -> Any:
    """An optional input, or None when it is absent."""
    return items[index] if index < len(items) else None


def first(types: Types) -> TensorType:
    """The type of the first input."""
    return required(types, 0)


def required(types: Types, index: int) -> TensorType:
    """The type of an input that must be there."""
    found = given(types, index)
    if found is None:
        raise ModelError(f"input {index} is absent; expected a tensor; give it a value")
    assert isinstance(found, TensorType)
    return found


def array(arrays: Arrays, index: int = 0) -> Array:
    """An input array that must be there."""
    found = given(arrays, index)
    assert found is not None, f"input {index} is absent"
    return np.asarray(found)


def same_dtype(types: Types) -> DType:
    """The one dtype of all inputs that are present."""
    dtypes = sorted({t.dtype for t in types if t is not None})
    if len(dtypes) != 1:
        raise ModelError(
            f"got inputs of dtypes {', '.join(dtypes)}; expected one dtype for all inputs; "
            "insert a Cast"
        )
    return dtypes[0]


def check_rank(kind: TensorType, least: int, most: int, what: str = "input") -> None:
    """Raise unless the rank is in [least, most]."""
    rank = len(kind.shape)
    if not least <= rank <= most:
        expected = f"{least}" if least == most else f"{least} to {most}"
        raise ModelError(f"{what} is {kind}, of rank {rank}; expected rank {expected}")


def integer(extent: Any) -> Any:
    """An extent as Python's integer; a symbol stays one."""
    return extent if isinstance(extent, Symbol) else int(extent)


def integers(values: Sequence[Any]) -> Array:
    """Integers as int64; with symbols among them, as objects."""
    symbolic = any(isinstance(value, Symbol) for value in values)
    return np.array(values, dtype=object if symbolic else np.int64)


def dtype_of(held: Array) -> DType:
    """The dtype of a constant; symbols count as int64."""
    return INT64 if held.dtype == object else as_dtype(held.dtype)


def checked(shape: Sequence[int], dtype: DType) -> TensorType:
    """Make a type, refusing shapes that no tensor may have.

    Raises:
        ModelError: a negative extent, too many axes, or more than `MAX_TENSOR_BYTES`, unless
            nothing is computed of the graph (`only_described`).
    """
    kind = TensorType(tuple(integer(extent) for extent in shape), dtype)
    if len(kind.shape) > MAX_RANK:
        raise ModelError(f"got a tensor of rank {len(kind.shape)}; expected at most {MAX_RANK}")
    if any(extent < 0 for extent in kind.shape):
        raise ModelError(
            f"got the shape {shape_text(kind.shape)}; expected extents that are not negative"
        )
    most = _most_bytes.get()
    if kind.bytes > most:
        raise ModelError(
            f"got a tensor {kind} of {kind.bytes} bytes; expected at most {most} "
            "bytes; bind smaller input shapes"
        )
    return kind


def is_described() -> bool:
    """Return whether graphs that are bound now are not computed: see `only_described`."""
    return _most_bytes.get() > MAX_TENSOR_BYTES


@contextmanager
def only_described() -> Iterator[None]:
    """Bind graphs of which windows alone are computed: tensors as large as int64 can address."""
    token = _most_bytes.set(1 << 62)
    try:
        yield
    finally:
        _most_bytes.reset(token)


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape of NumPy broadcasting.

    Raises:
        ModelError: two extents differ and neither is 1.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for axis, extent in enumerate(shape, rank - len(shape)):
            if extent == 1 or extent == result[axis]:
                continue
            if result[axis] != 1:
                listed = ", ".join(map(shape_text, shapes))
                raise ModelError(
                    f"got shapes {listed}, which do not broadcast; expected extents that are "
                    "equal or 1, aligned from the last axis"
                )
            result[axis] = extent
    return tuple(result)


def check_broadcasts_to(kind: TensorType, shape: tuple[int, ...], what: str) -> None:
    """Raise unless a tensor broadcasts to `shape` without widening it."""
    if broadcast(kind.shape, shape) != shape:
        raise ModelError(
            f"{what} is {kind}; expected a shape that broadcasts to {shape_text(shape)}"
        )


def numbers(array: Array, dtype: DType) -> Array:
    """The array with numbers for its symbols; each of them becomes a guard."""
    if array.dtype != object:
        return array
    return np.array([int(each) for each in array.reshape(-1)], dtype).reshape(array.shape)


def checked_symbols(array: Array, dtype: DType) -> Array:
    """An array of objects, if they are integers of the dtype; as numbers where none is a symbol.

    Raises:
        NeedsNumberError: it holds something else, or a number that the dtype does not.
    """
    ends = np.iinfo(dtype)
    low, high = int(ends.min), int(ends.max)
    symbolic = False
    for each in array.reshape(-1):
        number = plain(each)
        if not isinstance(number, int) or isinstance(number, bool):
            raise NeedsNumberError(f"gives {number!r} from the extents; expected an integer")
        if not (low <= each and each <= high):
            raise NeedsNumberError(f"gives {number} from the extents; expected a number of {dtype}")
        symbolic = symbolic or isinstance(each, Symbol)
    return array if symbolic else array.astype(dtype)


def quotient(a: Array, b: Array) -> Array:
    """Return a / b of integers, rounded towards zero, as C and ONNX do.

    Raises:
        ModelError: a divisor is 0.
    """
    _check_divisors(b)
    if object in (a.dtype, b.dtype):
        return np.asarray(_quotient_each(a, b))
    floored = a // b
    return np.asarray(floored + ((a - floored * b != 0) & ((a < 0) != (b < 0))))


def remainder(a: Array, b: Array, towards_zero: bool) -> Array:
    """Return the remainder of a / b: of b's sign, or of a's where quotients go towards zero.

    Raises:
        ModelError: a divisor is 0.
    """
    _check_divisors(b)
    if not towards_zero:
        return np.asarray(np.mod(a, b))
    if object in (a.dtype, b.dtype):
        return np.asarray(a - b * _quotient_each(a, b))
    return np.asarray(np.fmod(a, b))


def _check_divisors(b: Array) -> None:
    if any(each == 0 for each in b.reshape(-1)) if b.dtype == object else not np.all(b):
        raise ModelError("got an integer division by zero; expected divisors other than 0")


def _quotient(a: Any, b: Any) -> Any:
    return a // b if (a >= 0) == (b > 0) else -(-a // b)


_quotient_each = np.frompyfunc(_quotient, 2, 1)
