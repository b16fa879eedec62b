"""Records of Intel's server processors, and of Haswell for all with AVX2 alone."""

from __future__ import annotations

from leanconv.target.costs import absent, derived, estimated, measured, stated
from leanconv.target.records.amd import ZEN4

_MB = 2**20
_MACHINE = "2 cores of a Sapphire Rapids server in a virtual machine, 2 MiB of L2 each"
_NEWER = "2 cores of a server with matrix tiles in a virtual machine, family 6, model 167"
_LEAST = "one thread, least times of bursts around which the multiply-add rate was undisturbed"
_MANUAL = "Intel 64 and IA-32 Architectures Optimization Reference Manual: caches, translations"
_PORTS = "on two ports a cycle"
_MESH = "rates of caches by analogy to Sapphire Rapids, whose mesh and L2 are alike"

# L3 of a mesh answers late: 48 lines under way in 290 cycles are 10 bytes a cycle, with or without
# prefetch in the stream; a kernel that multiplies and does not prefetch gets half of it.
SAPPHIRE_RAPIDS = derived(
    "sapphirerapids",
    ZEN4,
    measured(
        _MACHINE,
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
        _MACHINE,
        f"fitted to convolutions of the MEC paper and to ResNet-50, {_LEAST}",
        "2026-11-22",
        l2_share=0.75,
        prefetch_from_l2s=0.5,
        direct_prefetch_bytes=16 * 1024,
        channels_ahead=8,
        strided_line=30.0,
    ),
    stated(_MANUAL, l1_ways=12, tlb_pages=96),
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
    stated(_MANUAL, tlb_pages=64),
    stated(f"{_MESH}; L3 of up to 60 MiB", l3_most_bytes=32 * _MB),
    stated(f"{_PORTS}: dot products of 64 bytes", u8s8_products=128.0, s16_products=64.0),
    absent("f16_products", "bf16_products", *_NO_TILES),
)
SKYLAKE_AVX512 = derived(
    "skylake-avx512",
    SAPPHIRE_RAPIDS,
    stated(_MANUAL, l1_ways=8, tlb_pages=64),
    stated(f"{_MESH}; L3 of up to 38 MiB", l3_most_bytes=32 * _MB),
    estimated(u8s8_products=24.0),
    stated(f"{_PORTS}: products of pairs, and as many sums", s16_products=32.0),
    absent("f16_products", "bf16_products", *_NO_TILES),
)
HASWELL = derived(
    "haswell",
    ZEN4,
    stated(
        f"{_MANUAL}; a ring, not a mesh, reads L3",
        l1_ways=8,
        tlb_pages=64,
        l2_read=32.0,
    ),
    estimated(u8s8_products=12.0),
    stated("one product of pairs in 32 bytes a cycle, on one port", s16_products=16.0),
    absent("bf16_products"),
)
