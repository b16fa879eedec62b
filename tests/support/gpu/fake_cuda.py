"""A CUDA driver without a device: real memory of this host, recorded calls, captured graphs.

Every function is a real C function (through ctypes), so that what a launcher passes crosses the
same boundary as with the real library. Where an `execute` function is given, launches run: it gets
the kernel's code and arguments as they were decoded from the launch's parameters.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from ctypes import POINTER, c_char, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass, field
from typing import Any

from leanconv.gpu.device.compiler import Cubin
from leanconv.gpu.device.driver import LaunchConfig
from leanconv.gpu.launch import TENSOR_MAP, Code

GUARD = 256
_POISON = 0xFF  # NaN in every float format
_NUMBERS = {"i32": c_int, "i64": ctypes.c_int64, "fp32": c_float, "fp64": ctypes.c_double}

EARLY_KERNELS = ("gemm.segment_gemm", "pointwise.sliced_gemm")  # some of them
Execute = Callable[[Code, tuple[int, int, int], list[Any]], None]


@dataclass(frozen=True)
class Tensor:
    """What a tensor map says; strides in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]


_MAP = (
    "<HHxxxxQ5I5Q5H"  # rank, bytes of an element, address; extents, strides and boxes of five axes
)
_ITEM = {6: 2, 7: 4, 9: 2}  # bytes, by the driver's number of a dtype


def read_map(blob: bytes) -> Tensor:
    """The tensor map that the fake driver has written."""
    rank, item, address, *rest = struct.unpack_from(_MAP, blob)
    shape, strides, box = (tuple(rest[5 * i : 5 * i + rank]) for i in range(3))
    assert all(stride * item % 16 == 0 for stride in strides[:-1]), "strides of 16 bytes"
    return Tensor(address, shape, strides, box)


@dataclass(frozen=True)
class Encoded:
    """What `cuTensorMapEncodeTiled` was given: the fastest axis first, strides in bytes.

    Attributes:
        modes: interleaving, swizzle, promotion to L2, and what is outside.
    """

    kind: int
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    modes: tuple[int, int, int, int]


@dataclass
class Launched:
    """A launch as the driver received it."""

    code: Code
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    arguments: list[Any]
    scratch: list[int]


@dataclass
class FakeCuda:
    """The library. `launches` are those that ran, graphs replayed included."""

    arch: int = 90
    processors: int = 132
    memory_bytes: int = 1 << 30
    devices: int = 1
    execute: Execute | None = None
    launches: list[Launched] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    codes: list[Code] = field(default_factory=list)
    encoded: list[Encoded] = field(default_factory=list)
    refuses_overlap: bool = False

    def __post_init__(self) -> None:
        self.buffers: dict[int, tuple[Any, int]] = {}
        self._graphs: list[list[Launched]] = []
        self._capturing: list[Launched] | None = None
        self.fail: str = ""
        self._bind()

    # -- what stands for triton --------------------------------------------------------------
    def compile(self, code: Code, arch: int) -> Cubin:
        """A cubin that holds nothing but the code's number."""
        assert arch == self.arch
        self.codes.append(code)
        kinds = [kind for _, kind in code.types if kind.startswith(TENSOR_MAP)]
        boxes = [tuple(map(int, kind.partition("[")[2].rstrip("]>").split(","))) for kind in kinds]
        image = b"%d" % (len(self.codes) - 1)
        early = code.function in EARLY_KERNELS
        return Cubin("kernel", 60000, code.warps, image, early, tuple((box, 3) for box in boxes))

    # -- the driver's functions --------------------------------------------------------------
    def _bind(self) -> None:
        kinds: dict[str, tuple[Any, ...]] = {
            "cuInit": (c_uint,),
            "cuDeviceGetCount": (POINTER(c_int),),
            "cuDeviceGet": (POINTER(c_int), c_int),
            "cuDeviceGetName": (c_void_p, c_int, c_int),
            "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
            "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
            "cuCtxSetCurrent": (c_void_p,),
            "cuStreamCreate": (POINTER(c_void_p), c_uint),
            "cuStreamSynchronize": (c_void_p,),
            "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
            "cuEventCreate": (POINTER(c_void_p), c_uint),
            "cuEventRecord": (c_void_p, c_void_p),
            "cuEventSynchronize": (c_void_p,),
            "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
            "cuEventDestroy_v2": (c_void_p,),
            "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
            "cuMemFree_v2": (c_uint64,),
            "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
            "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
            "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
            "cuModuleLoadData": (POINTER(c_void_p), c_void_p),
            "cuModuleUnload": (c_void_p,),
            "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
            "cuFuncSetAttribute": (c_void_p, c_int, c_int),
            "cuLaunchKernel": (
                c_void_p,
                *(c_uint,) * 7,
                c_void_p,
                POINTER(c_void_p),
                c_void_p,
            ),
            "cuLaunchKernelEx": (POINTER(LaunchConfig), c_void_p, POINTER(c_void_p), c_void_p),
            "cuStreamBeginCapture_v2": (c_void_p, c_int),
            "cuStreamEndCapture": (c_void_p, POINTER(c_void_p)),
            "cuGraphInstantiateWithFlags": (POINTER(c_void_p), c_void_p, c_uint64),
            "cuGraphLaunch": (c_void_p, c_void_p),
            "cuGraphExecDestroy": (c_void_p,),
            "cuGraphDestroy": (c_void_p,),
            "cuGetErrorString": (c_int, POINTER(c_char_p)),
            "cuTensorMapEncodeTiled": (
                *(c_void_p, c_int, c_uint, c_uint64),
                *(POINTER(c_uint64), POINTER(c_uint64), POINTER(c_uint), POINTER(c_uint)),
                *(c_int,) * 4,
            ),
        }
        for name, types in kinds.items():
            body = getattr(self, f"_{name}", None)
            setattr(self, name, ctypes.CFUNCTYPE(c_int, *types)(self._recorded(name, body)))

    def _recorded(self, name: str, body: Callable[..., int | None] | None) -> Callable[..., int]:
        def called(*arguments: Any) -> int:
            self.calls.append(name)
            if name == self.fail:
                return 700
            try:
                return (body(*arguments) if body else 0) or 0
            except Exception:
                self.calls.append(f"{name} raised")
                raise

        return called

    def _cuGetErrorString(self, code: int, text: Any) -> None:  # noqa: N802
        text[0] = b"an illegal memory access was encountered"

    def _cuDeviceGetCount(self, count: Any) -> None:  # noqa: N802
        count[0] = self.devices

    def _cuDeviceGetName(self, name: int, size: int, device: int) -> None:  # noqa: N802
        ctypes.memmove(name, b"NVIDIA H200 (fake)\0", 19)

    def _cuDeviceGetAttribute(self, value: Any, number: int, device: int) -> None:  # noqa: N802
        value[0] = {16: self.processors, 75: self.arch // 10, 76: self.arch % 10}[number]

    def _cuStreamCreate(self, stream: Any, flags: int) -> None:  # noqa: N802
        stream[0] = 0x5000

    def _cuEventCreate(self, event: Any, flags: int) -> None:  # noqa: N802
        event[0] = 0xE000

    def _cuEventElapsedTime(self, value: Any, first: int, last: int) -> None:  # noqa: N802
        value[0] = 1.0

    def _cuMemAlloc_v2(self, address: Any, size: int) -> int | None:  # noqa: N802
        if size + sum(each for _, each in self.buffers.values()) > self.memory_bytes:
            return 2
        raw = ctypes.create_string_buffer(size + 2 * GUARD + 256)
        place = -(-(ctypes.addressof(raw) + GUARD) // 256) * 256
        ctypes.memset(place - GUARD, 0x5A, GUARD)
        ctypes.memset(place, _POISON, size)
        ctypes.memset(place + size, 0x5A, GUARD)
        self.buffers[place] = raw, size
        address[0] = place
        return None

    def _cuMemFree_v2(self, address: int) -> None:  # noqa: N802
        self.check_guards()
        del self.buffers[address]

    def _cuMemcpyHtoDAsync_v2(self, to: int, of: int, size: int, stream: int) -> None:  # noqa: N802
        ctypes.memmove(to, of, size)

    _cuMemcpyDtoHAsync_v2 = _cuMemcpyHtoDAsync_v2  # noqa: N815
    _cuMemcpyDtoDAsync_v2 = _cuMemcpyHtoDAsync_v2  # noqa: N815

    def _cuModuleLoadData(self, module: Any, image: int) -> None:  # noqa: N802
        number = ctypes.string_at(image)
        module[0] = 0x1000 + int(number) if number.isdigit() else 0x10

    def _cuModuleGetFunction(self, function: Any, module: int, name: bytes) -> None:  # noqa: N802
        function[0] = module

    def _cuLaunchKernel(self, function: int, *rest: Any) -> None:  # noqa: N802
        gx, gy, gz, threads, by, bz, shared, _stream, parameters, extra = rest
        assert (by, bz, extra) == (1, 1, None)
        code = self.codes[function - 0x1000]
        arguments: list[Any] = []
        at = 0

        def value(held: Any) -> Any:
            nonlocal at
            at += 1
            return ctypes.cast(parameters[at - 1], POINTER(held))[0]

        for _, kind in code.types:
            if kind.startswith(TENSOR_MAP):
                found = read_map(value(c_char * 128).raw)
                assert [value(c_int) for _ in found.shape] == list(found.shape)
                assert [value(ctypes.c_int64) for _ in found.shape] == list(found.strides)
                arguments.append(found)
            else:
                arguments.append(value(c_uint64 if kind[0] == "*" else _NUMBERS[kind]))
        scratch = [value(c_uint64), value(c_uint64)]
        launched = Launched(code, (gx, gy, gz), threads, shared, arguments, scratch)
        if self._capturing is not None:
            self._capturing.append(launched)
        else:
            self._run(launched)

    def _cuLaunchKernelEx(self, held: Any, function: int, parameters: Any, extra: Any) -> None:  # noqa: N802
        config = held[0]
        assert config.count == 1
        attribute = config.attributes[0]
        assert (attribute.id, attribute.value) == (6, 1)
        rest = (*config.grid, *config.block, config.shared_bytes, config.stream, parameters, extra)
        self._cuLaunchKernel(function, *rest)

    def _run(self, launched: Launched) -> None:
        self.launches.append(launched)
        if self.execute:
            self.execute(launched.code, launched.grid, launched.arguments)

    def _cuStreamBeginCapture_v2(self, stream: int, mode: int) -> None:  # noqa: N802
        self._capturing = []

    def _cuStreamEndCapture(self, stream: int, graph: Any) -> None:  # noqa: N802
        assert self._capturing is not None
        self._graphs.append(self._capturing)
        self._capturing = None
        graph[0] = len(self._graphs)

    def _cuGraphInstantiateWithFlags(self, made: Any, graph: int, flags: int) -> None:  # noqa: N802
        made[0] = graph

    def _cuGraphLaunch(self, graph: int, stream: int) -> None:  # noqa: N802
        for launched in self._graphs[graph - 1]:
            self._run(launched)

    def _cuTensorMapEncodeTiled(self, target: int, kind: int, rank: int, *rest: Any) -> int | None:  # noqa: N802
        """The manual's rules; one that is broken is refused, as the driver does."""
        address, shape, strides, box, steps, interleave, swizzle, promoted, fill = rest
        item = _ITEM[kind]
        encoded = Encoded(
            kind,
            address,
            tuple(shape[:rank]),
            tuple(strides[: rank - 1]),
            tuple(box[:rank]),
            tuple(steps[:rank]),
            (interleave, swizzle, promoted, fill),
        )
        self.encoded.append(encoded)
        wide = 1 << 20 if swizzle == 0 else 16 << swizzle
        pairs = zip(encoded.shape[1:], encoded.strides, encoded.strides[1:], strict=False)
        overlap = any(outer < extent * inner for extent, inner, outer in pairs)
        kept = (
            target % 64 == 0
            and address % 16 == 0
            and 1 <= rank <= 5
            and all(1 <= extent <= 2**32 for extent in encoded.shape)
            and all(0 < s < 2**40 and s % 16 == 0 for s in encoded.strides)
            and all(1 <= extent <= 256 for extent in encoded.box)
            and all(1 <= step <= 8 for step in encoded.steps)
            and box[0] * item % 16 == 0
            and box[0] * item <= wide
            and encoded.modes in {(0, swizzle, 2, 0) for swizzle in range(4)}
            and not (overlap and self.refuses_overlap)
        )
        if not kept:
            return 1
        elements = (*(stride // item for stride in encoded.strides[::-1]), 1)
        filled = [
            (*e, *[0] * (5 - rank)) for e in (encoded.shape[::-1], elements, encoded.box[::-1])
        ]
        blob = struct.pack(_MAP, rank, item, address, *filled[0], *filled[1], *filled[2])
        ctypes.memmove(target, blob.ljust(128, b"\0"), 128)
        return None

    def check_guards(self) -> None:
        """Raise if anything was written beside a buffer."""
        for place, (_, size) in self.buffers.items():
            for start in (place - GUARD, place + size):
                assert ctypes.string_at(start, GUARD) == b"\x5a" * GUARD, "written outside a buffer"
