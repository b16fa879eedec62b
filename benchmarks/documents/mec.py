"""Figures 4a to 4d and table 3 of the MEC paper (Cho and Brand, ICML 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean, mean

from documents import blas
from documents.chart import Chart
from documents.figure import Claim, Data, Effort, Figure, Page, Table, ratio
from documents.timing import Arrays, bytes_of, in_turn, of_plan
from leanconv.errors import SpecError
from leanconv.reference import formulas
from leanconv.reference.layers import NAMES, RESNET101, layer
from leanconv.spec import ConvSpec

MIB = 2**20
IM2COL, BATCH, WINOGRAD = "im2col:rows=whole", "im2col:rows=batch", "winograd:form=stages,m=2"
BLOCKS = "mec:rows=4"
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
    rows, memory, time, ends = [], [], [], []
    for one in data["strides"]:
        spec = ConvSpec.parse(one["problem"])
        said = float(formulas.im2col_over_mec(spec))
        im2col, mec = (one["times"][m]["ns"] for m in (IM2COL, "mec"))
        sizes = [one["bytes"][m]["workspace_bytes"] for m in (IM2COL, "mec")]
        memory.append(sizes[0] / sizes[1])
        time.append(im2col["least"] / mec["least"])
        ends.append(_extremes(im2col, mec))
        rows.append(
            [
                str(one["stride"]),
                f"{said:.2f}",
                f"{memory[-1]:.2f}",
                _ms(im2col),
                _ms(mec),
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
    least, most = min(memory), max(memory)
    bytes_claim = Claim(
        "im2col over MEC, memory, s = 10 and s = 1",
        "1.07 and 10.52 (kh·oh/ih)",
        f"{least:.2f} and {most:.2f}",
        ratio(most, 10.52),
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


def _ms(ns: Data) -> str:
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
            rows.append([case["layer"], *(_mib(size) for size in sizes.values())])
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
        over
        for name, over in zip(layers, _over(series[WINOGRAD], series["mec"]), strict=True)
        if name in _ON_WINOGRAD and over is not None
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


def _mib(size: int | None) -> str:
    return "-" if size is None else f"{size / MIB:.3g}"


# -- figures 4c and 4d -------------------------------------------------------------------------
_BLAS_CONV, _BLAS_MEC = "im2col, BLAS", "MEC, BLAS"
_TIMED = (BATCH, "mec", BLOCKS, WINOGRAD)


def _measure_times(effort: Effort, batch: int) -> Data:
    found = []
    for name in named(effort):
        spec = blas.last(layer(name, 2 if effort.quick and batch > 1 else batch))
        arrays, methods, right = Arrays(spec), {}, None
        for method in _TIMED:
            try:
                planned = arrays.planned(method, effort.threads)
            except SpecError:
                continue
            right = arrays.checked(planned.run, right)
            methods[method] = of_plan(planned)
        for label, make in ((_BLAS_CONV, blas.im2col), (_BLAS_MEC, blas.mec)):
            methods[label] = make(arrays, effort.threads)
            right = arrays.checked(methods[label].run, right)
        found.append({"layer": name, "batch": spec.batch, "times": in_turn(methods, effort)})
        del arrays, methods
    return {"cases": found}


def _show_times(data: Data) -> Page:
    names = (_BLAS_CONV, _BLAS_MEC, BATCH, "mec", BLOCKS, WINOGRAD)
    rows, parts = [], []
    series: dict[str, list[float | None]] = {name: [] for name in names}
    for case in data["cases"]:
        times = case["times"]
        for name in names:
            series[name].append(times[name]["ns"]["least"] / 1e6 if name in times else None)
        rows.append([case["layer"], *(_ms(times[n]["ns"]) if n in times else "-" for n in names)])
        parts.append([case["layer"], *(_parts(times.get(n)) for n in names[:4])])
    batch = data["cases"][0]["batch"]
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
        [(n, _over(series[n], series[_BLAS_MEC])) for n in names],
    )
    return Page(tables, _claims_times(batch, layers, series, data), [chart])


def _parts(times: Data | None) -> str:
    if times is None or "lower" not in times["parts_ns"]:
        return "-"
    lower, product = (times["parts_ns"].get(p, 0) / 1e6 for p in ("lower", "product"))
    return f"{lower:.3g} + {product:.3g}"


def _over(a: Sequence[float | None], b: Sequence[float | None]) -> list[float | None]:
    return [x / y if x and y else None for x, y in zip(a, b, strict=True)]


def _claims_times(
    batch: int, layers: Sequence[str], series: dict[str, list[float | None]], data: Data
) -> list[Claim]:
    with_blas = [r for r in _over(series[_BLAS_CONV], series[_BLAS_MEC]) if r]
    own = [r for r in _over(series[BATCH], series["mec"]) if r]
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
        for name, r in zip(layers, _over(series[WINOGRAD], series["mec"]), strict=True)
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
        case["times"][_BLAS_MEC]["parts_ns"]["lower"]
        / case["times"][_BLAS_CONV]["parts_ns"]["lower"]
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


# -- table 3 -----------------------------------------------------------------------------------
def _measure_table3(effort: Effort) -> Data:
    found = []
    for name in RESNET101 if not effort.quick else ("cv11", "cv12"):
        spec = blas.last(layer(name))
        arrays = Arrays(spec)
        methods = {
            _BLAS_CONV: blas.im2col(arrays, effort.threads),
            _BLAS_MEC: blas.mec(arrays, effort.threads),
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
    names = (_BLAS_CONV, _BLAS_MEC, BATCH, "mec")
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
                *(_mib(case["bytes"][m]["workspace_bytes"]) for m in memory),
                *(_ms(case["times"][n]["ns"]) for n in names),
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
    by_blas, own = total[_BLAS_CONV] / total[_BLAS_MEC], total[BATCH] / total["mec"]
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
    Figure("mec-4a", "MEC, figure 4a", "Memory and time against k/s", _measure_4a, _show_4a),
    Figure("mec-4b", "MEC, figure 4b", "Memory on a CPU", _measure_4b, _show_4b, quiet=False),
    Figure(
        "mec-4c",
        "MEC, figure 4c",
        "Run time at batch 1",
        lambda effort: _measure_times(effort, 1),
        _show_times,
    ),
    Figure(
        "mec-4d",
        "MEC, figure 4d",
        "Run time at batch 32",
        lambda effort: _measure_times(effort, 32),
        _show_times,
    ),
    Figure("mec-t3", "MEC, table 3", "ResNet-101, weighted", _measure_table3, _show_table3),
)
