"""What stands in docs/results and what pages say of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import float64_memory
import operators
import pages.algorithms
import pages.cache_misses
import pages.choice
import pages.ladder
import pages.pareto
import pages.pruned
import readme_tables
import separable
from harness import all_results, results_folder
from leanconv.cli.engines import machine
from leanconv.cli.engines.processes import interpreters
from leanconv.cli.options import UsageError
from leanconv.errors import InputError
from pages.figures import IM2COL, MEC_A, MEC_B, Figures
from pages.im2win import sections

ROOT = Path(__file__).resolve().parents[2]
RESULTS = sorted((ROOT / "docs" / "results").rglob("*.json"))
COUNTED = {"cache_misses", "gpu", "gpu_ladder"}  # nothing in them depends on rounds, or the CPU


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_every_result_names_its_cpu_its_commit_and_its_effort(file: Path) -> None:
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["machine"]["cpu"]
    assert document["machine"]["commit"]
    if file.stem not in COUNTED:
        assert document["effort"]["threads"] >= 1


WRITERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "algorithms": pages.algorithms.page,
    "cache_misses": pages.cache_misses.page,
    "choice": pages.choice.page,
    "ladder": pages.ladder.page,
    "operators": operators.page,
    "pareto": pages.pareto.page,
    "pruned": pages.pruned.page,
    "separable": separable.page,
}
PAGED = [file for name in WRITERS for file in all_results(name)]


@pytest.mark.parametrize("file", PAGED, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_page_is_what_its_results_say(file: Path) -> None:
    document = json.loads(file.read_text(encoding="utf-8"))
    text = file.with_suffix(".md").read_text(encoding="utf-8")
    assert text == WRITERS[file.stem](document), "run the benchmark with --page"
    for said in (document["machine"]["cpu"], document["machine"]["commit"]):
        assert said in " ".join(text.split())


def test_results_stand_in_the_folder_of_their_cpu() -> None:
    for file in RESULTS:
        folder = file.parent.parent if file.parent.name == "figures" else file.parent
        if file.stem not in COUNTED:
            document = json.loads(file.read_text(encoding="utf-8"))
            assert folder == results_folder(document["machine"]["cpu"])


def test_tables_of_results_are_up_to_date() -> None:
    for page, text in readme_tables.written().items():
        assert page.read_text(encoding="utf-8") == text, "run python benchmarks/readme_tables.py"
    assert all("<!-- results: " in page.read_text("utf-8") for page in readme_tables.PAGES)


def test_the_best_other_engine_by_medians_and_by_least_times_is_named_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engines = {
        "leanconv": {"median_ns": 2e6, "least_ns": 1e6},
        "steady": {"median_ns": 4e6, "least_ns": 3e6},
        "noisy": {"median_ns": 9e6, "least_ns": 2e6},
        "wrong": {"median_ns": 1e6, "least_ns": 1e6, "difference": 1e-3},
    }
    case = {"name": "vgg16 batch 1", "engines": engines, "ratios": {"best": 2.0}}
    found = {readme_tables.FLOORS_OF: {"cases": [case]}}
    monkeypatch.setattr(readme_tables, "_load", lambda name: found)
    row = readme_tables.bounds_table("networks")[-1].split(" | ")
    assert row[3:6] == ["4 steady", "2 noisy", "2.00 (2.00)"]


def test_a_commit_is_that_of_the_checkout_that_tracks_the_file(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    file = tmp_path / "code.py"
    file.write_text("1")
    assert machine.commit(file) is None, "no checkout"
    git("init", "-q")
    assert machine.commit(file) is None, "not tracked: of another project, as in site-packages"
    page = tmp_path / "docs/results/speed.md"
    page.parent.mkdir(parents=True)
    page.write_text("1")
    git("add", "code.py", "docs")
    git("commit", "-qm", "one")
    head = git("rev-parse", "--short=10", "HEAD")
    page.write_text("2")
    assert machine.commit(file) == head, "a result differs, the code does not"
    file.write_text("2")
    assert machine.commit(file) == head + "+changes"


def test_an_interpreter_that_is_not_there_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="'TORCH_PYTHON'; expected the path of one in which torch"):
        interpreters("TORCH_PYTHON")
    monkeypatch.setattr(sys, "argv", ["float64_memory.py", "--python", "TORCH_PYTHON"])
    with pytest.raises(UsageError, match="TORCH_PYTHON"):
        float64_memory.main()
    monkeypatch.setattr(float64_memory, "absent_modules", lambda python, modules: ["torch"])
    monkeypatch.setattr(sys, "argv", ["float64_memory.py"])
    with pytest.raises(InputError, match="torch is not installed in .*--python"):
        float64_memory.main()


def _figures() -> Figures:
    def cell(*turns: int) -> dict[str, object]:
        middle = sorted(turns)[len(turns) // 2]
        return {"time_ns": middle, "turns_ns": list(turns), "stages_ns": [1, 1]}

    methods = {
        IM2COL: cell(110, 110, 120),
        MEC_A: cell(95, 95, 96),
        MEC_B: cell(92, 156, 164),  # disturbed: its median says nothing
        "im2win:rows=whole": cell(100, 101, 102),
        "im2win": cell(100, 100, 100),
        **dict.fromkeys(("naive", "direct"), cell(700, 700, 700)),
        **dict.fromkeys(("im2win:form=base", "im2win:form=vector"), cell(700, 700, 700)),
        "im2win:rows=whole,cache=off": cell(95, 110, 120),
        "im2win:rows=whole,vectorise=off": cell(700, 705, 710),
    }
    case = {"batch": 1, "layer": "cv11", "problem": "", "methods": methods}
    effort = {"threads": 2}
    return Figures({"cases": [case], "sweep": [], "effort": effort, "peak_gflops": 100.0})


def test_one_disturbed_cell_does_not_decide_a_ratio() -> None:
    figures = _figures()
    assert figures.paper_mec(1, "cv11") == MEC_A
    assert figures.least(1, "cv11", MEC_A, MEC_B) == 92
    assert figures.spread(1, "cv11", MEC_B) == pytest.approx(156 / 92 - 1)


def test_ablations_within_noise_are_marked() -> None:
    lines = "\n".join(sections(_figures()))
    assert "| `cache=off` | (0.95) |" in lines
    assert "| `vectorise=off` | 7.00 |" in lines
