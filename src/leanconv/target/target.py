"""A processor as data."""

from __future__ import annotations

from dataclasses import dataclass

from leanconv.dtypes import ITEMSIZE


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

    def lanes(self, dtype: str) -> int:
        """Elements of a dtype in one vector register, which is also the channel block."""
        return self.vector_bytes // ITEMSIZE[dtype]

    @property
    def accumulators(self) -> int:
        """Registers left for accumulators and operands in a kernel's inner loop."""
        return self.registers - 1

    @property
    def least_accumulators(self) -> int:
        """Independent accumulators needed to keep the multiply-add units busy."""
        return int(self.fma_units * self.fma_latency)
