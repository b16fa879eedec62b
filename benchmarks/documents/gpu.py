"""The GPU figures of the MEC paper and of the MobileNetV2 report, from the results of `gpu.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from documents.chart import Chart
from documents.figure import Claim, Data, Effort, Figure, Page, Table, ratio
from harness import ROOT
from pages.ladder import CUDNN, DOCUMENT

RESULTS = ROOT / "docs" / "results" / "gpu.json"
MIB = 2**20
_IEEE = "ieee"
_IM2COL, _MEC, _WINOGRAD, _FFT = "im2col", "mec", "winograd:m=2", "fft"
Rows = Mapping[str, Mapping[str, Data]]


def read_results() -> Data:
    """What `gpu.py` found."""
    found: Data = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def origin_of(results: Data) -> Data:
    """The GPU, and when."""
    return {"device": results["device"], "date": results["date"], "versions": results["versions"],
            "commit": results["machine"]["commit"]}  # fmt: skip


def ieee_methods(results: Data, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By layer and method, those in IEEE float32 that were measured."""
    found: dict[str, dict[str, Any]] = {}
    for row in results["methods"]:
        if row["method"] in names and row["arithmetic"] == _IEEE and "ms" in row:
            found.setdefault(row["layer"], {})[row["method"]] = row
    return found


def text_of(data: Data, what: str) -> str:
    """What is shown, and on which GPU."""
    origin = data["origin"]
    return (
        f"{what} {origin['device']}, {origin['versions']}, {origin['date']}, commit "
        f"{origin['commit']}: `benchmarks/gpu.py` measures; this page reads its results."
    )


# -- MEC 4e and 4f -----------------------------------------------------------------------------
def _measure_mec(effort: Effort) -> Data:
    del effort
    results = read_results()
    return {
        "origin": origin_of(results),
        "layers": ieee_methods(results, (_IM2COL, _MEC, _WINOGRAD, _FFT)),
    }


def _series(
    rows: Rows, names: Sequence[str], key: str, scale: float
) -> list[tuple[str, list[Any]]]:
    return [(name, [_of(rows[layer], name, key, scale) for layer in rows]) for name in names]


def _of(methods: Mapping[str, Data], name: str, key: str, scale: float) -> float | None:
    return methods[name][key] / scale if key in methods.get(name, {}) else None


def cells_of(
    series: Sequence[tuple[str, Sequence[float | None]]], layers: Sequence[str]
) -> list[list[str]]:
    """A row of numbers for each layer."""
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
    text = text_of(data, "Batch 128, IEEE float32, MiB beyond input, filters and output.")
    table = Table(text, ["", *(f"`{n}`" for n in names)], cells_of(series, list(rows)))
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
    text = text_of(data, "Batch 128, IEEE float32, ms.")
    tables = [
        Table(text, ["", *(f"`{n}`" for n in names)], cells_of(series, list(rows))),
        Table("Lowering + product, ms.", ["", f"`{_IM2COL}`", f"`{_MEC}`"], parts),
    ]
    chart = Chart("", "Run time, ms", list(rows), series, log=True)
    return Page(tables, claims, [chart])


def _parts(row: Data | None) -> str:
    if row is None or "product_ms" not in row:
        return "-"
    return f"{row['lowering_ms']:.3g} + {row['product_ms']:.3g}"


# -- the report's network ----------------------------------------------------------------------
def _measure_report(effort: Effort) -> Data:
    del effort
    results = read_results()
    rows = [row for row in results["networks"] if row["batch"] == 1 and "ms" in row]
    ladder = RESULTS.with_name("gpu_ladder.json")
    steps = json.loads(ladder.read_text("utf-8")) if ladder.exists() else {"rows": []}
    return {"origin": origin_of(results), "rows": rows, "ladder": steps}


def _show_report(data: Data) -> Page:
    ms = {row["engine"]: row["ms"] for row in data["rows"]}
    rows = [
        [row["engine"], "x".join(map(str, row.get("size", (224, 224)))), f"{row['ms']:.3f}"]
        for row in data["rows"]
    ]
    ours, other = ms.get("leanconv float64"), ms.get("torch float32")
    claims = []
    if ours:
        claims.append(
            Claim("one image of 244x244 in float64, v3.3", f"{DOCUMENT['v3.3']} ms (V100)",
                  f"{ours:.3f} ms", ratio(ours, DOCUMENT["v3.3"]), "another GPU; there one graph "
                  "of launches for the whole pass, in the report over 700 copies of rows of the "
                  "image")
        )  # fmt: skip
    if other:
        claims.append(
            Claim("a library's time, v3.3's over it", f"{CUDNN} ms (cuDNN, float64)",
                  f"{other:.3f} ms (PyTorch with cuDNN, float32 at 224)", "", "PyTorch in float64 "
                  "at 244 was not measured; the report makes descriptors anew in every pass")
        )  # fmt: skip
    text = text_of(data, "MobileNetV2, one image, ms.")
    return Page([Table(text, ["", "image", "ms"], rows), _steps(data["ladder"])], claims)


def _steps(ladder: Data) -> Table:
    """The report's steps, as Triton kernels."""
    heads = ["", "change", "V100, printed, ms", "ours, ms", "copies of rows", "launches"]
    rows = [
        [
            row["version"],
            row.get("change", ""),
            f"{DOCUMENT[row['version']]:.2f}" if row["version"] in DOCUMENT else "future work",
            f"{row['ms']:.2f}" if "ms" in row else row.get("failure", row.get("skipped", "-")),
            f"{row.get('row_copies', 0):,}",
            str(row.get("launches", "-")),
        ]
        for row in ladder["rows"]
    ]
    found = f"{ladder['device']}, {ladder['versions']}" if rows else "not measured yet"
    rows = rows or [[v, "", f"{ms:.2f}", "-", "-", "-"] for v, ms in DOCUMENT.items()]
    return Table(f"The steps (`benchmarks/gpu_ladder.py`): {found}.", heads, rows)


FIGURES = (
    Figure("report-gpu", "MobileNetV2 report, section 4", "The whole network on a GPU",
           _measure_report, _show_report, quiet=False, minutes=0.1),
    Figure("mec-4e", "MEC, figure 4e", "Memory on a GPU", _measure_mec, _show_memory, quiet=False,
           minutes=0.1),
    Figure("mec-4f", "MEC, figure 4f", "Run time on a GPU", _measure_mec, _show_times, quiet=False,
           minutes=0.1),
)  # fmt: skip
