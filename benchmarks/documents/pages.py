"""The pages of figures, and their index, as Markdown; the same text from the same JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from documents.figure import Figure
from pages.tables import table
from pages.wrapping import wrapped


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
    ]
    return wrapped("\n".join(lines))
