"""Pages of HTML about plans, which the command line writes and the server shows.

`explain_page` is the one about a plan: layers, arena over time, front, error. Pages share
style, facts, tables and pictures; they have no script, and load nothing from anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from html import escape
from typing import Any

from leanconv.pages import picture
from leanconv.units import counted, format_bytes, format_ns

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
td:first-child, th:first-child, td.text, th.text { text-align: left; }
tr { border-top: 1px solid var(--line); } .bar { display: inline-block; height: .6rem;
  background: var(--value); vertical-align: middle; }
details > summary { cursor: pointer; }
details table { margin: .3rem 0 .8rem 1rem; color: var(--dim); }
td { white-space: nowrap; } tr.more { border: 0; color: var(--dim); }
tr.chosen { color: var(--mark); } p.note { color: var(--dim); }
[title] > dt { text-decoration: underline dotted; cursor: help; }
@media (max-width: 45rem) { td, th { padding: .15rem .3rem; } td.text, th { white-space: normal; }
  td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 5rem; }
  .bar, .layers > tbody > tr > :is(:nth-child(2), :nth-child(4), :nth-child(6)) { display: none; }
  table { font-size: .8rem; } details { max-width: 80vw; overflow-x: auto; }
  details table { width: max-content; }
  details :is(td, th):not(:first-child) { white-space: nowrap; } }
"""
_TEXT = " class=text"
Report = Mapping[str, Any]
_ABOUT = {
    "arena": "the one block of memory in which all buffers between layers lie",
    "expected error": "of the outputs, relative to the largest of them: an estimate",
    "record of costs": "the processor by whose measured costs times are estimated",
    "max. error": "the expected error that was asked for; without, each layer has a bound",
}


def document(title: str, parts: Sequence[str]) -> str:
    """The whole page of a title and of parts that are HTML."""
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>\n"
        + "\n".join([f"<h1>{escape(title)}</h1>", *parts])
        + "\n</html>\n"
    )


def fact(name: str, value: str, identity: str = "", about: str = "") -> str:
    """A name and a value of a list of facts, `<dl>`; a script finds the value by its identity.

    What a fact is about is shown where the pointer rests on it.
    """
    found = f" id={identity}" if identity else ""
    title = f' title="{escape(about)}"' if about else ""
    return f"<div{title}><dt>{escape(name)}</dt><dd{found}>{escape(value)}</dd></div>"


def heading(*names: str, text: Collection[str] = ()) -> str:
    """The first row of a table; columns are of numbers, but for the first one and those of text."""
    return "<tr>" + "".join(f"<th{_TEXT * (n in text)}>{n}</th>" for n in names) + "</tr>"


_WAYS = heading("way", "time", "weights", "scratch", "error", "why it lost", text=["why it lost"])


def explain_page(title: str, report: Report) -> str:
    """The page, as text: no script, nothing loaded from anywhere.

    Args:
        title: name of the network.
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
        "<p class=note>Open the other ways of a layer for why they lost.</p>",
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
        "max. error": "none" if error is None else f"{error:.1e}",
    }
    shown = (fact(name, value, about=_ABOUT.get(name, "")) for name, value in facts.items())
    late = f"<p class=note>{escape(report['late'])}.</p>" if report["late"] else ""
    return "<dl>" + "".join(shown) + f"</dl>{late}"


def _arena(report: Report) -> str:
    """Each buffer a box: its life from left to right, its place from bottom to top."""
    arena = report["arena"]
    calls, most = max(1, len(arena["calls"])), max(1, arena["bytes"])
    body = picture.levels(most, lambda value: format_bytes(round(value)))
    for buffer in arena["buffers"]:
        x, width = picture.column(buffer["first"], calls)
        width *= buffer["last"] - buffer["first"] + 1
        low, high = buffer["offset"], buffer["offset"] + buffer["bytes"]
        first, last = arena["calls"][buffer["first"]], arena["calls"][buffer["last"]]
        about = f"{buffer['name']}: {format_bytes(buffer['bytes'])} at {buffer['offset']}, "
        about += f"from {first} to {last}"
        kind = "scratch" if buffer["scratch"] else "value"
        body.append(picture.box(kind, x, width, low / most, high / most, about))
    peak = arena["peak"]
    x, width = picture.column(peak["call"], calls)
    body.append(picture.upright(x + width / 2))
    body.append(picture.below("first call", f"call {calls}"))
    names = arena["calls"]
    where = names[peak["call"]] if names else "nowhere"
    makers = ", ".join(peak["buffers"][:5]) + (" …" if len(peak["buffers"]) > 5 else "")
    note = f"The peak, {format_bytes(peak['bytes'])}, is at {where} (line): {makers}. "
    note += "Blue boxes hold values, yellow ones what threads work in."
    return picture.figure(body, "buffers of the arena over time", note)


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
        return picture.across(share), picture.height(point[1] / most)

    body = picture.levels(most, format_ns)
    places = [at(point) for point in points]
    # A plan serves every limit from its own bytes up to those of the next one.
    path = f"M{places[0][0]:.1f} {places[0][1]:.1f}"
    for x, y in places[1:]:
        path += f"H{x:.1f}V{y:.1f}"
    body.append(f'<path class=curve d="{path}"/>')
    for (x, y), (size, time) in zip(places, points, strict=True):
        about = f"{format_bytes(size)}: {format_ns(time)}"
        body.append(picture.dot(x, y, 3, about))
    body.append(picture.dot(*at(chosen), 6, "this plan", "mark"))
    body.append(picture.below(format_bytes(low), format_bytes(high), indent=12))
    note = (
        "Predicted time of the fastest plan within each limit of bytes, where no choice counts as "
        "faster than that of a plan without limits; the large dot is this plan."
    )
    return picture.figure(body, "time against bytes", note)


def _error(report: Report) -> str:
    layers = report["layers"]
    allowed = report["asked"]["max_error"]
    most = max([layer["error_so_far"] for layer in layers] + [allowed or 0.0]) or 1.0
    body = picture.levels(most, lambda value: f"{value:.1e}")
    path = ""
    for number, layer in enumerate(layers):
        about = f"{layer['name']} by {layer['algorithm']}: {layer['passed_error']:.1e}"
        share = layer["passed_error"] / most
        body.append(picture.bar("value", number, len(layers), share, about))
        x, width = picture.column(number, len(layers))
        y = picture.height(layer["error_so_far"] / most)
        path += f"{'L' if path else 'M'}{x + width / 2:.1f} {y:.1f}"
    body.append(f'<path class=curve d="{path}"/>')
    if allowed:
        body.append(picture.level(allowed / most))
    note = (
        "Boxes: what each layer adds; the curve: all layers so far, as independent errors add up."
    )
    return picture.figure(body, "expected error along the layers", note)


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
        lost = len(layer["candidates"]) - 1 + len(layer["rejected"])
        more = (
            "<tr class=more><td colspan=7><details><summary>"
            f"{counted(lost, 'other way')}</summary><table>"
            f"{_WAYS}{others}"
            "</table></details></td></tr>"
        )
        rows.append(
            f"<tr><td>{escape(layer['name'])}</td><td class=text>{escape(layer['op'])}</td>"
            f"<td class=text>{escape(layer['words'])}</td><td>{shape}</td>"
            f"<td class=text>{bar} {format_ns(layer['time_ns'])}</td>"
            f"<td>{format_bytes(layer['weight_bytes'])}</td><td>{layer['error']:.1e}</td></tr>"
            + more
            * bool(lost)
        )
    titles = "layer", "operation", "algorithm", "result", "time", "weights", "rel. error"
    text = "operation", "algorithm", "time"
    return f"<table class=layers>{heading(*titles, text=text)}{''.join(rows)}</table>"


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
