"""The CUDA driver through ctypes: context, memory, modules, launches, graphs, events."""

from __future__ import annotations

import ctypes
import functools
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any

from leanconv.errors import DeviceError
from leanconv.records import cached_property
from leanconv.types import BFLOAT16, FLOAT16, FLOAT32, DType

_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
_SHARED_LIMIT = 48 * 1024  # more must be requested
_NON_BLOCKING = 1
_MAX_DYNAMIC_SHARED = 8
_PROCESSORS, _MAJOR, _MINOR = 16, 75, 76
_THREAD_LOCAL_CAPTURE = 1
_PROGRAMMATIC_SERIALIZATION = 6  # an attribute of launches
_MAP_TYPES = {FLOAT16: 6, FLOAT32: 7, BFLOAT16: 9}
_NOT_INTERLEAVED, _PROMOTED_TO_128, _ZEROS_OUTSIDE = 0, 2, 0

# Argument types of every function that is called; all return an int, 0 for success.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDeviceGetCount": (c_void_p,),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (c_void_p, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuStreamCreate": (c_void_p, c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuEventCreate": (c_void_p, c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (c_void_p, c_void_p, c_void_p),
    "cuEventDestroy_v2": (c_void_p,),
    "cuMemAlloc_v2": (c_void_p, c_size_t),
    "cuMemFree_v2": (c_ulonglong,),
    "cuMemcpyHtoDAsync_v2": (c_ulonglong, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_ulonglong, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_ulonglong, c_ulonglong, c_size_t, c_void_p),
    "cuModuleLoadData": (c_void_p, c_char_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (c_void_p, c_void_p, c_char_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, c_void_p, c_void_p),
    "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, c_void_p),
    "cuGraphInstantiateWithFlags": (c_void_p, c_void_p, c_ulonglong),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphExecDestroy": (c_void_p,),
    "cuGraphDestroy": (c_void_p,),
    "cuTensorMapEncodeTiled": (
        *(c_void_p, c_int, c_uint, c_ulonglong),
        *(c_void_p,) * 4,
        *(c_int,) * 4,
    ),
}


class LaunchAttribute(ctypes.Structure):
    """`CUlaunchAttribute`: its number and its value, of 64 bytes."""

    _fields_ = (("id", c_int), ("pad", c_int), ("value", c_int), ("rest", c_int * 15))


class LaunchConfig(ctypes.Structure):
    """`CUlaunchConfig`."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("count", c_uint),
    )


class Driver:
    """One device, its primary context (which torch and CuPy share) and a stream.

    Args:
        library: the driver's library, or anything with its functions.
        number: of the device.

    Raises:
        DeviceError: there is no such device, or a call fails.
    """

    def __init__(self, library: Any, number: int = 0) -> None:
        self._functions = {}
        for name, types in _FUNCTIONS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = types, c_int
            self._functions[name] = function
        self._describe = library.cuGetErrorString
        self._describe.argtypes, self._describe.restype = (c_int, c_void_p), c_int
        self.number = number
        self.call("cuInit", 0)
        count, device = c_int(), c_int()
        self.call("cuDeviceGetCount", byref(count))
        if number >= count.value:
            raise DeviceError(
                f"device 'cuda:{number}' was asked for and the driver knows {count.value} "
                "device(s); expected a smaller number; see nvidia-smi, or use device='cpu'"
            )
        self.call("cuDeviceGet", byref(device), number)
        label = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", label, len(label), device)
        self.name = label.value.decode()
        self.processors = self._attribute(_PROCESSORS, device)
        self.arch = 10 * self._attribute(_MAJOR, device) + self._attribute(_MINOR, device)
        self._context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(self._context), device)
        self.enter()
        self.stream = c_void_p()
        self.call("cuStreamCreate", byref(self.stream), _NON_BLOCKING)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver.

        Raises:
            DeviceError: the call fails; the message has the driver's own text.
        """
        code = self._functions[name](*arguments)
        if code:
            text = c_char_p()
            self._describe(code, byref(text))
            reason = (text.value or b"unknown error").decode()
            raise DeviceError(f"{name} failed on device {self.number}: {reason} ({code})")

    def _attribute(self, number: int, device: c_int) -> int:
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), number, device)
        return value.value

    def enter(self) -> None:
        """Make the context current in this thread."""
        self.call("cuCtxSetCurrent", self._context)

    # -- memory ----------------------------------------------------------------------------
    def allocate(self, size: int) -> int:
        """Reserve memory, aligned to 256 bytes, and return its address.

        Raises:
            DeviceError: the device has not as much left.
        """
        address = c_ulonglong()
        self.call("cuMemAlloc_v2", byref(address), max(size, 1))
        return address.value

    def free(self, address: int) -> None:
        """Give memory back."""
        self.call("cuMemFree_v2", address)

    def write(self, address: int, source: int, size: int) -> None:
        """Copy from the host, and wait."""
        self.call("cuMemcpyHtoDAsync_v2", address, source, size, self.stream)
        self.wait()

    def read(self, target: int, address: int, size: int) -> None:
        """Copy to the host, and wait."""
        self.call("cuMemcpyDtoHAsync_v2", target, address, size, self.stream)
        self.wait()

    def wait(self) -> None:
        """Wait until everything on the stream is done."""
        self.call("cuStreamSynchronize", self.stream)

    # -- code ------------------------------------------------------------------------------
    def load(self, image: bytes, name: str, shared_bytes: int) -> tuple[c_void_p, c_void_p]:
        """Load machine code; returns the module and its function."""
        module, function = c_void_p(), c_void_p()
        self.call("cuModuleLoadData", byref(module), image)
        self.call("cuModuleGetFunction", byref(function), module, name.encode())
        if shared_bytes > _SHARED_LIMIT:
            self.call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, shared_bytes)
        return module, function

    def launch(
        self,
        function: c_void_p,
        grid: tuple[int, int, int],
        threads: int,
        shared_bytes: int,
        parameters: Any,
    ) -> None:
        """Start a kernel on the stream."""
        self.call(
            "cuLaunchKernel",
            function,
            *grid,
            threads,
            1,
            1,
            shared_bytes,
            self.stream,
            parameters,
            None,
        )

    def launch_early(
        self,
        function: c_void_p,
        grid: tuple[int, int, int],
        threads: int,
        shared_bytes: int,
        parameters: Any,
    ) -> None:
        """Start a kernel that waits by itself for the work on the stream before it."""
        early = LaunchAttribute(_PROGRAMMATIC_SERIALIZATION, 0, 1)
        config = LaunchConfig(
            (c_uint * 3)(*grid),
            (c_uint * 3)(threads, 1, 1),
            shared_bytes,
            self.stream,
            ctypes.pointer(early),
            1,
        )
        self.call("cuLaunchKernelEx", byref(config), function, parameters, None)

    def encode(
        self,
        target: int,
        dtype: DType,
        address: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        box: tuple[int, ...],
        swizzle: int,
    ) -> None:
        """Write the tensor map of a tensor.

        Args:
            target: of 128 bytes in the host's memory, aligned to 64.
            dtype, address, shape: the tensor's, the last axis fastest.
            strides: in elements, 1 the last.
            box: extents of one copy.
            swizzle: the layout of a box in shared memory, the driver's number.

        Raises:
            DeviceError: the driver refuses such a map.
        """
        rank, item = len(shape), dtype.bytes
        steps = [item * stride for stride in strides[:-1]]
        self.call(
            "cuTensorMapEncodeTiled",
            target,
            _MAP_TYPES[dtype],
            rank,
            address,
            (c_ulonglong * rank)(*reversed(shape)),
            (c_ulonglong * rank)(*reversed(steps)),
            (c_uint * rank)(*reversed(box)),
            (c_uint * rank)(*[1] * rank),
            _NOT_INTERLEAVED,
            swizzle,
            _PROMOTED_TO_128,
            _ZEROS_OUTSIDE,
        )

    @cached_property
    def overlapping_maps(self) -> bool:
        """True if the driver makes tensor maps whose cells overlap: tried, as no manual says."""
        blob = ctypes.create_string_buffer(128 + 64)
        target = ctypes.addressof(blob) + -ctypes.addressof(blob) % 64
        shape, strides = (2, 3, 3, 3, 12), (256, 64, 8, 32, 1)  # 3x3 windows of 8x8x4, stride 2
        address = self.allocate(2 * 256 * FLOAT32.bytes)
        try:
            self.encode(target, FLOAT32, address, shape, strides, (1, 1, 1, 1, 4), 0)
        except DeviceError:
            return False
        finally:
            self.free(address)
        return True

    # -- order between streams -------------------------------------------------------------
    def follow(self, stream: int) -> None:
        """Let our stream wait for the present work on another library's stream."""
        self._order(c_void_p(stream), self.stream)

    def lead(self, stream: int) -> None:
        """Let another library's stream wait for the present work on ours."""
        self._order(self.stream, c_void_p(stream))

    def _order(self, first: c_void_p, then: c_void_p) -> None:
        event = c_void_p()
        self.call("cuEventCreate", byref(event), 2)  # without times
        self.call("cuEventRecord", event, first)
        self.call("cuStreamWaitEvent", then, event, 0)
        self.call("cuEventDestroy_v2", event)

    # -- graphs ----------------------------------------------------------------------------
    def begin_capture(self) -> None:
        """Record launches instead of running them."""
        self.call("cuStreamBeginCapture_v2", self.stream, _THREAD_LOCAL_CAPTURE)

    def end_capture(self) -> Graph:
        """Make a graph of the recorded launches."""
        graph, executable = c_void_p(), c_void_p()
        self.call("cuStreamEndCapture", self.stream, byref(graph))
        try:
            self.call("cuGraphInstantiateWithFlags", byref(executable), graph, 0)
        finally:
            self.call("cuGraphDestroy", graph)
        return Graph(self, executable)

    # -- time ------------------------------------------------------------------------------
    def event(self) -> c_void_p:
        """An event on the stream, recorded now."""
        event = c_void_p()
        self.call("cuEventCreate", byref(event), 0)
        self.call("cuEventRecord", event, self.stream)
        return event

    def seconds(self, first: c_void_p, last: c_void_p) -> float:
        """Wait for `last`, and return the time between two events, which are destroyed."""
        self.call("cuEventSynchronize", last)
        milliseconds = ctypes.c_float()
        self.call("cuEventElapsedTime", byref(milliseconds), first, last)
        for event in (first, last):
            self.call("cuEventDestroy_v2", event)
        return milliseconds.value * 1e-3


class Graph:
    """Launches that were recorded, and run again with one call."""

    def __init__(self, driver: Driver, executable: c_void_p) -> None:
        self._driver, self._executable = driver, executable

    def run(self) -> None:
        """Start all launches on the driver's stream."""
        self._driver.call("cuGraphLaunch", self._executable, self._driver.stream)

    def close(self) -> None:
        """Give the driver's objects back."""
        self._driver.call("cuGraphExecDestroy", self._executable)


def load_library() -> Any:
    """The driver's library.

    Raises:
        DeviceError: there is none.
    """
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise DeviceError(
        f"device 'cuda' was asked for and no CUDA driver was found; expected {_LIBRARIES[0]} of "
        "an NVIDIA driver; install one, or use device='cpu'"
    )


@functools.cache
def driver(number: int = 0) -> Driver:
    """The driver of a device of this process.

    Raises:
        DeviceError: there is no driver or no such device.
    """
    return Driver(load_library(), number)
