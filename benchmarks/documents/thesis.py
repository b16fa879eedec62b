"""The im2win thesis' tables and figures of chapters 1 and 3 (Lu Shuai)."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from documents import peak
from documents.chart import Chart
from documents.counted import NETWORKS
from documents.figure import Claim, Data, Effort, Figure, Page, Table, ratio
from documents.mec import named
from documents.timing import Arrays, Timed, in_turn, of_plan
from leanconv.reference import formulas
from leanconv.reference.layers import LAYERS, layer
from leanconv.spec import ConvSpec

MIB = 2**20
# The thesis' numbers of table 1-1: convolutions and dense layers, "GFLOP".
_PRINTED = {
    "AlexNet": (1.37, 0.06),
    "VGG-16": (15.3, 0.1),
    "GoogLeNet-v1": (1.5, 0.02),
    "ResNet-50": (3.8, 0.04),
    "Inception-V3": (5.72, 0.01),
}


# -- table 1-1 ---------------------------------------------------------------------------------
def _measure_t11(effort: Effort) -> Data:
    del effort
    return {"networks": {name: [sum(convs()), dense] for name, (convs, dense) in NETWORKS.items()}}


def _show_t11(data: Data) -> Page:
    rows, claims = [], []
    for name, (convs, dense) in data["networks"].items():
        said = _PRINTED[name]
        rows.append(
            [
                name,
                f"{convs / 1e9:.2f}",
                f"{dense / 1e9:.3f}",
                f"{2 * convs / 1e9:.2f}",
                f"{100 * convs / (convs + dense):.1f} %",
            ]
        )
        twice = name == "AlexNet"
        ours = (2 if twice else 1) * convs / 1e9
        claims.append(
            Claim(
                f"{name}, convolutions",
                f"{said[0]} GFLOP",
                f"{ours:.2f} G {'operations' if twice else 'multiply-adds'}",
                ratio(ours, said[0]),
                "the table counts two operations a product here"
                if twice
                else "the table counts multiply-adds and calls them FLOP",
            )
        )
    least = min(c / (c + d) for c, d in data["networks"].values())
    claims.append(
        Claim(
            "share of convolutions",
            "over 90 % of a model's operations",
            f"{100 * least:.1f} % and more",
            "",
            "AlexNet's and VGG-16's dense layers have 59 and 124 million weights",
        )
    )
    heads = [
        "",
        "convolutions, 10^9 multiply-adds",
        "dense",
        "convolutions, 10^9 operations",
        "share",
    ]
    return Page([Table("One image of 224x224 (Inception-V3: 299x299).", heads, rows)], claims)


# -- figures 3-4 to 3-6 ------------------------------------------------------------------------
_IM2COL, _DIRECT, _HIGH = "im2col:rows=whole", "naive", "im2win:form=high"
_BASE, _PRINTED_FORM, _TORCH = "im2win:form=base", "im2win:form=printed", "torch"
_TILED = "direct"
# Loops without vectors take seconds for one image: few images stand for all.
_SLOW = (_DIRECT, _BASE, _PRINTED_FORM)
_WHOLE = (_IM2COL, _HIGH, _TILED)
_BATCH, _FEW = 128, 2


def _measure_times(effort: Effort) -> Data:
    found = []
    for name in named(effort):
        batch = 4 if effort.quick else _BATCH
        case: Data = {"layer": name, "batch": batch, "few": _FEW, "times": {}}
        for images, methods in ((batch, _WHOLE), (_FEW, _SLOW)):
            arrays, ready, right = Arrays(layer(name, images)), {}, None
            for method in methods:
                planned = arrays.planned(method, effort.threads)
                right = arrays.checked(planned.run, right)
                ready[method] = of_plan(planned)
            if images == batch:
                ready.update(_torch(arrays))
            once = Effort(effort.threads, 2 if effort.quick else 5, 0.0)
            times = in_turn({m: Timed(t.run, {}, t.memory) for m, t in ready.items()}, once)
            case["times"].update({m: t["ns"] for m, t in times.items()})
            del arrays, ready
            gc.collect()
        found.append(case)
    return {"cases": found}


def _torch(arrays: Arrays) -> dict[str, Timed]:
    """at::conv2d, the thesis' im2col, where torch is installed."""
    try:
        import torch
    except ImportError:
        return {}
    x, w = torch.from_numpy(arrays.x), torch.from_numpy(arrays.w)
    stride = arrays.spec.stride

    def run() -> Any:
        with torch.inference_mode():
            return torch.nn.functional.conv2d(x, w, stride=stride)

    return {_TORCH: Timed(run, {}, None)}


def _image_ns(case: Data) -> dict[str, float]:
    """The least time of an image, by method."""
    images = {m: case["few"] if m in _SLOW else case["batch"] for m in case["times"]}
    return {m: t["least"] / images[m] for m, t in case["times"].items()}


def _show_times(data: Data) -> Page:
    each = {case["layer"]: _image_ns(case) for case in data["cases"]}
    every = (_IM2COL, _TORCH, _DIRECT, _TILED, _BASE, _PRINTED_FORM, _HIGH)
    names = [m for m in every if all(m in times for times in each.values())]
    rates = {m: [ConvSpec.parse(LAYERS[x]).flops / t[m] for x, t in each.items()] for m in names}
    over = {m: [t[m] / t[_HIGH] for t in each.values()] for m in names}
    heads = ["", *(f"`{m}`" if m != _TORCH else "torch's conv2d" for m in names)]
    batch, few = data["cases"][0]["batch"], data["cases"][0]["few"]
    text = (
        f"Milliseconds of one image: batch {batch}, of scalar and dot-product loops batch {few}; "
        "the best of five turns, as in the thesis. `naive` is its direct convolution, seven loops."
    )
    rows = [[x, *(f"{t[m] / 1e6:.3g}" for m in names)] for x, t in each.items()]
    speeds = [[x, *(f"{rates[m][i]:.3g}" for m in names)] for i, x in enumerate(each)]
    layers = list(each)
    charts = [
        Chart("3-4", f"Time over that of {_HIGH}, by layer", layers, [(m, over[m]) for m in names]),
        Chart("3-5", "GFLOP/s of the plain sum", layers, [(m, rates[m]) for m in names]),
        Chart(
            "3-6",
            f"GFLOP/s over that of {_IM2COL}",
            layers,
            [(m, _share(rates[m], rates[_IM2COL])) for m in names],
        ),
    ]
    tables = [
        Table(text, heads, rows),
        Table("GFLOP/s of the plain sum (equation 3-3).", heads, speeds),
    ]
    return Page(tables, _claims_times(over, rates, layers), charts)


def _share(a: Sequence[float], b: Sequence[float]) -> list[float | None]:
    return [x / y for x, y in zip(a, b, strict=True)]


def _claims_times(
    over: Mapping[str, list[float]], rates: Mapping[str, list[float]], layers: Sequence[str]
) -> list[Claim]:
    pairs = [
        (_IM2COL, "im2col over im2win", "up to 5.7, mean 3.6", 3.6, "one micro-kernel after both"),
        (_TORCH, "torch's conv2d over im2win", "up to 5.7, mean 3.6", 3.6, "the thesis' im2col is "
         "at::conv2d of PyTorch 1.10; today's calls oneDNN"),
        (_DIRECT, "seven loops over im2win", "up to 7, mean 5.3", 5.3, "theirs was compiled with "
         "-Ofast; ours is one scalar chain"),
        (_TILED, "register-tiled direct over im2win", "not compared", 0.0, "no lowering at all"),
        (_PRINTED_FORM, "algorithm 6 as printed over im2win", "1 (it is theirs)", 1.0,
         "vectors along the kernel's height fill 3 of 16 lanes, and end in a sum over lanes"),
        (_BASE, "algorithm 4 over im2win", "not stated", 0.0, "scalar loops"),
    ]  # fmt: skip
    claims = []
    for method, what, printed, number, why in pairs:
        if method in over:
            found = over[method]
            ours = f"{min(found):.2f} to {max(found):.2f}, mean {mean(found):.2f}"
            claims.append(
                Claim(what, printed, ours, ratio(mean(found), number) if number else "", why)
            )
    high = dict(zip(layers, rates[_HIGH], strict=True))
    if {"cv1", "cv4", "cv10", "cv12"} <= high.keys():
        falls = f"cv1 to cv4 {high['cv1']:.0f} to {high['cv4']:.0f}, cv10 to cv12 "
        falls += f"{high['cv10']:.0f} to {high['cv12']:.0f} GFLOP/s"
        claims.append(
            Claim("GFLOP/s fall from cv1 to cv4 and from cv10 to cv12", "a picture", falls, "", "-")
        )
    return claims


# -- figures 3-7 and 3-8 -----------------------------------------------------------------------
def _measure_37(effort: Effort) -> Data:
    del effort
    found = []
    for name in LAYERS:
        spec = layer(name, _BATCH)
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


_PEAKED = ("direct", _IM2COL, "im2col:rows=batch", _BASE, _HIGH, "im2win")
_MOST = 9 * 2**30  # a process larger than that is not started


def _measure_38(effort: Effort) -> Data:
    found = []
    for name in named(effort):
        batch = 4 if effort.quick else _BATCH
        spec = layer(name, batch)
        fixed = spec.input_bytes + spec.weight_bytes + spec.output_bytes
        expected = {"im2col:rows=batch": 4 * formulas.im2col_elements(spec)}
        case: Data = {"layer": name, "batch": batch, "fixed": fixed, "peak": {}, "formula": {}}
        for method in _PEAKED:
            case["formula"][method] = fixed + expected.get(method, 0)
            too_large = case["formula"][method] > _MOST
            size = None if too_large else peak.measured(LAYERS[name], batch, method, effort.threads)
            case["peak"][method] = size
        found.append(case)
    return {"cases": found}


def _show_38(data: Data) -> Page:
    rows = []
    series: dict[str, list[float | None]] = {m: [] for m in _PEAKED}
    for case in data["cases"]:
        base = case["peak"]["direct"]
        for method in _PEAKED:
            size = case["peak"][method]
            series[method].append(size / base if size else None)
        cells = [case["peak"][m] for m in _PEAKED]
        rows.append([case["layer"], *(f"{c / MIB:,.0f}" if c else "-" for c in cells)])
    pairs = [
        (a["peak"][_HIGH], a["peak"]["im2col:rows=batch"] or a["formula"]["im2col:rows=batch"])
        for a in data["cases"]
    ]
    savings = [1 - a / b for a, b in pairs]
    batch = data["cases"][0]["batch"]
    text = (
        f"Peak resident memory of a process of its own that plans and runs the layer once at batch "
        f"{batch}, less that of bare imports, MiB: input, filters, output and whatever the method "
        f"needs. `-`: over {_MOST // 2**30} GiB, not run."
    )
    claims = [
        Claim("im2win against im2col, peak", "41.6 % less", f"{100 * mean(savings):.1f} % less "
              f"({100 * min(savings):.0f} to {100 * max(savings):.0f} %)",
              ratio(mean(savings), 0.416), "im2col of the whole batch; where that is not run, its "
              "bytes by formula"),
    ]  # fmt: skip
    layers = [case["layer"] for case in data["cases"]]
    chart = Chart("", "Peak memory over direct's", layers, [(m, series[m]) for m in _PEAKED])
    return Page([Table(text, ["", *(f"`{m}`" for m in _PEAKED)], rows)], claims, [chart])


FIGURES = (
    Figure("thesis-1-1", "im2win thesis, table 1-1", "Operations of five networks", _measure_t11,
           _show_t11, quiet=False),
    Figure("thesis-3-4", "im2win thesis, figures 3-4 to 3-6", "Time and GFLOP/s of the methods",
           _measure_times, _show_times),
    Figure("thesis-3-7", "im2win thesis, figure 3-7", "Bytes of lowered tensors", _measure_37,
           _show_37, quiet=False),
    Figure("thesis-3-8", "im2win thesis, figure 3-8", "Peak memory", _measure_38, _show_38,
           quiet=False),
)  # fmt: skip
