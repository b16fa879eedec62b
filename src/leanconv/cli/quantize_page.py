"""One self-contained HTML page about a quantised network: score, layers, what was tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from leanconv.cli.table import NONE
from leanconv.pages import document, fact, heading, picture
from leanconv.quantizer.result import FLOAT32, INT8, RUNGS, W8A16
from leanconv.units import counted, format_bytes, format_ns

if TYPE_CHECKING:
    from leanconv.quantizer.result import LayerReport, Quantized, Trial


_RUNS_ON = {"any": "all", "vnni": "those with VNNI, and all that are no x86 CPUs"}


def quantize_page(title: str, made: Quantized) -> str:
    """The page, as text.

    Args:
        title: name of the model.
        made: the network, and what was measured.
    """
    parts = [
        _facts(made),
        "<h2>Score against time</h2>",
        _curve(made),
        "<h2>The error of the outputs with one layer quantised</h2>",
        _sensitivities(made.layers),
        "<h2>Layers</h2>",
        _layers(made),
        "<h2>What was tried</h2>",
        _trials(made.trials),
    ]
    return document(title, parts)


def _facts(made: Quantized) -> str:
    facts = {
        made.score_name: f"{made.score:.2%}",
        f"{made.score_name} of float32": f"{made.float_score:.2%}",
        "error of the outputs": f"{made.error:.1e}",
        "precisions": layer_counts(made),
        "time of a run": shown_time(made.time_ns),
        "time of float32": shown_time(made.float_ns),
        "CPUs on which other engines answer the same": _RUNS_ON[made.runs_on],
        "bytes of the file": format_bytes(len(made.data)),
        "calibrated on": counted(made.samples[0], "sample"),
        "verified on": counted(made.samples[1], "sample"),
    }
    listed = "".join(fact(name, value) for name, value in facts.items())
    warned = "".join(f"<p class=note>{escape(warning)}</p>" for warning in made.warnings)
    return f"<dl>{listed}</dl>{warned}"


def layer_counts(made: Quantized) -> str:
    """Return the number of layers in each precision, as text."""
    counts = Counter(layer.precision for layer in made.layers)
    parts = [f"{counts[rung]} in {rung}" for rung in RUNGS if counts[rung] and rung != INT8]
    first = f"{counts[INT8]} of {len(made.layers)} layers in {INT8}"
    return ", ".join([first, *parts])


def notes(made: Quantized) -> list[str]:
    """Return remarks on the layers and on the file, a line each."""
    found = list(made.warnings)
    timed = [layer.time_ns is not None for layer in made.layers]
    if any(timed) and not all(timed):
        found.append(f"time {NONE}: computed together with the next layer below that has a time")
    if any(layer.precision == W8A16 for layer in made.layers):
        found.append(
            f"layers in {W8A16} (int8 weights, 16-bit inputs) are computed in float32: they save "
            "bytes of the file, no time"
        )
    if made.runs_on == "any":
        found.append("no sum of two products saturates: other engines answer so on every CPU")
    return found


def _counts(trial: Trial) -> str:
    counts = ", ".join(f"{count} {rung}" for rung, count in sorted(trial.precisions.items()))
    return f"{counts} ({trial.how})" if trial.how else counts


def shown_time(ns: float | None) -> str:
    """A time as text."""
    return NONE if ns is None else format_ns(round(ns))


def shown_error(value: float | None) -> str:
    """An error as text."""
    return NONE if value is None else f"{value:.1e}"


def _curve(made: Quantized) -> str:
    """Each choice of layers a point: its time, and its score as a share of float32's."""
    points = [(t.time_ns, t.score, t) for t in made.trials if t.time_ns is not None]
    if not points:
        return "<p class=note>leanconv could not run the file, so that no times are known.</p>"
    most_ns = max(made.float_ns, *(ns for ns, _, _ in points))
    best = max(made.float_score, *(score for _, score, _ in points)) or 1.0

    def at(ns: float) -> float:
        return picture.across(ns / most_ns)

    body = picture.levels(best, lambda value: f"{value:.0%}")
    x = at(made.float_ns)
    body.append(picture.upright(x))
    body.append(picture.text_at(x - 4, 22, FLOAT32, "end"))
    for ns, score, trial in points:
        about = f"{_counts(trial)}: {score:.2%}, {format_ns(ns)}, {trial.samples}"
        y = picture.height(max(0.0, score) / best)
        body.append(picture.dot(at(ns), y, 4, about))
    if made.time_ns is not None:
        y = picture.height(max(0.0, made.score) / best)
        body.append(picture.dot(at(made.time_ns), y, 6, "this file", "mark"))
    body.append(picture.below("0", format_ns(round(most_ns)), indent=12))
    note = (
        "Each dot is a choice of layers that was scored; the large one is this file, the line is "
        "the time of float32 with the same threads. Choices scored on samples held out were timed "
        "(the fastest of some runs); of those scored on calibrated samples the time is predicted."
    )
    return picture.figure(body, "score against time", note)


def _sensitivities(layers: Sequence[LayerReport]) -> str:
    known = [each for each in layers if each.sensitivity is not None]
    if not known:
        return "<p class=note>It was not measured: no layer had to stay in float32.</p>"
    most = max(each.sensitivity or 0.0 for each in known) or 1.0
    body = picture.levels(most, lambda value: f"{value:.1e}")
    for number, layer in enumerate(known):
        share = (layer.sensitivity or 0.0) / most
        kind = "scratch" if layer.precision == FLOAT32 else "value"
        about = f"{layer.name}: {layer.sensitivity:.1e}, {layer.precision}"
        body.append(picture.bar(kind, number, len(known), share, about))
    note = "In the network's order. Yellow layers stay in float32."
    return picture.figure(body, "error with one layer quantised", note)


def _layers(made: Quantized) -> str:
    layers = made.layers
    longest = max((each.time_ns or 0.0 for each in layers), default=0.0) or 1.0

    def bar(ns: float | None) -> str:
        width = 8 * (ns or 0.0) / longest
        return f'<span class=bar style="width:{width:.2f}rem"></span> {shown_time(ns)}'

    errors = [each.sensitivity for each in layers]
    gains, times = [each.gain_ns for each in layers], [each.time_ns for each in layers]
    columns = [
        ("layer", "", [escape(each.name) for each in layers]),
        ("operation", " class=text", [escape(each.op) for each in layers]),
        ("parameters", "", [str(each.weights) for each in layers]),
        ("precision", " class=text", [each.precision for each in layers]),
        ("error alone", "", [shown_error(each) for each in errors] if _any_known(errors) else None),
        ("gain in int8", "", [shown_time(each) for each in gains] if _any_known(gains) else None),
        ("time", " class=text", [bar(each) for each in times] if _any_known(times) else None),
    ]
    known = [(name, kind, cells) for name, kind, cells in columns if cells is not None]
    rows = []
    for number, each in enumerate(layers):
        mark = " class=chosen" if each.precision == FLOAT32 else ""
        cells = "".join(f"<td{kind}>{cells[number]}</td>" for _, kind, cells in known)
        rows.append(f"<tr{mark}>{cells}</tr>")
    titles = heading(
        *(name for name, _, _ in known), text=[name for name, kind, _ in known if kind]
    )
    below = notes(made)[len(made.warnings) :]
    note = "".join(f"<p class=note>{escape(line)}</p>" for line in below)
    return f"<table>{titles}{''.join(rows)}</table>{note}"


def _any_known(values: Sequence[float | None]) -> bool:
    return any(value is not None for value in values)


def _trials(trials: Sequence[Trial]) -> str:
    rows = [
        f"<tr><td class=text>{_counts(each)}</td><td class=text>{escape(each.samples)}</td>"
        f"<td>{each.score:.2%}</td><td>{each.error:.1e}</td><td>{shown_time(each.time_ns)}</td></tr>"
        for each in trials
    ]
    titles = heading("layers", "samples", "score", "error", "time", text=["samples"])
    return f"<table>{titles}{''.join(rows)}</table>"
