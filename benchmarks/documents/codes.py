"""ncnn's int8 forms of the Winograd article: F(2, 3) and F(4, 3) on bytes, exact, beside direct."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import onnx

import leanconv as lc
from documents.chart import Chart
from documents.figure import Claim, Data, Effort, Figure, Page, Table, ratio
from documents.timing import Timed, in_turn
from leanconv.errors import SpecError
from leanconv.spec import ConvSpec
from leanconv.winograd.matrices import transform
from quantised_layers import LARGEST, layer_model

# Channels in and out, extent of the map: the 3x3 layers of ResNets.
_LAYERS = ((64, 56), (128, 28), (256, 14), (512, 7))
_METHODS = (
    "direct",
    "winograd:form=stages,m=2",
    "winograd:m=2",
    "winograd:form=stages,m=4",
    "winograd:m=4",
    "amx",
)
_FLOAT, _NCNN = "float32, chosen", "ncnn, int8"


def _measure(effort: Effort) -> Data:
    found = []
    for channels, extent in _LAYERS[:1] if effort.quick else _LAYERS:
        rng = np.random.default_rng(0)
        x = rng.integers(0, 256, (1, channels, extent, extent), np.uint8)
        w = rng.integers(-127, 128, (channels, channels, 3, 3), np.int8)
        right = None
        ready, memory = {}, {}
        for method in _METHODS:
            try:
                plan = lc.plan_conv2d(
                    x.shape, w, padding=1, algorithm=method, threads=effort.threads
                )
            except SpecError:
                continue
            y = plan(x)
            right = y if right is None else right
            assert np.array_equal(y, right), f"{method} is not exact"
            ready[method] = Timed(partial(plan, x, out=y), {}, plan)
            memory[method] = [plan.workspace_bytes, plan.weight_bytes]
        real = lc.plan_conv2d(x.shape, w.astype(np.float32), padding=1, threads=effort.threads)
        given, result = x.astype(np.float32), np.empty(x.shape, np.float32)
        ready[_FLOAT] = Timed(partial(real, given, out=result), {}, real)
        ready.update(_ncnn(channels, extent, effort.threads))
        times = in_turn(ready, effort)
        found.append(
            {
                "channels": channels,
                "extent": extent,
                "ns": {name: times[name]["ns"] for name in ready},
                "bytes": memory,
            }
        )
    return {"layers": found}


def _ncnn(channels: int, extent: int, threads: int) -> dict[str, Timed]:
    """ncnn's own choice for the layer, codes in and codes out, where it is installed."""
    try:
        from engines import engine_ncnn_codes
    except ImportError:
        return {}
    spec = ConvSpec.parse(f"ic{channels}ih{extent}oc{channels}oh{extent}kh3ph1")
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="leanconv-ncnn-") as folder:
        file = Path(folder) / "layer.onnx"
        onnx.save(layer_model(spec, rng), file)
        x = rng.integers(0, LARGEST + 1, spec.input_shape, np.uint8)
        run, _ = engine_ncnn_codes.load(str(file), {"x": x}, threads)
    return {_NCNN: Timed(run, {}, run)}


def _show(data: Data) -> Page:
    names = [
        m for m in (*_METHODS, _FLOAT, _NCNN) if all(m in each["ns"] for each in data["layers"])
    ]
    rows, groups = [], []
    over: dict[str, list[float | None]] = {name: [] for name in names}
    for each in data["layers"]:
        groups.append(f"{each['channels']} at {each['extent']}x{each['extent']}")
        least = {name: each["ns"][name]["least"] for name in names}
        for name in names:
            over[name].append(least["direct"] / least[name])
        rows.append([groups[-1], *(f"{least[name] / 1e3:.0f}" for name in names)])
    tables = [
        Table(
            "Microseconds, the least of the turns; bytes by int8, sums in int32, all equal. Planes "
            "in and out, so that each includes the way into blocks of channels and back. ncnn "
            "takes what it prefers, on codes of 7 bits, and rounds its sums to codes.",
            ["", *(f"`{n}`" if n in _METHODS else n for n in names)],
            rows,
        )
    ]
    claims = []
    for m in (2, 4):
        name = f"winograd:m={m}"
        if name in over:
            ours = [value for value in over[name] if value is not None]
            saved = (m * 3 / transform(m, 3).alpha) ** 2
            claims.append(
                Claim(
                    f"direct over `{name}`, time",
                    f"{saved:.2f} (products)",
                    f"{min(ours):.2f} to {max(ours):.2f}",
                    ratio(max(ours), saved),
                    "transformed bytes need 16 bits, of which an instruction takes half as many",
                )
            )
    if _NCNN in over:
        best = [
            least / min(each["ns"][m]["least"] for m in _METHODS if m in each["ns"])
            for each in data["layers"]
            for least in (each["ns"][_NCNN]["least"],)
        ]
        claims.append(
            Claim(
                "ncnn's time over our fastest form's",
                "not compared",
                f"{min(best):.2f} to {max(best):.2f}",
                "",
                "the article describes ncnn's forms and prints no times",
            )
        )
    claims.append(
        Claim(
            "exactness of F(2, 3) on bytes",
            "exact, F(2, 3) only (ncnn)",
            "F(2, 3) and F(4, 3): all sums equal",
            "",
            "sums modulo 2^32 and a modular inverse; ncnn rounds filters to 6 bits for F(4, 3)",
        )
    )
    chart = Chart("", "Speed over direct on bytes", groups, [(n, over[n]) for n in names])
    return Page(tables, claims, [chart])


FIGURES = (
    Figure(
        "winograd-int8",
        "Winograd article, ncnn's int8",
        "Winograd on bytes",
        _measure,
        _show,
        minutes=0.7,
    ),
)
