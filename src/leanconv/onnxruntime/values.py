"""Inputs and outputs of sessions: names with types, the file's own words, arrays as OrtValues."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from leanconv.api.inputs import InputSpec
from leanconv.errors import short
from leanconv.graph.onnx_description import Port
from leanconv.onnxruntime.exceptions import BindingError, Fail
from leanconv.onnxruntime.options import SessionOptions
from leanconv.records import dataclass
from leanconv.types import DTYPES, FLOAT32, FLOAT64, DType, find_dtype

# Onnxruntime's names of types, where they are not NumPy's.
_WORDS: dict[str, str] = {FLOAT32: "float", FLOAT64: "double"}


def tensor_type(dtype: str) -> str:
    """Onnxruntime's name of a type of tensors: `tensor(float)` for float32."""
    return f"tensor({_WORDS.get(dtype, dtype)})"


def dtype_of_type(name: str) -> DType | None:
    """The element type of onnxruntime's `tensor(float)`; None for others than leanconv's."""
    return next((dtype for dtype in DTYPES if tensor_type(dtype) == name), None)


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a session.

    Attributes:
        name: as the file has it.
        shape: numbers, names of extents that vary, None for those without a name; empty where the
            file does not fix the rank.
        type: such as `tensor(float)`.
    """

    name: str
    shape: list[int | str | None]
    type: str

    @classmethod
    def of(cls, port: Port, computed: InputSpec | None, options: SessionOptions) -> NodeArg:
        """An input or output of a file.

        Args:
            port: the file's declaration.
            computed: the spec in a plan, where there is one.
            options: with numbers for named extents.
        """
        dtype: str = port.dtype or (computed.dtype if computed else "")
        declared, known = port.shape, computed.shape if computed else None
        shape = list(known or ()) if declared is None else list(declared)
        if known is not None and len(known) == len(shape):
            shape = [b if isinstance(b, int) else a for a, b in zip(shape, known, strict=True)]
        return cls(port.name, options.fixed(shape), tensor_type(dtype))

    def __str__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape!r})"


@dataclass(frozen=True)
class ModelMetadata:
    """Metadata of a model file."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


class OrtDevice:
    """The device of values: the CPU's memory.

    Attributes:
        cpu: the type of that device.
    """

    cpu = 0

    def __init__(self, name: str = "cpu", number: int = 0) -> None:
        check_device(name)
        self._name, self._number = name, number

    @staticmethod
    def make(name: str, number: int = 0, vendor: int = -1) -> OrtDevice:
        """The device of a name.

        Raises:
            Fail: leanconv has no such device.
        """
        return OrtDevice(name, number)

    def device_id(self) -> int:
        """Return the device's number among those of its type."""
        return self._number

    def device_type(self) -> str:
        """Return the device's type."""
        return self._name


def check_device(name: str) -> None:
    """Raise unless values of sessions may lie there.

    Raises:
        Fail: the device is not the CPU.
    """
    if str(name).lower() != "cpu":
        raise Fail.of(
            f"got device {short(name)}; expected 'cpu': leanconv.load(..., device='cuda') "
            "computes on a GPU"
        )


class OrtValue:
    """An array as sessions take and give it. It shares the array's memory."""

    def __init__(self, array: np.ndarray, dtype: DType | None = None) -> None:
        self._array = array
        self._dtype = _known(array.dtype) if dtype is None else dtype

    # -- made ------------------------------------------------------------------------------
    @classmethod
    def ortvalue_from_numpy(
        cls,
        numpy_obj: np.ndarray,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """Make an OrtValue of an array, which is not copied if it is contiguous.

        Raises:
            Fail: the device is not the CPU.
            BindingError: leanconv has no such elements.
        """
        check_device(device_type)
        return cls(np.ascontiguousarray(numpy_obj).reshape(np.shape(numpy_obj)))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(
        cls, data: np.ndarray, onnx_element_type: int
    ) -> OrtValue:
        """Make an OrtValue of an array with elements of an ONNX type of as many bytes.

        Raises:
            BindingError: leanconv has no such elements, or they have other sizes.
        """
        dtype = _numbered(onnx_element_type)
        array = np.ascontiguousarray(data)
        if array.dtype.itemsize != dtype.bytes:
            raise BindingError.of(
                f"got elements of {array.dtype.itemsize} bytes; expected {dtype.bytes}, as "
                f"{dtype} has"
            )
        return cls(array.view(dtype.numpy), dtype)

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int] | None = None,
        element_type: Any = None,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """Make an OrtValue of a shape, with elements not set: for an output to be written to.

        Raises:
            Fail: the device is not the CPU.
            BindingError: there is no shape or type, or leanconv has no such elements.
        """
        check_device(device_type)
        if shape is None or element_type is None:
            raise BindingError.of("got no shape or no type; expected `element_type` and `shape`")
        dtype = bound_dtype(element_type)
        return cls(np.empty(tuple(shape), dtype.numpy), dtype)

    @classmethod
    def from_dlpack(cls, data: Any) -> OrtValue:
        """Make an OrtValue of an array of any library, through DLPack; not copied."""
        return cls.ortvalue_from_numpy(np.from_dlpack(data))

    # -- asked -----------------------------------------------------------------------------
    def numpy(self) -> np.ndarray:
        """The array, in the same memory."""
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is None and (dtype is None or self._array.dtype == dtype):
            return self._array
        if copy is False and dtype is not None and self._array.dtype != dtype:
            raise ValueError(f"{self._array.dtype} cannot become {dtype} without a copy")
        array = self._array if dtype is None else self._array.astype(dtype)
        return array.copy() if copy and array is self._array else array

    def __dlpack__(self, *, stream: Any = None, **more: Any) -> Any:
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> tuple[Any, int]:
        return self._array.__dlpack_device__()

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return int(self._array.ctypes.data)

    def device_name(self) -> str:
        """Return the name of the value's device."""
        return "cpu"

    def shape(self) -> list[int]:
        """Return the extents of the tensor."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """Return the type as text, such as `tensor(float)`."""
        return tensor_type(self._dtype)

    def element_type(self) -> int:
        """Return ONNX's number of the elements' type."""
        return self._dtype.onnx

    def tensor_size_in_bytes(self) -> int:
        """Return the bytes of all elements."""
        return int(self._array.nbytes)

    def has_value(self) -> bool:
        """Return True: an OrtValue always holds something."""
        return True

    def is_tensor(self) -> bool:
        """Return True: an OrtValue is always a tensor."""
        return True

    def is_sparse_tensor(self) -> bool:
        """Return False: no OrtValue is a sparse tensor."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Return False: no OrtValue is a sequence of tensors."""
        return False

    def update_inplace(self, data: Any) -> None:
        """Write other numbers of the same shape and type into its memory.

        Raises:
            BindingError: the shape or type is another.
        """
        array = np.asarray(data)
        if array.shape != self._array.shape or array.dtype != self._array.dtype:
            raise BindingError.of(
                f"got {array.dtype}{list(array.shape)}; expected "
                f"{self._array.dtype}{list(self._array.shape)}"
            )
        self._array[...] = array


def bound_dtype(given: Any) -> DType:
    """An element type as NumPy or ONNX's numbers say it.

    Raises:
        BindingError: leanconv has no such type.
    """
    if isinstance(given, int):
        return _numbered(given)
    try:
        return _known(np.dtype(given))
    except TypeError as error:
        raise BindingError.of(f"got type {short(given)}; expected one of NumPy's") from error


def _known(dtype: np.dtype) -> DType:
    found = find_dtype(str(dtype))
    if found is None:
        raise BindingError.of(f"got elements of {dtype}; expected one of {', '.join(DTYPES)}")
    return found


def _numbered(number: int) -> DType:
    found = next((each for each in DTYPES if each.onnx == number), None)
    if found is None:
        known = ", ".join(f"{each.onnx} ({each})" for each in DTYPES)
        raise BindingError.of(f"got ONNX type {number}; expected one of {known}")
    return found


class IOBinding:
    """The arrays that a run reads, and the places of its outputs.

    Args:
        session: the one whose names are bound; the run checks them.

    Attributes:
        feed: the arrays that are bound to inputs, by name.
    """

    def __init__(self, session: object) -> None:
        self.feed: dict[str, np.ndarray] = {}
        self._bound: dict[str, OrtValue | None] = {}  # None: a new array each time
        self._results: list[OrtValue] = []

    # -- inputs ----------------------------------------------------------------------------
    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Bind an array to an input."""
        self.feed[name] = np.asarray(arr_on_cpu)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an OrtValue's array to an input."""
        self.feed[name] = ortvalue.numpy()

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind memory to an input; it must stay there until the last run.

        Raises:
            Fail: the device is not the CPU.
            BindingError: leanconv has no such elements.
        """
        self.feed[name] = _at(device_type, element_type, shape, buffer_ptr)

    def synchronize_inputs(self) -> None:
        """Do nothing: runs end when they return."""

    def clear_binding_inputs(self) -> None:
        """Bind nothing to the inputs."""
        self.feed.clear()

    # -- outputs ---------------------------------------------------------------------------
    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind memory to an output, or no memory: then each run makes a new array.

        Raises:
            Fail: the device is not the CPU.
            BindingError: memory is given without its shape and type.
        """
        check_device(device_type)
        if buffer_ptr is None:
            self._bound[name] = None
            return
        if shape is None or element_type is None:
            raise BindingError.of(
                f"output {name!r} got an address without a shape or a type; expected both"
            )
        self._bound[name] = OrtValue.ortvalue_from_numpy(
            _at(device_type, element_type, shape, buffer_ptr)
        )

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Have each run write an output into an OrtValue's array."""
        self._bound[name] = ortvalue

    def synchronize_outputs(self) -> None:
        """Do nothing: runs end when they return."""

    def clear_binding_outputs(self) -> None:
        """Bind nothing to the outputs."""
        self._bound.clear()
        self._results.clear()

    # -- runs ------------------------------------------------------------------------------
    @property
    def wanted(self) -> list[str]:
        """The outputs that are bound, in the order in which they were."""
        return list(self._bound)

    def receive(self, results: Sequence[np.ndarray]) -> None:
        """Take the outputs of a run: those that are bound, else all.

        Raises:
            BindingError: an output is of another shape or type than what is bound to it.
        """
        bound = list(self._bound.values()) or [None] * len(results)
        for place, result in zip(bound, results, strict=True):
            if place is not None:
                place.update_inplace(result)
        self._results = [
            OrtValue.ortvalue_from_numpy(result) if place is None else place
            for place, result in zip(bound, results, strict=True)
        ]

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run."""
        return list(self._results)

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """The outputs of the last run, as arrays of their own."""
        return [value.numpy().copy() for value in self._results]


def _at(device_type: str, element_type: Any, shape: Sequence[int], address: int) -> np.ndarray:
    """An array over memory that somebody else owns."""
    check_device(device_type)
    dtype = np.dtype(bound_dtype(element_type).numpy)
    extents = tuple(int(n) for n in shape)
    count = int(np.prod(extents, dtype=np.int64)) * dtype.itemsize
    if not count:
        return np.empty(extents, dtype)
    memory = (ctypes.c_char * count).from_address(int(address))
    array: np.ndarray = np.frombuffer(memoryview(memory), dtype).reshape(extents)
    return array
