"""Detector, recogniser and segmenter: our own networks do their work, and so does what follows."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

import leanconv
from examples.detector import detect
from examples.networks import fitting
from examples.pictures import save_picture, to_input, with_boxes
from examples.recogniser import read_text
from examples.scenes import DIGITS, line_of_digits, page, shapes
from examples.segmenter import segment

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = ("detector/detect.py", "recogniser/read_text.py", "segmenter/segment.py")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Our own networks as files, fitted once."""
    folder = tmp_path_factory.mktemp("models")
    made = {
        "detector": fitting.fitted_detector(),
        "recogniser": fitting.fitted_recogniser(),
        "segmenter": fitting.fitted_segmenter(),
    }
    for name, model in made.items():
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    return {name: folder / f"{name}.onnx" for name in made}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, where every file that an example leaves is seen."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# -- detector ----------------------------------------------------------------------------------
def test_numbers_on_pages_are_found(models: dict[str, Path]) -> None:
    network = leanconv.load(models["detector"])
    for seed in (1, 3, 5):
        pixels, boxes, _ = page(np.random.default_rng(seed))
        found, scores = detect.detect(network, pixels, unclip=0.0)
        assert len(found) == len(boxes)
        assert scores.min() > 0.5
        for box, (left, top, right, bottom) in zip(
            found[np.argsort(found[:, 1])], boxes, strict=True
        ):
            middle = np.array([(left + right) / 2, (top + bottom) / 2])
            assert np.all(np.abs((box[:2] + box[2:]) / 2 - middle) < 10)
            assert 0.7 < (box[2] - box[0]) / (right - left) < 1.5


def test_the_detectors_script_writes_its_picture_and_nothing_else(
    models: dict[str, Path], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pixels, boxes, _ = page(np.random.default_rng(3))
    save_picture(folder / "page.png", pixels)
    arguments = ["page.png", "--model", str(models["detector"]), "--unclip", "0", "--out", "found"]
    assert detect.main(arguments) == 0
    assert f"{len(boxes)} boxes" in capsys.readouterr().out
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert files == {"page.png", "found/boxes.png"}


def test_components_are_the_connected_parts_of_a_mask() -> None:
    rows = ["##..#", "..#.#", ".#..#", "#...."]
    mask = np.array([[letter == "#" for letter in row] for row in rows])
    parts = [set(zip(*map(np.ndarray.tolist, part), strict=True)) for part in
             detect.components(mask)]  # fmt: skip
    assert sorted(map(len, parts)) == [3, 5]
    assert {(0, 4), (1, 4), (2, 4)} in parts
    assert detect.components(np.zeros((3, 3), bool)) == []
    for seed in range(20):
        random = np.random.default_rng(seed).random((9, 11)) < 0.4
        found = detect.components(random)
        assert sum(len(part[0]) for part in found) == random.sum()
        assert len(found) == _flooded(random)


def _flooded(mask: np.ndarray) -> int:
    """How many parts a mask has, pixel by pixel."""
    waiting, count = set(zip(*np.nonzero(mask), strict=True)), 0
    while waiting:
        count += 1
        near = [waiting.pop()]
        while near:
            row, column = near.pop()
            around = {(row + i, column + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} & waiting
            waiting -= around
            near += around
    return count


def test_boxes_of_a_map_grow_as_db_says() -> None:
    chances = np.zeros((40, 60))
    chances[10:20, 10:50] = 0.9
    chances[30:32, 5:7] = 0.9  # too small
    chances[25:35, 40:55] = 0.4  # too unlikely
    boxes, scores = detect.boxes_of_map(chances, unclip=0.5)
    grown = 0.5 * 400 / 100
    assert boxes.tolist() == [[10 - grown, 10 - grown, 50 + grown, 20 + grown]]
    assert scores.tolist() == pytest.approx([0.9])
    assert detect.boxes_of_map(np.zeros((4, 4)))[0].shape == (0, 4)


def test_of_boxes_that_overlap_the_best_is_kept() -> None:
    boxes = np.array([[0, 0, 10, 10], [1, 1, 11, 11], [20, 0, 30, 10], [0, 0, 10, 4]], float)
    assert detect.nms(boxes, np.array([0.6, 0.9, 0.5, 0.4])).tolist() == [1, 2, 3]
    assert detect.nms(boxes, np.array([0.6, 0.9, 0.5, 0.4]), 0.2).tolist() == [1, 2]
    assert detect.nms(np.zeros((0, 4)), np.zeros(0)).tolist() == []


def test_lists_of_boxes_in_both_forms_of_yolo() -> None:
    rows = np.zeros((100, 7))
    rows[:3] = [
        [20, 30, 10, 20, 0.9, 0.1, 0.9],
        [21, 30, 10, 20, 0.8, 0.1, 0.9],  # the same object
        [21, 30, 10, 20, 0.8, 0.9, 0.1],  # another class at the same place
    ]
    boxes, scores, classes = detect.boxes_of_list(rows)
    assert classes.tolist() == [1, 0]
    assert boxes[0].tolist() == [15, 20, 25, 40]
    assert scores.tolist() == pytest.approx([0.81, 0.72])
    newer = np.hstack([rows[:, :4], rows[:, 4:5] * rows[:, 5:]]).T
    assert [np.asarray(each).tolist() for each in detect.boxes_of_list(newer)] == [
        each.tolist() for each in (boxes, scores, classes)
    ]


# -- recogniser --------------------------------------------------------------------------------
def test_lines_of_digits_are_read(models: dict[str, Path]) -> None:
    network = leanconv.load(models["recogniser"])
    rng = np.random.default_rng(7)
    right = 0
    for _ in range(20):
        text = "".join(rng.choice(list(DIGITS), 6))
        pixels, _ = line_of_digits(text, rng)
        padded = np.pad(pixels, ((0, 0), (0, 112 - pixels.shape[1])), mode="edge")
        right += read_text.read(network, padded)[0] == text  # one width: planned once
    assert right >= 18


def test_the_recognisers_script(
    models: dict[str, Path], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pixels, _ = line_of_digits("31415", np.random.default_rng(0))
    save_picture(folder / "line.png", pixels)
    assert read_text.main(["line.png", "--model", str(models["recogniser"])]) == 0
    assert "line.png: read '31415'" in capsys.readouterr().out
    assert [file.name for file in folder.iterdir()] == ["line.png"]


def test_ctc_leaves_out_blanks_and_repetitions() -> None:
    classes = [0, 1, 1, 0, 1, 2, 2, 0, 0, 3]
    chances = np.full((len(classes), 4), 0.1)
    chances[np.arange(len(classes)), classes] = 0.7
    assert read_text.decode(chances, ["a", "b", "c"]) == ("aabc", pytest.approx(0.7))
    assert read_text.decode(np.eye(4)[[0, 0]], ["a", "b", "c"]) == ("", 0.0)


def test_letters_are_those_of_the_metadata(models: dict[str, Path]) -> None:
    network = leanconv.load(models["recogniser"])
    assert read_text.letters_of(network, 11) == list(DIGITS)
    assert read_text.letters_of(network, 12) == [*DIGITS, " "]  # as PaddleOCR counts
    with pytest.raises(ValueError, match="10 letters; expected 39"):
        read_text.letters_of(network, 40)


# -- segmenter ---------------------------------------------------------------------------------
def test_pixels_of_shapes_are_told_apart(models: dict[str, Path]) -> None:
    network = leanconv.load(models["segmenter"])
    for seed in (1, 2, 3):
        pixels, truth = shapes(np.random.default_rng(seed))
        found, classes = segment.segment(network, pixels)
        assert classes == 4
        assert (found == truth).mean() > 0.97
        for kind in range(4):
            assert (found[truth == kind] == kind).mean() > 0.8


def test_the_segmenters_script_writes_its_pictures_and_nothing_else(
    models: dict[str, Path], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pixels, _ = shapes(np.random.default_rng(2), 50, 70)  # no multiple of anything
    save_picture(folder / "in.png", pixels)
    assert segment.main(["in.png", "--model", str(models["segmenter"]), "--out", "found"]) == 0
    assert "class 3:" in capsys.readouterr().out
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert files == {"in.png", *(f"found/{n}.png" for n in ("both", "classes", "picture"))}


def test_colours_of_classes_differ() -> None:
    colours = segment.palette(256)
    assert colours[:4].tolist() == [[0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 0]]
    assert len({tuple(colour) for colour in colours.tolist()}) == 256
    pixels = np.full((1, 2, 3), 100, np.uint8)
    mixed = segment.painted(pixels, np.array([[0, 1]]), 2)
    assert mixed.tolist() == [[[100, 100, 100], [114, 50, 50]]]


# -- all three ---------------------------------------------------------------------------------
def test_pictures_become_inputs_and_frames_are_drawn() -> None:
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels[..., 0] = 255
    x = to_input(pixels, 3, (0.5,), (0.5, 0.5, 0.25))
    assert x.shape == (1, 3, 4, 6)
    assert x[0, :, 0, 0].tolist() == [1, -1, -2]
    assert to_input(pixels, 3, blue_first=True)[0, :, 0, 0].tolist() == [-1, -1, 1]
    assert to_input(pixels[..., 0], 1)[0, 0, 0, 0] == pytest.approx(1.0)
    drawn = with_boxes(pixels, np.array([[1, 1, 4, 3], [-5, -5, 100, 100]]), (1, 2, 3))
    assert drawn[1, 1].tolist() == drawn[0, 0].tolist() == drawn[3, 5].tolist() == [1, 2, 3]
    assert pixels[1, 1].tolist() == [255, 0, 0]


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_found_from_any_folder(
    script: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [script, "--help"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    assert stopped.value.code == 0
    assert "--model" in capsys.readouterr().out


@pytest.mark.parametrize("script", SCRIPTS)
def test_pages_tell_of_what_there_is(script: str) -> None:
    text = (EXAMPLES / script).with_name("README.md").read_text(encoding="utf-8")
    assert f"python examples/{script}" in text
    for name in re.findall(r"python (examples/\S+)", text):
        assert (EXAMPLES.parent / name).exists(), name
    for name in re.findall(r"^from (examples\S+) import", text, re.MULTILINE):
        assert (EXAMPLES.parent / (name.replace(".", "/") + ".py")).exists(), name
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        compile(block, "README.md", "exec")
