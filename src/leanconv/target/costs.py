"""Costs of machines, as data: one record for each kind of processor.

All estimates of time are made of these numbers and of dimensionless constants of the methods, such
as the share of L2 that a block may fill. A record is filled by hand from layers that were timed, or
by `python benchmarks/calibrate.py`, which measures most of its fields on the machine that it runs
on and prints them beside those of the record in use.

A method whose loop reaches another rate than the record's states the ratio (`1.5` of the L2 rate
where arithmetic hides a third of the stream), so that it follows the record to another machine.

A record may begin as another one's, with the numbers that are known of its own (`derived`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import NamedTuple

from leanconv.records import dataclass


@dataclass(frozen=True)
class Source:
    """Origin of some numbers of a record.

    Attributes:
        names: the fields of the record.
        date: when they were measured or last fitted, ISO.
        machine: the one they were measured on.
        how: the command that measured them, or what they were fitted to.
    """

    names: tuple[str, ...]
    date: str
    machine: str
    how: str


@dataclass(frozen=True)
class Costs:
    """Costs of one kind of core.

    Cycles are those of the core. Rates are bytes a cycle that one core alone is given. A vector is
    a whole register. `None`: not measured yet; no estimate uses it.

    Attributes:
        cpu: LLVM's name of the processor that the numbers hold for.
        sources: origin of each of them.

        ghz: clock by which cycles become ns; nominal, so that plans do not depend on the clock
            that a process happens to meet.
        loads_per_cycle: vectors of 32 bytes, or broadcasts, that are loaded in a cycle.
        l2_read: rate of a stream in L2.
        l2_read_beside_fma: rate of packed weights from L2 while multiply-adds are issued.
        weights_shown: the part of a stream of packed weights from L2 that a register tile's
            multiply-adds do not hide.
        l3_read: rate of a stream in L3 that is prefetched.
        l3_read_crowded: the same where the stream fills more than `l3_share` of L3.
        l3_read_unprefetched: rate of a stream in L3 without prefetch.
        l3_copy: rate where L3 is read and written in turn, both counted.
        dram_read: rate of a stream in DRAM.
        dram_read_first: rate of weights from DRAM for the first tile of a panel.
        dram_copy: rate where DRAM is read and written in turn, both counted.
        copy: rate of operations that mostly move, wherever their operands are, both counted.
        l2_copy: the same where all operands are found in L2.
        l2_share: the part of L2 that a stream may fill and still be found there.
        l3_share, l3_crowded_share: the parts of L3 that a stream may fill to be read at `l3_read`
            and `l3_read_crowded`; beyond, it comes from DRAM.
        l3_most_bytes: no more than that is found in L3, whatever the system reports (the guest of
            a virtual machine may report the host's); 0: as reported.
        l1_way_bytes: addresses this far apart share a set of L1.
        l1_ways: lines of a set of L1.
        tlb_pages: pages whose translations the first-level data TLB holds.
        strided_line: cycles of a line on a walk of one line a page, which no hardware prefetcher
            follows.
        prefetched_line: cycles of a line on a walk that one follows, beyond L2.
        l2_read_of_planes: rate of vectors of pixels from L2, short pieces of many planes, while
            multiply-adds are issued.
        vector_load, broadcast_load: cycles of an operand of a multiply-add, a vector of pixels or a
            filter's element, that the multiply-adds of a 1x1 layer in planes do not hide.
        plane_return: cycles to come back to an output plane after others have been written.
        overlap_loss: of the shorter of arithmetic and a stream beside it, the part that the longer
            one does not hide.
        operand_traffic: share by which tiles of few rows, or few vectors, are slower: times
            1/rows + 1/vectors.
        prefetch_from_l2s: weights of more than this many L2 sizes are prefetched by Winograd.
        prefetch_bytes: how far ahead Winograd prefetches them.
        direct_prefetch_bytes: how far ahead direct convolution prefetches weights that exceed L2,
            or come from DRAM; 0: not at all.
        later_weights_read: bytes a cycle of a later layer's weights that direct convolution
            prefetches where a network's weights exceed L3; 0.0: only weights that are used once.
        channels_ahead: how many channels ahead direct convolution prefetches input in planes, which
            no hardware prefetcher follows; 0: not at all.

        accumulator: cycles to start, finish and store one accumulator of a register tile, beside
            the multiply-adds of the next one.
        small_tile: accumulators up to which a tile and its successor fit the reorder buffer.
        small_tile_shown: the part of `accumulator` that such tiles do not hide.
        tile: cycles to begin and end a register tile.
        store: cycles to start, finish and store one vector of results in other loops.
        vector_move: cycles of loading or storing one vector in transforms.
        element_move: cycles of moving one element to where im2col, MEC or im2win want it.
        transposed_store: cycles of a vector of results that is transposed and stored in planes.
        transposed_vector: cycles of a vector that is transposed between planes and lanes.
        shuffle: cycles of one shuffle of a transpose beside the next tile's multiply-adds.
        deinterleave: cycles of a vector, by the stride along a row, that nothing hides.
        unaligned_line, unaligned_part: slots of a load port that an unaligned vector takes, where
            vectors are whole cache lines and where they are shorter.
        row_jump: cycles of a row that may be jumped over: the jump, and what it keeps apart.
        winograd_input, winograd_output: cycles of a vector of V, and of M, in the transforms.
        winograd_gather: cycles more of a vector of V that is gathered from planes.
        winograd_gather_wide: cycles more where a row of the patch exceeds half a vector.
        winograd_row: cycles of a row of a tile's results that is transposed and stored in pieces.
        winograd_sum: cycles of adding one more partial sum to a vector of M.
        winograd_far: cycles more of a vector of V or M that goes to memory and not to the scratch.
        winograd_integer_input: the part of `winograd_input` that a vector of int16 takes.
        winograd_integer_stream: the part of `l2_read_beside_fma` that a stream beside
            multiply-adds of integers reaches.
        direct_over_model, planar_over_model, fft_over_model: measured time of layers over the sum
            of their tiles, or of their transforms and products.
        depthwise_over_model: the same of depthwise layers whose inputs are shuffled.
        idle_cores: measured over estimated time of unevenly divided chunks, on two cores.
        halves_transformed, halves_copied, halves_each: time over float32's of a method on operands
            in halves that transforms tiles, that copies its input before it multiplies, and that
            converts it in each product.
        scalar_flops: operations a cycle of layers that mostly move, such as pooling.
        u8s8_products, s16_products: products a cycle of a register tile whose operands are bytes,
            or pairs of int16, summed in int32: by one instruction where the target has it, else
            widened.
        u8s8_fitting_products: the same of bytes without AVX-VNNI, where all sums of two products
            are sure to fit int16.
        f16_products: products a cycle of float16, summed in float16.
        bf16_products: products a cycle of pairs of bfloat16, summed in float32.
        amx_row: cycles of a product of matrix tiles, for each row of the first.
        amx_block: cycles more of a block of four tiles of sums, which are zeroed and stored.
        amx_sum, amx_residual: cycles of a vector of sums that is finished, and of a residual that
            is added to it, of which products hide most.
        amx_line: cycles of 64 bytes of input that are repacked.

        chunk: cycles of a chunk that is worth claiming, about 10 us.
        least_chunk: cycles below which chunks are not cut for the sake of many threads.
        stage: cycles of a stage's begin and end.
        call: cycles of a call of a network from Python, beside its stages.
    """

    cpu: str
    sources: tuple[Source, ...] = field(compare=False, repr=False)

    ghz: float
    loads_per_cycle: int
    l2_read: float
    l2_read_beside_fma: float
    l3_read: float
    l3_read_crowded: float
    l3_read_unprefetched: float
    l3_copy: float
    dram_read: float
    dram_read_first: float
    dram_copy: float
    copy: float
    l2_share: float
    l3_share: float
    l3_crowded_share: float
    l3_most_bytes: int
    l1_way_bytes: int
    l1_ways: int
    tlb_pages: int
    strided_line: float
    prefetched_line: float
    plane_return: float
    overlap_loss: float
    operand_traffic: float
    prefetch_from_l2s: float
    prefetch_bytes: int
    direct_prefetch_bytes: int
    later_weights_read: float
    channels_ahead: int

    accumulator: float
    small_tile: int
    small_tile_shown: float
    tile: float
    store: float
    vector_move: float
    element_move: float
    transposed_store: float
    transposed_vector: float
    shuffle: float
    deinterleave: tuple[float, ...]
    unaligned_line: float
    unaligned_part: float
    row_jump: float
    winograd_input: float
    winograd_output: float
    winograd_gather: float
    winograd_gather_wide: float
    winograd_row: float
    winograd_sum: float
    winograd_far: float
    winograd_integer_input: float
    winograd_integer_stream: float
    direct_over_model: float
    planar_over_model: float
    fft_over_model: float
    depthwise_over_model: float
    idle_cores: float
    halves_transformed: float
    halves_copied: float
    halves_each: float
    scalar_flops: float

    chunk: float
    least_chunk: float
    stage: float

    call: float | None = None
    l2_copy: float | None = None
    weights_shown: float | None = None
    l2_read_of_planes: float | None = None
    vector_load: float | None = None
    broadcast_load: float | None = None
    u8s8_products: float | None = None
    s16_products: float | None = None
    u8s8_fitting_products: float | None = None
    f16_products: float | None = None
    bf16_products: float | None = None
    amx_row: float | None = None
    amx_block: float | None = None
    amx_sum: float | None = None
    amx_residual: float | None = None
    amx_line: float | None = None

    def __hash__(self) -> int:
        """Hash by name only: targets are keys of many caches, and records are few."""
        return hash(self.cpu)

    def l3_or_dram_read(self, stream_bytes: float, l3_bytes: int) -> float:
        """The rate of a stream of that many bytes that is read again and again, beyond L2."""
        share = stream_bytes / l3_bytes if l3_bytes else 0.0
        if share <= self.l3_share:
            return self.l3_read
        return self.l3_read_crowded if share <= self.l3_crowded_share else self.dram_read

    def moved(self, size: float, l2_bytes: int) -> float:
        """Cycles of an operation that mostly moves operands of that many bytes, all together."""
        if self.l2_copy is None:
            return size / self.copy
        far = max(0.0, 1 - l2_bytes / size) if size else 0.0
        return size * (far / self.copy + (1 - far) / self.l2_copy)

    def l3_found(self, reported: int) -> int:
        """Return the bytes of an L3 of the reported size that one core can use."""
        return min(reported, self.l3_most_bytes) if self.l3_most_bytes else reported

    def ns(self, cycles: float) -> int:
        """Cycles as time."""
        return round(cycles * (1 / self.ghz))

    def reorder_cycles(self, result_bytes: int) -> float:
        """Cycles of one thread to bring a tensor to another format, of so many bytes there."""
        return 2 * result_bytes / self.dram_copy + self.stage

    def reorder_ns(self, result_bytes: int) -> int:
        """Time of one thread for that."""
        return self.ns(self.reorder_cycles(result_bytes))

    def shared_ns(self, time_ns: int, threads: int) -> int:
        """Time of `threads` threads for a step that takes one alone `time_ns`.

        What takes no longer than a chunk is not shared; of a longer one the threads that are done
        first wait for the last chunk: half of one on average, for two threads.
        """
        return round((time_ns + (threads - 1) * min(time_ns, self.ns(self.chunk))) / threads)

    def overlapped(self, arithmetic: float, stream: float) -> float:
        """Cycles of arithmetic and a stream beside it: the longer hides most of the other."""
        return max(arithmetic, stream) + self.overlap_loss * min(arithmetic, stream)


_UNITS = {
    "a clock in GHz": ("ghz",),
    "vectors of 32 bytes a cycle": ("loads_per_cycle",),
    "bytes a cycle": (
        *("l2_read", "l2_read_beside_fma", "l2_read_of_planes", "l2_copy", "l3_read"),
        *("l3_read_crowded", "l3_read_unprefetched", "l3_copy", "dram_read"),
        *("dram_read_first", "dram_copy", "copy", "later_weights_read"),
    ),
    "a part of 1": (
        *("l2_share", "l3_share", "l3_crowded_share", "overlap_loss", "operand_traffic"),
        *("small_tile_shown", "weights_shown", "winograd_integer_input", "winograd_integer_stream"),
    ),
    "times the estimate": (
        *("direct_over_model", "planar_over_model", "fft_over_model", "depthwise_over_model"),
        "idle_cores",
    ),
    "times float32's": ("halves_transformed", "halves_copied", "halves_each"),
    "bytes": ("l3_most_bytes", "l1_way_bytes", "prefetch_bytes", "direct_prefetch_bytes"),
    "cache lines": ("l1_ways",),
    "pages": ("tlb_pages",),
    "sizes of L2": ("prefetch_from_l2s",),
    "channels": ("channels_ahead",),
    "accumulators": ("small_tile",),
    "slots of a load port": ("unaligned_line", "unaligned_part"),
    "operations a cycle": ("scalar_flops",),
    "products a cycle": (
        *("u8s8_products", "s16_products", "u8s8_fitting_products"),
        *("f16_products", "bf16_products"),
    ),
}
_UNIT_OF = {name: unit for unit, names in _UNITS.items() for name in names}


def unit_of(name: str) -> str:
    """Return the unit of a record's number.

    Args:
        name: of a field of `Costs`.
    """
    return _UNIT_OF.get(name, "cycles")


def numbers(costs: Costs) -> dict[str, object]:
    """The numbers of a record that are known, by field."""
    found = {f.name: getattr(costs, f.name) for f in fields(costs)}
    return {n: v for n, v in found.items() if n not in ("cpu", "sources") and v is not None}


Number = float | tuple[float, ...]


class Known(NamedTuple):
    """Numbers of a record, by field, and their origin."""

    source: Source
    numbers: Mapping[str, Number | None]


def measured(machine: str, how: str, date: str, **numbers: Number) -> Known:
    """Numbers that were measured on a machine, or fitted to times taken there."""
    return Known(Source(tuple(numbers), date, machine, how), numbers)


def stated(how: str, **numbers: Number) -> Known:
    """Numbers that a manual states, and nobody has measured here."""
    return measured("any", f"data sheet, not measured: {how}", "2026-11-23", **numbers)


def estimated(**numbers: Number) -> Known:
    """Numbers that are in no manual, and nobody has measured."""
    return measured("any", "estimate, not measured", "2026-11-23", **numbers)


def absent(*names: str) -> Known:
    """Numbers that a processor does not have, though the one that it is derived from does."""
    return Known(Source((), "", "", ""), dict.fromkeys(names))


def derived(cpu: str, base: Costs, *known: Known) -> Costs:
    """The record of a processor whose other numbers, with their sources, are those of `base`.

    Args:
        cpu: LLVM's name of it.
        base: record from which unknown numbers are inherited.
        known: the known numbers; no field twice.
    """
    numbers = {name: value for each in known for name, value in each.numbers.items()}
    inherited = (
        replace(source, names=tuple(name for name in source.names if name not in numbers))
        for source in base.sources
    )
    own = (each.source for each in known)
    sources = tuple(source for source in (*inherited, *own) if source.names)
    return replace(base, cpu=cpu, sources=sources, **numbers)  # type: ignore[arg-type]
