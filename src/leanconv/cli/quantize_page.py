"""One self-contained HTML page about a quantised network: score, layers, what was tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from leanconv.cli.table import NONE
from leanconv.pages import picture
from leanconv.pages.page import document, fact, heading
from leanconv.quantizer.rungs import FLOAT32, INT8, RUNGS, W8A16
from leanconv.units import counted, format_bytes, format_ns

if TYPE_CHECKING:
    from leanconv.quantizer.result import LayerReport, Quantized, Trial


def quantize_page(title: str, made: Quantized) -> str:
    """The page, as text.

    Args:
        title: what was quantised.
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
        "time of a run": _time(made.time_ns),
        "time of float32": _time(made.float_ns),
        "bytes of the file": format_bytes(len(made.data)),
        "calibrated on": counted(made.samples[0], "sample"),
        "verified on": counted(made.samples[1], "sample"),
    }
    return "<dl>" + "".join(fact(name, value) for name, value in facts.items()) + "</dl>"


def layer_counts(made: Quantized) -> str:
    """How many layers have each precision, as text."""
    counts = Counter(layer.precision for layer in made.layers)
    parts = [f"{counts[rung]} in {rung}" for rung in RUNGS if counts[rung] and rung != INT8]
    first = f"{counts[INT8]} of {len(made.layers)} layers in {INT8}"
    return ", ".join([first, *parts])


def in_floats(made: Quantized) -> str:
    """What has to be known of layers of 16-bit inputs; empty where there are none."""
    if all(layer.precision != W8A16 for layer in made.layers):
        return ""
    return (
        f"\nLayers in {W8A16} (int8 weights, 16-bit inputs) are computed in float32: they save "
        "bytes of the file, no time"
    )


def _counts(trial: Trial) -> str:
    return ", ".join(f"{count} {rung}" for rung, count in sorted(trial.precisions.items()))


def _time(ns: float | None) -> str:
    return NONE if ns is None else format_ns(round(ns))


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
        "Each dot is a choice of layers that was run; the large one is this file, the line is the "
        "time of float32 with the same threads. Times are the fastest of some runs, on calibrated "
        "samples those that plans predict."
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
    rows = []
    for each in layers:
        width = 8 * (each.time_ns or 0.0) / longest
        error = NONE if each.sensitivity is None else f"{each.sensitivity:.1e}"
        mark = " class=chosen" if each.precision == FLOAT32 else ""
        rows.append(
            f"<tr{mark}><td>{escape(each.name)}</td><td class=text>{escape(each.op)}</td>"
            f"<td>{each.weights}</td><td class=text>{each.precision}</td><td>{error}</td>"
            f"<td>{_time(each.gain_ns)}</td>"
            f'<td class=text><span class=bar style="width:{width:.2f}rem"></span> '
            f"{_time(each.time_ns)}</td></tr>"
        )
    names = ("layer", "operation", "weights", "precision", "error alone", "gain in int8", "time")
    titles = heading(*names, text=("operation", "precision", "time"))
    note = f"<p class=note>{escape(in_floats(made).strip())}</p>" if in_floats(made) else ""
    return f"<table>{titles}{''.join(rows)}</table>{note}"


def _trials(trials: Sequence[Trial]) -> str:
    rows = [
        f"<tr><td class=text>{_counts(each)}</td><td class=text>{escape(each.samples)}</td>"
        f"<td>{each.score:.2%}</td><td>{each.error:.1e}</td><td>{_time(each.time_ns)}</td></tr>"
        for each in trials
    ]
    titles = heading("layers", "samples", "score", "error", "time", text=["samples"])
    return f"<table>{titles}{''.join(rows)}</table>"
