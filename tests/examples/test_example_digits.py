"""The shipped digit reader: small, right on held-out images, described by its metadata."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import leanconv

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "digits"
MODEL = FOLDER / "digits.onnx"
NETWORK = leanconv.load(MODEL)


def metadata() -> dict[str, str]:
    return {item.key: item.value for item in onnx.load(MODEL).metadata_props}


def scaled(pixels: np.ndarray) -> np.ndarray:
    """Scale uint8 images as the metadata says."""
    meta = metadata()
    mean = np.array(json.loads(meta["input_mean"]), np.float32)[:, None, None]
    std = np.array(json.loads(meta["input_std"]), np.float32)[:, None, None]
    scale = np.float32(json.loads(meta["input_scale"]))
    return np.asarray((pixels.astype(np.float32) * scale - mean) / std)


def onnxruntime_scores(x: np.ndarray) -> np.ndarray:
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = ort.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"input": x})[0])


def answers(pixels: np.ndarray) -> np.ndarray:
    """The classes that leanconv finds in uint8 images."""
    found: np.ndarray = NETWORK(scaled(pixels)).argmax(axis=1)
    return found


def test_the_file_is_small_and_a_mobilenet_with_batch_norm() -> None:
    assert MODEL.stat().st_size < 1_000_000
    model = onnx.load(MODEL)
    onnx.checker.check_model(model, full_check=True)
    ops = {node.op_type for node in model.graph.node}
    assert ops == {
        "Conv",
        "BatchNormalization",
        "Clip",
        "Add",
        "GlobalAveragePool",
        "Flatten",
        "Gemm",
    }
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"


def test_metadata() -> None:
    meta = metadata()
    assert json.loads(meta["labels"]) == [str(digit) for digit in range(10)]
    assert meta["input_layout"] == "NCHW"
    assert float(meta["input_scale"]) == 1 / 255
    assert NETWORK.metadata == meta


def test_held_out_accuracy() -> None:
    with np.load(FOLDER / "held_out.npz") as file:
        images, labels = file["images"], file["labels"]
    assert images.shape == (360, 1, 32, 32)
    assert images.dtype == np.uint8
    right = (answers(images) == labels).sum(), (answers(255 - images) == labels).sum()
    assert "reads 99.7 % of them right" in (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    assert min(right) >= 359
    for image, label in zip(images[:20], labels, strict=False):  # one by one, as a user would
        assert answers(image[np.newaxis])[0] == label


def test_the_scores_are_those_of_onnxruntime() -> None:
    with np.load(FOLDER / "held_out.npz") as file:
        x = scaled(file["images"])
    expected = onnxruntime_scores(x)
    largest = np.abs(expected).max()
    assert np.abs(NETWORK(x) - expected).max() <= 1e-5 * largest
    double = leanconv.load(MODEL, dtype="float64")(x)
    assert np.abs(double - expected).max() <= 1e-5 * largest


def test_pictures_are_read_right() -> None:
    image_module = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    paths = sorted((FOLDER / "images").glob("*.png"))
    assert len(paths) == 20
    labels, pixels = [], []
    for path in paths:
        match = re.fullmatch(r"digit_(\d)_[ab]\.png", path.name)
        assert match, path.name
        labels.append(int(match[1]))
        with image_module.open(path) as picture:
            assert (picture.mode, picture.size) == ("L", (64, 64))
            small = picture.resize((32, 32), image_module.Resampling.BILINEAR)
        pixels.append(np.asarray(small)[None])
    assert answers(np.stack(pixels)).tolist() == labels


def test_held_out_images_are_what_the_script_would_hold_out() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    pytest.importorskip("PIL", reason="Pillow is not installed")
    from examples.digits.data import load_split

    training, held_out = load_split()
    with np.load(FOLDER / "held_out.npz") as file:
        assert (
            np.abs(held_out.images.astype(int) - file["images"]).max() <= 1
        )  # Pillow's rounding may change
        assert (held_out.labels == file["labels"]).all()
    assert not set(training.sources) & set(held_out.sources)
    assert len(training.labels) + len(held_out.labels) == 1797
