"""From a kernel's description to a cubin, ahead of time and cached on disk; from that to launches.

Cubins are made without a GPU or torch.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from leanconv.canonical import canonical_text
from leanconv.codegen.cache import DiskCache
from leanconv.errors import CompileError, MissingExtraError
from leanconv.gpu.device.driver import Driver
from leanconv.gpu.launch import DTYPES_OF_TRITON, TENSOR_MAP, Code, Launch
from leanconv.gpu.machine import TENSOR_COPIES
from leanconv.progress import steps
from leanconv.records import dataclass
from leanconv.settings import current_settings

EARLY = "EARLY"  # the constant of kernels that can start early
_KERNELS = Path(__file__).resolve().parents[1] / "kernels"


@dataclass(frozen=True)
class Cubin:
    """Machine code of one kernel.

    Attributes:
        name: the function's name in the code.
        shared_bytes: shared memory that a program needs.
        warps: warps of a program, as compiled.
        image: bytes that the driver loads.
        early: whether it waits by itself for the kernel before it (`kernels.common`).
        boxes: for each tensor map that it takes, the extents of its boxes and its swizzle.
    """

    name: str
    shared_bytes: int
    warps: int
    image: bytes
    early: bool = False
    boxes: tuple[tuple[tuple[int, ...], int], ...] = ()


Compile = Callable[[Code, int], Cubin]


def require_triton() -> Any:
    """Import triton.

    Raises:
        MissingExtraError: triton is not installed.
    """
    try:
        return import_module("triton")
    except ImportError as error:
        raise MissingExtraError(
            "device='cuda' needs triton, which is not installed; install it: pip install triton"
        ) from error


def function_of(code: Code) -> Any:
    """The `@triton.jit` function that a code names."""
    require_triton()
    module, _, name = code.function.partition(".")
    return getattr(import_module(f"leanconv.gpu.kernels.{module}"), name)


def constants_of(code: Code) -> dict[str, Any]:
    """The constants of a code as the function takes them; `ACC` names a type."""
    import triton.language as tl

    return {name: getattr(tl, str(v)) if name == "ACC" else v for name, v in code.constants}


def compile_cubin(code: Code, arch: int) -> Cubin:
    """Compile, or find the result of an earlier process in the settings' cache folder.

    Args:
        code: the kernel.
        arch: compute capability: 80, 90.

    Raises:
        MissingExtraError: triton is not installed.
        CompileError: triton cannot compile it, with triton's own message.
    """
    cache, key = _cache(), _key(code, arch)
    found = cache.get(key)
    if found is not None:
        head, _, image = found.partition(b"\n")
        facts = json.loads(head)
        boxes = tuple((tuple(box), swizzle) for box, swizzle in facts.pop("boxes"))
        return Cubin(image=image, boxes=boxes, **facts)
    made = _compile(code, arch)
    facts = {k: v for k, v in asdict(made).items() if k != "image"}
    cache.put(key, json.dumps(facts).encode() + b"\n" + made.image)
    return made


def _compile(code: Code, arch: int) -> Cubin:
    triton = require_triton()
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = function_of(code)
    constants, types, names = constants_of(code), dict(code.types), list(function.arg_names)
    early = EARLY in names and arch >= TENSOR_COPIES
    if EARLY in names:
        constants[EARLY] = early
    order = [name for name in names if name not in constants]
    if order != [name for name, _ in code.types]:
        raise CompileError(f"{code.function} takes {order}; got {[n for n, _ in code.types]}")
    signature = {name: types.get(name, "constexpr") for name in names}
    facts = {(names.index(n),): [["tt.divisibility", factor]] for n, factor in code.divisible}
    options = {"num_warps": code.warps, "num_stages": code.stages, "enable_fp_fusion": True}
    try:
        made = triton.compile(
            ASTSource(function, signature, constants, facts),
            target=GPUTarget("cuda", arch, 32),
            options=options,
        )
    except Exception as error:  # triton's errors have no common class
        raise CompileError(f"triton cannot compile {code} for sm_{arch}: {error}") from error
    meta = made.metadata
    if getattr(meta, "global_scratch_size", 0):
        raise CompileError(f"{code} wants scratch in global memory; expected none")
    tensors = getattr(meta, "tensordesc_meta", None) or ()
    boxes = tuple((tuple(each["block_size"]), int(each["swizzle"])) for each in tensors)
    return Cubin(meta.name, meta.shared, meta.num_warps, made.asm["cubin"], early, boxes)


def _key(code: Code, arch: int) -> str:
    text = "\n".join((canonical_text(code), str(arch), _triton_version(), _sources()))
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def _triton_version() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:  # cubins of another machine may still lie in the cache
        return "absent"


@functools.cache
def _sources() -> str:
    """A hash of every kernel's text: they call one another."""
    digest = hashlib.sha256()
    for path in sorted(_KERNELS.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@functools.cache
def _cache() -> DiskCache:
    settings = current_settings()
    kept = settings.cache_dir / "cubins" if settings.cache_bytes else None
    return DiskCache(kept, settings.cache_bytes, ".cubin")


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
        codes: the kernels to compile and load.
        compile_code: compiles a code to a cubin.
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
