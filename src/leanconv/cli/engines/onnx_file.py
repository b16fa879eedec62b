"""One convolution as an ONNX file, for engines that read nothing else.

Written as protobuf by hand, forty lines, because leanconv does without the package onnx. Field
numbers are those of onnx.proto.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leanconv.spec.conv import ConvSpec
from leanconv.types import FLOAT32, FLOAT64

_IR_VERSION = 8
_OPSET = 13
_ONNX_DTYPES = {FLOAT32: 1, FLOAT64: 11}
_INTS_ATTRIBUTE = 7
_INT_ATTRIBUTE = 2


def conv_model(spec: ConvSpec, weight: np.ndarray) -> bytes:
    """Return the ONNX file of `y = Conv(x, w)`.

    Args:
        spec: the convolution, without bias, residual or activation, in NCHW.
        weight: its weights, of `spec.weight_shape` and the spec's dtype.
    """
    assert spec.layout == "NCHW"
    assert weight.shape == spec.weight_shape
    attributes = [
        _ints("kernel_shape", spec.kernel),
        _ints("strides", spec.stride),
        _ints("dilations", spec.dilation),
        _ints("pads", spec.pad_begin + spec.pad_end),
        _text(1, "group") + _number(3, spec.groups) + _number(20, _INT_ATTRIBUTE),
    ]
    node = _text(1, "x") + _text(1, "w") + _text(2, "y") + _text(3, "conv") + _text(4, "Conv")
    node += b"".join(_nested(5, attribute) for attribute in attributes)
    dtype = _ONNX_DTYPES[spec.dtype]
    tensor = b"".join(_number(1, extent) for extent in weight.shape)
    tensor += (
        _number(2, dtype)
        + _text(8, "w")
        + _nested(9, weight.astype(f"<f{spec.itemsize}").tobytes())
    )
    graph = _nested(1, node) + _text(2, str(spec)) + _nested(5, tensor)
    graph += _nested(11, _value("x", dtype, spec.input_shape))
    graph += _nested(12, _value("y", dtype, spec.output_shape))
    return _number(1, _IR_VERSION) + _nested(7, graph) + _nested(8, _number(2, _OPSET))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _nested(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _nested(field, text.encode())


def _ints(name: str, values: Sequence[int]) -> bytes:
    numbers = b"".join(_number(8, value) for value in values)
    return _text(1, name) + numbers + _number(20, _INTS_ATTRIBUTE)


def _value(name: str, dtype: int, shape: Sequence[int]) -> bytes:
    extents = b"".join(_nested(1, _number(1, extent)) for extent in shape)
    return _text(1, name) + _nested(2, _nested(1, _number(1, dtype) + _nested(2, extents)))
