"""One self-contained HTML page about a plan: layers, arena over time, front, error."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from leanconv.pages.page import (
    BELOW,
    HIGH,
    LEFT,
    WIDE,
    document,
    fact,
    heading,
    levels,
    line,
    place,
    svg,
    text_at,
)
from leanconv.units import format_bytes, format_ns

Report = Mapping[str, Any]


def explain_page(title: str, report: Report) -> str:
    """The page, as text: no script, nothing loaded from anywhere.

    Args:
        title: what was planned.
        report: as `leanconv.planner.explain.explain_network` makes it.
    """
    parts = [
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
    return document(title, parts)


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
    return "<dl>" + "".join(fact(name, value) for name, value in facts.items()) + "</dl>"


def _arena(report: Report) -> str:
    """Each buffer a box: its life from left to right, its place from bottom to top."""
    arena = report["arena"]
    calls, most = max(1, len(arena["calls"])), max(1, arena["bytes"])
    step = (WIDE - LEFT - 8) / calls
    body = levels(most, lambda value: format_bytes(round(value)))
    for buffer in arena["buffers"]:
        x, width = LEFT + buffer["first"] * step, (buffer["last"] - buffer["first"] + 1) * step
        top = place((buffer["offset"] + buffer["bytes"]) / most)
        height = place(buffer["offset"] / most) - top
        first, last = arena["calls"][buffer["first"]], arena["calls"][buffer["last"]]
        about = f"{buffer['name']}: {format_bytes(buffer['bytes'])} at {buffer['offset']}, "
        about += f"from {first} to {last}"
        body.append(
            f'<rect class={"scratch" if buffer["scratch"] else "value"} x="{x:.2f}" y="{top:.2f}" '
            f'width="{width:.2f}" height="{max(height, 0.5):.2f}"><title>{escape(about)}</title>'
            "</rect>"
        )
    peak = arena["peak"]
    x = LEFT + (peak["call"] + 0.5) * step
    body.append(line(x, 8, x, HIGH - BELOW, "mark"))
    body.append(text_at(LEFT, HIGH - 8, "first call", "start"))
    body.append(text_at(WIDE - 8, HIGH - 8, f"call {calls}", "end"))
    names = arena["calls"]
    where = names[peak["call"]] if names else "nowhere"
    makers = ", ".join(peak["buffers"][:5]) + (" …" if len(peak["buffers"]) > 5 else "")
    note = f"The peak, {format_bytes(peak['bytes'])}, is at {where} (line): {makers}. "
    note += "Blue boxes hold values, yellow ones what threads work in."
    return svg(body, "buffers of the arena over time") + f"<p class=note>{escape(note)}</p>"


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
        return LEFT + 12 + share * (WIDE - LEFT - 40), place(point[1] / most)

    body = levels(most, format_ns)
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
    body.append(text_at(LEFT + 12, HIGH - 8, format_bytes(low), "start"))
    body.append(text_at(WIDE - 8, HIGH - 8, format_bytes(high), "end"))
    note = (
        "Predicted time of the fastest plan within each limit of bytes, where no choice counts as "
        "faster than that of a plan without limits; the large dot is this plan."
    )
    return svg(body, "time against bytes") + f"<p class=note>{note}</p>"


def _error(report: Report) -> str:
    layers = report["layers"]
    allowed = report["asked"]["max_error"]
    most = max([layer["error_so_far"] for layer in layers] + [allowed or 0.0]) or 1.0
    step = (WIDE - LEFT - 8) / max(1, len(layers))
    body = levels(most, lambda value: f"{value:.1e}")
    path = ""
    for number, layer in enumerate(layers):
        x, height = LEFT + number * step, place(layer["passed_error"] / most)
        about = f"{layer['name']} by {layer['algorithm']}: {layer['passed_error']:.1e}"
        body.append(
            f'<rect class=value x="{x + 1:.2f}" y="{height:.2f}" width="{max(1.0, step - 2):.2f}" '
            f'height="{place(0) - height:.2f}"><title>{escape(about)}</title></rect>'
        )
        path += (
            f"{'L' if path else 'M'}{x + step / 2:.1f} {place(layer['error_so_far'] / most):.1f}"
        )
    body.append(f'<path class=curve d="{path}"/>')
    if allowed:
        body.append(line(LEFT, place(allowed / most), WIDE - 8, place(allowed / most), "mark"))
    note = (
        "Boxes: what each layer adds; the curve: all layers so far, as independent errors add up."
    )
    return svg(body, "expected error along the layers") + f"<p class=note>{note}</p>"


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
            f"{heading('way', 'time', 'weights', 'scratch', 'error', 'why it lost')}{others}"
            "</table></details></td></tr>"
        )
    titles = heading("layer", "operation", "algorithm", "result", "time", "weights", "rel. error")
    return f"<table>{titles}{''.join(rows)}</table>"


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
