"""Every figure and table of the four documents, re-made: numbers, a page and a picture of each.

    python benchmarks/figures.py all                 everything; 40 minutes on two cores
    python benchmarks/figures.py all --missing       what has no result since the kernels changed
    python benchmarks/figures.py mec-4a mec-t3       some of it
    python benchmarks/figures.py --list              what there is, and its minutes
    python benchmarks/figures.py --page              write the pages again from the JSON

A figure NAME becomes NAME.json, NAME.md and NAME.svg in a folder of this kind of CPU in
docs/results, which has an index. A page names the document, the figure, the number that is printed
there, ours, their ratio and why they differ. Methods run in turn; a time is the least of its turns,
beside their quartiles. A figure has minutes of its own, after which every case that is left has
three turns. Several figures run each in a process of its own: one that fails is named, the others
go on, and the exit code is 3. `--quick` takes small cases, and writes nowhere but to `--out`.
PyTorch and ncnn are measured beside ours where this Python has them.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from documents import (
    codes,
    gpu,
    gpu_thesis,
    lavin,
    mec,
    mec_times,
    mec_training,
    misses,
    report,
    thesis,
    thesis_memory,
    thesis_times,
)
from documents.clock import Deadline
from documents.figure import Effort, Figure
from documents.pages import index, page
from documents.running import command_of, run_all
from harness import results_folder, script
from leanconv.cli import EXIT_NOT_MET
from leanconv.cli.engines import machine
from leanconv.cli.options import UsageError, positive
from stale import DECIDES, changes_since

_MODULES = (
    mec,
    mec_times,
    mec_training,
    misses,
    report,
    thesis,
    thesis_times,
    thesis_memory,
    lavin,
    codes,
    gpu,
    gpu_thesis,
)
FIGURES: dict[str, Figure] = {
    figure.name: figure for module in _MODULES for figure in module.FIGURES
}


def measured(figure: Figure, effort: Effort, wait_s: float) -> dict[str, Any]:
    """Measure one figure: its data with the machine, the commit and the effort."""
    busy = machine.wait_until_quiet(patience_s=wait_s) if figure.quiet else 0.0
    begin = time.monotonic()
    data = figure.measure(replace(effort, deadline=Deadline.after(figure.minutes)))
    return {
        "figure": figure.name,
        "machine": machine.describe().to_json(),
        "busy_cpus_before": round(busy, 2),
        "effort": effort.to_json(),
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


def is_current(folder: Path, name: str) -> bool:
    """Whether a figure has a result, of which neither kernels nor figures are younger."""
    file = folder / f"{name}.json"
    if not file.exists():
        return False
    commit = json.loads(file.read_text(encoding="utf-8"))["machine"]["commit"]
    if commit is None or commit.endswith("+changes"):
        return False
    return changes_since(commit, (*DECIDES, "benchmarks/documents")) == 0


def measure_one(name: str, effort: Effort, folder: Path, wait_s: float) -> int:
    """Measure one figure and write it, and the index of all."""
    write(folder, measured(FIGURES[name], effort, wait_s))
    write_index(folder)
    return 0


def write_index(folder: Path) -> None:
    """Write the index of what is in the folder."""
    (folder / "README.md").write_text(index(kept(folder), FIGURES), encoding="utf-8")


def measure_several(names: list[str], options: argparse.Namespace, folder: Path) -> int:
    """Measure figures, each in a process of its own; 3 if one has no result."""
    given = [f"--threads={options.threads}", f"--rounds={options.rounds}"]
    given += [f"--seconds={options.seconds}", f"--wait={options.wait}", f"--out={folder}"]
    given += ["--quick"] if options.quick else []
    begin = time.monotonic()
    figures = [FIGURES[name] for name in names]
    outcomes = run_all(figures, command_of(__file__, given), options.minutes)
    failed = [outcome for outcome in outcomes if outcome.problem]
    for outcome in failed:
        print(f"{outcome.name}: {outcome.problem}")
    done, minutes = len(outcomes) - len(failed), (time.monotonic() - begin) / 60
    print(f"{done} of {len(outcomes)} figures in {minutes:.1f} minutes, in {folder}")
    return EXIT_NOT_MET if failed else 0


def parser() -> argparse.ArgumentParser:
    """What the command line takes."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("names", nargs="*", metavar="NAME", help="figures, or all")
    made.add_argument("--list", action="store_true", help="name the figures")
    made.add_argument("--page", action="store_true", help="only write the pages anew")
    made.add_argument("--missing", action="store_true", help="leave out what has a current result")
    made.add_argument("--quick", action="store_true", help="small cases, two short rounds")
    made.add_argument("--threads", type=positive, default=2, metavar="N", help="default 2")
    made.add_argument("--rounds", type=positive, default=9, metavar="N", help="default 9")
    made.add_argument("--seconds", type=float, default=0.03, metavar="S", help="of one turn")
    made.add_argument("--minutes", type=float, default=40.0, metavar="M", help="of all; default 40")
    made.add_argument("--wait", type=float, default=30.0, metavar="S", help="for a quiet machine")
    made.add_argument("--out", type=Path, metavar="FOLDER", help="in place of docs/results")
    return made


def chosen(options: argparse.Namespace, folder: Path) -> list[str]:
    """The figures that are asked for.

    Raises:
        UsageError: one is none, or none is named.
    """
    names = list(FIGURES) if options.names == ["all"] else options.names
    unknown = [name for name in names if name not in FIGURES]
    if unknown or not names:
        got = f"{unknown[0]!r} is no figure" if unknown else "no figure is named"
        raise UsageError(f"{got}; expected all, or some of {', '.join(FIGURES)}")
    if options.quick and options.out is None:
        raise UsageError("--quick measures small cases only; expected --out FOLDER with it")
    return [name for name in names if not (options.missing and is_current(folder, name))]


def main() -> int:
    """Measure what the command line asks for."""
    options = parser().parse_args()
    if options.list:
        for figure in FIGURES.values():
            print(f"{figure.name:16} {figure.minutes:4g}  {figure.document}: {figure.title}")
        return 0
    folder = options.out or results_folder(machine.describe().cpu) / "figures"
    if options.page:
        for document in kept(folder):
            rendered(folder, document)
        write_index(folder)
        return 0
    names = chosen(options, folder)
    if len(names) != 1:
        return measure_several(names, options, folder)
    effort = Effort(options.threads, options.rounds, options.seconds)
    if options.quick:
        effort = Effort(options.threads, 2, 0.005, quick=True)
    return measure_one(names[0], effort, folder, 0.0 if options.quick else options.wait)


if __name__ == "__main__":
    script(main)
