"""`leanconv run --draw`: boxes of detectors whose outputs are known by a documented convention."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.cli_fakes import Call, FakeNetwork

Picture = Callable[..., str]
ULTRALYTICS = {"author": "Ultralytics", "task": "detect", "names": "{0: 'cat', 1: 'dog'}"}
# A picture of 40x20 (width, height), stretched to 80x80: a box there is (10, 5, 20, 15) here.
BOX, THERE = (10.0, 5.0, 20.0, 15.0), (20.0, 20.0, 40.0, 60.0)


@pytest.fixture
def detector(network: FakeNetwork) -> FakeNetwork:
    network.shape = ("N", 3, 80, 80)
    return network


def centred(*corners: float) -> list[float]:
    left, top, right, bottom = corners
    return [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]


def floats(*numbers: object) -> np.ndarray:
    return np.array(numbers, np.float32)


TORCHVISION = {
    "boxes": floats(THERE, (0, 0, 9, 9)),
    "labels": np.array([1, 0]),
    "scores": floats(0.9, 0.1),
}
TENSORFLOW = {
    "detection_boxes": floats([(0.25, 0.25, 0.75, 0.5), (0, 0, 1, 1)]),
    "detection_classes": floats([1, 0]),
    "detection_scores": floats([0.9, 0.2]),
    "num_detections": floats(2),
}
# Two of one object, of which one is kept, and one that is too faint: (1, 4 + classes, boxes).
NEAR = (21.0, 21.0, 41.0, 61.0)
MANY = floats(
    [*centred(*THERE), 0.1, 0.9], [*centred(*NEAR), 0.05, 0.8], [*centred(0, 0, 9, 9), 0.2, 0.1]
).T[None]
FEW = floats([(*THERE, 0.9, 1), (0, 0, 9, 9, 0.1, 0)])  # (1, n, 6)


@pytest.mark.parametrize(
    ("outputs", "metadata", "label"),
    [
        (TORCHVISION, {"labels": '["cat", "dog"]'}, "dog"),
        (TENSORFLOW, {"labels": '["cat", "dog"]'}, "1"),  # which some count from 1, some from 0
        ({"output0": MANY}, ULTRALYTICS, "dog"),
        ({"output0": FEW}, ULTRALYTICS, "dog"),
    ],
    ids=["torchvision", "tensorflow", "ultralytics", "ultralytics-kept"],
)
def test_boxes_are_drawn_where_they_are_in_the_picture(
    detector: FakeNetwork,
    call: Call,
    picture: Picture,
    tmp_path: Path,
    outputs: dict[str, np.ndarray],
    metadata: dict[str, str],
    label: str,
) -> None:
    image_module = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    detector.results, detector.metadata = outputs, metadata
    file, image = tmp_path / "out.png", picture((9, 9, 9), (40, 20), "RGB")
    command = ("run", "m.onnx", image, "--preset", "unit", "--draw", str(file))
    found = call(*command, "--json")
    assert found.code == 0, found.err
    (box,) = json.loads(found.out)["drawn"]
    assert box["label"] == label
    assert box["score"] == pytest.approx(0.9)
    assert box["box"] == pytest.approx(BOX, abs=0.01)
    pixels = np.asarray(image_module.open(file).convert("RGB"))
    assert pixels.shape == (20, 40, 3)
    assert (pixels[14:16, 12:18] != 9).any()  # its lower edge
    assert (pixels[:, :9] == 9).all()
    assert f"{file}: 1 box {label} 0.90" in " ".join(call(*command).out.split())


def test_a_framed_picture_has_its_boxes_where_they_are(
    detector: FakeNetwork, call: Call, picture: Picture, tmp_path: Path
) -> None:
    """80x40 within 80x80, 20 rows of frame above and below."""
    detector.results = {"boxes": floats((20, 30, 40, 50)), "scores": floats(1)}
    image = picture((9, 9, 9), (40, 20), "RGB")
    file = str(tmp_path / "out.jpg")
    found = call(
        "run", "m.onnx", image, "--preset", "unit", "--fit", "letterbox", "--draw", file, "--json"
    )
    (box,) = json.loads(found.out)["drawn"]
    assert box["box"] == pytest.approx(BOX, abs=0.01)
    assert box["label"] == ""


def test_what_is_not_known_is_not_drawn(
    detector: FakeNetwork, call: Call, picture: Picture, tmp_path: Path
) -> None:
    image, file = picture((9, 9, 9), (40, 20), "RGB"), tmp_path / "out.png"
    command = ("run", "m.onnx", image, "--preset", "unit", "--draw")
    for outputs in ({"output0": MANY}, {"boxes": floats(THERE), "scores": floats(1, 2)}):
        detector.results = outputs  # without metadata; of two lengths
        refused = call(*command, str(file))
        assert refused.code == 1
        assert "does not know which of the outputs are boxes" in refused.err
    assert not file.exists()
    assert call(*command, "out.txt").code == 2
    assert call("run", "m.onnx", image, image, "--preset", "unit", "--draw", str(file)).code == 2
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 80, 80), np.float32))
    arrays = call("run", "m.onnx", str(tmp_path / "x.npy"), "--draw", str(file))
    assert arrays.code == 2
    assert "takes a picture" in arrays.err


def test_no_box_is_a_picture_without_one(
    detector: FakeNetwork, call: Call, picture: Picture, tmp_path: Path
) -> None:
    detector.results, detector.metadata = {"output0": MANY}, ULTRALYTICS
    image, file = picture((9, 9, 9), (40, 20), "RGB"), str(tmp_path / "out.png")
    found = call("run", "m.onnx", image, "--preset", "unit", "--draw", file, "--min-score", "0.95")
    assert f"{file}: 0 boxes" in " ".join(found.out.split())
