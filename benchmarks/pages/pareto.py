"""The page of `pareto.py`."""

from __future__ import annotations

from typing import Any

from leanconv.units import format_bytes
from pages.tables import measured_on, table
from pages.wrapping import wrapped

_TITLES = {"mobilenetv2": "MobileNetV2-1.0", "resnet50": "ResNet-50", "vgg16": "VGG-16"}


def page(document: dict[str, Any]) -> str:
    """Write the page of a result."""
    lines = [
        "# Time against memory",
        "",
        "Written by `python benchmarks/pareto.py`, which says how it measures: float32, one image "
        f"of 224 x 224. {measured_on(document)} Bytes of arena and weights "
        "are those that were predicted, and those that the runtime counted. Time: the median over "
        "rounds in which all plans and engines take turns, and the tenth percentile of them (what "
        "is left when the two virtual cores are two). Error: the largest difference to the network "
        "in float64, over its largest output. Peak: resident memory of a fresh process, load and "
        "three runs, over its bare imports (`import numpy, leanconv`), compiled code in the cache. "
        "A plan without a limit is chosen for time alone.",
        "",
    ]
    for name, result in document["networks"].items():
        lines += [f"## {_TITLES.get(name, name)}", "", *_network(result), ""]
    return wrapped("\n".join(lines).rstrip())


def _network(result: dict[str, Any]) -> list[str]:
    rows = [_plan(plan) for plan in result["plans"]]
    rows += [_engine(name, engine) for name, engine in result["engines"].items()]
    heads = ["", "limit", "median", "low", "predicted", "arena", "weights", "error", "peak"]
    return [*table(heads, rows), "", *_statements(result)]


def _plan(plan: dict[str, Any]) -> list[str]:
    limit = plan["limit_bytes"]
    return [
        plan["label"],
        "-" if limit is None else f"{limit:,}",
        _ms(plan["median_ns"]),
        _ms(plan["low_ns"]),
        _ms(plan["predicted_ns"]),
        f"{plan['arena_bytes']:,}",
        f"{plan['weight_bytes']:,}",
        f"{plan['error']:.1e}",
        format_bytes(plan["peak_bytes"]),
    ]


def _engine(name: str, engine: dict[str, Any]) -> list[str]:
    times = [_ms(engine["median_ns"]), _ms(engine["low_ns"])]
    label = f"{name} {engine['version']}"
    return [label, "", *times, "", "", "", "", format_bytes(engine["peak_bytes"])]


def _statements(result: dict[str, Any]) -> list[str]:
    """What the rows say about the two claims."""
    plans = {plan["label"]: plan for plan in result["plans"]}
    free, room = plans["none"], plans["weights + 8 MiB"]
    ratio = room["low_ns"] / free["low_ns"]
    held, least = result["weights_in_file_bytes"], result["smallest_bytes"]
    said = f"the time is {ratio:.2f} times that without a limit"
    if room["limit_bytes"] == least:
        said = "there is no plan: the smallest stands in its row"
    lines = [
        f"Weights in the file: {held:,} bytes; the smallest limit that works: {least:,}. With 8 "
        f"MiB beyond the weights of the file {said}."
    ]
    for label in ("none", "weights + 8 MiB", "least"):
        ours = plans[label]["peak_bytes"]
        for name, engine in result["engines"].items():
            word = "less" if ours < engine["peak_bytes"] else "more"
            share = ours / engine["peak_bytes"]
            lines.append(f"- limit {label}: {word} memory than {name} ({share:.2f} of it)")
    peaks = [plans[label]["peak_bytes"] for label in ("least", "none")]
    if peaks[0] > peaks[1]:
        lines.append(
            f"- the process under the least limit peaks at {format_bytes(peaks[0])}, without a "
            f"limit at {format_bytes(peaks[1])}: searching for the plan takes more memory than the "
            "plan saves. The limit holds for arena and weights, not for the search"
        )
    return [lines[0], "", *lines[1:]]


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.2f} ms"
