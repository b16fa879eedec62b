"""A processor as data, and processors by name: code for another one can be made and tested here."""

from __future__ import annotations

from collections.abc import Mapping

from leanconv.errors import SpecError
from leanconv.records import dataclass, replace
from leanconv.symbolic import fixed
from leanconv.target.costs import Costs
from leanconv.target.records import RECORDS, ZEN4
from leanconv.types import DType

# Instructions that some cores of an `isa` have and others lack: what they multiply and add.
EXTENSIONS: Mapping[str, str] = {
    "amx_bf16": "tiles of bfloat16, summed in float32",
    "amx_int8": "tiles of bytes, summed in int32",
    "avx_vnni": "quads of u8 x s8 and pairs of s16, summed in int32: vectors of 32 bytes",
    "bf16": "pairs of bfloat16, summed in float32",
    "dotprod": "quads of s8 x s8 and of u8 x u8, summed in int32",
    "fp16": "float16, summed in float16",
    "vbmi": "bytes picked from 128 of two registers, for vectors of up to 64 bytes",
    "vnni": "quads of u8 x s8 and pairs of s16, summed in int32: vectors of up to 64 bytes",
}


@dataclass(frozen=True)
class Target:
    """Facts about one kind of core that decide the code that is emitted for it.

    Attributes:
        name: the preset's name, or `"host"`.
        isa: `"avx512"`, `"avx2"`, `"neon"`, `"wasm"` or `"generic"`.
        cpu: LLVM's name of the processor; `"generic"` where it has none.
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
        """Channels in a block of a tensor: the lanes of a vector of sums of its elements.

        So tensors of different types, between which a network converts, have equal blocks.
        """
        return self.lanes(dtype.accumulator)

    @property
    def without_tiles(self) -> Target:
        """The same without matrix tiles, which a process has to ask its system for."""
        kept = tuple(name for name in self.extensions if not name.startswith("amx_"))
        return replace(self, extensions=kept)

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
        """True if `costs` are this processor's own, not those of a related one."""
        return self.costs.cpu == (self.name if self.cpu == "generic" else self.cpu)

    @property
    def costs_text(self) -> str:
        """The record that estimates are made with, for people."""
        if self.has_own_costs:
            return f"times by the record of {self.cpu}"
        if self.costs.cpu.startswith(f"{self.cpu}, "):
            return f"times by rates {self.costs.cpu.removeprefix(f'{self.cpu}, ')} on this machine"
        return f"times by the record of {self.costs.cpu}, since leanconv has none of {self.cpu}"

    @property
    def splits_vectors(self) -> bool:
        """True if two multiply-adds of half a register start where one of a whole one does."""
        return self.vector_bytes == 64 and self.fma_units == 1

    @property
    def folds_broadcast(self) -> bool:
        """True if a broadcast that is used once can be a part of the multiply-add."""
        return self.isa == "avx512"

    @property
    def multiplies_by_lane(self) -> bool:
        """True if a multiply-add takes one lane of a register as its factor."""
        return self.isa == "neon"

    @property
    def runtime_masks(self) -> bool:
        """True if vectors are loaded and stored under masks that are computed at run time."""
        return self.isa not in ("neon", "wasm")

    @property
    def plain_floats(self) -> bool:
        """True if no instruction multiplies and adds, converts halves or rounds to integers."""
        return self.isa == "wasm"

    @property
    def masks_are_bits(self) -> bool:
        """True if a vector's mask is a register of bits, one for each lane."""
        return self.isa == "avx512"

    @property
    def stores_by_parts(self) -> bool:
        """True if tails of unknown lanes are better stored in parts than under masks."""
        return self.runtime_masks and not self.masks_are_bits

    def lanes_of_tail(self, count: int) -> int:
        """A count of lanes, which becomes a constant where run-time masks are slow."""
        return count if self.runtime_masks else fixed(count)

    def with_half_vectors(self) -> Target:
        """A core that `splits_vectors`, seen through registers of half the width."""
        return replace(self, vector_bytes=self.vector_bytes // 2, fma_units=2 * self.fma_units)


_LINUX = "x86_64-unknown-linux-gnu"
_ARM = "aarch64-unknown-linux-gnu"
_WASM = "wasm32-unknown-unknown"
_KB, _MB = 1024, 1024 * 1024


def _x86(
    name: str, isa: str, units: float, latency: int, l1: int, l2: int, l3: int, *extensions: str
) -> Target:
    registers, width = (32, 64) if isa == "avx512" else (16, 32)
    facts = l1, l2, l3, RECORDS[name], extensions
    return Target(name, isa, name, "", _LINUX, width, registers, units, latency, *facts)


def _arm(
    name: str, units: float, latency: int, l1: int, l2: int, l3: int, *extensions: str
) -> Target:
    facts = l1, l2, l3, RECORDS[name], extensions
    return Target(name, "neon", name, "", _ARM, 16, 32, units, latency, *facts)


def _generic(
    name: str, isa: str, features: str, triple: str, registers: int, units: float
) -> Target:
    """Return a row for all processors of a kind: what most of them have, as they run it."""
    facts = 32 * _KB, 512 * _KB, 8 * _MB, RECORDS[name]
    return Target(name, isa, "generic", features, triple, 16, registers, units, 4, *facts)


_INTEL = ("amx_bf16", "amx_int8", "avx_vnni", "bf16", "fp16", "vbmi", "vnni")
_AMD = ("bf16", "vbmi", "vnni")


PRESETS: dict[str, Target] = {
    t.name: t
    for t in (
        _x86("haswell", "avx2", 2, 5, 32 * _KB, 256 * _KB, 8 * _MB),
        _x86("skylake-avx512", "avx512", 2, 4, 32 * _KB, 1 * _MB, 16 * _MB),
        _x86("icelake-server", "avx512", 2, 4, 48 * _KB, 1280 * _KB, 24 * _MB, "vbmi", "vnni"),
        _x86("sapphirerapids", "avx512", 2, 4, 48 * _KB, 2 * _MB, 32 * _MB, *_INTEL),
        _x86("znver2", "avx2", 2, 5, 32 * _KB, 512 * _KB, 16 * _MB),
        _x86("znver3", "avx2", 2, 4, 32 * _KB, 512 * _KB, 32 * _MB),
        _x86("znver4", "avx512", 1, 4, 32 * _KB, 1 * _MB, 32 * _MB, *_AMD),
        _x86("znver5", "avx512", 2, 4, 48 * _KB, 1 * _MB, 32 * _MB, "avx_vnni", *_AMD),
        _arm("neoverse-n1", 2, 4, 64 * _KB, 1 * _MB, 32 * _MB, "dotprod", "fp16"),
        _arm("apple-m1", 4, 4, 128 * _KB, 12 * _MB, 0, "dotprod", "fp16"),
        _generic("armv8-a", "neon", "", _ARM, 32, 2),
        _generic("wasm32-simd128", "wasm", "+simd128", _WASM, 16, 1),
    )
}

# Processors that have no preset, by LLVM's names, and the one whose caches and units are most like
# theirs.
RELATIVES: Mapping[str, str] = {
    "znver1": "znver2",
    "broadwell": "haswell",
    "skylake": "haswell",
    "alderlake": "haswell",
    "raptorlake": "haswell",
    "meteorlake": "haswell",
    "cascadelake": "skylake-avx512",
    "cooperlake": "skylake-avx512",
    "icelake-client": "icelake-server",
    "tigerlake": "icelake-server",
    "rocketlake": "icelake-server",
    "emeraldrapids": "sapphirerapids",
    "graniterapids": "sapphirerapids",
    "neoverse-v1": "neoverse-n1",
    "neoverse-n2": "neoverse-n1",
    "neoverse-v2": "neoverse-n1",
    "apple-m2": "apple-m1",
    "apple-m3": "apple-m1",
    "apple-m4": "apple-m1",
}


def preset(name: str) -> Target:
    """Return the target of that name.

    Raises:
        SpecError: there is no such preset; the message lists those that exist.
    """
    if name not in PRESETS:
        raise SpecError(f"target {name!r} is not known; expected one of {', '.join(PRESETS)}")
    return PRESETS[name]
