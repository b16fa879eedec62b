"""Element types: every fact against NumPy, ONNX's numbers and LLVM's sizes; one object for each."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import onnx
import pytest

from leanconv.codegen.values import bytes_of
from leanconv.errors import SpecError
from leanconv.types import (
    BFLOAT16,
    BOOL,
    DTYPES,
    FLOAT32,
    FLOAT64,
    FLOATS,
    INT32,
    INT64,
    UINT8,
    DType,
    Precision,
    as_dtype,
    find_dtype,
)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_type_agrees_with_those_who_know_it(dtype: DType) -> None:
    number = {"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype, dtype.upper())
    assert dtype.onnx == onnx.TensorProto.DataType.Value(number)
    assert np.dtype(dtype.numpy).itemsize == dtype.bytes == bytes_of(dtype.llvm)
    if dtype == BFLOAT16:
        return
    held = np.dtype(dtype)
    assert held == np.dtype(dtype.numpy)
    assert {"b": "bool", "u": "uint", "i": "int", "f": "float"}[held.kind] == dtype.kind
    if dtype.is_float:
        facts = np.finfo(held)
        stated = (dtype.low, dtype.high, dtype.least_normal, 2 * dtype.roundoff)
        assert stated == (facts.min, facts.max, facts.smallest_normal, facts.eps)
    elif dtype.is_integer:
        ends = np.iinfo(held)
        assert (dtype.low, dtype.high, dtype.roundoff) == (ends.min, ends.max, 0.0)
    else:
        assert (dtype, dtype.low, dtype.high) == (BOOL, 0, 1)


def test_bfloat16_is_the_leading_half_of_float32() -> None:
    most, least = np.array([0x7F7F0000, 0x00800000], np.uint32).view(np.float32)
    assert (most, least) == (BFLOAT16.high, BFLOAT16.least_normal)
    one, next_one = np.array([0x3F800000, 0x3F810000], np.uint32).view(np.float32)
    assert (next_one - one) / 2 == BFLOAT16.roundoff


@pytest.mark.parametrize("dtype", DTYPES)
def test_there_is_one_object_for_each_type(dtype: DType) -> None:
    for same in (pickle.loads(pickle.dumps(dtype)), copy.copy(dtype), copy.deepcopy([dtype])[0]):
        assert same is dtype
    assert as_dtype(str(dtype)) is as_dtype(dtype) is dtype
    if dtype != BFLOAT16:
        assert as_dtype(np.dtype(dtype)) is dtype


def test_a_name_of_no_type_is_refused_with_those_that_are() -> None:
    assert find_dtype("complex64") is None
    with pytest.raises(SpecError, match=r"'float8'; expected one of bool, int8, .*64"):
        as_dtype("float8")


def test_sums_are_kept_in_a_type_that_holds_them() -> None:
    for dtype in DTYPES:
        kept = dtype.accumulator
        assert kept.accumulator is kept
        assert kept.bytes >= min(4, dtype.bytes)
        assert kept.is_float == dtype.is_float
    assert FLOAT64.scaled_error(2.0**-24) == 2.0**-53
    assert INT32.scaled_error(1e-5) == 0.0


def test_a_type_holds_what_numpy_calls_a_safe_cast() -> None:
    for one in DTYPES:
        for other in DTYPES:
            if BFLOAT16 in (one, other):
                continue
            rounded = one == FLOAT64 and other in ("int64", "uint64")  # NumPy takes these
            assert one.holds(other) == (np.can_cast(other, one) and not rounded), (one, other)
    assert FLOAT32.holds(BFLOAT16)
    assert BFLOAT16.holds(UINT8)
    assert not BFLOAT16.holds(as_dtype("float16"))


def test_a_precision_is_written_as_one_name_where_all_are_alike() -> None:
    for dtype in (FLOAT32, INT64, "bfloat16"):
        precision = Precision.of(dtype)
        assert precision.is_uniform
        assert str(precision) == dtype
        assert precision.dtype == dtype
        assert Precision.of(precision) is precision
    assert Precision.of("float64") is Precision.of(FLOAT64)
    mixed = Precision(UINT8, as_dtype("int8"), INT32, FLOAT32)
    assert str(mixed) == "uint8*int8+int32->float32"
    with pytest.raises(SpecError, match="expected one dtype for everything"):
        _ = mixed.dtype
    assert all(Precision.of(dtype).is_uniform for dtype in FLOATS)
