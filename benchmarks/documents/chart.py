"""Bar charts as SVG: groups of bars, on a linear or a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 900, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 10, 46, 30
_COLOURS = ("#2563eb", "#f97316", "#16a34a", "#9333ea", "#64748b", "#e11d48", "#0d9488", "#ca8a04")
_STYLE = (
    "text{font:12px sans-serif;fill:#1f2933}line{stroke:#cbd2d9}"
    ".axis{stroke:#1f2933}.small{font-size:10px}"
)


@dataclass(frozen=True)
class Chart:
    """Groups of bars.

    Attributes:
        name: of its file, behind the figure's; nothing if it is the only one.
        title: what is drawn, with its unit.
        groups: along the horizontal axis.
        series: name and one value for each group; None draws no bar.
        log: whether the axis is logarithmic.
        whiskers: by series and group the lower and upper quartile, or None.
    """

    name: str
    title: str
    groups: Sequence[str]
    series: Sequence[tuple[str, Sequence[float | None]]]
    log: bool = False
    whiskers: Sequence[Sequence[tuple[float, float] | None]] = ()

    def svg(self) -> str:
        """The file's text, the same on every machine."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
            f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(self.title)}">'
        )
        paper = f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>'
        title = f'<text x="{_LEFT}" y="16">{escape(self.title)}</text>'
        parts = [*self._legend(), *self._axis(), *self._bars()]
        lines = [head, f"<style>{_STYLE}</style>", paper, title, *parts]
        return "\n".join([*lines, "</svg>", ""])

    def _values(self) -> list[float]:
        found = [v for _, values in self.series for v in values if v is not None]
        found += [end for row in self.whiskers for pair in row if pair for end in pair]
        return [v for v in found if v > 0 or not self.log] or [1.0]

    def _range(self) -> tuple[float, float]:
        """The ends of the axis."""
        values = self._values()
        if self.log:
            low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
            return 10.0**low, 10.0 ** max(high, low + 1)
        return min(0.0, *values), max(values) * 1.05 or 1.0

    def _y(self, value: float) -> float:
        low, high = self._range()
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        share = (value - low) / (high - low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def _ticks(self) -> list[float]:
        low, high = self._range()
        if self.log:
            first, last = round(math.log10(low)), round(math.log10(high))
            return [10.0**power for power in range(first, last + 1)]
        step = 10 ** math.floor(math.log10(high - low))
        step *= next(f for f in (0.1, 0.2, 0.5, 1.0, 2.0) if (high - low) / (f * step) <= 8)
        return [step * n for n in range(math.ceil(low / step), math.floor(high / step) + 1)]

    def _axis(self) -> Iterator[str]:
        for value in self._ticks():
            y = f"{self._y(value):.1f}"
            yield f'<line x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}"/>'
            yield f'<text x="{_LEFT - 6}" y="{y}" dy="4" text-anchor="end">{value:.6g}</text>'
        for number, group in enumerate(self.groups):
            x = _LEFT + (number + 0.5) * self._group_width
            yield (
                f'<text x="{x:.1f}" y="{_HEIGHT - 10}" text-anchor="middle" class="small">'
                f"{escape(group)}</text>"
            )

    @property
    def _group_width(self) -> float:
        return (_WIDTH - _LEFT - _RIGHT) / len(self.groups)

    def _legend(self) -> Iterator[str]:
        x = float(_LEFT)
        for number, (name, _) in enumerate(self.series):
            colour = _COLOURS[number % len(_COLOURS)]
            yield f'<rect x="{x:.0f}" y="24" width="10" height="10" fill="{colour}"/>'
            yield f'<text x="{x + 14:.0f}" y="33">{escape(name)}</text>'
            x += 34 + 6.6 * len(name)

    def _bars(self) -> Iterator[str]:
        width = 0.8 * self._group_width / len(self.series)
        base = self._y(self._range()[0] if self.log else 0.0)
        for number, (name, values) in enumerate(self.series):
            colour = _COLOURS[number % len(_COLOURS)]
            for group, value in enumerate(values):
                if value is None:
                    continue
                x = _LEFT + (group + 0.1) * self._group_width + number * width
                y = self._y(value)
                top, height = min(y, base), max(abs(base - y), 0.5)
                said = escape(f"{self.groups[group]}, {name}: {value:.4g}")
                yield (
                    f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" '
                    f'fill="{colour}"><title>{said}</title></rect>'
                )
                pair = self.whiskers[number][group] if self.whiskers else None
                if pair is not None:
                    middle = x + width / 2
                    yield (
                        f'<line class="axis" x1="{middle:.1f}" x2="{middle:.1f}" '
                        f'y1="{self._y(pair[0]):.1f}" y2="{self._y(pair[1]):.1f}"/>'
                    )
