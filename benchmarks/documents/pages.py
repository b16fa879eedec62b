"""The pages of figures, and their index, as Markdown; the same text from the same JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from documents.figure import Figure
from pages.tables import table
from pages.wrapping import wrapped

_SOURCES = {
    "MEC": (
        "Minsik Cho and Daniel Brand, *MEC: Memory-efficient Convolution for Deep Neural Network*, "
        "ICML 2017, [arXiv 1706.06873](https://arxiv.org/abs/1706.06873); read in a Chinese "
        "translation."
    ),
    "MobileNetV2 report": (
        "*MobileNet V2 并行加速* (MobileNetV2, made parallel and faster), in Chinese; group 19 of "
        "the course CS433 of Shanghai Jiao Tong University; code: "
        "[18651626101/Mobilenet](https://github.com/18651626101/Mobilenet)."
    ),
    "im2win thesis": (
        "Shuai Lu (卢帅), *Performance optimization of convolutional neural networks based on "
        "tensor algebra*, master's thesis, Nanchang Hangkong University, June 2023, in Chinese; "
        "the method in English: [arXiv 2306.14320](https://arxiv.org/abs/2306.14320) (CPU) and "
        "[arXiv 2306.14316](https://arxiv.org/abs/2306.14316) (GPU); code: "
        "[seth-lu/Im2win](https://github.com/seth-lu/Im2win)."
    ),
    "Winograd article": (
        "*Fast Algorithms for Convolutional Neural Networks*, notes in Chinese without an author's "
        "name, on Andrew Lavin and Scott Gray's paper of that title, 2015, "
        "[arXiv 1509.09308](https://arxiv.org/abs/1509.09308), and on ncnn's F(2, 3) of 8-bit "
        "integers."
    ),
}


def page(figure: Figure, document: Mapping[str, Any]) -> dict[str, str]:
    """The files of one result: the page and its pictures, by name."""
    shown = figure.show(document["data"])
    files = {}
    lines = [f"# {figure.document}: {figure.title}", "", _origin(figure, document), ""]
    for chart in shown.charts:
        name = f"{figure.name}{'-' if chart.name else ''}{chart.name}.svg"
        files[name] = chart.svg()
        lines += [f"![{chart.title}]({name})", ""]
    for part in shown.tables:
        lines += [part.text, "", *table(part.heads, part.rows), ""]
    if shown.claims:
        heads = ("", "printed", "ours", "ours / printed", "why they differ, what is counted")
        rows = [(c.what, c.printed, c.ours, c.ratio or "-", c.why) for c in shown.claims]
        lines += ["## Beside the document", "", *table(heads, rows)]
    files[f"{figure.name}.md"] = wrapped("\n".join(lines).rstrip())
    return files


def _origin(figure: Figure, document: Mapping[str, Any]) -> str:
    machine, effort = document["machine"], document["effort"]
    words = (
        f"Written by `python benchmarks/figures.py {figure.name}`. {machine['cpu']}, "
        f"{machine['time_utc'][:10]}, commit {machine['commit'] or 'unknown'}, "
        f"{effort['threads']} threads, "
    )
    if figure.quiet:
        words += f"up to {effort['rounds']} turns of {1000 * effort['seconds']:.0f} ms, "
        words += f"{document['busy_cpus_before']} CPUs busy before, "
    words += f"{document['minutes']} minutes."
    return words + (" Small cases only." if effort["quick"] else "")


def index(documents: Sequence[Mapping[str, Any]], figures: Mapping[str, Figure]) -> str:
    """The index of the results in a folder."""
    rows = []
    for document in documents:
        figure = figures[document["figure"]]
        claims = figure.show(document["data"]).claims
        first = (
            f"{claims[0].what}: printed {claims[0].printed}, ours {claims[0].ours}"
            if claims
            else ""
        )
        name = f"[{figure.name}]({figure.name}.md)"
        rows.append((name, figure.document, figure.title, first))
    heads = ("", "document", "shows", "first comparison")
    lines = [
        "# The documents' figures, re-made",
        "",
        "Written by `python benchmarks/figures.py all`; each page names its CPU and commit.",
        "",
        *table(heads, rows),
        "",
        "## The documents",
        "",
        *(f"- **{name}**: {source}" for name, source in _SOURCES.items()),
    ]
    return wrapped("\n".join(lines))
