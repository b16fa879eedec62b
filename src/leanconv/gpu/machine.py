"""A GPU as data: enough to choose tiles by estimate; the arithmetics of products on it.

| name | products | peak of an H200 | error of a sum |
|---|---|---|---|
| ieee | float32 or float64 fused multiply-adds | 67 TFLOP/s (float64 tensor cores too) | as NumPy |
| fp16x3 | three float16 products of two halves each, sums promoted every 128 | 330 | as float32 |
| tf32x3 | three tf32 products, sums promoted every 128 | 165 | as float32, any range |
| tf32 | one tf32 product | 495 | 1e-3 |
| native | one product of float16 or bfloat16 arrays, summed in float32 | 989 | of the inputs |

fp16x3 is as accurate as float32 while a tile's inputs lie between 2^-8 and 1023; tiles that leave
that range are detected and recomputed with tf32x3.
"""

from __future__ import annotations

from leanconv.errors import SpecError
from leanconv.gpu.device.driver import Driver
from leanconv.records import dataclass, replace
from leanconv.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, DType

TENSOR_COPIES = 90  # the first architecture that has bulk tensor copies


@dataclass(frozen=True)
class Machine:
    """A GPU.

    Attributes:
        name: as the driver calls it, or a preset's name.
        arch: compute capability as one number: 80, 90.
        processors: streaming multiprocessors.
        memory_bandwidth, cache_bandwidth: bytes a second from memory, and from the L2 cache.
        shared_bytes: shared memory that one program may have.
        fma_rate: float32 operations a second outside the tensor cores.
        tensor_rate: float16 operations a second of the tensor cores.
        overlapping_maps: whether its driver makes tensor maps whose cells overlap.
        launch_s: of a kernel of a graph: the gap before it, and its own chain of latencies.
        depthwise_rate: bytes a second that one processor reads for the depthwise part of a fused
            kernel, from caches.
        slice_start_s, slice_step_s: latencies of a program whose warps share k, for each row and
            column of its tile, and of a step as such; measured on an H100.
        slice_product_s, slice_native_s: of a product of a step, for each row and column, too; the
            second of native products.
    """

    name: str
    arch: int
    processors: int
    memory_bandwidth: float
    cache_bandwidth: float
    shared_bytes: int
    fma_rate: float
    tensor_rate: float
    overlapping_maps: bool = True
    launch_s: float = 2e-6
    depthwise_rate: float = 12e9
    slice_start_s: float = 17e-9
    slice_step_s: float = 0.05e-6
    slice_product_s: float = 73e-12
    slice_native_s: float = 31e-12

    def rate(self, arithmetic: str, dtype: DType) -> float:
        """Operations a second, useful ones: fp16x3 makes three products of each."""
        if dtype == FLOAT64:
            return self.fma_rate
        return {
            "ieee": self.fma_rate,
            "tf32": self.tensor_rate / 2,
            "tf32x3": self.tensor_rate / 6,
            "fp16x3": self.tensor_rate / 3,
            "native": self.tensor_rate,
        }[arithmetic]

    def least_step_s(self, arithmetic: str) -> float:
        """Seconds of a step, however few programs there are: loads, barriers, products in turn."""
        return {
            "ieee": 0.8e-6,
            "tf32x3": 0.5e-6,
            "fp16x3": 0.35e-6,
            "tf32": 0.2e-6,
            "native": 0.1e-6,
        }[arithmetic]


# From the makers' data sheets; the bandwidth of L2 is an estimate.
PRESETS = {
    "h200": Machine("h200", 90, 132, 4.3e12, 5.5e12, 232448, 67e12, 790e12),
    "h100": Machine("h100", 90, 132, 3.0e12, 5.5e12, 232448, 67e12, 790e12),
    "a100": Machine("a100", 80, 108, 1.8e12, 4.0e12, 166912, 19.5e12, 280e12),
}


def machine_of(device: Driver) -> Machine:
    """The machine for what a driver says about its device.

    Raises:
        SpecError: the device is older than sm_80.
    """
    name, arch, processors = device.name, device.arch, device.processors
    if arch < 80:
        raise SpecError(
            f"device {name!r} has compute capability {arch / 10}; expected 8.0 or newer "
            "(A100, H100, H200); use device='cpu'"
        )
    base = PRESETS["a100" if arch < 90 else "h200" if "H200" in name else "h100"]
    # Consumer devices of the same generation have less shared memory than the A100.
    shared = base.shared_bytes if arch in (80, 90, 100) else 101376
    share = processors / base.processors
    return replace(
        base,
        name=name,
        arch=arch,
        processors=processors,
        memory_bandwidth=base.memory_bandwidth * share,
        cache_bandwidth=base.cache_bandwidth * share,
        shared_bytes=shared,
        fma_rate=base.fma_rate * share,
        tensor_rate=base.tensor_rate * share,
        overlapping_maps=arch >= TENSOR_COPIES and device.overlapping_maps,
    )


@dataclass(frozen=True)
class Arithmetic:
    """One way to compute products.

    Attributes:
        name: in plans.
        mode: `MODE` of `kernels.gemm.multiply`.
        unit_error: relative error of one product and its addition, for random signs.
        split: whether weights are kept as two float16 halves.
    """

    name: str
    mode: str
    unit_error: float
    split: bool = False


IEEE = Arithmetic("ieee", "ieee", FLOAT32.roundoff)
TF32 = Arithmetic("tf32", "tf32", 2.0**-10)
TF32X3 = Arithmetic("tf32x3", "tf32x3", 2.0**-20, split=True)
FP16X3 = Arithmetic("fp16x3", "fp16x3", 2.0**-21, split=True)
HALF = Arithmetic("native", "native", 2.0**-11)
BRAIN = Arithmetic("native", "native", 2.0**-8)
DOUBLE = Arithmetic("ieee", "native", FLOAT64.roundoff)

# What may be used for arrays of a dtype, by the precision that the user asks for.
_CHOICES: dict[str, dict[str | None, tuple[Arithmetic, ...]]] = {
    FLOAT32: {
        None: (FP16X3, TF32X3, IEEE),
        FLOAT32: (FP16X3, TF32X3, IEEE),
        "ieee": (IEEE,),
        "fp16x3": (FP16X3,),
        "tf32x3": (TF32X3,),
        "tf32": (TF32,),
    },
    FLOAT64: {None: (DOUBLE,), FLOAT64: (DOUBLE,), "ieee": (DOUBLE,)},
    FLOAT16: {None: (HALF,), FLOAT16: (HALF,)},
    BFLOAT16: {None: (BRAIN,), BFLOAT16: (BRAIN,)},
}


def choices(dtype: DType, precision: str | None) -> tuple[Arithmetic, ...]:
    """The ways to make products for arrays of a dtype that keep what the user asks for.

    Raises:
        SpecError: the dtype has no such precision; a lower one is never taken instead.
    """
    known = _CHOICES[dtype]
    if precision not in known:
        raise SpecError(
            f"precision is {precision!r} for {dtype} arrays; expected one of "
            f"{', '.join(repr(name) for name in known if name)}, or None"
        )
    return known[precision]
