"""Figures 4a and 4b and table 3 of the MEC paper (Cho and Brand, ICML 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean, mean

import formulas
from documents import blas
from documents.chart import Chart
from documents.figure import Claim, Data, Effort, Figure, Page, Table, ratio
from documents.timing import Arrays, bytes_of, in_turn, of_plan
from leanconv.errors import SpecError
from leanconv.reference.layers import NAMES, RESNET101, layer
from leanconv.spec import ConvSpec

MIB = 2**20
IM2COL, BATCH, WINOGRAD = "im2col:rows=whole", "im2col:rows=batch", "winograd:form=stages,m=2"
BLOCKS = "mec:rows=4"
BLAS_CONV, BLAS_MEC = "im2col, BLAS", "MEC, BLAS"
STRIDES = range(1, 11)
_ON_WINOGRAD = ("cv6", "cv7", "cv8", "cv9", "cv10", "cv11", "cv12")


def named(effort: Effort) -> tuple[str, ...]:
    """The layers that are measured."""
    return ("cv9", "cv12") if effort.quick else NAMES


# -- figure 4a ---------------------------------------------------------------------------------
def _measure_4a(effort: Effort) -> Data:
    found = []
    for stride in (1, 4) if effort.quick else STRIDES:
        spec = ConvSpec.parse(f"ic3ih227oc96kh11sh{stride}")
        arrays, right, methods = Arrays(spec), None, {}
        for method in (IM2COL, "mec"):
            planned = arrays.planned(method, effort.threads)
            right = arrays.checked(planned.run, right)
            methods[method] = of_plan(planned)
        sizes = {m: bytes_of(spec, m, effort.threads) for m in methods}
        times = in_turn(methods, effort)
        found.append({"stride": stride, "problem": str(spec), "bytes": sizes, "times": times})
    return {"strides": found}


def _show_4a(data: Data) -> Page:
    rows, said, memory, time, ends = [], [], [], [], []
    for one in data["strides"]:
        spec = ConvSpec.parse(one["problem"])
        said.append(float(formulas.im2col_over_mec(spec)))
        im2col, mec = (one["times"][m]["ns"] for m in (IM2COL, "mec"))
        sizes = [one["bytes"][m]["workspace_bytes"] for m in (IM2COL, "mec")]
        memory.append(sizes[0] / sizes[1])
        time.append(im2col["least"] / mec["least"])
        ends.append(_extremes(im2col, mec))
        rows.append(
            [
                str(one["stride"]),
                f"{said[-1]:.2f}",
                f"{memory[-1]:.2f}",
                milliseconds(im2col),
                milliseconds(mec),
                f"{time[-1]:.2f} ({ends[-1][0]:.2f} to {ends[-1][1]:.2f})",
            ]
        )
    heads = ["s", "memory: kh·oh/ih", "ours", "im2col, ms", "MEC, ms", "im2col/MEC (quartiles)"]
    text = (
        "cv1 with every stride. Times are the least of the turns, in brackets the quartiles. The "
        "product is one micro-kernel for both, so that only the lowerings differ."
    )
    claim = Claim(
        "im2col over MEC, time, by s",
        "a picture: it falls as k/s does",
        f"{min(time):.2f} to {max(time):.2f}",
        "",
        "there calls of a BLAS, whose rate depends on shapes; see mec-4c for ours with a BLAS",
    )
    last, first = data["strides"][-1]["stride"], data["strides"][0]["stride"]
    bytes_claim = Claim(
        f"im2col over MEC, memory, s = {last} and s = {first}",
        f"{said[-1]:.2f} and {said[0]:.2f} (kh·oh/ih)",
        f"{memory[-1]:.2f} and {memory[0]:.2f}",
        ratio(memory[0], said[0]),
        "bytes that plans allocate, rounded up to 64",
    )
    groups = [str(one["stride"]) for one in data["strides"]]
    chart = Chart(
        "", "im2col over MEC, by stride of cv1", groups, [("memory", memory), ("time", time)]
    )
    return Page([Table(text, heads, rows)], [bytes_claim, claim], [chart])


def _extremes(a: Data, b: Data) -> tuple[float, float]:
    """The ratio of the lower quartile to the upper one, and the other way round."""
    (low_a, _, high_a), (low_b, _, high_b) = a["quartiles"], b["quartiles"]
    return low_a / high_b, high_a / low_b


def milliseconds(ns: Data) -> str:
    """The least of turns, and their quartiles."""
    low, _, high = (q / 1e6 for q in ns["quartiles"])
    return f"{ns['least'] / 1e6:.3g} ({low:.3g} to {high:.3g})"


# -- figure 4b ---------------------------------------------------------------------------------
def _measure_4b(effort: Effort) -> Data:
    found = []
    for batch in (1, 32):
        for name in named(effort):
            spec = layer(name, batch)
            sizes: Data = {}
            for method in (IM2COL, BATCH, "mec", BLOCKS, WINOGRAD):
                try:
                    sizes[method] = bytes_of(spec, method, effort.threads)
                except SpecError:
                    sizes[method] = None
            found.append({"layer": name, "batch": batch, "bytes": sizes})
    return {"cases": found}


def _show_4b(data: Data) -> Page:
    tables, charts, claims = [], [], []
    for batch in sorted({case["batch"] for case in data["cases"]}):
        cases = [case for case in data["cases"] if case["batch"] == batch]
        rows, methods = [], (BATCH, WINOGRAD, "mec", BLOCKS, IM2COL)
        series: dict[str, list[float | None]] = {m: [] for m in methods}
        for case in cases:
            sizes = {m: _working_bytes(case["bytes"][m], m) for m in series}
            for method, size in sizes.items():
                series[method].append(None if size is None else size / MIB)
            rows.append([case["layer"], *(mebibytes(size) for size in sizes.values())])
        heads = ["", *(f"`{m}`" for m in series)]
        text = (
            f"Batch {batch}, MiB. Conv is `{BATCH}`, the whole batch's matrix (equation 2); Wino "
            f"counts U, V and M; `{BLOCKS}` and `{IM2COL}`, blocks of rows in each thread's "
            "scratch and one image at a time, are not in the paper."
        )
        tables.append(Table(text, heads, rows))
        charts.append(
            Chart(
                f"batch{batch}",
                f"Bytes beyond input, filters and output, batch {batch}, MiB",
                [case["layer"] for case in cases],
                [(name, series[name]) for name in (BATCH, WINOGRAD, "mec", BLOCKS)],
                log=True,
            )
        )
        claims += _claims_4b(batch, [c["layer"] for c in cases], series)
    return Page(tables, claims, charts)


def _claims_4b(
    batch: int, layers: Sequence[str], series: dict[str, list[float | None]]
) -> list[Claim]:
    conv = [a / b for a, b in zip(series[BATCH], series["mec"], strict=True) if a and b]
    wino = [
        times
        for name, times in zip(layers, over(series[WINOGRAD], series["mec"]), strict=True)
        if name in _ON_WINOGRAD and times is not None
    ]
    return [
        Claim(
            f"im2col over MEC, batch {batch}",
            "up to 3.4, mean 3.2",
            f"{min(conv):.2f} to {max(conv):.2f}, mean {mean(conv):.2f}",
            ratio(mean(conv), 3.2),
            "lowered tensors alone; cv5 gives 4.17, so the paper leaves it out or counts more",
        ),
        Claim(
            f"Winograd over MEC on cv6 to cv12, batch {batch}",
            "5.9 on average",
            f"{min(wino):.1f} to {max(wino):.1f}, mean {mean(wino):.1f}, geometric "
            f"{geometric_mean(wino):.1f}",
            ratio(geometric_mean(wino), 5.9),
            "U, V and M whole, as ncnn's separate stages and the paper's Wino.cpu hold them",
        ),
    ]


def _working_bytes(sizes: Data | None, method: str) -> int | None:
    """What a method needs beside input, filters and output: of Winograd also U."""
    if sizes is None:
        return None
    return int(sizes["workspace_bytes"] + (sizes["weight_bytes"] if method == WINOGRAD else 0))


def over(a: Sequence[float | None], b: Sequence[float | None]) -> list[float | None]:
    """Quotients, where there are both."""
    return [x / y if x and y else None for x, y in zip(a, b, strict=True)]


def mebibytes(size: int | None) -> str:
    """A size in MiB."""
    return "-" if size is None else f"{size / MIB:.3g}"


# -- table 3 -----------------------------------------------------------------------------------
def _measure_table3(effort: Effort) -> Data:
    found = []
    for name in RESNET101 if not effort.quick else ("cv11", "cv12"):
        spec = blas.last(layer(name))
        arrays = Arrays(spec)
        methods = {
            BLAS_CONV: blas.im2col(arrays, effort.threads),
            BLAS_MEC: blas.mec(arrays, effort.threads),
            BATCH: of_plan(arrays.planned(BATCH, effort.threads)),
            "mec": of_plan(arrays.planned("mec", effort.threads)),
        }
        right = None
        for method in methods.values():
            right = arrays.checked(method.run, right)
        sizes = {m: bytes_of(spec, m, effort.threads) for m in (BATCH, "mec")}
        found.append({"layer": name, "bytes": sizes, "times": in_turn(methods, effort)})
    return {"cases": found}


def _show_table3(data: Data) -> Page:
    names = (BLAS_CONV, BLAS_MEC, BATCH, "mec")
    rows = []
    total = dict.fromkeys(names, 0.0)
    memory = dict.fromkeys((BATCH, "mec"), 0.0)
    for case in data["cases"]:
        weight = RESNET101[case["layer"]]
        for name in names:
            total[name] += weight * case["times"][name]["ns"]["least"]
        for name in memory:
            memory[name] += weight * case["bytes"][name]["workspace_bytes"]
        rows.append(
            [
                case["layer"],
                str(weight),
                *(mebibytes(case["bytes"][m]["workspace_bytes"]) for m in memory),
                *(milliseconds(case["times"][n]["ns"]) for n in names),
            ]
        )
    rows.append(
        [
            "sum",
            "",
            *(f"{size / MIB:.1f}" for size in memory.values()),
            *(f"{t / 1e6:.2f}" for t in total.values()),
        ]
    )
    heads = ["", "times", "im2col, MiB", "MEC, MiB", *names]
    text = "Each layer as often as it stands in ResNet-101; batch 1, channels last, ms."
    by_blas, own = total[BLAS_CONV] / total[BLAS_MEC], total[BATCH] / total["mec"]
    claims = [
        Claim(
            "memory, im2col over MEC",
            "3.2",
            f"{memory[BATCH] / memory['mec']:.2f}",
            ratio(memory[BATCH] / memory["mec"], 3.2),
            "sum of the lowered tensors",
        ),
        Claim(
            "time, im2col over MEC, with a BLAS; with our product",
            "1.2 (20 % less)",
            f"{by_blas:.2f}; {own:.2f}",
            ratio(by_blas, 1.2),
            "there a phone's CPU; cv4's matrix of 142 MiB weighs most",
        ),
    ]
    return Page([Table(text, heads, rows)], claims)


FIGURES = (
    Figure("mec-4a", "MEC, figure 4a", "Memory and time against k/s", _measure_4a, _show_4a,
           minutes=0.6),
    Figure("mec-4b", "MEC, figure 4b", "Memory on a CPU", _measure_4b, _show_4b, quiet=False,
           minutes=0.2),
    Figure("mec-t3", "MEC, table 3", "ResNet-101, weighted", _measure_table3, _show_table3,
           minutes=0.7),
)  # fmt: skip
