"""What `gpu.py` has measured as a page, and whether it is what was aimed at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import exp, log
from textwrap import wrap
from typing import Any

Row = dict[str, Any]
PARTS = ("compile", "networks", "layers", "methods", "depthwise", "ablation")
FIGURES = (
    "fp32-accurate error on the twelve layers",
    "fp32-accurate time over cuDNN's strict fp32, batch 128 and 1",
    "TF32 and fp16 time over cuDNN's",
    "memory beyond the tensors against im2col + cuBLAS and cuDNN",
    "explicit im2win over im2col + cuBLAS, and its ablation",
    "depthwise layers in GB/s against a copy",
    "MobileNetV2 batch 1 and 128 against torch eager, graphs and compile",
    "MobileNetV2 in float64, an image of 244x244 at a time, against the report's 7.78 ms an image",
)
# What becomes tables: what stands above each, and its columns.
GROUPS = {"layers": ("mode", "batch"), "methods": ("layer",), "ablation": ("layer",)}
COLUMNS = {
    "layers": (
        *("layer", "ms", "tflops", "cudnn_ms", "ratio", "im2col_ms", "error", "cudnn_error"),
        *("extra_bytes", "cudnn_extra_bytes", "im2col_extra_bytes"),
        *("planning_s", "first_run_s", "plan", "cudnn_kernels"),
    ),
    "methods": (
        *("method", "arithmetic", "ms", "lowering_ms", "product_ms", "error", "extra_bytes"),
        "plan",
    ),
    "ablation": ("form", "ms", "product_ms"),
}
_WRONG = 10  # times cuDNN's error, above which a result is wrong and its time worth nothing
LAYERS = 12
REPORT_MS = 7.78
HIGH = "im2win:form=high"  # the thesis' kernel, in the arithmetic of what it is compared with
CUBLAS = "im2col, torch and cuBLAS"


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of at least one value."""
    logarithms = [log(value) for value in values]
    return exp(sum(logarithms) / len(logarithms))


def _layers(result: Row, mode: str, *keys: str, batch: int = 128) -> list[Row]:
    return [
        row
        for row in result.get("layers", ())
        if (row.get("mode"), row.get("batch")) == (mode, batch)
        and all(row.get(key) is not None for key in keys)
    ]


def _engine(result: Row, engine: str, batch: int) -> Row | None:
    rows = result.get("networks", ())
    found = [r for r in rows if (r.get("engine"), r.get("batch")) == (engine, batch) and "ms" in r]
    return found[0] if found else None


def verdicts(result: Row) -> list[tuple[str, str, bool | None]]:
    """Each limit: what it asks, what was found, and whether it is met; None if not measured."""
    made: list[tuple[str, str, bool | None]] = []

    def limit(
        asked: str, rows: list[Row], count: int, check: Callable[[], tuple[str, bool]]
    ) -> None:
        if not rows:
            made.append((asked, "not yet measured", None))
            return
        shown, met = check()
        part = "" if len(rows) >= count else f" ({len(rows)} of {count} measured)"
        made.append((asked, shown + part, met if len(rows) >= count or not met else None))

    rows = _layers(result, "fp32", "error")
    limit(
        "fp32-accurate error at most 2e-6 on all twelve layers",
        rows,
        LAYERS,
        lambda: (f"{max(r['error'] for r in rows):.1e}", max(r["error"] for r in rows) <= 2e-6),
    )
    for mode, name, mean, least in (("fp32", "strict fp32", 2.0, 1.0), ("fp16", "fp16", 1.0, 0.0)):
        speeds = _layers(result, mode, "ratio", "error", "cudnn_error")

        def speed(rows: list[Row] = speeds, mean: float = mean, least: float = least) -> Any:
            found = geometric_mean(r["ratio"] for r in rows)
            wrong = [r["layer"] for r in rows if r["error"] > _WRONG * r["cudnn_error"]]
            if wrong:
                return f"{found:.2f}x, with wrong results of {', '.join(wrong)}", False
            worst = min(rows, key=lambda r: float(r["ratio"]))
            shown = f"{found:.2f}x, least {worst['ratio']:.2f}x ({worst['layer']})"
            return shown, found >= mean and worst["ratio"] >= least

        asked = f"{mode}: at least {mean:.1f}x cuDNN's {name} (geometric mean)"
        limit(asked + (f", none below {least:.1f}" if least else ""), speeds, LAYERS, speed)
    lean = _layers(result, "fp32", "extra_bytes", "im2col_extra_bytes")
    limit(
        "memory beyond the tensors at most a tenth of im2col + cuBLAS's",
        lean,
        LAYERS,
        lambda: _worst_share(lean, "im2col_extra_bytes", 0.1),
    )
    against = _layers(result, "fp32", "extra_bytes", "cudnn_extra_bytes")
    limit(
        "memory beyond the tensors never above cuDNN's",
        against,
        LAYERS,
        lambda: _worst_share(against, "cudnn_extra_bytes", 1.0),
    )
    explicit = _against_blas(result)
    limit(
        "explicit im2win in fp32 multiply-adds at least 3.5x im2col + cuBLAS in strict fp32",
        explicit,
        LAYERS,
        lambda: _speed([r["ratio"] for r in explicit], 3.5),
    )
    has_depth = [r for r in result.get("depthwise", ()) if "of_copy" in r]
    limit(
        "depthwise at 70 % of the measured copy bandwidth",
        has_depth,
        1,
        lambda: (
            f"{min(r['of_copy'] for r in has_depth):.0%} at least",
            min(r["of_copy"] for r in has_depth) >= 0.7,
        ),
    )
    for asked, engine, batch, most in (
        ("MobileNetV2 batch 1 in at most 150 us at fp32 accuracy", "leanconv float32", 1, 0.150),
        (f"MobileNetV2 in float64 below {REPORT_MS} ms an image", "leanconv float64", 1, REPORT_MS),
    ):
        row = _engine(result, engine, batch)
        limit(asked, [row] if row else [], 1, partial(_time, row or {}, most))
    return made


def _against_blas(result: Row) -> list[Row]:
    """The thesis' kernel, its copy counted, over torch's unfold and cuBLAS in strict float32."""
    found = {
        (row["layer"], row["method"]): row["ms"]
        for row in result.get("methods", ())
        if "ms" in row and row.get("method") in (HIGH, CUBLAS)
    }
    layers = [layer for layer, method in found if method == HIGH and (layer, CUBLAS) in found]
    return [{"layer": n, "ratio": found[n, CUBLAS] / found[n, HIGH]} for n in layers]


def _time(row: Row, most_ms: float) -> tuple[str, bool]:
    return f"{row['ms'] * 1e3:.0f} us", row["ms"] <= most_ms


def _speed(ratios: list[float], least: float) -> tuple[str, bool]:
    found = geometric_mean(ratios)
    return f"{found:.2f}x", found >= least


def _worst_share(rows: list[Row], key: str, most: float) -> tuple[str, bool]:
    """The largest share of another engine's bytes; where it takes none, any byte is too many."""
    worst = max(rows, key=lambda r: float(r["extra_bytes"]) / max(1, r[key]))
    shown = f"{worst['extra_bytes']} of {worst[key]} bytes at most ({worst['layer']})"
    return shown, all(r["extra_bytes"] <= most * r[key] for r in rows)


def _shown(value: object) -> str:
    if isinstance(value, list):
        return "; ".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(result: Row) -> str:
    """The result as a page."""
    lines = ["# On a GPU", "", f"`python benchmarks/gpu.py`, {result['date']}"]
    if host := result.get("machine"):
        lines[-1] += f", {host['cpu']}, commit {host['commit']}"
    lines.append(f"Device: {result.get('device', 'none')} {result.get('versions', '')}".strip())
    for note in result.get("notes", ()):
        lines += ["", *_wrapped(f"**{note}**")]
    lines.append("")
    if "device" not in result:
        lines += [f"- {figure}: not yet measured" for figure in FIGURES]
        return "\n".join([*lines, ""])
    lines += ["## Limits", "", "| limit | found | |", "|---|---|---|"]
    words = {True: "met", False: "not met", None: "not yet measured"}
    lines += [f"| {asked} | {found} | {words[met]} |" for asked, found, met in verdicts(result)]
    lines.append("")
    for part in PARTS:
        rows = result.get(part, [])
        lines += [f"## {part}", ""]
        tabled = [row for row in rows if part in COLUMNS and "ms" in row]
        lines += _tables(part, tabled)
        others = [row for row in rows if row not in tabled]
        for row in others:
            lines += _wrapped(f"- {', '.join(f'{k} {_shown(v)}' for k, v in row.items())}", "  ")
        lines += ["" if rows else "not yet measured\n"]
    return "\n".join(lines)


def _wrapped(text: str, indent: str = "") -> list[str]:
    """Lines of at most 120 columns."""
    return wrap(text, 120, subsequent_indent=indent, break_long_words=False)


def _tables(part: str, rows: list[Row]) -> list[str]:
    """Rows as tables, one for each mode and batch or for each layer."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in GROUPS[part]), []).append(row)
    lines = []
    for group, found in groups.items():
        title = ", ".join(f"{k} {v}" for k, v in zip(GROUPS[part], group, strict=True))
        names = COLUMNS[part]
        lines += [title, "", f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
        lines += [f"| {' | '.join(_shown(row.get(name, '')) for name in names)} |" for row in found]
        lines.append("")
    return lines
