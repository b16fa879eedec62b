"""The documents' figures: every one is measured on small cases; pages are those of the JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import figures
from documents.chart import Chart
from documents.counted import NETWORKS
from documents.figure import Effort
from documents.pages import index, page
from harness import ROOT

RESULTS = sorted((ROOT / "docs" / "results").glob("*/figures/*.json"))
COMPUTED = [name for name, figure in figures.FIGURES.items() if not figure.quiet]
COMPUTED = [name for name in COMPUTED if name not in ("thesis-3-8", "lavin-accuracy")]
QUICK = Effort(threads=1, rounds=2, seconds=0.0, quick=True)


@pytest.mark.parametrize("name", [*COMPUTED, "mec-t3", "winograd-example", "report-future"])
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
