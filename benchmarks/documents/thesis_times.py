"""Figures 3-4 to 3-6 of the im2win thesis: its methods' times and rates."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

import formulas
from documents.chart import Chart
from documents.clock import fitting
from documents.figure import Claim, Data, Effort, Figure, Page, Table, ratio
from documents.mec import named
from documents.timing import Arrays, Timed, in_turn, of_plan
from leanconv.reference.layers import LAYERS, layer
from leanconv.spec import ConvSpec

_IM2COL, _DIRECT, _HIGH = "im2col:rows=whole", "naive", "im2win:form=high"
_BASE, _PRINTED_FORM, _TORCH = "im2win:form=base", "im2win:form=printed", "torch"
_TILED = "direct"
# Loops without vectors take seconds for one image: few images stand for all.
_SLOW = (_DIRECT, _BASE, _PRINTED_FORM)
_WHOLE_BATCH = (_IM2COL, _HIGH, _TILED)
_BATCH, _FEW = 128, 2


def _image_bytes(name: str) -> int:
    """Of an image of a layer, what the methods on the whole batch hold together."""
    spec = layer(name)
    return spec.input_bytes + 3 * spec.output_bytes + 4 * formulas.im2win_elements(spec)


def _measure_times(effort: Effort) -> Data:
    found = []
    for name in named(effort):
        batch = 4 if effort.quick else fitting(_BATCH, _image_bytes(name))
        case: Data = {"layer": name, "batch": batch, "few": _FEW, "times": {}}
        for images, methods in ((batch, _WHOLE_BATCH), (_FEW, _SLOW)):
            arrays, ready, right = Arrays(layer(name, images)), {}, None
            for method in methods:
                planned = arrays.planned(method, effort.threads)
                right = arrays.checked(planned.run, right)
                ready[method] = of_plan(planned)
            if images == batch:
                ready.update(_torch(arrays))
            once = replace(effort, rounds=2 if effort.quick else 5, seconds=0.0)
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
    fewer = "".join(f", of {c['layer']} {c['batch']}" for c in data["cases"] if c["batch"] != batch)
    text = (
        f"Milliseconds of one image: batch {batch}{fewer}, of scalar and dot-product "
        f"loops batch {few}; the best of five turns, as in the thesis. `naive` is its direct "
        "convolution, seven loops."
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
    for method, name, printed in ((_IM2COL, "im2col's", "2.2 to 5.8"),
                                  (_DIRECT, "the seven loops'", "3.8 to 7.1")):  # fmt: skip
        ours = f"{min(over[method]):.2f} to {max(over[method]):.2f}"
        claims.append(Claim(f"im2win's GFLOP/s over {name}", printed, ours, "", "as the times"))
    return [*claims, *_falls(dict(zip(layers, rates[_HIGH], strict=True)))]


def _falls(rates: Mapping[str, float]) -> list[Claim]:
    """Whether im2win's rate falls where the thesis' does."""
    claims = []
    for names, why in (
        (("cv1", "cv2", "cv3", "cv4"), "kernels and strides become smaller, so that a window "
         "has fewer products in a row; ours has vectors along output channels, for any kernel"),
        (("cv10", "cv11", "cv12"), "maps become smaller: rows of 26, 12 and 5 windows fill "
         "register tiles of ours less and less"),
    ):  # fmt: skip
        if set(names) <= rates.keys():
            found = [rates[name] for name in names]
            falls = all(a > b for a, b in itertools.pairwise(found))
            ours = f"{', '.join(f'{r:.0f}' for r in found)}: {'it falls' if falls else 'no fall'}"
            claims.append(
                Claim(f"im2win's GFLOP/s from {names[0]} to {names[-1]}", "it falls", ours, "", why)
            )
    return claims


FIGURES = (
    Figure("thesis-3-4", "im2win thesis, figures 3-4 to 3-6", "Time and GFLOP/s of the methods",
           _measure_times, _show_times, minutes=9),
)  # fmt: skip
