"""One self-contained HTML page about a plan: layers, arena over time, front, error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from leanconv.units import format_bytes, format_ns

Report = Mapping[str, Any]

_STYLE = """
:root { color-scheme: light dark; --fore: #1b1f24; --back: #ffffff; --soft: #f2f4f7;
  --line: #c9d1d9; --mark: #c2410c; --value: #4f7cac; --scratch: #d9a441; --dim: #667085; }
@media (prefers-color-scheme: dark) { :root { --fore: #e6e8eb; --back: #14171a; --soft: #1e2328;
  --line: #3a424b; --mark: #fb923c; --value: #6d9bd1; --scratch: #e0b354; --dim: #98a2b3; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--fore); background: var(--back);
  max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
dl { display: flex; flex-wrap: wrap; gap: .5rem 2rem; margin: 0; }
dt { color: var(--dim); font-size: .85rem; } dd { margin: 0; font-size: 1.1rem; }
svg { width: 100%; height: auto; background: var(--soft); border-radius: 6px; }
svg text { font: 11px system-ui, sans-serif; fill: var(--dim); }
rect.value { fill: var(--value); } rect.scratch { fill: var(--scratch); }
rect { stroke: var(--back); stroke-width: .6; } rect:hover { stroke: var(--fore); }
line.axis { stroke: var(--line); } line.mark, path.mark { stroke: var(--mark); fill: none; }
path.curve { stroke: var(--value); stroke-width: 2; fill: none; }
circle { fill: var(--value); } circle.mark { fill: var(--mark); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
td, th { padding: .15rem .6rem; text-align: right; vertical-align: top; }
td:first-child, td.text, th.text { text-align: left; }
tr { border-top: 1px solid var(--line); } .bar { display: inline-block; height: .6rem;
  background: var(--value); vertical-align: middle; }
details > summary { cursor: pointer; }
details table { margin: .3rem 0 .8rem 1rem; color: var(--dim); }
td { white-space: nowrap; } tr.more { border: 0; color: var(--dim); }
tr.chosen { color: var(--mark); } p.note { color: var(--dim); }
"""


def explain_page(title: str, report: Report) -> str:
    """The page, as text: no script, nothing loaded from anywhere.

    Args:
        title: what was planned.
        report: as `leanconv.planner.explain.explain_network` makes it.
    """
    parts = [
        f"<h1>{escape(title)}</h1>",
        _promises(report),
        "<h2>The arena over time</h2>",
        _arena(report),
        "<h2>Time against bytes</h2>",
        _front(report),
        "<h2>The expected error along the layers</h2>",
        _error(report),
        "<h2>Layers</h2>",
        "<p class=note>Open a layer for the ways that lost, and why.</p>",
        _layers(report),
    ]
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>\n"
        + "\n".join(parts)
        + "\n</html>\n"
    )


def _promises(report: Report) -> str:
    asked, arena = report["asked"], report["arena"]
    limit, error = asked["memory_limit"], asked["max_error"]
    facts = {
        "predicted time": format_ns(report["predicted_ns"]),
        "memory": format_bytes(report["memory_bytes"]),
        "weights": format_bytes(report["weight_bytes"]),
        "arena": format_bytes(arena["bytes"]),
        "expected error": f"{report['predicted_error']:.1e}",
        "threads": str(asked["threads"]),
        "record of costs": report["costs"],
        "memory limit": "none" if limit is None else format_bytes(limit),
        "max. error": "by layer" if error is None else f"{error:.1e}",
    }
    return "<dl>" + "".join(_fact(name, value) for name, value in facts.items()) + "</dl>"


def _fact(name: str, value: str) -> str:
    return f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"


# -- pictures ----------------------------------------------------------------------------------
_WIDE, _HIGH, _LEFT, _BELOW = 1000, 360, 74, 28


def _svg(body: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDE} {_HIGH}" role="img" aria-label="{escape(label)}">'
        + "".join(body)
        + "</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class={kind} x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _levels(most: float, write: Any) -> list[str]:
    """Horizontal lines at quarters of the axis."""
    body = []
    for quarter in range(5):
        y = _place(quarter / 4)
        body.append(_line(_LEFT, y, _WIDE - 8, y, "axis"))
        body.append(_text(_LEFT - 6, y + 4, write(most * quarter / 4), "end"))
    return body


def _place(share: float) -> float:
    """The height in the picture of a share of the axis."""
    return _HIGH - _BELOW - share * (_HIGH - _BELOW - 14)


def _arena(report: Report) -> str:
    """Each buffer a box: its life from left to right, its place from bottom to top."""
    arena = report["arena"]
    calls, most = max(1, len(arena["calls"])), max(1, arena["bytes"])
    step = (_WIDE - _LEFT - 8) / calls
    body = _levels(most, lambda value: format_bytes(round(value)))
    for buffer in arena["buffers"]:
        x, width = _LEFT + buffer["first"] * step, (buffer["last"] - buffer["first"] + 1) * step
        top = _place((buffer["offset"] + buffer["bytes"]) / most)
        height = _place(buffer["offset"] / most) - top
        first, last = arena["calls"][buffer["first"]], arena["calls"][buffer["last"]]
        about = f"{buffer['name']}: {format_bytes(buffer['bytes'])} at {buffer['offset']}, "
        about += f"from {first} to {last}"
        body.append(
            f'<rect class={"scratch" if buffer["scratch"] else "value"} x="{x:.2f}" y="{top:.2f}" '
            f'width="{width:.2f}" height="{max(height, 0.5):.2f}"><title>{escape(about)}</title>'
            "</rect>"
        )
    peak = arena["peak"]
    x = _LEFT + (peak["call"] + 0.5) * step
    body.append(_line(x, 8, x, _HIGH - _BELOW, "mark"))
    body.append(_text(_LEFT, _HIGH - 8, "first call", "start"))
    body.append(_text(_WIDE - 8, _HIGH - 8, f"call {calls}", "end"))
    names = arena["calls"]
    where = names[peak["call"]] if names else "nowhere"
    makers = ", ".join(peak["buffers"][:5]) + (" …" if len(peak["buffers"]) > 5 else "")
    note = f"The peak, {format_bytes(peak['bytes'])}, is at {where} (line): {makers}. "
    note += "Blue boxes hold values, yellow ones what threads work in."
    return _svg(body, "buffers of the arena over time") + f"<p class=note>{escape(note)}</p>"


def _front(report: Report) -> str:
    front = report["front"]
    if not front:
        return "<p class=note>It was not looked for.</p>"
    chosen = report["memory_bytes"], report["counted_ns"]
    points = [(point["bytes"], point["time_ns"]) for point in front]
    low = min(size for size, _ in (*points, chosen))
    high = max(size for size, _ in (*points, chosen))
    most = max(time for _, time in (*points, chosen))

    def at(point: tuple[int, int]) -> tuple[float, float]:
        share = (point[0] - low) / max(1, high - low)
        return _LEFT + 12 + share * (_WIDE - _LEFT - 40), _place(point[1] / most)

    body = _levels(most, format_ns)
    places = [at(point) for point in points]
    # A plan serves every limit from its own bytes up to those of the next one.
    path = f"M{places[0][0]:.1f} {places[0][1]:.1f}"
    for x, y in places[1:]:
        path += f"H{x:.1f}V{y:.1f}"
    body.append(f'<path class=curve d="{path}"/>')
    for (x, y), (size, time) in zip(places, points, strict=True):
        about = f"{format_bytes(size)}: {format_ns(time)}"
        body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r=3><title>{about}</title></circle>')
    x, y = at(chosen)
    body.append(
        f'<circle class=mark cx="{x:.1f}" cy="{y:.1f}" r=6><title>this plan</title></circle>'
    )
    body.append(_text(_LEFT + 12, _HIGH - 8, format_bytes(low), "start"))
    body.append(_text(_WIDE - 8, _HIGH - 8, format_bytes(high), "end"))
    note = (
        "Predicted time of the fastest plan within each limit of bytes, where no choice counts as "
        "faster than that of a plan without limits; the large dot is this plan."
    )
    return _svg(body, "time against bytes") + f"<p class=note>{note}</p>"


def _error(report: Report) -> str:
    layers = report["layers"]
    allowed = report["asked"]["max_error"]
    most = max([layer["error_so_far"] for layer in layers] + [allowed or 0.0]) or 1.0
    step = (_WIDE - _LEFT - 8) / max(1, len(layers))
    body = _levels(most, lambda value: f"{value:.1e}")
    path = ""
    for number, layer in enumerate(layers):
        x, height = _LEFT + number * step, _place(layer["passed_error"] / most)
        about = f"{layer['name']} by {layer['algorithm']}: {layer['passed_error']:.1e}"
        body.append(
            f'<rect class=value x="{x + 1:.2f}" y="{height:.2f}" width="{max(1.0, step - 2):.2f}" '
            f'height="{_place(0) - height:.2f}"><title>{escape(about)}</title></rect>'
        )
        path += (
            f"{'L' if path else 'M'}{x + step / 2:.1f} {_place(layer['error_so_far'] / most):.1f}"
        )
    body.append(f'<path class=curve d="{path}"/>')
    if allowed:
        body.append(_line(_LEFT, _place(allowed / most), _WIDE - 8, _place(allowed / most), "mark"))
    note = (
        "Boxes: what each layer adds; the curve: all layers so far, as independent errors add up."
    )
    return _svg(body, "expected error along the layers") + f"<p class=note>{note}</p>"


# -- layers ------------------------------------------------------------------------------------
def _layers(report: Report) -> str:
    longest = max((layer["time_ns"] for layer in report["layers"]), default=1) or 1
    rows = []
    for layer in report["layers"]:
        bar = f'<span class=bar style="width:{8 * layer["time_ns"] / longest:.2f}rem"></span>'
        others = "".join(_candidate(candidate) for candidate in layer["candidates"])
        others += "".join(
            f"<tr><td class=text>{escape(name)}</td>"
            f"<td class=text colspan=5>{escape(why)}</td></tr>"
            for name, why in layer["rejected"].items()
        )
        shape = "x".join(map(str, layer["shape"])) or "-"
        lost = len(layer["candidates"]) - 1
        rows.append(
            f"<tr><td>{escape(layer['name'])}</td><td class=text>{escape(layer['op'])}</td>"
            f"<td class=text>{escape(layer['words'])}</td><td>{shape}</td>"
            f"<td class=text>{bar} {format_ns(layer['time_ns'])}</td>"
            f"<td>{format_bytes(layer['weight_bytes'])}</td><td>{layer['error']:.1e}</td></tr>"
            f"<tr class=more><td colspan=7><details><summary>{lost} other ways</summary><table>"
            f"{_heading('way', 'time', 'weights', 'scratch', 'error', 'why it lost')}{others}"
            "</table></details></td></tr>"
        )
    heading = _heading("layer", "operation", "algorithm", "result", "time", "weights", "rel. error")
    return f"<table>{heading}{''.join(rows)}</table>"


def _heading(*names: str) -> str:
    return "<tr>" + "".join(f"<th class=text>{name}</th>" for name in names) + "</tr>"


def _candidate(candidate: Report) -> str:
    name = candidate["words"]
    if candidate["parameters"]:
        name += f", {candidate['parameters']}"
    if candidate["writes"] != "plain":
        name += f" → {candidate['writes']}"
    return (
        f"<tr{' class=chosen' if candidate['chosen'] else ''}><td class=text>{escape(name)}</td>"
        f"<td>{format_ns(candidate['time_ns'])}</td>"
        f"<td>{format_bytes(candidate['weight_bytes'])}</td>"
        f"<td>{format_bytes(candidate['scratch_bytes'])}</td><td>{candidate['error']:.1e}</td>"
        f"<td class=text>{escape(candidate['reason'] or 'chosen')}</td></tr>"
    )
