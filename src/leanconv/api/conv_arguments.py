"""Checks of the arguments of `plan_conv2d` and `conv2d`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from leanconv.api.options import PlanOptions
from leanconv.errors import InputError, SpecError, memory_reported, short
from leanconv.forks import imported
from leanconv.half_arrays import numpy_dtype
from leanconv.spec import Activation, ConvSpec
from leanconv.spec.arguments import ConvArguments, check_slope, extents_of, mended, spec_of
from leanconv.spec.transposed import TransposedArguments, TransposedSpec, transposed_spec
from leanconv.types import (
    FLOAT32,
    FLOATS,
    HALVES,
    INT8,
    INT32,
    UINT8,
    DType,
    Precision,
    as_dtype,
    find_dtype,
)
from leanconv.units import shape_text, type_text

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


Kinds: TypeAlias = tuple[tuple[tuple[int, ...], np.dtype] | None, ...]


def kinds_of(constants: Constants) -> Kinds:
    """Shape and type of each array; None where there is none."""
    return tuple(None if each is None else (each.shape, each.dtype) for each in constants)


def check_kinds(constants: Constants, kinds: Kinds) -> None:
    """Check that constants are of the shapes and types of others.

    Raises:
        InputError: one is not.
    """
    for label, array, known in zip(Constants._fields, constants, kinds, strict=True):
        if known is None and array is not None:
            raise InputError(f"{label} is given, but the plan has none; expected None")
        if known is not None:
            shape, dtype = known
            fitting_array(label, array, shape, as_dtype(dtype))  # type: ignore[arg-type]


def any_constants(
    w_shape: Sequence[int],
    given: Constants,
    x_dtype: object,
    activation: str | Activation | None,
    transposed_groups: int = 0,
) -> Constants:
    """Floats of any content, for a plan that each run gives others; there is a bias.

    Args:
        w_shape: of the weights.
        given: by the user, who may give none.
        x_dtype, activation: as `plan_conv2d` has them.
        transposed_groups: the groups of a transposed convolution, 0 for another one.

    Raises:
        SpecError: there is no such shape or type, or arrays are given, too.
    """
    if any(each is not None for each in given):
        raise SpecError("got w_shape with w, bias or slope; expected it alone: runs give these")
    shape = extents_of("w_shape", w_shape)
    dtype = FLOAT32 if x_dtype is None else next((k for k in _TAKEN if k == x_dtype), None)
    if dtype is None:
        raise SpecError(f"x_dtype is {short(x_dtype)}; expected one of {', '.join(_TAKEN)}")
    if not 3 <= len(shape) <= 5 or min(shape) < 1:
        raise SpecError(f"w_shape is {shape_text(shape)}; expected extents of at least 1, as of w")
    outputs = shape[1] * transposed_groups if transposed_groups else shape[0]
    bias = np.zeros(outputs, numpy_dtype(dtype))
    slope = bias if getattr(activation, "kind", activation) == "prelu" else None
    return Constants(np.broadcast_to(np.ones(1, bias.dtype), shape), bias, slope)


def checked_layer(
    x_shape: Sequence[int],
    x_dtype: object,
    constants: Constants,
    arguments: ConvArguments,
    residual: bool,
    options: PlanOptions,
) -> ConvSpec:
    """The convolution of floats or integers that the arguments of `plan_conv2d` describe.

    Raises:
        InputError, SpecError: the arguments describe no such convolution.
    """
    w = constants.w
    if holds_codes(w):
        given = UINT8 if x_dtype is None else x_dtype
        return checked_integer_spec(x_shape, given, constants, arguments, residual, options)
    spec = checked_spec(x_shape, constants, arguments, residual, options.precision)
    if x_dtype is not None and x_dtype != spec.precision.x:
        raise SpecError(f"x_dtype is {x_dtype!r} for w of {w.dtype}; expected None, or that of w")
    return spec


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
        InputError, SpecError: the arguments describe no such convolution.
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


def checked_integer_spec(
    x_shape: Sequence[int],
    x_dtype: object,
    constants: Constants,
    arguments: ConvArguments,
    residual: bool,
    options: PlanOptions,
) -> ConvSpec:
    """The convolution of integers that the arguments of `plan_conv2d` describe.

    Raises:
        InputError, SpecError: the arguments describe no such convolution.
    """
    w, bias, slope = constants
    x = find_dtype(np.dtype(x_dtype)) if isinstance(x_dtype, str | np.dtype | type) else None
    if x not in CODES:
        raise InputError(
            f"x is {x_dtype} and w {w.dtype}; expected x of uint8 or int8: its sums are int32"
        )
    refused = {
        "activation": arguments.activation is not None,
        "slope": slope is not None,
        "residual": residual,
        "precision": options.precision is not None,
        "tune": options.tune,
    }
    for name, given in refused.items():
        if given:
            raise SpecError(f"{name} is given for weights of {w.dtype}; expected none: y is int32")
    kind = find_dtype(w.dtype)
    assert kind is not None
    types = Precision(x, kind, INT32, INT32)
    spec = spec_of(x_shape, w.shape, arguments, types, bias is not None, False)
    if bias is not None:
        fitting_array("bias", bias, (spec.out_channels,), INT32)
    return spec


def checked_transposed_spec(
    x_shape: Sequence[int], constants: Constants, arguments: TransposedArguments
) -> TransposedSpec:
    """The transposed convolution that the arguments of `plan_conv_transpose2d` describe.

    Raises:
        InputError, SpecError: the arguments describe no such convolution.
    """
    w, bias = constants.w, constants.bias
    dtype = weight_dtype(w, FLOATS)
    spec = transposed_spec(x_shape, w.shape, arguments, dtype, bias is not None)
    if bias is not None:
        fitting_array("bias", bias, spec.output_shape[1:2], dtype)
    return spec


def weight_dtype(w: np.ndarray, taken: Sequence[DType] = _TAKEN) -> DType:
    """The dtype of weights, which is that of all arrays.

    Raises:
        InputError: the weights are no array of a dtype that is taken.
    """
    if not is_array(w):
        raise InputError(
            f"w is {type(w).__name__}; expected a float32 or float64 array"
            f"{array_mend(w, FLOAT32, 'w')}"
        )
    dtype = find_dtype(w.dtype)
    if dtype is None or dtype not in taken:
        mend = _PARTS.format("w") if w.dtype.kind == "c" else "convert it with .astype('float32')"
        raise InputError(f"w is {w.dtype}; expected {' or '.join(taken)}: {mend}")
    return dtype


def given_array(x: object, w: object) -> np.ndarray:
    """Return the input, which must be an array.

    Args:
        x: the input.
        w: weights, whose dtype it is to have.

    Raises:
        InputError: x is no array.
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
    """Return whether w is an array of 8-bit integers, as a convolution of integers takes."""
    return isinstance(w, np.ndarray) and find_dtype(w.dtype) in CODES


def lacks_batch(x: object, w: object) -> bool:
    """Return whether x is one image without the batch axis, by the rank of the weights."""
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
            f"{array_mend(array, dtype, label)}"
        )
    if array.shape != shape or array.dtype != dtype:
        raise InputError(
            f"{label} is {type_text(array.dtype, array.shape)}; expected {type_text(dtype, shape)}"
            f"{_mend(label, array, shape, dtype)}"
        )
    return in_place(array)


def is_array(given: object) -> bool:
    """Return whether `given` is a NumPy array that is not masked."""
    if type(given) is np.ndarray:  # asking for `np.ma` imports it, which takes 10 ms
        return True
    return isinstance(given, np.ndarray) and not _is_masked(given)


def _is_masked(given: object) -> bool:
    imported("numpy.ma")
    return isinstance(given, np.ma.MaskedArray)


def array_mend(given: object, dtype: DType, label: str = "x") -> str:
    """Return the end of the message "expected a NumPy array": how to make one of `given`."""
    if _is_masked(given):
        return f", not a masked one: give {label}.filled(0)"
    if hasattr(given, "detach") and hasattr(given, "cpu"):  # of torch, wherever it lies
        return f": give {label}.detach().cpu().numpy()"
    if given is None:
        return ""
    return f": give np.asarray({label}, {dtype!r})"


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
