"""Machines: their registers, units, caches and features, detected or by name."""

from leanconv.target.costs import Costs
from leanconv.target.target import EXTENSIONS, PRESETS, RELATIVES, Target, preset

__all__ = ["EXTENSIONS", "PRESETS", "RELATIVES", "Costs", "Target", "preset"]
