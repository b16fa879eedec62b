"""Pictures in pages: SVG with one vertical axis from 0 upwards; heights are shares of that axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

# Of a picture, and its margins left of the axis and below it, in units of SVG.
_WIDE, _HIGH, _LEFT, _BELOW, _RIGHT = 1000, 360, 74, 28, 8


def figure(body: Sequence[str], label: str, note: str) -> str:
    """The whole picture, and a note below it.

    Args:
        body: the drawing, made by the functions below.
        label: the picture in words, for those who do not see it.
        note: how to read the picture.
    """
    return (
        f'<svg viewBox="0 0 {_WIDE} {_HIGH}" role="img" aria-label="{escape(label)}">'
        f"{''.join(body)}</svg><p class=note>{escape(note)}</p>"
    )


def levels(most: float, write: Callable[[float], str]) -> list[str]:
    """Horizontal lines at quarters of the axis, from 0 to `most`, as `write` makes text of it."""
    body = []
    for quarter in range(5):
        y = height(quarter / 4)
        body.append(_line(_LEFT, y, _WIDE - _RIGHT, y, "axis"))
        body.append(text_at(_LEFT - 6, y + 4, write(most * quarter / 4), "end"))
    return body


def below(left: str, right: str, indent: int = 0) -> str:
    """Return labels below the two ends of a picture."""
    y = _HIGH - 8
    return text_at(_LEFT + indent, y, left, "start") + text_at(_WIDE - _RIGHT, y, right, "end")


def height(share: float) -> float:
    """The y of a share of the axis."""
    return _HIGH - _BELOW - share * (_HIGH - _BELOW - 14)


def column(number: int, count: int) -> tuple[float, float]:
    """The x and the width of one of so many columns beside each other."""
    width = (_WIDE - _LEFT - _RIGHT) / max(1, count)
    return _LEFT + number * width, width


def across(share: float) -> float:
    """The x of a share of the horizontal axis, on which dots have room at both ends."""
    return _LEFT + 12 + share * (_WIDE - _LEFT - 40)


def box(kind: str, x: float, width: float, low: float, high: float, about: str) -> str:
    """A box from one share of the axis up to another; `kind` is a class of the style."""
    top = height(high)
    return (
        f'<rect class={kind} x="{x:.2f}" y="{top:.2f}" width="{width:.2f}" '
        f'height="{max(height(low) - top, 0.5):.2f}"><title>{escape(about)}</title></rect>'
    )


def bar(kind: str, number: int, count: int, share: float, about: str) -> str:
    """One of so many bars beside each other."""
    x, width = column(number, count)
    return box(kind, x + 1, max(1.0, width - 2), 0, share, about)


def dot(x: float, y: float, radius: int, about: str, kind: str = "value") -> str:
    """A dot; `kind` is a class of the style."""
    return (
        f'<circle class={kind} cx="{x:.1f}" cy="{y:.1f}" r={radius}>'
        f"<title>{escape(about)}</title></circle>"
    )


def upright(x: float) -> str:
    """A line that marks a place of the horizontal axis."""
    return _line(x, 8, x, height(0), "mark")


def level(share: float) -> str:
    """A line that marks a share of the axis."""
    return _line(_LEFT, height(share), _WIDE - _RIGHT, height(share), "mark")


def text_at(x: float, y: float, text: str, anchor: str = "middle") -> str:
    """Text in a picture."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class={kind} x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
