"""The record of a processor that has none: its nearest preset's, with rates measured on it.

Rates are rounded to classes, so that they, and the plans made by them, are the same on every run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from leanconv.records import dataclass, replace
from leanconv.target.costs import Costs, derived, measured
from leanconv.target.target import Target

# Bytes a cycle.
_L2 = (16.0, 24.0, 32.0, 48.0, 64.0)
_L3 = (4.0, 6.0, 8.0, 10.0, 13.0, 16.0)  # kernels of Zen 3 hide no more of 25 than of 16
_DRAM = (2.0, 3.0, 4.0, 6.0, 9.0)
_UNITS = (0.5, 1.0, 2.0, 4.0)
_LATENCIES = (2, 3, 4, 5, 6, 7, 8)
_MB = 2**20
_SIZES = tuple(size * _MB for size in (1, 2, 4, 8, 16, 32, 64))


@dataclass(frozen=True)
class Rates:
    """Measured rates of a core; 0 where it has no such thing, or was disturbed.

    Attributes:
        l2_read, l3_read, dram_read: bytes a cycle of streams in L2, L3 and DRAM.
        l3_bytes: the largest stream that is read about as fast as L3's.
        fma_units: vector multiply-adds that start each cycle.
        fma_latency: cycles from a multiply-add's start to its result's use.
        undisturbed: whether the core was its own for long enough to measure all there is.
    """

    l2_read: float = 0.0
    l3_read: float = 0.0
    dram_read: float = 0.0
    l3_bytes: int = 0
    fma_units: float = 0.0
    fma_latency: int = 0
    undisturbed: bool = False

    def rounded(self) -> Rates:
        """Return these rates rounded to the nearest classes."""
        return Rates(
            l2_read=_nearest(self.l2_read, _L2),
            l3_read=_nearest(self.l3_read, _L3),
            dram_read=_nearest(self.dram_read, _DRAM),
            l3_bytes=int(_nearest(self.l3_bytes, _SIZES)),
            fma_units=_nearest(self.fma_units, _UNITS),
            fma_latency=int(_nearest(self.fma_latency, _LATENCIES)),
            undisturbed=self.undisturbed,
        )


def _nearest(value: float, classes: tuple[float, ...]) -> float:
    return min(classes, key=lambda each: abs(math.log(each / value))) if value > 0 else 0.0


def rates_of(found: Mapping[str, Any]) -> Rates:
    """Rounded rates as they were written with `asdict`.

    Raises:
        ValueError, TypeError: they were not.
    """
    rates = Rates(**found)
    if rates != rates.rounded():
        raise ValueError(f"rates are {rates}, expected classes")
    return rates


def calibrated(target: Target, rates: Rates, date: str) -> Target:
    """Return a target with a record of measured rates, and the rest from its old record.

    Args:
        target: the machine, by the nearest preset.
        rates: rounded.
        date: when they were measured, ISO.
    """
    old, known = target.costs, {}
    if rates.l2_read:
        known["l2_read"] = rates.l2_read
        known["l2_read_beside_fma"] = _scaled(old, "l2_read_beside_fma", "l2_read", rates.l2_read)
    l3 = min(rates.l3_read, known.get("l2_read", old.l2_read))
    if l3:
        known["l3_read"] = l3
        for name in ("l3_read_crowded", "l3_read_unprefetched", "l3_copy"):
            known[name] = _scaled(old, name, "l3_read", l3)
    crowded = known.get("l3_read_crowded", old.l3_read_crowded)
    if rates.dram_read:
        known["dram_read"] = min(rates.dram_read, crowded)
        for name in ("dram_read_first", "dram_copy"):
            known[name] = min(crowded, _scaled(old, name, "dram_read", known["dram_read"]))
    sizes = {"l3_most_bytes": rates.l3_bytes} if rates.l3_bytes else {}
    how = "reading buffers, rounded to classes; what such a stream does not tell by the old ratios"
    own = measured("this machine", how, date, **known, **sizes)
    costs = derived(f"{target.cpu}, measured", old, own) if known or sizes else old
    return replace(
        target,
        costs=costs,
        l3_bytes=costs.l3_found(target.l3_bytes),
        fma_units=rates.fma_units or target.fma_units,
        fma_latency=rates.fma_latency or target.fma_latency,
    )


def _scaled(costs: Costs, name: str, base: str, rate: float) -> float:
    ratio: float = getattr(costs, name) / getattr(costs, base)
    return ratio * rate
