"""Lavin and Gray's accuracy and operation tables, and the Winograd article's worked example."""

from __future__ import annotations

from statistics import geometric_mean

import numpy as np

from documents.chart import Chart
from documents.figure import Claim, Data, Effort, Figure, Page, Table, ratio
from documents.timing import Arrays, bytes_of, in_turn, of_plan
from leanconv.reference import direct
from leanconv.spec import ConvSpec
from leanconv.winograd.matrices import transform
from leanconv.winograd.program import compile_matrix

# Layers of VGG, and the printed largest errors: direct, F(2x2, 3x3), F(4x4, 3x3), in 1e-5.
_ERRORS = {
    "conv1.2": ("ic64ih224oc64oh224kh3", (4.01, 1.53, 28.4)),
    "conv2.2": ("ic128ih112oc128oh112kh3", (8.01, 2.86, 54.1)),
    "conv3.2": ("ic256ih56oc256oh56kh3", (15.3, 5.34, 90.6)),
    "conv4.2": ("ic512ih28oc512oh28kh3", (32.0, 5.34, 104.0)),
    "conv5": ("ic512ih14oc512oh14kh3", (34.3, 4.20, 108.0)),
}
_METHODS = ("direct", "winograd:m=2", "winograd:m=4", "winograd:m=6")
_SAMPLED = 8  # output channels


def _measure_errors(effort: Effort) -> Data:
    found: Data = {}
    for name, (problem, _) in _ERRORS.items():
        if effort.quick and name != "conv5":
            continue
        spec = ConvSpec.parse(problem)
        arrays = Arrays(spec)
        few = np.linspace(0, spec.out_channels - 1, _SAMPLED).astype(int)
        part = ConvSpec.parse(problem.replace(f"oc{spec.out_channels}", f"oc{_SAMPLED}"))
        exact = direct.convolve(part, arrays.x.astype(np.float64), arrays.w[few].astype(np.float64))
        found[name] = {}
        for method in _METHODS:
            planned = arrays.planned(method, effort.threads)
            arrays.y[...] = np.nan
            planned.run()
            found[name][method] = float(np.abs(arrays.y[:, few] - exact).max())
    return {"errors": found}


def _show_errors(data: Data) -> Page:
    rows, claims = [], []
    for name, errors in data["errors"].items():
        said = _ERRORS[name][1]
        rows.append([name, *(f"{errors[m] * 1e5:.2f}" for m in _METHODS)])
        rows.append(["printed", *(f"{value:.2f}" for value in said), "-"])
    for number, method in enumerate(_METHODS[:3]):
        ours = [errors[method] * 1e5 for errors in data["errors"].values()]
        theirs = [_ERRORS[name][1][number] for name in data["errors"]]
        shares = [a / b for a, b in zip(ours, theirs, strict=True)]
        claims.append(
            Claim(
                f"largest error of `{method}`, in 1e-5",
                f"{min(theirs):.3g} to {max(theirs):.3g}",
                f"{min(ours):.3g} to {max(ours):.3g}",
                f"{geometric_mean(shares):.2f}",
                "inputs and filters uniform in [-1, 1], against float64; sums here are of partial "
                "sums of 128 products, and the points of F(4, 3) are others",
            )
        )
    heads = ["largest absolute error, 1e-5", *(f"`{m}`" for m in _METHODS)]
    text = f"Batch 1; {_SAMPLED} output channels of each layer are compared with float64."
    names = list(data["errors"])
    chart = Chart(
        "",
        "Largest error on VGG's layers",
        names,
        [(m, [data["errors"][n][m] for n in names]) for m in _METHODS],
        log=True,
    )
    return Page([Table(text, heads, rows)], claims, [chart])


# -- operations --------------------------------------------------------------------------------
# Lavin and Gray, table 1, by tile: products of an output, then operations of the transforms of
# data, filter and result for each product of a tile.
_COUNTS = {
    2: (4.00, 2.00, 1.75, 1.50),
    3: (2.78, 3.60, 2.24, 2.24),
    4: (2.25, 4.33, 2.00, 2.78),
    6: (1.78, 6.50, 2.23, 4.38),
}


def _measure_counts(effort: Effort) -> Data:
    del effort
    found = {}
    for m in _COUNTS:
        made = transform(m, 3)
        data, filters, result = (
            len(compile_matrix(matrix).ops) for matrix in (made.bt, made.g, made.at)
        )
        alpha = made.alpha
        found[str(m)] = [
            alpha**2 / m**2,
            2 * alpha * data / alpha**2,
            (3 + alpha) * filters / alpha**2,
            (alpha + m) * result / alpha**2,
        ]
    return {"counts": found}


def _show_counts(data: Data) -> Page:
    rows, claims = [], []
    for m, ours in data["counts"].items():
        said = _COUNTS[int(m)]
        name = f"F({m}x{m}, 3x3)"
        rows.append([name, *(f"{o:.2f} ({s:.2f})" for o, s in zip(ours, said, strict=True))])
        claims.append(
            Claim(
                f"{name}, operations of data, filter and result transforms",
                " / ".join(f"{s:.2f}" for s in said[1:]),
                " / ".join(f"{o:.2f}" for o in ours[1:]),
                ratio(sum(ours[1:]), sum(said[1:])),
                "a multiply-add is one instruction here, and two operations there; other points "
                "from m = 3 on",
            )
        )
    heads = ["", "products of an output", "data", "filter", "result"]
    return Page([Table("Ours, in brackets table 1 of Lavin and Gray.", heads, rows)], claims)


# -- the worked example ------------------------------------------------------------------------
_EXAMPLE = "ic18ih19oc256oh19kh3"


def _measure_example(effort: Effort) -> Data:
    spec = ConvSpec.parse(_EXAMPLE)
    arrays, ready, right = Arrays(spec), {}, None
    names = ["direct", *(f"winograd:m={m}" for m in (2, 4, 6)), "winograd:form=stages,m=4"]
    found: Data = {}
    for name in names:
        planned = arrays.planned(name, effort.threads)
        right = arrays.checked(planned.run, right)
        ready[name] = of_plan(planned)
        apart = float(np.abs(arrays.y - right).max() / np.abs(right).max())
        found[name] = {**bytes_of(spec, name, effort.threads), "apart": apart}
    times = in_turn(ready, effort)
    return {"methods": {n: {**found[n], "ns": times[n]["ns"]} for n in names}}


def _show_example(data: Data) -> Page:
    spec = ConvSpec.parse(_EXAMPLE)
    rows = []
    for name, one in data["methods"].items():
        m = int(name[-1]) if name[-1].isdigit() else 1
        tiles = -(-19 // m)
        products = spec.flops // 2 if m == 1 else (tiles * (m + 2)) ** 2 * 18 * 256
        rows.append(
            [
                f"`{name}`",
                f"{tiles}x{tiles}" if m > 1 else "-",
                f"{products / 1e6:.2f}",
                f"{one['ns']['least'] / 1e3:.1f}",
                f"{one['workspace_bytes']:,}",
                f"{one['weight_bytes']:,}",
                f"{one['apart']:.1e}",
            ]
        )
    least = {name: one["ns"]["least"] for name, one in data["methods"].items()}
    claims = [
        Claim(
            "tiles of F(4x4, 3x3) on 19x19 outputs",
            "5x5, which cover 20x20: a row and a column are thrown away",
            "5x5; the last tiles of a row and a column have fewer points",
            "",
            "edges are narrowed, so nothing is computed and thrown away where that pays",
        ),
        Claim(
            "direct over F(4x4, 3x3), time",
            "4 (products)",
            f"{least['direct'] / least['winograd:m=4']:.2f}",
            ratio(least["direct"] / least["winograd:m=4"], 4),
            "18 channels: transforms of 256 outputs weigh as much as the products",
        ),
    ]
    heads = ["", "tiles", "10^6 products", "us, least", "workspace, bytes", "weights", "apart"]
    text = "AlphaGo Zero's first layer at its full width, 19x19x18 to 256; batch 1."
    return Page([Table(text, heads, rows)], claims)


FIGURES = (
    Figure("lavin-accuracy", "Lavin and Gray, table of accuracy", "Errors on VGG's layers",
           _measure_errors, _show_errors, quiet=False, minutes=1),
    Figure("lavin-operations", "Lavin and Gray, table 1", "Operations of the transforms",
           _measure_counts, _show_counts, quiet=False, minutes=0.1),
    Figure("winograd-example", "Winograd article, worked example", "AlphaGo Zero's first layer",
           _measure_example, _show_example, minutes=0.3),
)  # fmt: skip
