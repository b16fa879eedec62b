"""Records of AMD's processors besides Zen 4.

Zen 3 reads L3 at 25 bytes a cycle and DRAM at 7.2, but with these rates choices rank worse than
with those that were fitted on Zen 4, which tell what of a stream a kernel hides: over the MEC
paper's layers and ResNet-50's the picks cost 8 and 3 % more than the best, against 5 and 2 %.
"""

from __future__ import annotations

from leanconv.target.records.derived import absent, derived, estimated, measured, stated
from leanconv.target.records.zen4 import ZEN4

_MANUAL = "AMD's Software Optimization Guide for the family: caches and translations"
_ZEN3 = "2 cores of a Zen 3 server in a virtual machine, 512 KiB of L2 each, 32 MiB of L3"

_NO_BF16 = absent("bf16_products")

ZEN2 = derived(
    "znver2",
    ZEN4,
    stated(_MANUAL, tlb_pages=64),
    estimated(u8s8_products=12.0, s16_products=16.0),
    _NO_BF16,
)
ZEN3 = derived(
    "znver3",
    ZEN4,
    stated(_MANUAL, tlb_pages=64),
    measured(
        _ZEN3,
        "`python benchmarks/calibrate.py`",
        "2026-11-23",
        l1_read=62.8,
        l2_read=33.3,
        unaligned_part=1.8,
    ),
    measured(
        _ZEN3,
        "timed: seven direct layers in planes at 2 to 16 channels, from 2 % slower to 20 % faster "
        "at 8; weights ahead, 4 and 16 KiB, made none of eight layers faster: docs/performance.md",
        "2026-11-23",
        channels_ahead=8,
    ),
    estimated(u8s8_products=24.0, s16_products=32.0),
    _NO_BF16,
)
ZEN5 = derived(
    "znver5",
    ZEN4,
    stated(_MANUAL, l1_ways=12, tlb_pages=96),
    stated(
        "AMD's Software Optimization Guide for the family: two dot products of 64 bytes a cycle",
        u8s8_products=128.0,
        s16_products=64.0,
        bf16_products=64.0,
    ),
)
