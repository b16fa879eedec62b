"""Every figure and table of the four documents, re-made: numbers, a page and a picture of each.

    python benchmarks/figures.py all                 everything; 40 minutes on two cores
    python benchmarks/figures.py mec-4a mec-t3       some of it
    python benchmarks/figures.py --list              what there is
    python benchmarks/figures.py --page              write the pages again from the JSON

A figure NAME becomes NAME.json, NAME.md and NAME.svg in a folder of this kind of CPU in
docs/results, which has an index. A page names the document, the figure, the number that is printed
there, ours, their ratio and why they differ. Methods run in turn; a time is the least of its turns,
beside their quartiles. `--quick` takes small cases, and writes nowhere but to `--out`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from documents import codes, gpu, lavin, mec, report, thesis
from documents.figure import Effort, Figure
from documents.pages import index, page
from harness import results_folder, script
from leanconv.cli.common import UsageError, positive
from leanconv.cli.engines import machine
from leanconv.cli.output import progress

FIGURES: dict[str, Figure] = {
    figure.name: figure
    for module in (mec, report, thesis, lavin, codes, gpu)
    for figure in module.FIGURES
}


def measured(figure: Figure, effort: Effort, wait_s: float) -> dict[str, Any]:
    """Measure one figure: its data with the machine, the commit and the effort."""
    busy = machine.wait_until_quiet(patience_s=wait_s) if figure.quiet else 0.0
    begin = time.monotonic()
    data = figure.measure(effort)
    return {
        "figure": figure.name,
        "machine": machine.describe().to_json(),
        "busy_cpus_before": round(busy, 2),
        "effort": vars(effort),
        "minutes": round((time.monotonic() - begin) / 60, 2),
        "data": data,
    }


def write(folder: Path, document: dict[str, Any]) -> None:
    """Write a figure's JSON, and from it its page and pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{document['figure']}.json"
    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    rendered(folder, document)


def rendered(folder: Path, document: dict[str, Any]) -> None:
    """Write the page and the pictures of a result."""
    for name, text in page(FIGURES[document["figure"]], document).items():
        (folder / name).write_text(text, encoding="utf-8")


def kept(folder: Path) -> list[dict[str, Any]]:
    """The results in a folder, in the order of the figures."""
    files = [folder / f"{name}.json" for name in FIGURES]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="figures, or all")
    parser.add_argument("--list", action="store_true", help="name the figures")
    parser.add_argument("--page", action="store_true", help="only write the pages anew")
    parser.add_argument("--quick", action="store_true", help="small cases, two short rounds")
    parser.add_argument("--threads", type=positive, default=2, metavar="N", help="default 2")
    parser.add_argument("--rounds", type=positive, default=9, metavar="N", help="default 9")
    parser.add_argument("--seconds", type=float, default=0.03, metavar="S", help="of one turn")
    parser.add_argument("--wait", type=float, default=30.0, metavar="S", help="for a quiet machine")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="in place of docs/results")
    options = parser.parse_args()
    if options.list:
        for figure in FIGURES.values():
            print(f"{figure.name:12} {figure.document}: {figure.title}")
        return 0
    folder = options.out or results_folder(machine.describe().cpu) / "figures"
    if options.page:
        for document in kept(folder):
            rendered(folder, document)
        (folder / "README.md").write_text(index(kept(folder), FIGURES), encoding="utf-8")
        return 0
    names = list(FIGURES) if options.names == ["all"] else options.names
    unknown = [name for name in names if name not in FIGURES]
    if unknown or not names:
        got = f"{unknown[0]!r} is no figure" if unknown else "no figure is named"
        raise UsageError(f"{got}; expected all, or some of {', '.join(FIGURES)}")
    if options.quick and options.out is None:
        raise UsageError("--quick measures small cases only; expected --out FOLDER with it")
    effort = Effort(options.threads, options.rounds, options.seconds)
    if options.quick:
        effort = Effort(options.threads, 2, 0.005, quick=True)
    with progress("measuring") as shown:
        for name in names:
            shown.say(f"{name}: {FIGURES[name].title}")
            write(folder, measured(FIGURES[name], effort, 0.0 if options.quick else options.wait))
            (folder / "README.md").write_text(index(kept(folder), FIGURES), encoding="utf-8")
    return 0


if __name__ == "__main__":
    script(main)
