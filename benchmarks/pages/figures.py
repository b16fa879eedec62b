"""Results of `algorithms.py` by batch and layer, for the pages' comparisons with the documents."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import geometric_mean, mean
from typing import Any

import formulas
from leanconv.reference.layers import LAYERS
from leanconv.reference.mec import THRESHOLD
from leanconv.spec import ConvSpec

MIB = 2**20
IM2COL, MEC_A, MEC_B, IM2WIN = (
    "im2col:rows=whole",
    "mec:solution=A",
    "mec:solution=B",
    "im2win:rows=whole",
)
HEADS = ("figure", "document", "ours", "accounting")

Methods = dict[str, dict[str, Any]]


class Figures:
    """The results by batch and layer, and what the documents' formulas say of them."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.threads: int = document["effort"]["threads"]
        self.batches = sorted({case["batch"] for case in document["cases"]})
        self._cases: dict[tuple[int, str], Methods] = {
            (case["batch"], case["layer"]): case["methods"] for case in document["cases"]
        }

    def layers(self, batch: int) -> list[str]:
        """Layers measured at a batch, in the papers' order."""
        return [name for name in LAYERS if (batch, name) in self._cases]

    def get(self, batch: int, layer: str, *methods: str, key: str = "time_ns") -> Any:
        """A number of the first of these methods that was run; None if none was."""
        found = self._cases[batch, layer]
        for method in methods:
            if key in found.get(method, {}):
                return found[method][key]
        return None

    def least(self, batch: int, layer: str, *methods: str) -> float:
        """The least turn of those of the methods that were run: noise only ever adds time."""
        turns = [self.get(batch, layer, m, key="turns_ns") for m in methods]
        return float(min(min(t) for t in turns if t))

    def spread(self, batch: int, layer: str, method: str) -> float:
        """Median turn over least turn, less 1: what a ratio of this cell cannot resolve."""
        return float(self.get(batch, layer, method) / self.least(batch, layer, method)) - 1

    def paper_mec(self, batch: int, layer: str) -> str:
        """The solution that Algorithm 2, line 8, takes: A where ow <= T and |O| <= |L|."""
        spec = spec_of(layer, batch)
        outputs = spec.batch * spec.out_channels * math.prod(spec.output_size)
        short = spec.output_size[1] <= THRESHOLD and outputs <= formulas.mec_elements(spec)
        taken = MEC_A if short else MEC_B
        return taken if self.get(batch, layer, taken) else MEC_B


def spec_of(layer: str, batch: int = 1) -> ConvSpec:
    """The problem of a layer."""
    return ConvSpec.parse(LAYERS[layer], batch=batch)


def span(values: Iterable[float], digits: int = 2) -> str:
    """Least, largest and both means, as text."""
    found = list(values)
    return (
        f"{min(found):.{digits}f} to {max(found):.{digits}f}, mean {mean(found):.{digits}f}, "
        f"geometric {geometric_mean(found):.{digits}f}"
    )
