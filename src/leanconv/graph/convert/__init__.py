"""The table of ONNX operations that are imported, and how each becomes the normal form."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from leanconv.graph.convert import (
    activations,
    arithmetic,
    attention,
    flow,
    folding,
    indexing,
    losses,
    normalisation,
    patterns,
    products,
    quantised,
    quantised_microsoft,
    rearranging,
    recurrent,
    reductions,
    resize,
    sampling,
    selection,
    sequences,
    shapes,
    signal,
    states,
    typed,
    windows,
)
from leanconv.graph.convert.rule import (
    FIRST_OPSET,
    LAST_OPSET,
    Call,
    FileGraph,
    FileNode,
    Held,
    Rule,
)
from leanconv.graph.convert.selection import in_parts

__all__ = [
    "FILE_RULES",
    "FIRST_OPSET",
    "LAST_OPSET",
    "RULES",
    "Call",
    "FileGraph",
    "FileNode",
    "Held",
    "Rule",
    "in_parts",
]

FILE_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **windows.RULES,
        **resize.RULES,
        **rearranging.RULES,
        **sampling.RULES,
        **activations.RULES,
        **arithmetic.RULES,
        **reductions.RULES,
        **losses.RULES,
        **patterns.RULES,
        **products.RULES,
        **attention.RULES,
        **signal.RULES,
        **states.RULES,
        **normalisation.RULES,
        **shapes.RULES,
        **indexing.RULES,
        **folding.RULES,
        **typed.RULES,
        **selection.RULES,
        **sequences.RULES,
        **flow.RULES,
        **recurrent.RULES,
        **quantised.RULES,
        **quantised_microsoft.RULES,
    }
)
# With those of parts into which the reader takes operations apart.
RULES: Mapping[str, Rule] = MappingProxyType({**FILE_RULES, **selection.PARTS})
