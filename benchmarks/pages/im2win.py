"""The im2win thesis' figures beside ours: each with the accounting that it rests on."""

from __future__ import annotations

from fractions import Fraction
from statistics import mean

import formulas
from pages.figures import HEADS, IM2COL, IM2WIN, MEC_B, Figures, span, spec_of
from pages.tables import table


def sections(f: Figures) -> list[str]:
    """All of them."""
    written = (_thesis_times, _thesis_memory, _products, _ablation)
    return [line for section in written for line in (*section(f), "")]


def _thesis_times(f: Figures) -> list[str]:
    rows = []
    pairs = (
        ("im2col over im2win", IM2COL, "2.2 to 5.8, mean 3.6"),
        ("seven loops over im2win", "naive", "3.8 to 7.1, mean 5.3"),
        ("register-tiled direct over im2win", "direct", "not compared"),
        ("algorithm 4 over 6", "im2win:form=base", "not stated"),
        ("algorithm 5 over 6", "im2win:form=vector", "not stated"),
    )
    accounts = {
        IM2COL: "there at::conv2d of PyTorch 1.10 on 24 cores at batch 128; here the same product "
        "after either lowering, so that only the lowering and its traffic differ",
        "naive": f"ours is scalar and in one chain of additions: {_scalar_ns(f)} ns a product "
        "on each core; theirs was compiled with -Ofast",
        "direct": "no lowering at all, the same register tile",
        "im2win:form=base": "seven loops over the transformed tensor",
        "im2win:form=vector": "a dot product for each window, vectors along it",
    }
    details = []
    for batch in f.batches:
        for label, method, said in pairs:
            ratios = {
                x: f.least(batch, x, method) / f.least(batch, x, IM2WIN)
                for x in f.layers(batch)
                if f.get(batch, x, method)
            }
            rows.append([f"{label}, batch {batch}", said, span(ratios.values()), accounts[method]])
        details.append(_duel(f, batch))
    return [
        "### im2win against im2col and direct (thesis section 3.3)",
        "",
        "Ratios of the least turns, to high-performance im2win over the whole tensor (algorithm "
        "6); GFLOPS ratios are the same numbers, because the thesis counts the operations of the "
        "plain sum for all.",
        "",
        *table(HEADS, rows),
        "",
        *(line for detail in details for line in (detail, "")),
    ][:-1]


def _scalar_ns(f: Figures) -> str:
    """What a product of the seven loops takes one core, of all layers."""
    batch = f.batches[0]
    found = [
        2 * f.threads * f.least(batch, x, "naive") / spec_of(x, batch).flops
        for x in f.layers(batch)
    ]
    return f"{min(found):.2f} to {max(found):.2f}"


def _duel(f: Figures, batch: int) -> str:
    """High-performance im2win, the better of whole and by rows, against im2col's whole matrix."""
    ratios = {
        x: f.least(batch, x, IM2COL) / f.least(batch, x, IM2WIN, "im2win") for x in f.layers(batch)
    }
    below = ", ".join(x for x, ratio in ratios.items() if ratio < 1)
    return (
        f"im2col's time over im2win's (the better of whole and by rows), the least of each one's "
        f"turns, batch {batch}: {', '.join(f'{x} {r:.2f}' for x, r in ratios.items())}. im2win is "
        + (f"slower on {below}." if below else "the faster one on every layer.")
    )


def _thesis_memory(f: Figures) -> list[str]:
    batch = 128
    savings, inputs = [], []
    for layer in f.layers(f.batches[0]):
        spec = spec_of(layer, batch)
        fixed = spec.input_bytes + spec.weight_bytes + spec.output_bytes
        matrix = formulas.im2col_elements(spec) * spec.itemsize
        window = formulas.im2win_elements(spec) * spec.itemsize
        savings.append(1 - (fixed + window) / (fixed + matrix))
        inputs.append(matrix / spec.input_bytes)
    factor = Fraction(12 * 4, 36)
    return [
        "### Memory of im2win (thesis section 3.3)",
        "",
        *table(
            HEADS,
            [
                [
                    "peak memory against im2col",
                    "41.6 % less",
                    f"{100 * mean(savings):.1f} % less ({100 * min(savings):.0f} to "
                    f"{100 * max(savings):.0f} %), computed",
                    f"from the formulas, not measured: input, filters, output and the lowered "
                    f"tensor of {batch} images at once; ours lowers im2col one image at a time and "
                    "needs a matrix of one",
                ],
                [
                    "im2col matrix over the input",
                    "up to 17.3",
                    span(inputs),
                    "cv5; equation 2-5 over the input",
                ],
                [
                    "figure 2-5, 48 to 36 elements",
                    "a third less",
                    f"{100 * (1 - float(1 / factor)):.0f} % less",
                    "the thesis' third is of the 36",
                ],
            ],
        ),
    ]


def _products(f: Figures) -> list[str]:
    batch, rows = f.batches[0], []
    peak = f.document["peak_gflops"] * f.threads
    for layer in f.layers(batch):
        spec, row = spec_of(layer, batch), [layer]
        for method in (IM2COL, MEC_B, IM2WIN):
            stages = f.get(batch, layer, method, key="stages_ns")
            row.append(f"{100 * spec.flops / stages[1] / peak:.0f} %")
            row.append(f"{100 * stages[0] / sum(stages):.0f} %")
        rows.append(row)
    heads = [
        "",
        "im2col product",
        "lowering",
        "MEC product",
        "lowering",
        "im2win product",
        "lowering",
    ]
    return [
        "### Products and lowerings apart",
        "",
        f"The product's rate over the peak of {f.threads} cores, and the lowering's "
        f"share of the time, batch {batch}: the least of each stage's times, stages run apart. "
        "(MEC on a GPU: lowering takes 85 % less time than im2col's.)",
        "",
        *table(heads, rows),
    ]


def _ablation(f: Figures) -> list[str]:
    batch = f.batches[0]
    names = [m for m in f.document["cases"][0]["methods"] if m.startswith(IM2WIN + ",")]
    if not names:
        return []
    rows = []
    for name in names:
        layers = [x for x in f.layers(batch) if f.get(batch, x, name)]
        ratios = [f.least(batch, x, name) / f.least(batch, x, IM2WIN) for x in layers]
        noise = [max(f.spread(batch, x, m) for m in (name, IM2WIN)) for x in layers]
        cells = [
            f"{r:.2f}" if abs(r - 1) > n else f"({r:.2f})"
            for r, n in zip(ratios, noise, strict=True)
        ]
        rows.append([f"`{name.split(',')[1]}`", *cells, span(ratios)])
    return [
        "### im2win with each technique taken away",
        "",
        f"Time over that of `{IM2WIN}`, batch {batch}, the least of each one's turns. In brackets: "
        "within noise, that is nearer to 1 than the median of either cell's turns is to its least. "
        "The thesis' ablation is of its GPU kernel: micro-kernel (here `register`) before vector "
        "loads (`vectorise`) before prefetching (none).",
        "",
        *table(["", *f.layers(batch), "all"], rows),
    ]
