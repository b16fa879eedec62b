"""What `plan_conv2d` and `conv2d` are given, checked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leanconv.errors import InputError
from leanconv.spec import Activation, ConvSpec
from leanconv.spec.arguments import Padding, Steps, check_slope, spec_of
from leanconv.spec.conv import DTYPES

_NAMES = {np.dtype(name): name for name in DTYPES}


def checked_spec(
    x_shape: Sequence[int],
    w: np.ndarray,
    bias: np.ndarray | None,
    stride: Steps,
    padding: Padding,
    dilation: Steps,
    groups: int,
    activation: str | Activation | None,
    layout: str,
    residual: bool,
    slope: np.ndarray | None,
) -> ConvSpec:
    """The convolution that the arguments of `plan_conv2d` describe.

    Raises:
        InputError, SpecError: they describe none.
    """
    dtype = _NAMES.get(w.dtype) if isinstance(w, np.ndarray) else None
    if dtype is None:
        raise InputError(
            f"w is {getattr(w, 'dtype', type(w).__name__)}; expected a float32 or float64 array"
        )
    spec = spec_of(
        x_shape,
        w.shape,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        dtype=dtype,
        layout=layout,
        bias=bias is not None,
        residual=residual,
        activation=activation,
    )
    for label, values in (("bias", bias), ("slope", slope)):
        if values is not None:
            fitting_array(label, values, (spec.out_channels,), spec.dtype)
    check_slope(spec.activation, slope is not None)
    return spec


def fitting_array(label: str, array: np.ndarray, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """The array, contiguous, if it has that shape and dtype."""
    if isinstance(array, np.ma.MaskedArray):
        raise InputError(f"{label} is a masked array; expected a NumPy array, such as x.filled(0)")
    if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != dtype:
        have = (
            f"{array.dtype}{list(array.shape)}"
            if isinstance(array, np.ndarray)
            else type(array).__name__
        )
        raise InputError(f"{label} is {have}; expected {dtype}{list(shape)}{_mend(array, dtype)}")
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.require(array, None, ["C", "A"])


def _mend(array: object, dtype: str) -> str:
    if not isinstance(array, np.ndarray):
        return f": give a NumPy array, such as np.asarray(…, {dtype!r})"
    if array.dtype != dtype:
        return f": convert it with .astype({dtype!r}); all arrays are of w's dtype"
    return ""


def check_output(out: np.ndarray, inputs: Sequence[np.ndarray], spec: ConvSpec) -> None:
    """Check where the result goes; `inputs` are x and the residual, if there is one."""
    checked = fitting_array("out", out, spec.output_shape, spec.dtype)
    if checked is not out or not out.flags.writeable:
        raise InputError("out is not contiguous and writeable; expected an array that is")
    if np.may_share_memory(out, inputs[0]):
        raise InputError("out shares memory with x; expected an array of its own")
    for residual in inputs[1:]:
        if np.may_share_memory(out, residual) and out.ctypes.data != residual.ctypes.data:
            raise InputError(
                "out shares memory with a part of residual; expected the same array or another one"
            )
