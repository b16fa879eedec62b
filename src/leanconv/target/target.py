"""A processor as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from leanconv.records import dataclass
from leanconv.symbolic import fixed
from leanconv.target.costs import Costs
from leanconv.target.records import ZEN4
from leanconv.types import DType

# Instructions that some cores of an `isa` have and others lack: what they multiply and add.
EXTENSIONS: Mapping[str, str] = {
    "amx_bf16": "tiles of bfloat16, summed in float32",
    "amx_int8": "tiles of bytes, summed in int32",
    "avx_vnni": "quads of u8 x s8 and pairs of s16, summed in int32: vectors of 32 bytes",
    "avx_vnni_int8": "quads of bytes of any signs, summed in int32: vectors of 32 bytes",
    "bf16": "pairs of bfloat16, summed in float32",
    "dotprod": "quads of s8 x s8 and of u8 x u8, summed in int32",
    "fp16": "float16, summed in float16",
    "i8mm": "quads of u8 x s8, summed in int32",
    "vbmi": "bytes picked from 128 of two registers, for vectors of up to 64 bytes",
    "vnni": "quads of u8 x s8 and pairs of s16, summed in int32: vectors of up to 64 bytes",
}


@dataclass(frozen=True)
class Target:
    """Facts about one kind of core that decide what code is emitted for it.

    Attributes:
        name: the preset's name, or `"host"`.
        isa: `"avx512"`, `"avx2"`, `"neon"` or `"generic"`.
        cpu: LLVM's name of the processor.
        features: LLVM's feature string; empty for the processor's own.
        triple: LLVM target triple.
        vector_bytes: width of a vector register.
        registers: number of vector registers.
        fma_units: vector multiply-adds that start each cycle.
        fma_latency: cycles from a multiply-add's start to its result's use.
        l1_bytes, l2_bytes: data caches of one core.
        l3_bytes: the shared cache, 0 if there is none.
        costs: the record from which times are estimated; a relative's where nobody has made one
            for this processor, which `has_own_costs` tells.
        extensions: instructions that not every core of its `isa` has, of `EXTENSIONS`, sorted.
    """

    name: str
    isa: str
    cpu: str
    features: str
    triple: str
    vector_bytes: int
    registers: int
    fma_units: float
    fma_latency: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    costs: Costs = ZEN4
    extensions: tuple[str, ...] = ()

    def lanes(self, dtype: DType) -> int:
        """Elements of a dtype in one vector register."""
        return self.vector_bytes // dtype.bytes

    def channel_block(self, dtype: DType) -> int:
        """Channels in a block of a tensor: the lanes of what sums of its elements are kept in.

        So tensors of different types, between which a network converts, have equal blocks.
        """
        return self.lanes(dtype.accumulator)

    @property
    def usable_registers(self) -> int:
        """Registers of a loop that does not spill: of 32 one is left to LLVM."""
        return min(self.registers, 31)

    @property
    def accumulators(self) -> int:
        """Registers left for accumulators and operands in a kernel's inner loop."""
        return self.registers - 1

    @property
    def least_accumulators(self) -> int:
        """Independent accumulators needed to keep the multiply-add units busy."""
        return int(self.fma_units * self.fma_latency)

    def peak_gflops(self, dtype: DType, threads: int) -> float:
        """Multiply-adds of all units, as two FLOPs each, at the nominal clock, in GFLOP/s."""
        return 2 * self.fma_units * self.lanes(dtype) * self.costs.ghz * threads

    @property
    def has_own_costs(self) -> bool:
        """Whether `costs` are those of this processor, and not another's for want of them."""
        return self.costs.cpu == self.cpu

    @property
    def costs_text(self) -> str:
        """Which record estimates are made with, for people."""
        if self.has_own_costs:
            return f"times by the record of {self.cpu}"
        if self.costs.cpu.startswith(f"{self.cpu}, "):
            return f"times by rates {self.costs.cpu.removeprefix(f'{self.cpu}, ')} on this machine"
        return f"times by the record of {self.costs.cpu}, since leanconv has none of {self.cpu}"

    @property
    def splits_vectors(self) -> bool:
        """Whether two multiply-adds of half a register start where one of a whole one does."""
        return self.vector_bytes == 64 and self.fma_units == 1

    @property
    def folds_broadcast(self) -> bool:
        """Whether a broadcast that is used once can be a part of the multiply-add."""
        return self.isa == "avx512"

    @property
    def multiplies_by_lane(self) -> bool:
        """Whether a multiply-add takes one lane of a register as its factor."""
        return self.isa == "neon"

    @property
    def runtime_masks(self) -> bool:
        """Whether vectors are loaded and stored under masks that are computed at run time."""
        return self.isa != "neon"

    @property
    def masks_are_bits(self) -> bool:
        """Whether a vector's mask is a register of bits, one for each lane."""
        return self.isa == "avx512"

    @property
    def stores_by_parts(self) -> bool:
        """Whether tails whose lanes are not known are better stored in parts than under masks."""
        return self.runtime_masks and not self.masks_are_bits

    def lanes_of_tail(self, count: int) -> int:
        """A count of lanes, which becomes a constant where run-time masks are slow."""
        return count if self.runtime_masks else fixed(count)

    def with_half_vectors(self) -> Target:
        """A core that `splits_vectors`, seen through registers of half the width."""
        return replace(self, vector_bytes=self.vector_bytes // 2, fma_units=2 * self.fma_units)
