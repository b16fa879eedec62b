"""The MEC paper's figures beside ours: each with the accounting that it rests on.

The documents' numbers are those that they state or that follow from their formulas; what the paper
shows in pictures only (the bars of figure 4, the milliseconds of table 3) is not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import formulas
from leanconv.spec import ConvSpec
from leanconv.spec.format import aligned
from pages.figures import (
    HEADS,
    IM2COL,
    IM2WIN,
    MEC_A,
    MEC_B,
    MIB,
    Figures,
    span,
    spec_of,
)
from pages.tables import table

RESNET101 = {"cv4": 1, "cv9": 3, "cv10": 4, "cv11": 23, "cv12": 3}  # weights of table 3
WINOGRAD, STAGES_2 = ("winograd:m=2", "winograd:m=4", "winograd:m=6"), "winograd:form=stages,m=2"
_TILE = re.compile(r"F\((\d+)x(\d+), (\d+)x(\d+)\)")


def sections(f: Figures) -> list[str]:
    """All of them."""
    written: tuple[Callable[[Figures], Iterable[str]], ...] = (
        _buffers,
        _sweep,
        _resnet,
        _mec_times,
        _winograd_memory,
        _winograd_error,
    )
    return [line for section in written for line in (*section(f), "")]


def _buffers(f: Figures) -> list[str]:
    batch, rows, ratios, wrong = f.batches[0], [], [], 0
    for layer in f.layers(batch):
        spec = spec_of(layer, batch)
        matrix = formulas.im2col_elements(spec) // batch * spec.itemsize
        lowered = formulas.mec_elements(spec) * spec.itemsize
        window = formulas.im2win_elements(spec) * spec.itemsize
        ours = [f.get(batch, layer, m, key="workspace_bytes") for m in (IM2COL, MEC_B, IM2WIN)]
        said = [aligned(size) for size in (matrix, lowered, window)]
        wrong += sum(a != b for a, b in zip(ours, said, strict=True))
        ratios.append(matrix / lowered)
        rows.append(
            [
                layer,
                f"{matrix / MIB:.3f}",
                f"{lowered / MIB:.3f}",
                *(f"{size:,}" for size in ours),
                f"{ratios[-1]:.2f}",
            ]
        )
    heads = [
        "",
        "im2col, MiB",
        "MEC = im2win, MiB",
        "ours: im2col",
        "MEC",
        "im2win, bytes",
        "ratio",
    ]
    return [
        "### Lowered buffers (MEC equations 2 and 3, thesis equations 2-4 and 2-5)",
        "",
        f"The documents' sizes at batch {batch}, and the bytes that our plans allocate: {wrong} "
        f"of {3 * len(rows)} differ. The accounting: elements of the lowered tensor times 4, "
        "rounded up to 64 bytes; nothing else is in the workspace.",
        "",
        *table(heads, rows),
        "",
        *table(
            HEADS,
            [
                [
                    "im2col over MEC",
                    "up to 3.4, mean 3.2",
                    span(ratios),
                    f"the lowered tensors alone; {_above(ratios, f.layers(batch), 3.4)}so the "
                    "paper's range must leave these out or count more than them",
                ],
                [
                    "im2win over im2col",
                    "about 0.30",
                    span([1 / r for r in ratios]),
                    f"equation 2-7; weighted by size it is {_weighted(f, batch):.2f}",
                ],
            ],
        ),
    ]


def _above(ratios: list[float], layers: list[str], most: float) -> str:
    """The layers whose ratio is over the printed largest."""
    above = [x for x, ratio in zip(layers, ratios, strict=True) if ratio > most + 0.05]
    return "".join(f"{layer} is above, " for layer in above)


def _weighted(f: Figures, batch: int) -> float:
    specs = [spec_of(layer) for layer in f.layers(batch)]
    total = sum(formulas.im2col_elements(s) for s in specs)
    return sum(formulas.im2win_elements(s) for s in specs) / total


def _sweep(f: Figures) -> list[str]:
    rows = []
    for case in f.document["sweep"]:
        spec = ConvSpec.parse(case["problem"])
        im2col, mec = case["methods"][IM2COL], case["methods"]["mec"]
        rows.append(
            [
                str(spec.stride[0]),
                f"{float(formulas.im2col_over_mec(spec)):.2f}",
                f"{im2col['workspace_bytes'] / mec['workspace_bytes']:.2f}",
                f"{min(im2col['turns_ns']) / 1e6:.2f}",
                f"{min(mec['turns_ns']) / 1e6:.2f}",
                f"{min(im2col['turns_ns']) / min(mec['turns_ns']):.2f}",
                mec["parameters"].split(",")[0],
            ]
        )
    heads = ["s", "memory: document", "ours", "im2col, ms", "MEC, ms", "im2col/MEC", ""]
    return [
        "### k/s of cv1: 11 x 11 at strides 1 to 10 (MEC figure 4a)",
        "",
        "The memory factor is kh·oh/ih; the paper's run times are in a picture only. Time is of "
        "the whole call, lowering and product, the least of the turns; the product's micro-kernel "
        "is the same for both.",
        "",
        *table(heads, rows),
    ]


def _resnet(f: Figures) -> list[str]:
    batch = f.batches[0]
    layers = [layer for layer in RESNET101 if layer in f.layers(batch)]
    rule = {layer: f.paper_mec(batch, layer) for layer in layers}
    columns: tuple[tuple[str, str | None], ...] = (
        ("`naive`", "naive"),
        ("`direct`", "direct"),
        (f"`{IM2COL}`", IM2COL),
        ("`mec`", None),  # the solution by the paper's rule
        (f"`{IM2WIN}`", IM2WIN),
        (f"`{STAGES_2}`", STAGES_2),
        ("chosen by leanconv", "chosen by leanconv"),
    )

    def bytes_of(layer: str, method: str | None) -> float:
        return float(f.get(batch, layer, method or rule[layer], key="workspace_bytes"))

    def least_ns(layer: str, method: str | None) -> float:
        return f.least(batch, layer, method or rule[layer])

    def total(of: Callable[[str, str | None], float], method: str | None) -> float:
        return sum(RESNET101[layer] * of(layer, method) for layer in layers)

    def medians(method: str | None) -> float:
        return total(lambda x, m: float(f.get(batch, x, m or rule[x])), method)

    rows = []
    for layer in layers:
        cells = [
            f"{bytes_of(layer, m) / MIB:.2f} / {least_ns(layer, m) / 1e6:.2f}" for _, m in columns
        ]
        rows.append([layer, str(RESNET101[layer]), *cells])
    sums = [f"{total(bytes_of, m) / MIB:.1f} / {total(least_ns, m) / 1e6:.1f}" for _, m in columns]
    memory = total(bytes_of, IM2COL) / total(bytes_of, None)
    time = total(least_ns, IM2COL) / total(least_ns, None)
    middle = medians(IM2COL) / medians(None)
    solutions = ", ".join(f"{layer} {rule[layer][-1]}" for layer in layers)
    return [
        "### ResNet-101, weighted (MEC table 3)",
        "",
        f"Each layer as often as it stands there; MiB of workspace / ms at batch {batch}, the "
        "least of each cell's turns. `mec` is the solution that the paper's rule takes: "
        f"{solutions}.",
        "",
        *table(["", "times", *(name for name, _ in columns)], rows),
        "",
        *table(["sum", *(name for name, _ in columns)], [["", *sums]]),
        "",
        *table(
            HEADS,
            [
                ["memory, im2col over MEC", "about 3.2", f"{memory:.2f}", "sum of lowered tensors"],
                [
                    "time, im2col over MEC",
                    "1.2",
                    f"{time:.2f} ({middle:.2f} by medians)",
                    "there calls of a BLAS library of different shapes; here one micro-kernel",
                ],
            ],
        ),
    ]


def _mec_times(f: Figures) -> list[str]:
    rows = []
    for batch in f.batches:
        layers = f.layers(batch)
        ratios = {x: f.least(batch, x, IM2COL) / f.least(batch, x, MEC_A, MEC_B) for x in layers}
        rows.append([f"im2col over MEC, batch {batch}", "1.2 (phone, batch 1), 8.8 (server, 32)"])
        rows[-1] += [
            span(ratios.values()),
            "whole matrix (of one image at a time) against the faster of A and B, the least of "
            "each one's turns, one micro-kernel for all; what the server's 8.8 is made of the "
            "paper does not say",
        ]
        if "cv6" in ratios:
            spec = spec_of("cv6")
            lowered = formulas.im2col_elements(spec), formulas.mec_elements(spec)
            inputs = " and ".join(f"{n * spec.itemsize / 1e6:.1f}" for n in lowered)
            rows.append(
                [
                    f"the same on cv6, batch {batch}",
                    "over 1.9 (phone)",
                    f"{ratios['cv6']:.2f}",
                    f"{spec.weight_bytes / 1e6:.1f} MB of filters are read by both, beside "
                    f"{inputs} MB of lowered input",
                ]
            )
    return [
        "### MEC against im2col, time (MEC figures 4c and 4d)",
        "",
        *table(HEADS, rows),
    ]


def _winograd_memory(f: Figures) -> list[str]:
    batch, rows, whole, fused = f.batches[0], [], [], []
    for layer in f.layers(batch):
        spec = spec_of(layer, batch)
        mec = formulas.mec_elements(spec) * spec.itemsize
        row = [layer, f"{mec / MIB:.3f}"]
        if spec.stride == (1, 1):
            said = formulas.winograd_elements(spec, 2) * spec.itemsize
            row.append(f"{said / MIB:.2f} ({said / mec:.1f})")
        else:
            row.append("-")
        for m in WINOGRAD:
            size = f.get(batch, layer, m, key="workspace_bytes")
            row.append(
                "-" if size is None else f"{size / MIB:.3f}{'' if size < mec else ' (over)'}"
            )
        stages = f.get(batch, layer, STAGES_2, key="workspace_bytes")
        weights = f.get(batch, layer, STAGES_2, key="weight_bytes")
        row.append("-" if stages is None else f"{stages / MIB:.2f} + {weights / MIB:.2f}")
        rows.append(row)
        if layer in ("cv6", "cv7", "cv8", "cv9", "cv10", "cv11", "cv12") and stages is not None:
            whole.append((stages + weights) / mec)
            fused.append(f.get(batch, layer, WINOGRAD[0], key="workspace_bytes") / mec)
    heads = ["", "MEC, MiB", "F(2,3) of the papers (over MEC)", *(f"`{m}`" for m in WINOGRAD)]
    heads.append(f"`{STAGES_2}`: workspace + weights")
    lines = [
        "### Winograd's workspace against MEC's",
        "",
        f"Batch {batch}. The papers' Winograd holds U, V and M whole: α²(KC + CP + KP) elements; "
        "ours in stages holds V and M, and U is packed weights. The fused form holds a block of "
        f"tiles for each of {f.threads} threads, whatever the image: `(over)` marks "
        "where that is more than MEC's tensor.",
        "",
        *table(heads, rows),
    ]
    if whole:
        lines += [
            "",
            *table(
                HEADS,
                [
                    [
                        "Winograd over MEC, cv6 to cv12",
                        "5.9",
                        f"stages {span(whole, 1)}; fused {span(fused)}",
                        "U, V and M; for the fused form its workspace alone, the transformed "
                        "weights (which MEC's count leaves out too) apart",
                    ]
                ],
            ),
        ]
    return lines


def _winograd_error(f: Figures) -> list[str]:
    """The largest measured error of every tile of at most 8 points an axis."""
    largest: dict[str, tuple[float, float, str]] = {}
    for batch in f.batches:
        for layer in f.layers(batch):
            for name in ("winograd", *WINOGRAD):
                text = f.get(batch, layer, name, key="parameters")
                found = _TILE.match(text) if text else None
                if found is None:
                    continue
                mh, mw, rh, rw = map(int, found.groups())
                if max(mh + rh, mw + rw) - 1 > 8:
                    continue
                error = f.get(batch, layer, name, key="error")
                stated = f.get(batch, layer, name, key="stated_error")
                where = f"{layer}, batch {batch}"
                largest[found[0]] = max(largest.get(found[0], (0, 0, "")), (error, stated, where))
    rows = [
        [tile, f"{error:.1e}", f"{stated:.1e}", where]
        for tile, (error, stated, where) in sorted(largest.items(), key=lambda item: item[1])
    ]
    over = [row[0] for row in rows if float(row[1]) > 1e-5]
    return [
        "### Winograd's error",
        "",
        "The largest that was measured with each tile of at most 8 points an axis; the aim is "
        "1e-5: " + (f"{', '.join(over)} miss it." if over else "all keep it."),
        "",
        *table(["tile", "error", "stated", "on"], rows),
    ]
