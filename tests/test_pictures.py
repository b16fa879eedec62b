"""docs/algorithms.md: its pictures are as drawn, its bytes and errors are those of the code."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

import formulas
from leanconv.algorithms import ALGORITHMS, WEIGHT_GRADIENTS, Problem
from leanconv.algorithms.select import choice_named, choose, gradient_choice_named
from leanconv.codegen.geometry import Access
from leanconv.graph.factors import Factors
from leanconv.records import replace
from leanconv.spec import NHWC, PLAIN, ConvSpec
from leanconv.spec.format import aligned
from leanconv.target import preset
from support import gradients
from support.packing import packed_constants

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = (DOCS / "algorithms.md").read_text(encoding="utf-8")
LAYER, TARGET = ConvSpec.parse("ic128ih28oc128oh26kh3"), preset("znver4")
ROWS = re.findall(
    r"^\| `([^`]+)` \| ([\d,]+) \| ([\d,]+) \| (\S+) \|$",
    PAGE.split("<!-- bytes:")[1].split("<!-- end of bytes")[0],
    re.MULTILINE,
)

GRADIENT = ConvSpec.parse("mb8ic128ih28oc128oh26kh3")
GRADIENT_ROWS = re.findall(
    r"^\| `([^`]+)` \| ([\d,]+) \| (\S+) \|$",
    PAGE.split("<!-- gradient bytes:")[1].split("<!-- end of gradient")[0],
    re.MULTILINE,
)


def drawn() -> dict[str, str]:
    """The pictures, drawn again: text by file name."""
    texts: dict[str, str] = runpy.run_path(str(DOCS / "draw_pictures.py"))["drawn"]()
    return texts


def test_the_pictures_are_as_drawn() -> None:
    there = {f.name: f.read_text(encoding="utf-8") for f in (DOCS / "pictures").iterdir()}
    assert there == drawn(), "run python docs/draw_pictures.py"


def test_every_picture_is_shown() -> None:
    assert sorted(re.findall(r"\]\(pictures/([^)]+)\)", PAGE)) == sorted(drawn())


def test_every_algorithm_and_parameter_is_told() -> None:
    for algorithm in ALGORITHMS.values():
        assert f'algorithm="{algorithm.name}"' in PAGE
        for parameter in algorithm.parameters.names():
            assert f"`{parameter}" in PAGE, f"{algorithm.name}: {parameter}"


@pytest.mark.parametrize("text", sorted(set(re.findall(r'`algorithm="([^"`]+)"`', PAGE))))
def test_what_may_be_asked_for_is_accepted(text: str) -> None:
    spec, form = LAYER, PLAIN
    if text == "depthwise":
        spec, form = ConvSpec.parse("g32ic32ih9oc32oh9kh3ph1"), NHWC
    elif text == "separable":
        spec = ConvSpec.parse("ic1ih30oc1oh24kh7")
    elif text.endswith("parts=1x2"):
        spec = ConvSpec.parse("ic16ih20iw40oc16oh18ow24kh3kw17")
    problem = Problem.of(
        spec,
        Access.of_format((spec.batch, spec.in_channels, *spec.size), form),
        Access.of_format((spec.batch, spec.out_channels, *spec.output_size), form),
    )
    problem = replace(problem, factors=Factors(rank=1, error=0.0, pays=True))
    assert choose(problem, TARGET, choice_named(text)).choice.algorithm == text.partition(":")[0]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_bytes_and_errors_are_those_of_the_code(row: tuple[str, ...]) -> None:
    problem = Problem.of(LAYER, Access.planes(LAYER.input_shape), Access.planes(LAYER.output_shape))
    candidate = choose(problem, TARGET, choice_named(row[0]))
    packed = packed_constants(candidate, np.zeros(LAYER.weight_shape, np.float32))
    weights = sum(aligned(array.nbytes) for array in packed.values())
    found = (f"{candidate.workspace_bytes(1):,}", f"{weights:,}", f"{candidate.choice.error:.1e}")
    assert row[1:] == found


def test_whole_lowerings_need_what_the_papers_say() -> None:
    told = {name: int(workspace.replace(",", "")) for name, workspace, _, _ in ROWS}
    assert told["im2col:rows=whole"] == 4 * formulas.im2col_elements(LAYER)
    assert told["mec:solution=A"] == told["mec:solution=B"] == 4 * formulas.mec_elements(LAYER)
    assert told["im2win:rows=whole"] == 4 * formulas.im2win_elements(LAYER)


@pytest.mark.parametrize("row", GRADIENT_ROWS, ids=[row[0] for row in GRADIENT_ROWS])
def test_bytes_and_errors_of_gradients_are_those_of_the_code(row: tuple[str, ...]) -> None:
    problem, choice = gradients.gradient_problem(GRADIENT), gradient_choice_named(row[0])
    candidate = choose(problem, TARGET, choice)
    assert row[1:] == (f"{candidate.workspace_bytes(1):,}", f"{candidate.choice.error:.1e}")


def test_every_method_of_gradients_and_its_parameters_are_told() -> None:
    told = PAGE.split("\n## Gradients")[1]
    for name, method in WEIGHT_GRADIENTS.items():
        assert f'"{name}' in told
        for parameter in method.parameters.names():
            assert f"{parameter}=" in told, f"{name}: {parameter}"
