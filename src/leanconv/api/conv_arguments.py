"""What `plan_conv2d`, `conv2d` and runs of plans are given, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from leanconv.errors import InputError, SpecError, memory_reported
from leanconv.forks import imported
from leanconv.runtime.arrays import Lookup
from leanconv.runtime.unpicklable import Unpicklable
from leanconv.spec import ConvSpec
from leanconv.spec.arguments import ConvArguments, check_residual, check_slope, spec_of
from leanconv.spec.mends import mended
from leanconv.spec.transposed import TransposedSpec
from leanconv.types import FLOAT32, FLOATS, HALVES, INT8, UINT8, DType, Precision, find_dtype
from leanconv.units import type_text

CODES = (UINT8, INT8)  # of a convolution of integers: x and w
_PARTS = "convolve {0}.real and {0}.imag apart; complex numbers are not taken"
_TAKEN = (*FLOATS, *HALVES)  # of arrays; those of bfloat16 are of the package ml_dtypes


class Constants(NamedTuple):
    """The arrays that a plan packs.

    Attributes:
        w: weights (K, C / groups, kernel…).
        bias, slope: (K,), or None.
    """

    w: np.ndarray
    bias: np.ndarray | None = None
    slope: np.ndarray | None = None


def checked_spec(
    x_shape: Sequence[int],
    constants: Constants,
    arguments: ConvArguments,
    residual: bool,
    precision: DType | None = None,
) -> ConvSpec:
    """The convolution that the arguments of `plan_conv2d` describe.

    Args:
        x_shape: of the input.
        constants, arguments: the arrays, and the other arguments.
        residual: whether a tensor of y's shape is added.
        precision: the half precision in which weights are kept, as `plan_conv2d` has it.

    Raises:
        InputError, SpecError: they describe none.
    """
    w, bias, slope = constants
    dtype = weight_dtype(w)
    types = stored_precision(dtype, precision)
    spec = spec_of(x_shape, w.shape, arguments, types, bias is not None, residual)
    for label, values in (("bias", bias), ("slope", slope)):
        if values is not None:
            fitting_array(label, values, (spec.out_channels,), dtype)
    check_slope(spec.activation, slope is not None)
    return spec


def weight_dtype(w: np.ndarray, taken: Sequence[DType] = _TAKEN) -> DType:
    """The dtype of weights, which is that of all arrays.

    Raises:
        InputError: they are no array of one that is taken.
    """
    if not is_array(w):
        raise InputError(
            f"w is {type(w).__name__}; expected a float32 or float64 array{array_mend(w, FLOAT32)}"
        )
    dtype = find_dtype(w.dtype)
    if dtype is None or dtype not in taken:
        mend = _PARTS.format("w") if w.dtype.kind == "c" else "convert it with .astype('float32')"
        raise InputError(f"w is {w.dtype}; expected {' or '.join(taken)}: {mend}")
    return dtype


def given_array(x: object, w: object) -> np.ndarray:
    """The input, if it is an array.

    Args:
        x: the input.
        w: weights, whose dtype it is to have.

    Raises:
        InputError: it is none.
    """
    if isinstance(x, np.ndarray):
        return x
    dtype = find_dtype(w.dtype) if isinstance(w, np.ndarray) else None
    mend = array_mend(x, dtype if dtype in _TAKEN else FLOAT32)
    raise InputError(f"x is {type(x).__name__}; expected a NumPy array{mend}")


def stored_precision(dtype: DType, asked: DType | None) -> Precision:
    """In which types a convolution of arrays of a dtype is computed.

    Args:
        dtype: of the arrays. Halves are converted where they are read and written.
        asked: the half precision in which weights are kept; None: as they are.

    Raises:
        SpecError: the arrays are of another type than what is asked for can be made of.
    """
    if asked and dtype not in (FLOAT32, asked):
        raise SpecError(f"precision is {asked!r} for arrays of {dtype}; expected None, or float32")
    if dtype in HALVES:
        return Precision(dtype, dtype, FLOAT32, dtype)
    return Precision(dtype, asked, dtype, dtype) if asked else Precision.of(dtype)


def holds_codes(w: object) -> bool:
    """Whether weights are those of a convolution of integers."""
    return isinstance(w, np.ndarray) and find_dtype(w.dtype) in CODES


def lacks_batch(x: object, w: object) -> bool:
    """Whether x is one image without the batch axis, by the rank of the weights."""
    rank = getattr(w, "ndim", None)
    return isinstance(rank, int) and rank > 2 and getattr(x, "ndim", None) == rank - 1


@memory_reported("copying an array")
def fitting_array(
    label: str, array: np.ndarray, shape: tuple[int, ...], dtype: DType
) -> np.ndarray:
    """The array, contiguous, if it has that shape and dtype."""
    if not is_array(array):
        raise InputError(
            f"{label} is {type(array).__name__}; expected a NumPy array {type_text(dtype, shape)}"
            f"{array_mend(array, dtype)}"
        )
    if array.shape != shape or array.dtype != dtype:
        raise InputError(
            f"{label} is {type_text(array.dtype, array.shape)}; expected {type_text(dtype, shape)}"
            f"{_mend(label, array, shape, dtype)}"
        )
    return in_place(array)


def is_array(given: object) -> bool:
    """Whether it is a NumPy array, and no masked one."""
    if type(given) is np.ndarray:  # asking for `np.ma` imports it, which takes 10 ms
        return True
    return isinstance(given, np.ndarray) and not _is_masked(given)


def _is_masked(given: object) -> bool:
    imported("numpy.ma")
    return isinstance(given, np.ma.MaskedArray)


def array_mend(given: object, dtype: DType) -> str:
    """What a message says after "expected a NumPy array": how to make one of something else."""
    if _is_masked(given):
        return ", not a masked one: give x.filled(0)"
    if hasattr(given, "detach") and hasattr(given, "cpu"):  # of torch, wherever it lies
        return ": give x.detach().cpu().numpy()"
    if given is None:
        return ""
    return f": give np.asarray(x, {dtype!r})"


def in_place(array: np.ndarray) -> np.ndarray:
    """The array, or a copy if kernels cannot read it where it lies."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.require(array, None, ["C", "A"])


def _mend(label: str, array: np.ndarray, shape: tuple[int, ...], dtype: DType) -> str:
    axes = mended(label, array.shape, shape)
    if array.dtype.kind == "c":
        return f": {_PARTS.format(label)}"
    if array.dtype != dtype:
        return f": give {axes or label}.astype({dtype!r}); all arrays are of w's dtype"
    return f": give {axes}" if axes else ""


class ArrayPlan(Unpicklable):
    """A plan of one layer: each run checks the arrays that it is given."""

    def _bind(
        self,
        spec: ConvSpec | TransposedSpec,
        x: DType,
        y: DType,
        new: Callable[[], tuple[np.ndarray, int]],
        run: Callable[[Sequence[int]], object],
    ) -> None:
        """Say what runs.

        Args:
            spec: of the layer.
            x, y: types of input and output.
            new: makes an array for y, and gives its address.
            run: takes the addresses of x, of the residual if the layer adds one, and of y.
        """
        self._new, self._run = new, run
        self._x, self._y = (spec.input_shape, x), (spec.output_shape, y)
        self._adds = isinstance(spec, ConvSpec) and spec.residual
        self._find_x, self._find_added = Lookup(*self._x), Lookup(*self._y)
        self._find_out = Lookup(*self._y, writeable=True)
        self._extents = tuple(prod(shape) * dtype.bytes for shape, dtype in (self._x, self._y))

    def __call__(
        self, x: np.ndarray, out: np.ndarray | None = None, residual: np.ndarray | None = None
    ) -> np.ndarray:
        """Convolve.

        Args:
            x: the input, of the planned shape and dtype; contiguous arrays are read in place.
            out: where to write y: contiguous, and no part of x; a new array if None.
            residual: of y's shape, if the plan adds one; it may be `out`, but no part of it.

        Returns:
            y, of int32 where x is of bytes.

        Raises:
            InputError: an array does not fit the plan.
            LeanConvError: there is no memory for y.
        """
        # What kernels read and write in place needs a native look each.
        read = self._find_x(x) if self._adds == (residual is not None) else 0
        added = self._find_added(residual) if read and self._adds else 0
        if out is None and read and (added or not self._adds):
            out, write = self._new()
            self._run((read, added, write) if added else (read, write))
            return out
        if read and not self._adds and (write := self._find_out(out)):
            x_bytes, y_bytes = self._extents
            if write + y_bytes <= read or read + x_bytes <= write:
                self._run((read, write))
                assert out is not None
                return out
        return self._checked(x, out, residual)

    def _checked(
        self, x: np.ndarray, out: np.ndarray | None, residual: np.ndarray | None
    ) -> np.ndarray:
        """Run on any arrays, with copies of those that lie otherwise than kernels read them."""
        arrays = [fitting_array("x", x, *self._x)]
        check_residual(self._adds, residual is not None)
        if residual is not None:
            arrays.append(fitting_array("residual", residual, *self._y))
        if out is None:
            out, _ = self._new()
        else:
            self._check_output(out, arrays)
        self._run([array.ctypes.data for array in (*arrays, out)])
        return out

    def _check_output(self, out: np.ndarray, inputs: Sequence[np.ndarray]) -> None:
        """Check the array of the result; `inputs` are x and the residual, if there is one."""
        checked = fitting_array("out", out, *self._y)
        if checked is not out or not out.flags.writeable:
            raise InputError("out is not contiguous and writeable; expected an array that is")
        if np.may_share_memory(out, inputs[0]):
            raise InputError("out shares memory with x; expected an array of its own")
        for residual in inputs[1:]:
            if np.may_share_memory(out, residual) and out.ctypes.data != residual.ctypes.data:
                raise InputError(
                    "out shares memory with a part of residual; expected the same array or another "
                    "one"
                )
