"""What the documents say is so: Python blocks run, commands, settings and links exist."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leanconv
import leanconv.onnxruntime
from leanconv.cli.main import build_parser
from leanconv.settings import Settings
from support import machines
from support.opened_libraries import linked
from support.page_blocks import run_blocks

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("*/README.md")])
MACHINE = os.environ.get(machines.VARIABLE)
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")


PAGES = sorted(
    [*DOCUMENTS, *(ROOT / "docs" / "results").glob("*.md"), *ROOT.glob("examples/*/*.md")]
)
COLUMNS = 120


def commands() -> set[str]:
    """The sub-commands of `leanconv`."""
    (choices,) = [a.choices for a in build_parser()._actions if isinstance(a.choices, dict)]
    return set(choices)


def test_the_python_of_the_readme_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_blocks("README.md", tmp_path)
    predicted, used = capsys.readouterr().out.split()[:2]
    assert predicted == used
    assert getattr(names["y"], "shape", None) == (1, 128, 28, 28)


def test_the_python_of_the_guide_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # an example writes a file
    # To quantise takes most of the time; as if on other machines, nothing else is quantised either.
    run_blocks("docs/guide.md", tmp_path, but_for="lc.quantize(" if MACHINE else None)
    printed = capsys.readouterr().out.splitlines()
    *_, used, smallest, streamed, error, footprint, numbers = printed
    kept, read, _ = map(int, streamed.split())
    assert kept <= 500 << 10 < kept + read
    assert 10 << 10 < int(smallest) < int(used) <= 600 << 10
    assert float(error) <= 2e-5
    assert " in memory: weights " in footprint
    assert all(int(number) > 0 for number in numbers.split())
    assert (tmp_path / "plan.json").exists()


def test_the_python_of_the_tutorial_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks("docs/tutorial.md", tmp_path)
    assert "winograd:m=4" in capsys.readouterr().out
    assert (tmp_path / "digits.plan.json").exists()


def test_the_python_of_the_page_of_pruned_networks_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = importlib.util.find_spec("torch") is None
    run_blocks("docs/sparse.md", tmp_path, but_for="import torch" if missing else None)
    printed = capsys.readouterr().out
    assert "sparse 90.0% of the weights are 0" in printed
    assert "\n12032 65536\n" in printed
    assert ", 4 outputs at once" in printed
    assert missing or "2 convolutions leave out the weights that are 0: 58982 of 65536" in printed
    assert "w has zeros in other places" in printed


@linked
def test_the_python_of_the_page_of_libraries_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks("docs/library.md", tmp_path)


def test_the_python_of_the_page_of_the_server_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("starlette", reason="leanconv[server] is not installed")
    monkeypatch.chdir(tmp_path)
    started, usual = [], subprocess.Popen

    def start(*arguments: Any, **named: Any) -> Any:
        started.append(usual(*arguments, **named))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    try:
        names = run_blocks("docs/serving.md", tmp_path)
    finally:
        for process in started:  # no server outlives a test that fails
            process.kill()
            process.wait()
    assert getattr(names["scores"], "shape", None) == (2, 10)


def test_the_python_of_the_page_of_large_images_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks("docs/large_images.md", tmp_path)
    assert "1x3x30000x30000 in windows of" in capsys.readouterr().out
    assert not (tmp_path / "classes.tiles").exists()


def test_the_python_of_the_page_of_dask_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("distributed", reason="leanconv[dask] is not installed")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    try:
        run_blocks("docs/dask.md", tmp_path, names)
    finally:
        for name in ("client", "cluster"):  # no process outlives a test that fails
            if name in names:
                names[name].close()
    assert len(names["found"]) == 6


@pytest.mark.slow
def test_the_python_of_the_page_for_pytorch_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    run_blocks("docs/from-pytorch.md", tmp_path)
    assert (tmp_path / "old.onnx").exists()
    assert (tmp_path / "new.onnx").exists()


def test_the_python_of_the_page_of_training_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = importlib.util.find_spec("torch") is None
    run_blocks("docs/training.md", tmp_path, but_for="import torch" if missing else None)
    assert "'w'" in capsys.readouterr().out


def test_the_python_of_the_page_for_other_libraries_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        run_blocks("docs/from-other-libraries.md", tmp_path)
    finally:
        leanconv.onnxruntime.uninstall()


@pytest.mark.parametrize("h", [1, 2, 3, 4])
@pytest.mark.parametrize("v", [2, 3, 5, 6])
def test_convolve2d_same_is_as_the_page_for_scipy_says(h: int, v: int) -> None:
    """SciPy's "same" is the middle of the full convolution, from (kernel - 1) // 2 on."""
    page = (ROOT / "docs" / "from-other-libraries.md").read_text(encoding="utf-8")
    (call,) = re.findall(r'^\| `signal\.convolve2d\(image, w, "same"\)` \| `(.*?)` \|', page, re.M)
    random = np.random.default_rng(0)
    image, w = random.standard_normal((7, 8)), random.standard_normal((h, v))
    full = np.zeros((7 + h - 1, 8 + v - 1))
    for i, j in np.ndindex(h, v):
        full[i : i + 7, j : j + 8] += w[i, j] * image
    same = full[(h - 1) // 2 :, (v - 1) // 2 :][:7, :8]
    found = eval(call, {"lc": leanconv, "image": image, "w": w, "h": h, "v": v})
    np.testing.assert_allclose(found, same, atol=1e-12)


def test_the_readme_can_be_read_in_one_go() -> None:
    assert len(README.splitlines()) <= 110


def test_the_commands_of_the_readme_are_those_that_there_are() -> None:
    section = README.split("## From the command line")[1].split("\n## ")[0]
    assert set(re.findall(r"^    leanconv (\w+)", section, re.MULTILINE)) == commands()


def test_the_settings_of_the_guide_are_those_that_there_are() -> None:
    told = set(re.findall(r"^\| `(LEANCONV_\w+)`", GUIDE, re.MULTILINE))
    there = {f"LEANCONV_{field.name.upper()}" for field in dataclasses.fields(Settings)}
    assert told == there


def test_the_page_of_operations_is_as_printed() -> None:
    printed = runpy.run_path(str(ROOT / "docs" / "print_operations.py"))["page"]()
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert page == printed, "run python docs/print_operations.py"


def test_every_make_target_that_is_told_exists() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        for target in re.findall(r"^    make (\w+)", document.read_text("utf-8"), re.MULTILINE):
            assert target in targets, f"{document.name} tells of make {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_have_at_most_120_columns(page: Path) -> None:
    """`python benchmarks/pages/wrapping.py FILE` wraps a page; rows of tables may be longer."""
    lines = enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
    long = [number for number, line in lines if len(line) > COLUMNS and not line.startswith("|")]
    assert not long, f"lines {long} of {page.name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (document.parent / link).exists(), f"{document.name} links to {link}"


def test_the_architecture_names_every_folder() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for folder in (ROOT / "src" / "leanconv").iterdir():
        if (folder / "__init__.py").exists():
            assert f"`{folder.name}`" in text, (
                f"docs/architecture.md does not tell of {folder.name}"
            )
