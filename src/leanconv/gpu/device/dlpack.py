"""Arrays shared with torch, CuPy and others through DLPack, without a copy.

The structures are those of https://dmlc.github.io/dlpack: a capsule holds a `DLManagedTensor`, and
whoever takes it renames the capsule and calls the tensor's deleter when done.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import field
from math import prod
from typing import Any

import numpy as np

from leanconv.errors import InputError
from leanconv.gpu.device.driver import Driver
from leanconv.gpu.launch import dense_strides
from leanconv.gpu.lowering.lowered import unstored
from leanconv.records import dataclass
from leanconv.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, DType

_CUDA = 2
_CODES = {(2, 16): FLOAT16, (2, 32): FLOAT32, (2, 64): FLOAT64, (4, 16): BFLOAT16}
_NAME, _USED = b"dltensor", b"used_dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (
    ("tensor", _Tensor),
    ("context", ctypes.c_void_p),
    ("deleter", _Deleter),
)
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


def _api(name: str, result: Any, *types: Any) -> Any:
    function = getattr(ctypes.pythonapi, name)
    prototype = ctypes.PYFUNCTYPE(result, *types)
    return prototype(ctypes.cast(function, ctypes.c_void_p).value or 0)


_new = _api("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_is_valid = _api("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_pointer = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_rename = _api("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
# For a capsule that is being destroyed, given by its address: no reference may be taken.
_is_valid_at = _api("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_pointer_at = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)


@dataclass(eq=False)
class DeviceArray:
    """An array in the memory of a GPU; take it with `torch.from_dlpack` or `cupy.from_dlpack`.

    Attributes:
        driver: the device.
        address: of the first element.
        shape, dtype: NumPy's name of the dtype, or bfloat16.
        release: called with the array when nobody uses its memory any more.
        steps: strides in elements; None for row-major.
        shared: whether another library has taken it.
    """

    driver: Driver
    address: int
    shape: tuple[int, ...]
    dtype: DType
    release: Callable[[DeviceArray], None] = field(default=lambda _: None)
    steps: tuple[int, ...] | None = None
    shared: bool = False

    def __del__(self) -> None:
        self.release(self)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return prod(self.shape) * self.dtype.bytes

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements."""
        return dense_strides(self.shape) if self.steps is None else self.steps

    @property
    def dense(self) -> bool:
        """True if the elements are row-major without gaps."""
        axes = zip(self.shape, self.strides, dense_strides(self.shape), strict=True)
        return all(extent == 1 or have == want for extent, have, want in axes)

    def numpy(self) -> np.ndarray:
        """A copy in the host's memory; bfloat16 as float32."""
        held = np.empty(self.shape, "uint16" if self.dtype == BFLOAT16 else self.dtype)
        self.driver.enter()
        self.driver.read(held.ctypes.data, self.address, held.nbytes)
        return unstored(held, self.dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, self.driver.number

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        """A capsule; `stream` is made to wait for what computes this array."""
        if stream != -1:
            self.driver.enter()
            # 1 is the legacy default stream, for the driver as for DLPack.
            self.driver.lead(1 if stream is None else stream)
        self.shared = True
        return _export(self)


_exported: dict[int, Any] = {}  # what capsules in use rest on, by the address of their tensor


def _forget(managed: Any) -> None:
    _exported.pop(ctypes.addressof(managed.contents), None)


def _destroy(capsule: int) -> None:
    if _is_valid_at(capsule, _NAME):  # never taken
        _exported.pop(_pointer_at(capsule, _NAME), None)


_DELETER, _DESTRUCTOR = _Deleter(_forget), _Destructor(_destroy)


def _export(array: DeviceArray) -> Any:
    rank = len(array.shape)
    shape = (ctypes.c_int64 * rank)(*array.shape)
    strides = (ctypes.c_int64 * rank)(*array.strides)
    code, bits = next(key for key, name in _CODES.items() if name == array.dtype)
    tensor = _Tensor(
        array.address, _CUDA, array.driver.number, rank, code, bits, 1, shape, strides, 0
    )
    managed = _Managed(tensor, None, _DELETER)
    place = ctypes.addressof(managed)
    _exported[place] = (managed, shape, strides, array)
    return _new(place, _NAME, ctypes.cast(_DESTRUCTOR, ctypes.c_void_p))


def is_device_array(array: Any) -> bool:
    """Return whether an object has `__dlpack__` and is on a CUDA device."""
    if isinstance(array, np.ndarray) or not hasattr(array, "__dlpack_device__"):
        return False
    return int(array.__dlpack_device__()[0]) == _CUDA


def take(label: str, array: Any, driver: Driver) -> DeviceArray:
    """View another library's array, without a copy; our stream waits for what computes it.

    Args:
        label: the array's name in errors.
        array: anything with `__dlpack__`, on the driver's device.
        driver: the device.

    Raises:
        InputError: the array is on another device, or of a dtype that leanconv does not know.
    """
    if isinstance(array, DeviceArray):
        return array
    kind, number = array.__dlpack_device__()
    if int(kind) != _CUDA or number != driver.number:
        raise InputError(
            f"{label} lies on DLPack device ({int(kind)}, {number}); expected "
            f"({_CUDA}, {driver.number}); move it there, or give a NumPy array"
        )
    driver.enter()
    capsule = array.__dlpack__(stream=driver.stream.value)
    if not _is_valid(capsule, _NAME):
        raise InputError(f"{label} gave no unused DLPack capsule; expected one named 'dltensor'")
    managed = _Managed.from_address(_pointer(capsule, _NAME))
    _rename(capsule, _USED)

    def release(_: DeviceArray | None = None) -> None:
        if managed.deleter:
            managed.deleter(ctypes.byref(managed))

    tensor = managed.tensor
    dtype = _CODES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    steps = tuple(tensor.strides[axis] for axis in range(tensor.ndim)) if tensor.strides else None
    if dtype is None:
        release()
        raise InputError(
            f"{label} has DLPack type code {tensor.code} of {tensor.bits} bits; expected "
            f"{', '.join(_CODES.values())}"
        )
    return DeviceArray(
        driver, (tensor.data or 0) + tensor.byte_offset, shape, dtype, release, steps
    )
