"""How much of a network's time its convolutions take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from leanconv.units import format_ns

_CONVOLUTIONS = frozenset(
    {"Conv", "ConvTranspose", "ConvChain", "BlockChain", "DataConv", "QLinearConv"}
)
_MOST_SHOWN = 4


def other_ns(times: Iterable[tuple[str, float]]) -> float:
    """The time of what is no convolution, of (operation, nanoseconds) of each layer."""
    return sum(time for op, time in times if op not in _CONVOLUTIONS)


def other_text(times: Iterable[tuple[str, float]], kind: str) -> str:
    """A line on what is no convolution: its share of the time, and the operations with the most.

    Args:
        times: operation and nanoseconds of each layer.
        kind: `"predicted"` or `"measured"`.
    """
    layers = list(times)
    total, other = sum(time for _, time in layers), other_ns(layers)
    line = f"not convolution: {other / (total or 1):.1%} of the {kind} time, {format_ns(other)}"
    sums: Counter[str] = Counter()
    for op, time in layers:
        if op not in _CONVOLUTIONS:
            sums[op] += round(time)
    most = ", ".join(f"{op} {format_ns(time)}" for op, time in sums.most_common(_MOST_SHOWN))
    return f"{line} ({most})" if most else line
