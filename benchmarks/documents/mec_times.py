"""Figures 4c and 4d of the MEC paper, and its choice between solutions A and B."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import geometric_mean

import formulas
from documents import blas
from documents.chart import Chart
from documents.clock import fitting
from documents.figure import Claim, Data, Effort, Figure, Page, Table, ratio
from documents.mec import BATCH, BLAS_CONV, BLAS_MEC, BLOCKS, WINOGRAD, milliseconds, named, over
from documents.timing import Arrays, in_turn, of_plan
from leanconv.errors import SpecError
from leanconv.reference.layers import layer
from leanconv.reference.mec import THRESHOLD

_FEW = 5  # turns of a batch
_TIMED = (BATCH, "mec", BLOCKS, WINOGRAD)


def _image_bytes(name: str) -> int:
    """Of an image of a layer, what all methods hold together."""
    spec = layer(name)
    lowered = 2 * formulas.im2col_elements(spec) + 3 * formulas.mec_elements(spec)
    tiles = formulas.winograd_elements(spec, 2) if spec.stride == (1, 1) else 0
    return 4 * (lowered + tiles) + spec.input_bytes + 4 * spec.output_bytes


def _measure_times(effort: Effort, batch: int) -> Data:
    found = []
    if batch > 1:
        effort = replace(effort, rounds=min(effort.rounds, _FEW))  # of seconds each
    for name in named(effort):
        images = min(2, batch) if effort.quick else fitting(batch, _image_bytes(name))
        spec = blas.last(layer(name, images))
        arrays, methods, right = Arrays(spec), {}, None
        for method in _TIMED:
            try:
                planned = arrays.planned(method, effort.threads)
            except SpecError:
                continue
            right = arrays.checked(planned.run, right)
            methods[method] = of_plan(planned)
        for label, make in ((BLAS_CONV, blas.im2col), (BLAS_MEC, blas.mec)):
            methods[label] = make(arrays, effort.threads)
            right = arrays.checked(methods[label].run, right)
        found.append({"layer": name, "batch": spec.batch, "times": in_turn(methods, effort)})
        del arrays, methods
    return {"batch": batch, "cases": found}


def _show_times(data: Data) -> Page:
    names = (BLAS_CONV, BLAS_MEC, BATCH, "mec", BLOCKS, WINOGRAD)
    rows, parts = [], []
    batch = data.get("batch", data["cases"][0]["batch"])  # that is wanted
    series: dict[str, list[float | None]] = {name: [] for name in names}
    for case in data["cases"]:
        times = case["times"]
        for name in names:
            series[name].append(times[name]["ns"]["least"] / 1e6 if name in times else None)
        label = of_batch(case["layer"], case["batch"], batch)
        rows.append([label, *(milliseconds(times[n]["ns"]) if n in times else "-" for n in names)])
        parts.append([label, *(_parts(times.get(n)) for n in names[:4])])
    layers = [case["layer"] for case in data["cases"]]
    text = (
        f"Batch {batch}, channels last, ms: the least of the turns, in brackets their quartiles. "
        "With a BLAS the lowering is ours and the product NumPy's matmul, which calls OpenBLAS."
    )
    tables = [
        Table(text, ["", *(f"`{n}`" if n in _TIMED else n for n in names)], rows),
        Table(
            "Lowering and product apart, ms (the least).",
            ["", *(f"`{n}`" if n in _TIMED else n for n in names[:4])],
            parts,
        ),
    ]
    chart = Chart(
        "",
        f"Run time of cv1 to cv12 over MEC's with a BLAS, batch {batch}",
        layers,
        [(n, over(series[n], series[BLAS_MEC])) for n in names],
    )
    return Page(tables, _claims_times(batch, layers, series, data), [chart])


def of_batch(name: str, batch: int, wanted: int) -> str:
    """A layer, with its batch where it is not the one that is wanted."""
    return name if batch == wanted else f"{name} ({batch} images)"


def _parts(times: Data | None) -> str:
    if times is None or "lower" not in times["parts_ns"]:
        return "-"
    lower, product = (times["parts_ns"].get(p, 0) / 1e6 for p in ("lower", "product"))
    return f"{lower:.3g} + {product:.3g}"


def _claims_times(
    batch: int, layers: Sequence[str], series: dict[str, list[float | None]], data: Data
) -> list[Claim]:
    with_blas = [r for r in over(series[BLAS_CONV], series[BLAS_MEC]) if r]
    own = [r for r in over(series[BATCH], series["mec"]) if r]
    printed = "1.2 (a phone)" if batch == 1 else "8.8 (server)"
    claims = [
        Claim(
            f"im2col over MEC, with a BLAS, batch {batch}",
            printed,
            f"{min(with_blas):.2f} to {max(with_blas):.2f}, geometric "
            f"{geometric_mean(with_blas):.2f}",
            ratio(geometric_mean(with_blas), 1.2 if batch == 1 else 8.8),
            "the paper's server ran 2.6 GHz Xeons with OpenBLAS; what its 8.8 is made of it does "
            "not say",
        ),
        Claim(
            f"the same with our product, batch {batch}",
            printed,
            f"{min(own):.2f} to {max(own):.2f}, geometric {geometric_mean(own):.2f}",
            ratio(geometric_mean(own), 1.2 if batch == 1 else 8.8),
            "one micro-kernel after either lowering",
        ),
    ]
    faster = [
        name
        for name, r in zip(layers, over(series[WINOGRAD], series["mec"]), strict=True)
        if r is not None and r > 1
    ]
    possible = sum(value is not None for value in series[WINOGRAD])
    claims.append(
        Claim(
            f"layers on which MEC is faster than Winograd F(2, 3) in stages, batch {batch}",
            "5 of 7 (a phone)" if batch == 1 else "cv7, cv8, cv9 level or better (server)",
            f"{len(faster)} of {possible}: {', '.join(faster) or 'none'}",
            "",
            "ours multiplies in stages at the same rate, with a 2.25th of the products",
        )
    )
    lower = [
        case["times"][BLAS_MEC]["parts_ns"]["lower"] / case["times"][BLAS_CONV]["parts_ns"]["lower"]
        for case in data["cases"]
    ]
    claims.append(
        Claim(
            f"MEC's lowering against im2col's, time, batch {batch}",
            "85 % less (on a GPU)",
            f"{100 * (1 - geometric_mean(lower)):.0f} % less (geometric mean), "
            f"{100 * (1 - max(lower)):.0f} to {100 * (1 - min(lower)):.0f} %",
            "",
            "copies of 1/2 to 1/4 of the elements",
        )
    )
    return claims


# -- the choice of solution A or B ------------------------------------------------------------
_A, _B = "mec:solution=A", "mec:solution=B"


def _measure_rule(effort: Effort) -> Data:
    found = []
    for name in named(effort):
        for batch in (1,) if effort.quick else (1, 8):
            spec = blas.last(layer(name, batch))
            arrays, methods, right = Arrays(spec), {}, None
            for method in (_A, _B):
                try:
                    planned = arrays.planned(method, effort.threads)
                except SpecError:
                    continue  # solution A has no room where the output is larger than L
                right = arrays.checked(planned.run, right)
                methods[method] = of_plan(planned)
            times = {m: t["ns"] for m, t in in_turn(methods, effort).items()}
            found.append({"layer": name, "batch": batch, "times": times})
    return {"cases": found}


def _taken(case: Data, threshold: int) -> float:
    """The least time of the solution that the rule takes with a threshold."""
    times = case["times"]
    wide = layer(case["layer"]).output_size[1] > threshold
    return float(times[_B if wide or _A not in times else _A]["least"])


def _show_rule(data: Data) -> Page:
    cases = data["cases"]
    rows = []
    for case in cases:
        times, spec = case["times"], layer(case["layer"])
        cells = [milliseconds(times[m]) if m in times else "-" for m in (_A, _B)]
        ratio_of = f"{times[_B]['least'] / times[_A]['least']:.2f}" if _A in times else "-"
        rows.append([case["layer"], str(case["batch"]), str(spec.output_size[1]), *cells, ratio_of])
    best = [min(t["least"] for t in case["times"].values()) for case in cases]
    widths = sorted({layer(case["layer"]).output_size[1] for case in cases})
    costs = {
        t: geometric_mean([_taken(c, t) / b for c, b in zip(cases, best, strict=True)])
        for t in (0, *widths)
    }
    least = min(costs, key=lambda t: costs[t])
    at = max(t for t in costs if t <= THRESHOLD)
    text = (
        "Solution A: o_h products of all images' rows, then a copy through L into place; B: one "
        "product for each image and row. Channels last, ms; `-`: the output does not fit into L."
    )
    swept = [[str(t), f"{cost:.3f}"] for t, cost in costs.items()]
    claims = [
        Claim(
            "threshold T of o_w up to which solution A is taken",
            f"about {THRESHOLD}, of the platform",
            f"{least} is best of those that these layers tell apart",
            "",
            f"time over that of the faster solution: {costs[least]:.3f} with it, "
            f"{costs[at]:.3f} with {THRESHOLD}",
        )
    ]
    tables = [
        Table(text, ["", "batch", "o_w", "A", "B", "B over A"], rows),
        Table(
            "Time over that of the faster solution of each case, geometric mean, by T.",
            ["T", "over the faster"],
            swept,
        ),
    ]
    return Page(tables, claims)


FIGURES = (
    Figure("mec-4c", "MEC, figure 4c", "Run time at batch 1",
           lambda effort: _measure_times(effort, 1), _show_times, minutes=1.5),
    Figure("mec-4d", "MEC, figure 4d", "Run time at batch 32",
           lambda effort: _measure_times(effort, 32), _show_times, minutes=7),
    Figure("mec-rule", "MEC, algorithm 2", "Solution A or B, by the threshold T", _measure_rule,
           _show_rule, minutes=2),
)  # fmt: skip
