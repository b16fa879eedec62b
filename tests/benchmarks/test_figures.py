"""The documents' figures: every one is measured on small cases; pages are those of the JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import figures
from documents import clock, running
from documents.chart import Chart
from documents.counted import NETWORKS
from documents.figure import Effort, Figure
from documents.pages import index, page
from documents.running import run_all
from harness import ROOT

RESULTS = sorted((ROOT / "docs" / "results").glob("*/figures/*.json"))
COMPUTED = [name for name, figure in figures.FIGURES.items() if not figure.quiet]
COMPUTED = [name for name in COMPUTED if name not in ("thesis-3-8", "lavin-accuracy")]
QUICK = Effort(threads=1, rounds=2, seconds=0.0, quick=True)


@pytest.mark.parametrize(
    "name",
    [*COMPUTED, "mec-t3", "mec-rule", "mec-training-1", "winograd-example", "report-future"],
)
def test_a_figure_is_measured_and_shown(name: str, tmp_path: Path) -> None:
    document = figures.measured(figures.FIGURES[name], QUICK, wait_s=0.0)
    figures.write(tmp_path, document)
    text = (tmp_path / f"{name}.md").read_text()
    assert "## Beside the document" in text
    assert figures.FIGURES[name].document in text
    kept = json.loads((tmp_path / f"{name}.json").read_text())
    assert page(figures.FIGURES[name], kept)[f"{name}.md"] == text
    assert name in index(figures.kept(tmp_path), figures.FIGURES)


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_pages_and_pictures_are_those_of_the_numbers(file: Path) -> None:
    document = json.loads(file.read_text(encoding="utf-8"))
    for name, text in page(figures.FIGURES[document["figure"]], document).items():
        assert (file.parent / name).read_text(encoding="utf-8") == text


def test_small_cases_name_the_strides_that_ran() -> None:
    """What is printed beside them is of these strides, too."""
    kept = json.loads(next(file for file in RESULTS if file.stem == "mec-4a").read_text())
    some = {"strides": [one for one in kept["data"]["strides"] if one["stride"] in (1, 4)]}
    claim = figures.FIGURES["mec-4a"].show(some).claims[0]
    assert claim.what.endswith("s = 4 and s = 1")
    assert claim.printed == "2.67 and 10.52 (kh·oh/ih)"
    assert claim.ours == "2.67 and 10.52"


def test_the_index_says_where_the_documents_are() -> None:
    named = {figure.document.partition(",")[0] for figure in figures.FIGURES.values()}
    text = index([], figures.FIGURES)
    assert all(f"- **{name}**" in text or "Lavin and Gray" in name for name in named), named


def test_figures_fit_into_the_minutes_of_all() -> None:
    assert sum(figure.minutes for figure in figures.FIGURES.values()) <= 38


def test_a_figure_that_fails_stops_no_other() -> None:
    def figure(name: str, minutes: float = 0.1) -> Figure:
        return replace(figures.FIGURES["thesis-1-1"], name=name, minutes=minutes)

    def command(name: str) -> list[str]:
        return [sys.executable, "-c", f"raise SystemExit({int(name == 'bad')})"]

    said: list[str] = []
    chosen = [figure("good"), figure("bad"), figure("long", 9.0), figure("last")]
    outcomes = run_all(chosen, command, minutes=1.0, say=said.append)
    assert [outcome.problem for outcome in outcomes] == [
        "",
        "failed: exit code 1",
        "left out: no time is left for it",
        "",
    ]
    assert len(said) == 1 + 3 + 4


def test_a_figure_that_hangs_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_MORE", 0.005)
    figure = replace(figures.FIGURES["thesis-1-1"], minutes=0.0)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    (outcome,) = run_all([figure], lambda name: command, 1.0, lambda line: None)
    assert outcome.problem.startswith("stopped: ")


def test_several_figures_end_with_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = f"--out={tmp_path}"
    given = ["figures.py", "thesis-1-1", "thesis-3-7", "--quick", out]
    monkeypatch.setattr(sys, "argv", given)
    assert figures.main() == 0
    assert "2 of 2 figures in" in capsys.readouterr().out
    assert {"thesis-1-1.json", "thesis-3-7.md", "README.md"} <= {f.name for f in tmp_path.iterdir()}
    monkeypatch.setattr(sys, "argv", [*given, "--minutes=0"])
    assert figures.main() == 3


def test_only_what_is_missing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(commit: str | None) -> bool:
        (tmp_path / "mec-4b.json").write_text(json.dumps({"machine": {"commit": commit}}))
        return figures.is_current(tmp_path, "mec-4b")

    assert not figures.is_current(tmp_path, "mec-4b")
    monkeypatch.setattr(figures, "changes_since", lambda commit, folders: int(commit != "new"))
    assert [kept(c) for c in ("new", "old", "new+changes", None)] == [True, False, False, False]
    kept("new")
    options = figures.parser().parse_args(["mec-4b", "mec-4a", "--missing"])
    assert figures.chosen(options, tmp_path) == ["mec-4a"]


def test_turns_end_with_the_minutes_and_batches_with_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not clock.NEVER.passed(1000)
    assert [clock.Deadline.after(-1).passed(turns) for turns in (2, 3)] == [False, True]
    monkeypatch.setattr(clock, "free_bytes", lambda: 1000)
    assert [clock.fitting(32, size) for size in (1, 50, 10**9)] == [32, 8, 1]


def test_networks_have_the_products_that_their_papers_give() -> None:
    """10^9 multiply-adds as torchvision counts them."""
    known = {"AlexNet": 0.71, "VGG-16": 15.47, "GoogLeNet-v1": 1.58, "ResNet-50": 4.09}
    known["Inception-V3"] = 5.71
    for name, (layers, dense) in NETWORKS.items():
        assert (sum(layers()) + dense) / 1e9 == pytest.approx(known[name], rel=0.01)


def test_bars_stand_on_their_axis() -> None:
    chart = Chart("", "a < b", ["x"], [("one", [10.0]), ("none", [None])], log=True)
    text = chart.svg()
    assert "a &lt; b" in text
    assert text.count("<rect") == 1 + 2 + 1  # paper, two of the legend, one bar
