"""Records of costs, one for each kind of processor, by LLVM's name of it."""

from __future__ import annotations

from collections.abc import Mapping

from leanconv.target.costs import Costs
from leanconv.target.records.amd import ZEN2, ZEN3, ZEN4, ZEN5
from leanconv.target.records.arm import APPLE_M1, NEOVERSE_N1
from leanconv.target.records.intel import (
    HASWELL,
    ICELAKE_SERVER,
    SAPPHIRE_RAPIDS,
    SKYLAKE_AVX512,
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
    )
}

__all__ = ["RECORDS", "ZEN4"]
