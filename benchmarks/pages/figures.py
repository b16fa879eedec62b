"""Results of `algorithms.py` by batch and layer, for the pages' comparisons with the documents."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import geometric_mean, mean
from typing import Any

from leanconv.cli.bench import LAYERS
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

    def fastest_mec(self, batch: int, layer: str) -> float:
        """Time of the faster solution."""
        times = [self.get(batch, layer, m) for m in (MEC_A, MEC_B)]
        return float(min(t for t in times if t))


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
