"""What a GPU is, as data: enough to choose tiles by estimate."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from leanconv.errors import SpecError
from leanconv.records import dataclass
from leanconv.types import FLOAT64, DType

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


# From the makers' data sheets; the bandwidth of L2 is an estimate.
PRESETS = {
    "h200": Machine("h200", 90, 132, 4.3e12, 5.5e12, 232448, 67e12, 790e12),
    "h100": Machine("h100", 90, 132, 3.0e12, 5.5e12, 232448, 67e12, 790e12),
    "a100": Machine("a100", 80, 108, 1.8e12, 4.0e12, 166912, 19.5e12, 280e12),
}


class Device(Protocol):
    """What a driver says about its device; see `device.driver.Driver`."""

    name: str
    arch: int
    processors: int

    @property
    def overlapping_maps(self) -> bool:
        """Whether the driver makes tensor maps whose cells overlap."""


def machine_of(device: Device) -> Machine:
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
