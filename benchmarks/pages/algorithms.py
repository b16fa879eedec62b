"""The page of `algorithms.py`: its results as tables, then beside the documents' figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from typing import Any

from pages import im2win, mec
from pages.figures import IM2WIN, MIB, Figures
from pages.tables import table
from pages.wrapping import wrapped

Method = dict[str, Any]
Case = dict[str, Any]


def page(document: dict[str, Any]) -> str:
    """Write the page of a result."""
    figures = Figures(document)
    lines = [
        "# Every algorithm on cv1 to cv12",
        "",
        *_intro(document),
        *(line for batch in _batches(document) for line in _of_batch(document, batch)),
        *_refusals(document),
        "## Beside the documents",
        "",
        *mec.sections(figures),
        *im2win.sections(figures),
    ]
    return wrapped("\n".join(lines).rstrip())


def _batches(document: dict[str, Any]) -> list[int]:
    return sorted({case["batch"] for case in document["cases"]})


def _cases(document: dict[str, Any], batch: int) -> list[Case]:
    return [case for case in document["cases"] if case["batch"] == batch]


def _run(document: dict[str, Any]) -> Iterator[tuple[Case, str, Method]]:
    """Every method that was run by leanconv, with its case."""
    for case in document["cases"]:
        for name, method in case["methods"].items():
            if "allocated_bytes" in method:
                yield case, name, method


def _intro(document: dict[str, Any]) -> list[str]:
    machine, effort = document["machine"], document["effort"]
    run = list(_run(document))
    unequal = [m for _, _, m in run if m["workspace_bytes"] != m["allocated_bytes"]]
    turns = sum(len(m["turns_ns"]) for _, _, m in run)
    disturbed = sum(m["disturbed_turns"] for _, _, m in run)
    spread = [statistics.median(m["turns_ns"]) / min(m["turns_ns"]) for _, _, m in run]
    noisy = [s for s in spread if s > 1.2]
    over = [m for _, _, m in run if m["touched_bytes"] > m["workspace_bytes"]]
    return [
        "Written by `python benchmarks/algorithms.py`, which says how it measures. "
        f"{machine['cpu']}, {machine['system']}, Python {machine['python']}, "
        f"{machine['time_utc'][:10]}, commit {machine['commit'] or 'unknown'}; float32, "
        f"{document['layout']}, {effort['threads']} threads, {effort['rounds']} rounds of "
        f"{1000 * effort['seconds']:.0f} ms a method; "
        f"peak of one core {document['peak_gflops']:.0f} GFLOP/s. {document['busy_cpus_before']} "
        f"CPUs were busy before; right after {disturbed} of {turns} turns two threads of "
        "arithmetic took longer than they should. That does not catch all noise: in "
        f"{len(noisy)} of {len(run)} cells the median is over 1.2 times the least turn, in the "
        f"worst {max(noisy, default=1):.1f} times. Tables of times show medians; ratios below are "
        "of least turns.",
        "",
        "The layers are those of the MEC paper (thesis table 3-3). `naive` is the seven loops, "
        "`rows=whole` a lowering of the whole image or batch, `form=base` and `form=vector` the "
        "thesis' algorithms 4 and 5, `form=stages` Winograd in separate stages. An empty cell is "
        "a refusal, listed below.",
        "",
        f"Of {len(run)} plans, {len(run) - len(unequal)} have allocated exactly the workspace "
        f"that was predicted, and {len(over)} have written more than that. Whole lowered buffers "
        "are used to the last byte; a thread that found no chunk leaves its scratch untouched.",
        "",
    ]


def _of_batch(document: dict[str, Any], batch: int) -> list[str]:
    cases = _cases(document, batch)

    def grid(title: str, cell: Callable[[Method], str], best: bool = False) -> list[str]:
        return ["", f"### {title}, batch {batch}", "", *_grid(cases, cell, best), ""]

    lines = [f"## Batch {batch}"]
    lines += grid("Time, ms (the least of a layer in bold)", lambda m: _ms(m["time_ns"]), True)
    lines += grid("GFLOP/s of the plain sum", lambda m: f"{m['gflops']:.3g}")
    lines += grid("Workspace, MiB", lambda m: _mib(m["workspace_bytes"]))
    lines += grid("Packed weights, MiB", lambda m: _mib(m["weight_bytes"]))
    lines += grid("Error, measured (stated), in 1e-7", _errors)
    lines += _error_range(cases)
    return lines


def _grid(cases: list[Case], cell: Callable[[Method], str], best: bool) -> list[str]:
    """Methods by layers; the ablation of im2win has a table of its own."""
    names = [name for name in cases[0]["methods"] if not name.startswith(IM2WIN + ",")]
    least = {}
    for case in cases if best else ():
        times = [case["methods"][name].get("time_ns", math.inf) for name in names]
        least[case["layer"]] = min(times)
    rows = []
    for name in names:
        row = [name if " " in name else f"`{name}`"]
        for case in cases:
            method = case["methods"][name]
            text = cell(method) if "time_ns" in method else ""
            bold = best and text and method["time_ns"] == least[case["layer"]]
            row.append(f"**{text}**" if bold else text)
        rows.append(row)
    return table(["", *(case["layer"] for case in cases)], rows)


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3g}" if ns < 1e9 else f"{ns / 1e6:.0f}"


def _mib(size: int) -> str:
    return "0" if size == 0 else f"{size / MIB:.3g}" if size < 1000 * MIB else f"{size / MIB:.0f}"


def _errors(method: Method) -> str:
    if "stated_error" not in method:
        return "0" if method["error"] < 1e-12 else f"{1e7 * method['error']:.2g}"
    return f"{1e7 * method['error']:.3g} ({1e7 * method['stated_error']:.3g})"


def _error_range(cases: list[Case]) -> list[str]:
    """How far the stated errors are from the measured ones."""
    shares = []
    for case in cases:
        for name, m in case["methods"].items():
            if "stated_error" in m:
                shares.append((m["error"] / m["stated_error"], name, case["layer"]))
    shares.sort()
    exceeded = [f"`{name}` on {layer} ({share:.2f})" for share, name, layer in shares if share > 1]
    text = (
        f"Measured over stated: from {shares[0][0]:.2f} (`{shares[0][1]}` on {shares[0][2]}) to "
        f"{shares[-1][0]:.2f} (`{shares[-1][1]}` on {shares[-1][2]}); "
    )
    text += f"exceeded by {', '.join(exceeded)}." if exceeded else "no stated error is exceeded."
    return [text, ""]


def _refusals(document: dict[str, Any]) -> list[str]:
    """Each reason once, with the layers that it was given for."""
    found: dict[tuple[str, str], list[str]] = {}
    for case in document["cases"]:
        for name, method in case["methods"].items():
            if "refused" in method:
                reason = method["refused"].replace(case["problem"], "the layer")
                where = f"{case['layer']} (batch {case['batch']})"
                found.setdefault((name, _without_numbers(reason)), []).append(where)
    rows = [[f"`{name}`", _listed(where), reason] for (name, reason), where in found.items()]
    return ["## Refused, or not run", "", *table(["method", "layers", "reason"], rows), ""]


def _listed(where: list[str]) -> str:
    return ", ".join(where) if len(where) <= 6 else f"{len(where)} cases"


def _without_numbers(reason: str) -> str:
    """The reason without figures that differ from layer to layer."""
    words = reason.split()
    return " ".join(
        "…" if w.replace(".", "").isdigit() and len(w) > 3 and float(w) > 99 else w for w in words
    )
