"""The im2win thesis, chapter 1 (Lu Shuai): operations of networks, and the time they take."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

import leanconv as lc
from documents.counted import NETWORKS
from documents.figure import Claim, Data, Effort, Figure, Page, Table, ratio
from examples.networks import FULL_NETWORKS

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


# -- share of time (chapter 1) -----------------------------------------------------------------
_PROFILED = ("mobilenetv2", "resnet50", "vgg16")


def _measure_share(effort: Effort) -> Data:
    found: Data = {}
    for name in _PROFILED:
        builder = FULL_NETWORKS[name]
        model = builder(image=64, width=0.25) if effort.quick else builder()
        network = lc.load(model, threads=effort.threads)
        x = np.random.default_rng(0).standard_normal((1, 3, *_extents(model)), np.float32)
        spent: dict[str, float] = {}
        for row in network.profile(x, repeats=2 if effort.quick else 30):
            kind = _kind(row.name, row.op)
            spent[kind] = spent.get(kind, 0.0) + row.least_ns
        found[name] = spent
        del network, model
        gc.collect()
    return {"networks": found}


_KINDS = ("convolutions", "dense", "other")


def _kind(name: str, op: str) -> str:
    """What a step is in the file: a dense layer is computed as a convolution of one pixel."""
    if name.startswith(("Gemm", "MatMul")):
        return "dense"
    return "convolutions" if op in ("Conv", "ConvChain") else "other"


def _extents(model: Any) -> tuple[int, int]:
    height, width = (d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim[2:])
    return height, width


def _show_share(data: Data) -> Page:
    rows, shares = [], []
    for name, spent in data["networks"].items():
        total = sum(spent.values())
        cells = [f"{spent.get(k, 0) / 1e6:.2f} ({100 * spent.get(k, 0) / total:.1f} %)"
                 for k in _KINDS]  # fmt: skip
        shares.append(spent["convolutions"] / total)
        rows.append([name, f"{total / 1e6:.2f}", *cells])
    text = (
        "One image of 224x224, float32: the least time of each step, summed up. Activations, batch "
        "norms and additions are part of the convolutions here."
    )
    claims = [
        Claim("convolutions' share of the run time", "over 90 %",
              f"{100 * min(shares):.1f} to {100 * max(shares):.1f} %", "",
              "at batch 1 a dense layer reads all its weights for one image: of VGG-16 they are "
              "nine tenths of the file"),
    ]  # fmt: skip
    return Page([Table(text, ["", "ms", *_KINDS], rows)], claims)


FIGURES = (
    Figure("thesis-1-1", "im2win thesis, table 1-1", "Operations of five networks", _measure_t11,
           _show_t11, quiet=False, minutes=0.1),
    Figure("thesis-share", "im2win thesis, chapter 1", "What share of the time convolutions take",
           _measure_share, _show_share, minutes=1.2),
)  # fmt: skip
