"""The table of ONNX operations that are imported, and how each becomes the normal form."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from leanconv.graph.convert import (
    attention,
    constants,
    control_flow,
    elementwise,
    indexing,
    normalisation,
    products,
    quantised,
    quantised_microsoft,
    rearranging,
    recurrent,
    reductions,
    resize,
    sampling,
    selection,
    shapes,
    signal,
    typed,
    windows,
)
from leanconv.graph.convert.rule import FIRST_OPSET, LAST_OPSET, Call, Held, Rule
from leanconv.graph.convert.selection import in_parts

__all__ = ["FILE_RULES", "FIRST_OPSET", "LAST_OPSET", "RULES", "Call", "Held", "Rule", "in_parts"]

FILE_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **windows.RULES,
        **resize.RULES,
        **rearranging.RULES,
        **sampling.RULES,
        **elementwise.RULES,
        **reductions.RULES,
        **constants.RULES,
        **products.RULES,
        **attention.RULES,
        **signal.RULES,
        **normalisation.RULES,
        **shapes.RULES,
        **indexing.RULES,
        **typed.RULES,
        **selection.RULES,
        **control_flow.RULES,
        **recurrent.RULES,
        **quantised.RULES,
        **quantised_microsoft.RULES,
    }
)
# With those of parts into which the reader takes operations apart.
RULES: Mapping[str, Rule] = MappingProxyType({**FILE_RULES, **selection.PARTS})
