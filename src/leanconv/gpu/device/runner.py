"""Launches bound to addresses, ready to run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from leanconv.gpu.device.compiler import Compile, Cubin, compile_cubin
from leanconv.gpu.device.driver import Driver
from leanconv.gpu.launch import DTYPES_OF_TRITON, TENSOR_MAP, Code, Launch
from leanconv.progress import steps

_NUMBERS: dict[str, Any] = {
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "fp32": ctypes.c_float,
    "fp64": ctypes.c_double,
}
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64
_SMALL_GRID = 4  # programs for each processor, up to which a kernel may start early
_SCRATCH_POINTERS = 2  # that Triton's kernels take behind their own arguments: both unused


class TensorMap:
    """A tensor map as a kernel's argument; encoded again when the tensor's address changes.

    Attributes:
        values: the arguments that it stands for: the map, extents, strides.
    """

    def __init__(
        self,
        driver: Driver,
        kind: str,
        place: ctypes.c_uint64,
        tensor: tuple[tuple[int, ...], tuple[int, ...]],
        box: tuple[int, ...],
        swizzle: int,
    ) -> None:
        self._driver, self._place, self._encoded = driver, place, 0
        shape, strides = tensor
        dtype = DTYPES_OF_TRITON[kind.partition("<")[2].partition("[")[0]]
        self._tensor = dtype, shape, strides, box, swizzle
        self._raw = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT)
        offset = -ctypes.addressof(self._raw) % _MAP_ALIGNMENT
        self._map = (ctypes.c_char * _MAP_BYTES).from_buffer(self._raw, offset)
        extents = [ctypes.c_int32(extent) for extent in shape]
        steps = [ctypes.c_int64(stride) for stride in strides]
        self.values: list[Any] = [self._map, *extents, *steps]

    def refresh(self) -> None:
        """Make the map for where the tensor is now."""
        address = self._place.value
        if address == self._encoded:
            return
        dtype, shape, strides, box, swizzle = self._tensor
        target = ctypes.addressof(self._map)
        self._driver.encode(target, dtype, address, shape, strides, box, swizzle)
        self._encoded = address


class Module:
    """Loaded kernels; equal codes are loaded once.

    Args:
        driver: where to load.
        codes: what to compile and load.
        compile_code: what makes cubins.
    """

    def __init__(
        self, driver: Driver, codes: Iterable[Code], compile_code: Compile = compile_cubin
    ) -> None:
        self._driver = driver
        self._modules: list[ctypes.c_void_p] = []
        self._kernels: dict[Code, tuple[Cubin, ctypes.c_void_p]] = {}
        distinct = dict.fromkeys(codes)
        for code in steps("compiling kernels", distinct, len(distinct)):
            cubin = compile_code(code, driver.arch)
            module, function = driver.load(cubin.image, cubin.name, cubin.shared_bytes)
            self._modules.append(module)
            self._kernels[code] = cubin, function

    def __len__(self) -> int:
        return len(self._kernels)

    def bind(self, launch: Launch, places: Mapping[str, ctypes.c_uint64]) -> Callable[[], None]:
        """A launch on buffers whose addresses stand in `places` when it is called."""
        cubin, function = self._kernels[launch.code]
        values: list[Any] = []
        tensors, boxes, maps = iter(launch.tensors), iter(cubin.boxes), []
        for (_, kind), argument in zip(launch.code.types, launch.arguments, strict=True):
            if kind[0] == "*":
                assert isinstance(argument, str)
                values.append(places[argument] if argument else ctypes.c_uint64(0))
            elif kind.startswith(TENSOR_MAP):
                assert isinstance(argument, str)
                box, swizzle = next(boxes)
                made = TensorMap(self._driver, kind, places[argument], next(tensors), box, swizzle)
                maps.append(made)
                values += made.values
            else:
                assert not isinstance(argument, str)
                values.append(_NUMBERS[kind](argument))
        values += [ctypes.c_uint64(0)] * _SCRATCH_POINTERS
        addresses = [ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values]
        parameters = (ctypes.c_void_p * len(values))(*addresses)
        grid, threads = launch.grid, 32 * cubin.warps
        # Programs that wait take places; where there are many, the kernel before needs them.
        small = launch.programs <= _SMALL_GRID * self._driver.processors
        start = self._driver.launch_early if cubin.early and small else self._driver.launch

        def run(_kept: Sequence[Any] = values) -> None:
            for each in maps:
                each.refresh()
            start(function, grid, threads, cubin.shared_bytes, parameters)

        return run

    def close(self) -> None:
        """Unload the kernels."""
        for module in self._modules:
            self._driver.call("cuModuleUnload", module)
        self._modules.clear()
