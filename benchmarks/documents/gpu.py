"""The GPU figures of the MEC paper and of the im2win thesis, from the results of `gpu.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import geometric_mean, mean
from typing import Any

from documents.chart import Chart
from documents.figure import Claim, Data, Effort, Figure, Page, Table, ratio
from harness import ROOT

RESULTS = ROOT / "docs" / "results" / "gpu.json"
MIB = 2**20
_IEEE = "ieee"
_IM2COL, _MEC, _WINOGRAD, _FFT = "im2col", "mec", "winograd:m=2", "fft"
_HIGH = "im2win:form=high"
Rows = Mapping[str, Mapping[str, Data]]


def _results() -> Data:
    found: Data = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def _origin(results: Data) -> Data:
    return {"device": results["device"], "date": results["date"], "versions": results["versions"],
            "commit": results["machine"]["commit"]}  # fmt: skip


def _methods(results: Data, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By layer and method, those in IEEE float32 that were measured."""
    found: dict[str, dict[str, Any]] = {}
    for row in results["methods"]:
        if row["method"] in names and row["arithmetic"] == _IEEE and "ms" in row:
            found.setdefault(row["layer"], {})[row["method"]] = row
    return found


def _text(data: Data, what: str) -> str:
    origin = data["origin"]
    return (
        f"{what} {origin['device']}, {origin['versions']}, {origin['date']}, commit "
        f"{origin['commit']}: `benchmarks/gpu.py` measures; this page reads its results."
    )


# -- MEC 4e and 4f -----------------------------------------------------------------------------
def _measure_mec(effort: Effort) -> Data:
    del effort
    results = _results()
    return {
        "origin": _origin(results),
        "layers": _methods(results, (_IM2COL, _MEC, _WINOGRAD, _FFT)),
    }


def _series(
    rows: Rows, names: Sequence[str], key: str, scale: float
) -> list[tuple[str, list[Any]]]:
    return [(name, [_of(rows[layer], name, key, scale) for layer in rows]) for name in names]


def _of(methods: Mapping[str, Data], name: str, key: str, scale: float) -> float | None:
    return methods[name][key] / scale if key in methods.get(name, {}) else None


def _shown(
    series: Sequence[tuple[str, Sequence[float | None]]], layers: Sequence[str]
) -> list[list[str]]:
    return [
        [layer, *("-" if values[i] is None else f"{values[i]:.3g}" for _, values in series)]
        for i, layer in enumerate(layers)
    ]


def _show_memory(data: Data) -> Page:
    rows, names = data["layers"], (_IM2COL, _WINOGRAD, _FFT, _MEC)
    series = _series(rows, names, "extra_bytes", MIB)
    claims = []
    for name in names[:3]:
        over = [
            m[name]["extra_bytes"] / m[_MEC]["extra_bytes"]
            for m in rows.values()
            if name in m and _MEC in m and m[_MEC]["extra_bytes"]
        ]
        if over:
            claims.append(
                Claim(f"{name} over MEC, bytes", "a picture: MEC needs least of all",
                      f"{min(over):.2f} to {max(over):.1f}, geometric {geometric_mean(over):.2f}",
                      "", "beyond input, filters and output")
            )  # fmt: skip
    chart = Chart("", "Bytes beyond the tensors, MiB", list(rows), series, log=True)
    text = _text(data, "Batch 128, IEEE float32, MiB beyond input, filters and output.")
    table = Table(text, ["", *(f"`{n}`" for n in names)], _shown(series, list(rows)))
    return Page([table], claims, [chart])


def _show_times(data: Data) -> Page:
    rows, names = data["layers"], (_IM2COL, _WINOGRAD, _FFT, _MEC)
    series = _series(rows, names, "ms", 1.0)
    parts = [
        [layer, *(_parts(methods.get(name)) for name in (_IM2COL, _MEC))]
        for layer, methods in rows.items()
    ]
    both = [m for m in rows.values() if _IM2COL in m and _MEC in m]
    lower = [m[_MEC]["lowering_ms"] / m[_IM2COL]["lowering_ms"] for m in both]
    whole = [m[_IM2COL]["ms"] / m[_MEC]["ms"] for m in both]
    claims = [
        Claim("MEC's lowering against im2col's, time", "85 % less",
              f"{100 * (1 - geometric_mean(lower)):.0f} % less",
              ratio(1 - geometric_mean(lower), 0.85), "bytes written fall by 53 to 76 %; both are "
              "bound by them"),
        Claim("im2col over MEC, whole time", "a picture",
              f"{min(whole):.2f} to {max(whole):.2f}, geometric {geometric_mean(whole):.2f}", "",
              "one product kernel for both; the product is most of the time"),
    ]  # fmt: skip
    text = _text(data, "Batch 128, IEEE float32, ms.")
    tables = [
        Table(text, ["", *(f"`{n}`" for n in names)], _shown(series, list(rows))),
        Table("Lowering + product, ms.", ["", f"`{_IM2COL}`", f"`{_MEC}`"], parts),
    ]
    chart = Chart("", "Run time, ms", list(rows), series, log=True)
    return Page(tables, claims, [chart])


def _parts(row: Data | None) -> str:
    if row is None or "product_ms" not in row:
        return "-"
    return f"{row['lowering_ms']:.3g} + {row['product_ms']:.3g}"


# -- thesis 4-4 to 4-8 -------------------------------------------------------------------------
def _measure_thesis(effort: Effort) -> Data:
    del effort
    results = _results()
    layers = {}
    for row in results["layers"]:
        if row["batch"] == 128 and row["mode"] == "fp32":
            keys = ("ms", "cudnn_ms", "im2col_ms", "extra_bytes", "cudnn_extra_bytes",
                    "im2col_extra_bytes", "cudnn_kernels", "problem", "plan")  # fmt: skip
            layers[row["layer"]] = {key: row[key] for key in keys if key in row}
    high = _methods(results, (_HIGH, "im2win"))
    for layer, methods in high.items():
        if layer in layers and _HIGH in methods:
            layers[layer]["im2win"] = methods[_HIGH]
    for row in results["ablation"]:
        if row["form"] == _HIGH and "ms" in row and row["layer"] in layers:
            layers[row["layer"]].setdefault("im2win", row)
    return {"origin": _origin(results), "layers": layers}


def _show_thesis(data: Data) -> Page:
    rows = data["layers"]
    names = {"im2col + cuBLAS": "im2col_ms", "cuDNN": "cudnn_ms", "chosen by leanconv": "ms"}
    series: list[tuple[str, list[float | None]]] = [
        (name, [row.get(key) for row in rows.values()]) for name, key in names.items()
    ]
    series.append((_HIGH, [row.get("im2win", {}).get("ms") for row in rows.values()]))
    table = []
    for i, (layer, row) in enumerate(rows.items()):
        kernels = "; ".join(k.split("(")[0][:60] for k in row.get("cudnn_kernels", []))
        cells = ["-" if v[i] is None else f"{v[i]:.3g}" for _, v in series]
        table.append([layer, *cells, kernels])
    claims = [
        _against(rows, "im2col_ms", "im2col + cuBLAS", "up to 8.4, mean 4.3", 4.3),
        _against(rows, "cudnn_ms", "cuDNN", "up to 1.8, mean 1.1", 1.1),
    ]
    ours = [(r["im2col_ms"], r["cudnn_ms"], r["ms"]) for r in rows.values() if "im2col_ms" in r]
    claims += [
        Claim("im2col + cuBLAS over what leanconv chooses", "-",
              f"mean {mean(a / c for a, _, c in ours):.1f}", "", "tensor cores, three products of "
              "float16 halves, as accurate as float32"),
        Claim("cuDNN over what leanconv chooses", "-",
              f"geometric mean {geometric_mean([b / c for _, b, c in ours]):.2f}", "", "the same"),
    ]  # fmt: skip
    heads = ["", *(name for name, _ in series), "cuDNN's kernels (table 4-4)"]
    text = _text(data, "Batch 128, strict float32 of cuDNN and cuBLAS, ms.")
    chart = Chart("", "Run time, ms", list(rows), series, log=True)
    return Page([Table(text, heads, table)], claims, [chart])


def _against(rows: Rows, key: str, name: str, printed: str, number: float) -> Claim:
    """Another's time over that of the thesis' kernel in float32 multiply-adds."""
    found = [
        float(row[key]) / float(row["im2win"]["ms"])  # type: ignore[arg-type]
        for row in rows.values()
        if key in row and "ms" in row.get("im2win", {})
    ]
    ours = f"{min(found):.2f} to {max(found):.2f}, mean {mean(found):.2f}" if found else "-"
    return Claim(f"{name} over im2win (multiply-adds)", printed, ours,
                 ratio(mean(found), number) if found else "",
                 "without tensor cores Triton reaches a fifth of cuBLAS's rate")  # fmt: skip


# -- thesis 4-9 --------------------------------------------------------------------------------
def _measure_ablation(effort: Effort) -> Data:
    del effort
    results = _results()
    layers: dict[str, dict[str, float]] = {}
    for row in results["ablation"]:
        if "ms" in row:
            layers.setdefault(row["layer"], {})[row["form"]] = row["ms"]
    return {"origin": _origin(results), "layers": layers}


def _show_ablation(data: Data) -> Page:
    rows = data["layers"]
    forms = [f for f in dict.fromkeys(f for row in rows.values() for f in row) if f != _HIGH]
    series: list[tuple[str, list[float | None]]] = [
        (f, [row[f] / row[_HIGH] if f in row and _HIGH in row else None for row in rows.values()])
        for f in forms
    ]
    claims = []
    for form, values in series:
        found = [v for v in values if v]
        printed = {"im2win:micro=0": "the most", "im2win:vector=0": "less",
                   "im2win:prefetch=0": "about nothing"}.get(form, "not stated")  # fmt: skip
        claims.append(
            Claim(f"time with `{form}` over `{_HIGH}`", printed,
                  f"{min(found):.2f} to {max(found):.2f}, geometric {geometric_mean(found):.2f}",
                  "", "-")
        )  # fmt: skip
    text = _text(data, f"Time over that of `{_HIGH}`, each technique taken away; batch 128.")
    chart = Chart("", f"Time over {_HIGH}", list(rows), series)
    table = Table(text, ["", *(f"`{f}`" for f in forms)], _shown(series, list(rows)))
    return Page([table], claims, [chart])


FIGURES = (
    Figure("mec-4e", "MEC, figure 4e", "Memory on a GPU", _measure_mec, _show_memory, quiet=False),
    Figure("mec-4f", "MEC, figure 4f", "Run time on a GPU", _measure_mec, _show_times, quiet=False),
    Figure("thesis-4-4", "im2win thesis, figures 4-4 to 4-8 and table 4-4",
           "Run time on a GPU", _measure_thesis, _show_thesis, quiet=False),
    Figure("thesis-4-9", "im2win thesis, figure 4-9", "Techniques taken away, on a GPU",
           _measure_ablation, _show_ablation, quiet=False),
)  # fmt: skip
