"""Figures 3-7 and 3-8 of the im2win thesis: bytes by its formulas, and peaks of processes."""

from __future__ import annotations

from statistics import mean

import formulas
from documents import peak
from documents.chart import Chart
from documents.clock import fitting
from documents.figure import Claim, Data, Effort, Figure, Page, Table, ratio
from documents.mec import named
from leanconv.reference.layers import LAYERS, layer

MIB = 2**20
BATCH = 128
_MATRIX, _WHOLE = "im2col:rows=batch", "im2win:form=high"


def _measure_37(effort: Effort) -> Data:
    del effort
    found = []
    for name in LAYERS:
        spec = layer(name, BATCH)
        sizes = (
            spec.input_bytes,
            4 * formulas.im2col_elements(spec),
            4 * formulas.im2win_elements(spec),
        )
        found.append([name, *sizes])
    return {"layers": found}


def _show_37(data: Data) -> Page:
    rows, matrix, window = [], [], []
    for name, x, im2col, im2win in data["layers"]:
        matrix.append(im2col / x)
        window.append(im2win / x)
        rows.append(
            [name, *(f"{size / MIB:,.0f}" for size in (x, im2col, im2win)), f"{im2col / x:.2f}",
             f"{im2win / x:.2f}", f"{im2win / im2col:.2f}"]
        )  # fmt: skip
    shares = [w / m for w, m in zip(window, matrix, strict=True)]
    heads = ["", "input, MiB", "im2col", "im2win", "im2col/input", "im2win/input", "im2win/im2col"]
    claims = [
        Claim("largest im2col matrix over the input", "17.3", f"{max(matrix):.2f}",
              ratio(max(matrix), 17.3), "cv5; equation 2-5"),
        Claim("im2win tensor over the im2col matrix", "about 0.30", f"mean {mean(shares):.2f}",
              ratio(mean(shares), 0.30), "equation 2-7; weighted by size it is "
              f"{sum(r[3] for r in data['layers']) / sum(r[2] for r in data['layers']):.2f}"),
    ]  # fmt: skip
    chart = Chart("", "Bytes over the input's, batch 128", [r[0] for r in data["layers"]],
                  [("im2col", matrix), ("im2win", window)])  # fmt: skip
    return Page([Table("Batch 128, from the formulas.", heads, rows)], claims, [chart])


_PEAKED = ("direct", "im2col:rows=whole", _MATRIX, _WHOLE, "im2win")


def _needs(name: str, method: str) -> int:
    """Bytes of an image: input, output and what a method lowers of the whole batch."""
    spec = layer(name)
    lowered = {_MATRIX: formulas.im2col_elements(spec), _WHOLE: formulas.im2win_elements(spec)}
    return spec.input_bytes + spec.output_bytes + 4 * lowered.get(method, 0)


def _measure_38(effort: Effort) -> Data:
    found = []
    for name in named(effort):
        batch = 4 if effort.quick else BATCH
        case: Data = {"layer": name, "batch": batch, "peak": {}, "formula": {}, "images": {}}
        images = {method: fitting(batch, _needs(name, method)) for method in _PEAKED}
        peak.compile_all(LAYERS[name], images, effort.threads)
        for method in _PEAKED:
            weights = layer(name).weight_bytes
            case["formula"][method] = batch * _needs(name, method) + weights
            case["images"][method] = images[method]
            case["peak"][method] = peak.measured(
                LAYERS[name], images[method], method, effort.threads
            )
        found.append(case)
    return {"cases": found}


def _at_batch(case: Data, method: str) -> int | None:
    """The peak at the batch that is wanted; None where it did not fit."""
    size: int | None = case["peak"][method]
    return size if _images(case, method) == case["batch"] else None


def _images(case: Data, method: str) -> int:
    """The batch that was measured."""
    found: int = case.get("images", {}).get(method, case["batch"])
    return found


def _cell(case: Data, method: str) -> str:
    size, images = case["peak"][method], _images(case, method)
    if size is None:
        return "-"
    text = f"{size / MIB:,.0f}"
    return text if images == case["batch"] else f"{text} ({images} images)"


def _show_38(data: Data) -> Page:
    rows, savings = [], []
    series: dict[str, list[float | None]] = {m: [] for m in _PEAKED}
    for case in data["cases"]:
        base = case["peak"]["direct"]
        for method in _PEAKED:
            size = _at_batch(case, method)
            series[method].append(size / base if size and base else None)
        rows.append([case["layer"], *(_cell(case, m) for m in _PEAKED)])
        ours, matrix = (_at_batch(case, m) or case["formula"][m] for m in (_WHOLE, _MATRIX))
        savings.append(1 - ours / matrix)
    batch = data["cases"][0]["batch"]
    text = (
        f"Peak resident memory of a process of its own that plans and runs the layer once at batch "
        f"{batch}, less that of bare imports, MiB: input, filters, output and whatever the method "
        "needs. In brackets the largest batch that fits into this machine's memory, where it is "
        "less."
    )
    claims = [
        Claim("im2win against im2col, peak", "41.6 % less", f"{100 * mean(savings):.1f} % less "
              f"({100 * min(savings):.0f} to {100 * max(savings):.0f} %)",
              ratio(mean(savings), 0.416), "im2col of the whole batch; where that does not fit, "
              "its bytes by formula"),
    ]  # fmt: skip
    layers = [case["layer"] for case in data["cases"]]
    chart = Chart("", "Peak memory over direct's", layers, [(m, series[m]) for m in _PEAKED])
    return Page([Table(text, ["", *(f"`{m}`" for m in _PEAKED)], rows)], claims, [chart])


FIGURES = (
    Figure("thesis-3-7", "im2win thesis, figure 3-7", "Bytes of lowered tensors", _measure_37,
           _show_37, quiet=False, minutes=0.1),
    Figure("thesis-3-8", "im2win thesis, figure 3-8", "Peak memory", _measure_38, _show_38,
           quiet=False, minutes=6),
)  # fmt: skip
