"""The GPU figures of the im2win thesis, chapter 4, from the results of `gpu.py`."""

from __future__ import annotations

from statistics import geometric_mean, mean

from documents.chart import Chart
from documents.figure import Claim, Data, Effort, Figure, Page, Table, ratio
from documents.gpu import MIB, Rows, cells_of, ieee_methods, origin_of, read_results, text_of
from leanconv.reference.layers import layer

_HIGH = "im2win:form=high"
# What cuDNN 8.0 chose on an RTX 3090.
_PICKED = dict.fromkeys(("cv1", "cv2", "cv3", "cv4", "cv6", "cv7", "cv12"), "IMPLICIT_PRECOMP_GEMM")
_PICKED |= dict.fromkeys(("cv5", "cv9", "cv10", "cv11"), "WINOGRAD_NONFUSED") | {"cv8": "FFT"}


def _measure_thesis(effort: Effort) -> Data:
    del effort
    results = read_results()
    layers = {}
    for row in results["layers"]:
        if row["batch"] == 128 and row["mode"] == "fp32":
            keys = ("ms", "cudnn_ms", "im2col_ms", "extra_bytes", "cudnn_extra_bytes",
                    "im2col_extra_bytes", "cudnn_kernels", "problem", "plan")  # fmt: skip
            layers[row["layer"]] = {key: row[key] for key in keys if key in row}
    high = ieee_methods(results, (_HIGH, "im2win"))
    for name, methods in high.items():
        if name in layers and _HIGH in methods:
            layers[name]["im2win"] = methods[_HIGH]
    for row in results["ablation"]:
        if row["form"] == _HIGH and "ms" in row and row["layer"] in layers:
            layers[row["layer"]].setdefault("im2win", row)
    return {"origin": origin_of(results), "layers": layers}


def _show_thesis(data: Data) -> Page:
    rows = data["layers"]
    names = {"im2col + cuBLAS": "im2col_ms", "cuDNN": "cudnn_ms", "chosen by leanconv": "ms"}
    series: list[tuple[str, list[float | None]]] = [
        (name, [row.get(key) for row in rows.values()]) for name, key in names.items()
    ]
    series.append((_HIGH, [row.get("im2win", {}).get("ms") for row in rows.values()]))
    table = []
    for i, (name, row) in enumerate(rows.items()):
        kernels = "; ".join(k.split("(")[0][:60] for k in row.get("cudnn_kernels", []))
        cells = ["-" if v[i] is None else f"{v[i]:.3g}" for _, v in series]
        table.append([name, *cells, _PICKED[name], kernels])
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
    claims += _claims_memory(rows)
    heads = ["", *(name for name, _ in series), "printed in table 4-4", "cuDNN's kernels"]
    text = text_of(data, "Batch 128, strict float32 of cuDNN and cuBLAS, ms.")
    chart = Chart("", "Run time, ms", list(rows), series, log=True)
    speeds = [
        (name, [_gflops(x) / v if v else None for x, v in zip(rows, values, strict=True)])
        for name, values in series
    ]
    tables = [
        Table(text, heads, table),
        Table("TFLOP/s of the plain sum (figures 4-6 and 4-7).", ["", *names, _HIGH],
              cells_of(speeds, list(rows))),
        Table("Bytes beyond input, filters and output, MiB (figure 4-8).",
              ["", *_BYTES], [[x, *_mib(row)] for x, row in rows.items()]),
    ]  # fmt: skip
    return Page(tables, claims, [chart])


_BYTES = {"im2col + cuBLAS": "im2col_extra_bytes", "cuDNN": "cudnn_extra_bytes",
          "chosen by leanconv": "extra_bytes", _HIGH: "extra_bytes"}  # fmt: skip


def _gflops(layer_name: str) -> float:
    """10^9 operations of 128 images."""
    return layer(layer_name, 128).flops / 1e9


def _extra(row: Data, name: str) -> int | None:
    found: int | None = (row.get("im2win", {}) if name == _HIGH else row).get(_BYTES[name])
    return found


def _mib(row: Data) -> list[str]:
    sizes = [_extra(row, name) for name in _BYTES]
    return ["-" if size is None else f"{size / MIB:,.2f}" for size in sizes]


def _less(share: float) -> str:
    return f"{100 * share:.0f} % less" if share >= 0 else f"{-100 * share:.0f} % more"


def _claims_memory(rows: Rows) -> list[Claim]:
    """Bytes of all tensors and what each method needs beside them, im2win over the others."""
    claims = []
    for name, printed, number in (("im2col + cuBLAS", "23.1 % less", 0.231),
                                  ("cuDNN", "32.8 % less", 0.328)):  # fmt: skip
        found = []
        for layer_name, row in rows.items():
            spec = layer(layer_name, 128)
            fixed = spec.input_bytes + spec.weight_bytes + spec.output_bytes
            ours, other = _extra(dict(row), _HIGH), _extra(dict(row), name)
            if ours is not None and other is not None:
                found.append(1 - (fixed + ours) / (fixed + other))
        if found:
            ours_text = f"{_less(mean(found))} ({_less(min(found))} to "
            claims.append(
                Claim(f"memory of im2win against {name}", printed,
                      f"{ours_text}{_less(max(found))})", ratio(mean(found), number),
                      "tensors counted with it; today's cuDNN needs next to nothing beside them, "
                      "and the im2win tensor is as large as in the thesis")
            )  # fmt: skip
    return claims


def _against(rows: Data, key: str, name: str, printed: str, number: float) -> Claim:
    """Another's time over that of the thesis' kernel in float32 multiply-adds."""
    found = [
        row[key] / row["im2win"]["ms"]
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
    results = read_results()
    layers: dict[str, dict[str, float]] = {}
    for row in results["ablation"]:
        if "ms" in row:
            layers.setdefault(row["layer"], {})[row["form"]] = row["ms"]
    return {"origin": origin_of(results), "layers": layers}


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
    text = text_of(data, f"Time over that of `{_HIGH}`, each technique taken away; batch 128.")
    chart = Chart("", f"Time over {_HIGH}", list(rows), series)
    table = Table(text, ["", *(f"`{f}`" for f in forms)], cells_of(series, list(rows)))
    return Page([table], claims, [chart])


FIGURES = (
    Figure("thesis-4-4", "im2win thesis, figures 4-4 to 4-8 and table 4-4",
           "Run time on a GPU", _measure_thesis, _show_thesis, quiet=False,
           minutes=0.1),
    Figure("thesis-4-9", "im2win thesis, figure 4-9", "Techniques taken away, on a GPU",
           _measure_ablation, _show_ablation, quiet=False, minutes=0.1),
)  # fmt: skip
