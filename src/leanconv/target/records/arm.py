"""Records of Arm's processors, by data sheet and estimate: none was met yet."""

from __future__ import annotations

from leanconv.target.costs import absent, derived, estimated, stated
from leanconv.target.records.amd import ZEN4

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
