"""What `plan_conv2d` and `conv2d` are given, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from leanconv.errors import InputError, SpecError, memory_reported
from leanconv.forks import imported
from leanconv.spec import ConvSpec
from leanconv.spec.arguments import ConvArguments, check_slope, spec_of
from leanconv.spec.mends import mended
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
