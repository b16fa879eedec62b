"""Arrays on a device: their memory, a user's arrays, checked, and sharing through DLPack.

Memory is kept for the next array of the same size. Arrays are shared with torch, CuPy and others
without a copy. The structures are those of https://dmlc.github.io/dlpack: a capsule holds a
`DLManagedTensor`, and whoever takes it renames the capsule and calls the tensor's deleter when
done.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from leanconv.errors import InputError
from leanconv.gpu.device.driver import Driver
from leanconv.gpu.launch import dense_strides
from leanconv.gpu.lowering.conv_problem import stored, unstored
from leanconv.graph.ir import TensorType
from leanconv.records import dataclass, field
from leanconv.spec.arguments import mended
from leanconv.spec.format import aligned_offsets
from leanconv.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, DType
from leanconv.units import type_text

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


_MOST_KEPT = 8


class Memory:
    """Blocks that live as long as this object, and arrays that are handed out.

    Attributes:
        used_bytes: of the blocks, as requested.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.used_bytes = 0
        self._blocks: list[int] = []
        self._kept: list[tuple[int, int]] = []  # size and address of arrays that came back
        weakref.finalize(self, _free, driver, self._blocks, self._kept)

    def allocate(self, size: int) -> int:
        """Reserve a block for as long as this object lives, and return its address."""
        address = self._driver.allocate(size)
        self._blocks.append(address)
        self.used_bytes += size
        return address

    def upload(self, address: int, array: np.ndarray) -> None:
        """Copy an array from the host."""
        held = np.ascontiguousarray(array)
        self._driver.write(address, held.ctypes.data, held.nbytes)

    def place(self, arrays: Mapping[str, np.ndarray]) -> dict[str, ctypes.c_uint64]:
        """Copy arrays from the host into one block; where each of them begins, by name."""
        offsets, size = aligned_offsets({name: a.nbytes for name, a in arrays.items()})
        start = self.allocate(size)
        for name, array in arrays.items():
            self.upload(start + offsets[name], array)
        return {name: ctypes.c_uint64(start + offset) for name, offset in offsets.items()}

    def array(self, shape: tuple[int, ...], dtype: DType) -> DeviceArray:
        """An array without contents."""
        size = prod(shape) * dtype.bytes
        place = next((i for i, each in enumerate(self._kept) if each[0] == size), None)
        address = self._driver.allocate(size) if place is None else self._kept.pop(place)[1]
        driver, kept = self._driver, self._kept

        def release(array: DeviceArray) -> None:
            # The next array's memory is written by our stream, after all of ours that reads this
            # one. What another library still reads only the driver knows: `cuMemFree` waits.
            if array.shared or len(kept) >= _MOST_KEPT:
                driver.enter()
                driver.free(address)
            else:
                kept.append((size, address))

        return DeviceArray(driver, address, shape, dtype, release)


def _free(driver: Driver, blocks: list[int], kept: list[tuple[int, int]]) -> None:
    driver.enter()
    for address in (*blocks, *(address for _, address in kept)):
        driver.free(address)
    blocks.clear()
    # Arrays that come back later are freed at once.
    kept[:] = [(-1, 0)] * _MOST_KEPT


_VECTOR_BYTES = 16  # that the addresses of a user's arrays must be multiples of


def on_device(
    label: str,
    array: Any,
    kind: TensorType,
    memory: Memory,
    driver: Driver,
    *,
    accepts: tuple[str, ...],
    copies: bool = True,
    mend: str = "",
) -> DeviceArray:
    """An array on the device, checked.

    Args:
        label: the array's name in errors.
        array: on the device (anything with `__dlpack__`), or of NumPy, which is copied.
        kind: its shape, and its dtype on the device.
        memory: where copies go.
        driver: the device.
        accepts: dtypes of NumPy arrays that are converted while they are copied.
        copies: whether NumPy arrays are taken at all.
        mend: text on what else, beside `x.contiguous()`, gives the right memory layout.

    Raises:
        InputError: the array has another shape, dtype or order, or is on another device.
    """
    if isinstance(array, np.ndarray) and copies:
        if array.shape != kind.shape or str(array.dtype) not in accepts:
            wanted = type_text(accepts[0], kind.shape)
            raise InputError(
                f"{label} is {type_text(array.dtype, array.shape)}; expected {wanted}"
                f"{_axes(array, kind)}"
            )
        made = memory.array(kind.shape, kind.dtype)
        memory.upload(made.address, stored(array, kind.dtype))
        return made
    if not is_device_array(array):
        raise InputError(
            f"{label} is {type(array).__name__}; expected an array on the device (torch, CuPy: "
            "anything with __dlpack__)" + (", or a NumPy array" if copies else "")
        )
    held = take(label, array, driver)
    if (held.shape, held.dtype) != (kind.shape, kind.dtype):
        raise InputError(
            f"{label} is {type_text(held.dtype, held.shape)}; expected {kind}{_axes(held, kind)}"
        )
    if not held.dense or held.address % _VECTOR_BYTES:
        raise InputError(
            f"{label} has strides {held.strides} and begins at an address of "
            f"{held.address % _VECTOR_BYTES} modulo {_VECTOR_BYTES}; expected a row-major array "
            f"that begins at a multiple of {_VECTOR_BYTES}; call x.contiguous(){mend}"
        )
    return held


def finish_reading(driver: Driver, *given: Any) -> None:
    """Let the owners' default stream wait before it writes what we still read or write."""
    if any(not isinstance(a, np.ndarray | DeviceArray) and a is not None for a in given):
        driver.lead(1)


def _axes(array: Any, kind: TensorType) -> str:
    """Say how to permute an array whose axes are in another order; "" where that is no mend."""
    text = mended("x", array.shape, kind.shape)
    return f": give {text}" if text else ""
