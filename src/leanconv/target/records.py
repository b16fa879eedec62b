"""Records of costs, one for each kind of processor, by LLVM's name of it, or ours.

Targets without a record of their own inherit that of Zen 4.

Most numbers of Zen 4 were fitted by hand: a constant was changed until estimates ranked the layers
and register tiles of `benchmarks/layers.py` and `benchmarks/networks.py` as times did. The dates
are those of the fit; docs/tuning.md tells the story by subject. None of the commands kept its
output then. `python benchmarks/calibrate.py` measures anew what it can.

Zen 3 reads L3 at 25 bytes a cycle and DRAM at 7.2, but with these rates choices rank worse than
with those that were fitted on Zen 4, which tell what of a stream a kernel hides: over the MEC
paper's layers and ResNet-50's the picks cost 8 and 3 % more than the best, against 5 and 2 %.
"""

from __future__ import annotations

from collections.abc import Mapping

from leanconv.target.costs import Costs, Source, absent, derived, estimated, measured, stated

# -- AMD --

_ZEN4 = "2 cores of a Zen 4 server in a virtual machine, 1 MiB of L2 each, 32 MiB of L3"
_LAYERS = "fitted by hand to times of `python benchmarks/layers.py`"
_NETWORKS = "fitted by hand to times of layers inside `python benchmarks/networks.py`"


def _source(names: str, date: str, how: str) -> Source:
    return Source(tuple(names.split()), date, _ZEN4, how)


ZEN4 = Costs(
    cpu="znver4",
    sources=(
        _source(
            "ghz loads_per_cycle l1_way_bytes l1_ways tlb_pages l3_most_bytes",
            "2026-11-20",
            "stated: the processor's manual, and what the system reports",
        ),
        _source(
            "l2_read_beside_fma accumulator small_tile small_tile_shown tile operand_traffic",
            "2026-11-20",
            "fitted by hand to register tiles of `python benchmarks/microkernel.py`; "
            "docs/tuning.md, The micro-kernel",
        ),
        _source(
            "l2_read l3_read l3_read_crowded dram_read vector_move transposed_vector",
            "2026-11-20",
            f"{_LAYERS}; 16 to 20 MB of weights were read at 58 to 73 GB/s, beyond 24 MB at 30 to "
            "47, and DRAM at 8 to 30: docs/tuning.md, Short phases, long streams of weights",
        ),
        _source(
            "l3_read_unprefetched",
            "2026-11-22",
            f"{_LAYERS}: 3x3 layers whose panels exceed L2",
        ),
        _source(
            "dram_read_first",
            "2026-11-22",
            f"{_NETWORKS}: 1x1 layers of ResNet-50; docs/tuning.md, Networks",
        ),
        _source(
            "l3_copy dram_copy copy scalar_flops",
            "2026-11-20",
            f"{_NETWORKS}: stages of Winograd, reorders, pooling",
        ),
        _source("l2_share l3_share l3_crowded_share overlap_loss", "2026-11-20", _LAYERS),
        _source(
            "strided_line prefetched_line",
            "2026-11-22",
            f"{_LAYERS}, NCHW against blocks of channels",
        ),
        _source("plane_return element_move shuffle", "2026-11-20", f"{_LAYERS}, by im2col and MEC"),
        _source(
            "prefetch_from_l2s prefetch_bytes",
            "2026-11-20",
            "timed: cv5, cv6, cv11 and cv12 at 1 to 16 KiB ahead; docs/tuning.md, Short "
            "phases, long streams of weights",
        ),
        _source(
            "direct_prefetch_bytes",
            "2026-11-20",
            "timed: 16 KiB or a panel ahead, -2 to +5 %, noise; docs/tuning.md",
        ),
        _source("channels_ahead", "2026-11-23", "not measured: off until it is"),
        _source("later_weights_read", "2026-11-30", "not measured: off until it is"),
        _source("store transposed_store", "2026-11-20", _LAYERS),
        _source(
            "deinterleave unaligned_line unaligned_part row_jump",
            "2026-11-22",
            "fitted by hand to planar and depthwise layers with strides 1 to 4",
        ),
        _source(
            "winograd_input winograd_output winograd_gather winograd_gather_wide winograd_row "
            "winograd_sum winograd_far",
            "2026-11-22",
            f"{_LAYERS} by Winograd; docs/tuning.md, Transforms, sums and prefetching",
        ),
        _source(
            "direct_over_model planar_over_model fft_over_model depthwise_over_model idle_cores",
            "2026-11-22",
            _LAYERS,
        ),
        _source(
            "winograd_integer_input winograd_integer_stream",
            "2026-11-25",
            f"{_LAYERS}, bytes by Winograd",
        ),
        Source(
            ("halves_transformed", "halves_copied", "halves_each"),
            "2026-11-26",
            "2 cores of a Sapphire Rapids server in a virtual machine",
            "timed: layers stored in halves against float32",
        ),
        _source(
            "u8s8_products",
            "2026-11-24",
            "timed: ResNet-50's convolutions by a prototype at 455 GOPS, float32's peak being 118",
        ),
        _source(
            "s16_products bf16_products",
            "2026-11-24",
            "stated: the processor's manual; exact Winograd of bytes agrees with the former",
        ),
        _source(
            "chunk least_chunk stage",
            "2026-11-20",
            "chosen by hand: a chunk is about 10 us; docs/tuning.md, The runtime",
        ),
    ),
    ghz=3.0,
    loads_per_cycle=2,
    l2_read=32.0,
    l2_read_beside_fma=24.0,
    l3_read=16.0,
    l3_read_crowded=13.0,
    l3_read_unprefetched=8.0,
    l3_copy=12.0,
    dram_read=6.0,
    dram_read_first=9.0,
    dram_copy=4.0,
    copy=8.0,
    l2_share=0.5,
    l3_share=0.5,
    l3_crowded_share=0.75,
    l3_most_bytes=0,
    l1_way_bytes=4096,
    l1_ways=8,
    tlb_pages=64,
    strided_line=20.0,
    prefetched_line=5.0,
    plane_return=100.0,
    overlap_loss=0.15,
    operand_traffic=0.04,
    prefetch_from_l2s=4.0,
    prefetch_bytes=16 * 1024,
    direct_prefetch_bytes=0,
    later_weights_read=0.0,
    channels_ahead=0,
    accumulator=1.5,
    small_tile=18,
    small_tile_shown=0.5,
    tile=8.0,
    store=2.0,
    vector_move=0.7,
    element_move=0.7,
    transposed_store=9.0,
    transposed_vector=5.0,
    shuffle=0.5,
    deinterleave=(0.0, 0.0, 0.25, 2.0, 4.0),
    unaligned_line=3.75,
    unaligned_part=1.5,
    row_jump=3.0,
    winograd_input=7.0,
    winograd_output=5.0,
    winograd_gather=3.0,
    winograd_gather_wide=2.0,
    winograd_row=30.0,
    winograd_sum=0.8,
    winograd_far=3.0,
    winograd_integer_input=0.55,
    winograd_integer_stream=0.5,
    direct_over_model=1.06,
    planar_over_model=1.05,
    fft_over_model=1.2,
    depthwise_over_model=1.2,
    idle_cores=0.97,
    halves_transformed=1.03,
    halves_copied=1.17,
    halves_each=1.5,
    scalar_flops=8.0,
    chunk=40_000.0,
    least_chunk=4_000.0,
    stage=1_200.0,
    u8s8_products=64.0,
    s16_products=32.0,
    bf16_products=32.0,
)


_AMD_MANUAL = "AMD's Software Optimization Guide for the family: caches and translations"
_ZEN3 = "2 cores of a Zen 3 server in a virtual machine, 512 KiB of L2 each, 32 MiB of L3"

_NO_BF16 = absent("bf16_products")

ZEN2 = derived(
    "znver2",
    ZEN4,
    stated(_AMD_MANUAL, tlb_pages=64),
    estimated(u8s8_products=12.0, s16_products=16.0, u8s8_fitting_products=16.0),
    _NO_BF16,
)
ZEN3 = derived(
    "znver3",
    ZEN4,
    stated(_AMD_MANUAL, tlb_pages=64),
    measured(
        _ZEN3,
        "`python benchmarks/calibrate.py`",
        "2026-11-23",
        l2_read=33.3,
        unaligned_part=1.8,
    ),
    measured(
        _ZEN3,
        "timed: seven direct layers in planes at 2 to 16 channels, from 2 % slower to 20 % faster "
        "at 8; weights ahead, 4 and 16 KiB, made none of eight layers faster: docs/tuning.md",
        "2026-11-23",
        channels_ahead=8,
    ),
    estimated(u8s8_products=24.0, s16_products=32.0),
    measured(
        _ZEN3,
        "timed: ResNet-50 of weights of 7 bits by a prototype, whose direct layers took 0.63 of "
        "the time; a loop of 6x2 sums at 97.6 of the 103 GMAC/s that pmaddwd starts",
        "2026-11-28",
        u8s8_fitting_products=32.0,
    ),
    _NO_BF16,
)
_ZEN5 = "2 cores of a Zen 5 server in a virtual machine, 1 MiB of L2 each, 32 MiB of L3"

ZEN5 = derived(
    "znver5",
    ZEN4,
    stated(_AMD_MANUAL, l1_ways=12, tlb_pages=96),
    stated(
        "AMD's Software Optimization Guide for the family: two dot products of 64 bytes a cycle",
        u8s8_products=128.0,
        s16_products=64.0,
        bf16_products=64.0,
    ),
    measured(
        _ZEN5,
        "`python benchmarks/calibrate.py`",
        "2026-11-29",
        ghz=3.9,
        l2_read=60.0,
        l3_read=30.0,
        l3_read_crowded=25.0,
        l3_copy=30.0,
        dram_read=12.0,
        dram_copy=12.0,
        unaligned_line=2.0,
        transposed_store=3.0,
    ),
    measured(
        _ZEN5,
        "timed: reorders of 0.4 to 6 MB between channel blocks and planes; a layer of one pixel",
        "2026-11-29",
        copy=24.0,
        dram_read_first=12.0,
    ),
    measured(
        _ZEN5,
        "timed: ResNet-50 on one and two threads, at 3 to 24 (docs/tuning.md, Networks)",
        "2026-11-30",
        later_weights_read=6.0,
    ),
    measured(
        _ZEN5,
        "fitted by hand to the rows of benchmarks/costs/znver5.csv, `benchmarks/fit_costs.py`",
        "2026-11-29",
        direct_over_model=1.0,
        planar_over_model=1.0,
        strided_line=8.0,
        prefetched_line=1.0,
        store=1.2,
        vector_move=0.4,
        transposed_vector=2.0,
        winograd_input=4.5,
        winograd_output=3.5,
        winograd_row=18.0,
    ),
)


# -- Intel: servers, and Haswell for all with AVX2 alone --

_MB = 2**20
_SAPPHIRE_RAPIDS = "2 cores of a Sapphire Rapids server in a virtual machine, 2 MiB of L2 each"
_NEWER = "2 cores of a server with matrix tiles in a virtual machine, family 6, model 167"
_LEAST = "one thread, least times of bursts around which the multiply-add rate was undisturbed"
_INTEL_MANUAL = (
    "Intel 64 and IA-32 Architectures Optimization Reference Manual: caches, translations"
)
_PORTS = "on two ports a cycle"
_MESH = "rates of caches by analogy to Sapphire Rapids, whose mesh and L2 are alike"

# L3 of a mesh answers late: 48 lines under way in 290 cycles are 10 bytes a cycle, with or without
# prefetch in the stream; a kernel that multiplies and does not prefetch gets half of it.
SAPPHIRE_RAPIDS = derived(
    "sapphirerapids",
    ZEN4,
    measured(
        _SAPPHIRE_RAPIDS,
        f"streams of loops in C, {_LEAST}; the guest reports the host's 260 MiB of L3",
        "2026-11-22",
        l2_read=48.0,
        l2_read_beside_fma=48.0,
        l3_read=10.0,
        l3_read_crowded=10.0,
        l3_copy=10.0,
        l3_read_unprefetched=5.0,
        l3_share=0.75,
        l3_crowded_share=1.0,
        l3_most_bytes=64 * _MB,
        dram_read=6.0,
        dram_copy=4.0,
        dram_read_first=6.0,
        copy=9.5,
        unaligned_line=2.0,
    ),
    measured(
        _SAPPHIRE_RAPIDS,
        f"fitted to convolutions of the MEC paper and to ResNet-50, {_LEAST}",
        "2026-11-22",
        l2_share=0.75,
        prefetch_from_l2s=0.5,
        direct_prefetch_bytes=16 * 1024,
        channels_ahead=8,
        strided_line=30.0,
    ),
    measured(
        _SAPPHIRE_RAPIDS,
        "fitted to nine register tiles, 28x1 to 4x6, of 3x3 layers of 64 to 512 channels on maps "
        "of 4 to 56 columns, one thread, least times beside other work on the same cores",
        "2026-11-29",
        weights_shown=0.4,
    ),
    stated(_INTEL_MANUAL, l1_ways=12, tlb_pages=96),
    measured(
        "2 cores of an Emerald Rapids server in a virtual machine",
        "register tiles of 14x2 to 5x5 over 512 steps, one thread, least times: 4.4, 2.2, 1.7 and "
        "0.5 times the rate of float32's, whose 32 products a cycle are the peak",
        "2026-11-24",
        u8s8_products=128.0,
        s16_products=64.0,
        f16_products=64.0,
        bf16_products=18.0,
    ),
    measured(
        _NEWER,
        "fitted to 14 tiles, 28x1 to 3x5, of 13 layers of 1x1 in planes, one thread, least times",
        "2026-11-26",
        l2_read_of_planes=32.0,
        vector_load=0.4,
        broadcast_load=0.05,
    ),
    measured(
        _NEWER,
        "fitted to 700 steps that mostly move in the networks of `benchmarks/real.py`",
        "2026-11-26",
        l2_copy=36.0,
    ),
    measured(
        _NEWER,
        "fitted to seven Silero VAD of 15 to 60 us, `benchmarks/real.py`",
        "2026-11-26",
        call=24_000.0,
    ),
    measured(
        _NEWER,
        "fitted to 67 layers of ResNet-50, MobileNetV2, VGG-16 and the MEC paper from codes to "
        "codes, one thread, least times: 13 % off, root mean square",
        "2026-11-25",
        amx_row=1.5,
        amx_block=158.0,
        amx_sum=0.8,
        amx_residual=7.0,
        amx_line=3.6,
    ),
)
_NO_TILES = ("amx_row", "amx_block", "amx_sum", "amx_residual", "amx_line")
ICELAKE_SERVER = derived(
    "icelake-server",
    SAPPHIRE_RAPIDS,
    stated(_INTEL_MANUAL, tlb_pages=64),
    stated(f"{_MESH}; L3 of up to 60 MiB", l3_most_bytes=32 * _MB),
    stated(f"{_PORTS}: dot products of 64 bytes", u8s8_products=128.0, s16_products=64.0),
    absent("f16_products", "bf16_products", *_NO_TILES),
)
SKYLAKE_AVX512 = derived(
    "skylake-avx512",
    SAPPHIRE_RAPIDS,
    stated(_INTEL_MANUAL, l1_ways=8, tlb_pages=64),
    stated(f"{_MESH}; L3 of up to 38 MiB", l3_most_bytes=32 * _MB),
    estimated(u8s8_products=24.0, u8s8_fitting_products=36.0),
    stated(f"{_PORTS}: products of pairs, and as many sums", s16_products=32.0),
    absent("f16_products", "bf16_products", *_NO_TILES),
)
HASWELL = derived(
    "haswell",
    ZEN4,
    stated(
        f"{_INTEL_MANUAL}; a ring, not a mesh, reads L3",
        l1_ways=8,
        tlb_pages=64,
        l2_read=32.0,
    ),
    estimated(u8s8_products=12.0, u8s8_fitting_products=16.0),
    stated("one product of pairs in 32 bytes a cycle, on one port", s16_products=16.0),
    absent("bf16_products"),
)


# -- Arm, and WebAssembly, by data sheet and estimate: none was met yet --

_N1 = "Arm Neoverse N1 Core Technical Reference Manual and Software Optimization Guide"
_M1 = "published measurements of the Firestorm core"

NEOVERSE_N1 = derived(
    "neoverse-n1",
    ZEN4,
    stated(
        f"{_N1}: caches and translations",
        l1_way_bytes=16384,
        l1_ways=4,
        tlb_pages=48,
    ),
    estimated(
        l2_read=20.0,
        l2_read_beside_fma=16.0,
        l3_read=10.0,
        l3_read_crowded=8.0,
        l3_read_unprefetched=4.0,
        l3_copy=8.0,
        dram_read=5.0,
        dram_read_first=5.0,
        dram_copy=4.0,
        copy=6.0,
    ),
    estimated(u8s8_products=4.0, s16_products=4.0),
    stated(f"{_N1}: two multiply-adds of eight float16 a cycle", f16_products=16.0),
    absent("bf16_products"),
)
APPLE_M1 = derived(
    "apple-m1",
    ZEN4,
    stated(f"{_M1}; pages of 16 KiB", l1_way_bytes=16384, l1_ways=8, tlb_pages=160),
    estimated(u8s8_products=16.0, s16_products=16.0, f16_products=32.0),
    absent("bf16_products"),
)
# What holds for many kinds, from a telephone's little cores to a server's.
ARMV8_A = derived(
    "armv8-a",
    NEOVERSE_N1,
    estimated(u8s8_products=4.0, s16_products=4.0),
    absent("f16_products"),
)
WASM32_SIMD128 = derived(
    "wasm32-simd128",
    NEOVERSE_N1,
    estimated(ghz=3.0, u8s8_products=2.0, s16_products=2.0),
    absent("f16_products"),
)


RECORDS: Mapping[str, Costs] = {
    costs.cpu: costs
    for costs in (
        ZEN2,
        ZEN3,
        ZEN4,
        ZEN5,
        SKYLAKE_AVX512,
        ICELAKE_SERVER,
        SAPPHIRE_RAPIDS,
        HASWELL,
        NEOVERSE_N1,
        APPLE_M1,
        ARMV8_A,
        WASM32_SIMD128,
    )
}
