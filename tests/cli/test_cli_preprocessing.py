"""How pixels become numbers is said by the options or the model, printed, and never guessed."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from leanconv.cli.preprocessing import PRESETS, Normalisation, Preprocessing
from support.cli_fakes import FakeNetwork

Call = Callable[..., object]
Picture = Callable[..., str]


@pytest.fixture
def silent(network: FakeNetwork) -> FakeNetwork:
    """A network of three channels that says nothing of pixels."""
    network.metadata.clear()
    network.shape = ("N", 3, 8, 8)
    return network


def test_nothing_is_guessed(silent: FakeNetwork, call: Call, picture: Picture) -> None:
    result = call("run", "m.onnx", picture((1, 2, 3), mode="RGB"))
    assert result.code == 2
    assert "does not say how pixels become" in result.err
    assert "--preset" in result.err
    for name in PRESETS:
        assert name in result.err
    assert not silent.seen


@pytest.mark.parametrize("preset", PRESETS)
def test_presets(silent: FakeNetwork, call: Call, picture: Picture, preset: str) -> None:
    pixel = np.array([255.0, 0.0, 51.0])
    result = call(
        "run", "m.onnx", picture(tuple(pixel.astype(int)), mode="RGB"), "--preset", preset
    )
    assert result.code == 0
    expected = {
        "imagenet": (pixel / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225],
        "unit": pixel / 255,
        "signed": pixel / 127.5 - 1,
        "bytes": pixel,
        "caffe": pixel[::-1] - [103.939, 116.779, 123.68],
        "ppocr": (pixel[::-1] / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225],
    }[preset]
    np.testing.assert_allclose(silent.seen[-1][0, :, 0, 0], expected, rtol=1e-5)
    assert f"from --preset {preset}" in result.out


def test_a_preset_says_multiples_of_open_sizes(
    silent: FakeNetwork, call: Call, picture: Picture
) -> None:
    silent.shape = ("N", 3, "H", "W")
    image = picture((10, 20, 30), (70, 120), "RGB")  # width, height
    for multiple, sizes in ((None, (128, 64)), ("24", (120, 72))):
        options = ["--multiple", multiple] if multiple else []
        result = call("run", "m.onnx", image, "--preset", "ppocr", *options)
        assert result.code == 0, result.err
        assert silent.seen[-1].shape == (1, 3, *sizes)
    assert call("run", "m.onnx", image, "--preset", "imagenet").code == 0
    assert silent.seen[-1].shape == (1, 3, 120, 70)


def test_a_preset_beside_numbers_is_wrong_usage(
    silent: FakeNetwork, call: Call, picture: Picture
) -> None:
    result = call("run", "m.onnx", picture(1), "--preset", "unit", "--mean", "0.5")
    assert result.code == 2
    assert "--preset unit beside --mean" in result.err


def test_what_was_done_is_printed(silent: FakeNetwork, call: Call, picture: Picture) -> None:
    image = picture((1, 2, 3), mode="RGB", size=(20, 10))
    silent.results = {"map": np.zeros((1, 1, 8, 8), np.float32)}
    result = call("run", "m.onnx", image, "--scale", "1/255", "--std", "0.5", "--wide")
    assert (
        "pictures: RGB, pixel / 255 / 0.5, from --scale, --std; stretched to the network's size"
        in result.out
    )
    document = json.loads(call("run", "m.onnx", image, "--preset", "caffe", "--json").out)
    assert document["preprocessing"] == {
        "layout": "NCHW",
        "channels": "BGR",
        "scale": 1.0,
        "mean": [103.939, 116.779, 123.68],
        "std": [1.0],
        "source": "--preset caffe",
        "fit": "stretch",
    }
    assert document["images"][0]["image_notes"] == []


def test_arrays_need_no_preset(silent: FakeNetwork, call: Call, tmp_path: object) -> None:
    file = f"{tmp_path}/x.npy"
    np.save(file, np.zeros((1, 3, 8, 8), np.float32))
    result = call("run", "m.onnx", file, "--json")
    assert result.code == 0
    assert json.loads(result.out)["preprocessing"] is None


ULTRALYTICS = {"author": "Ultralytics", "names": "{0: 'person', 1: \"traffic light\", 2: 'car'}"}


@pytest.mark.parametrize(
    ("metadata", "order", "scale", "mean"),
    [
        ({"input_mean": "0.5"}, "RGB", 1 / 255, (0.5,)),
        ({"input_channels": "BGR", "input_scale": "1"}, "BGR", 1.0, (0.0,)),
        ({"Image.NominalPixelRange": "Normalized_0_1"}, "RGB", 1 / 255, (0.0,)),
        ({"Image.NominalPixelRange": "Normalized_1_1"}, "RGB", 1 / 127.5, (1.0,)),
        ({"Image.NominalPixelRange": "NominalRange_16_235"}, "RGB", 219 / 255, (-16.0,)),
        (
            {"Image.BitmapPixelFormat": "Bgr8", "Image.NominalPixelRange": "NominalRange_0_255"},
            "BGR",
            1.0,
            (0.0,),
        ),
        (ULTRALYTICS, "RGB", 1 / 255, (0.0,)),
        (ULTRALYTICS | {"input_scale": "1"}, "RGB", 1.0, (0.0,)),
    ],
)
def test_metadata(
    metadata: dict[str, str], order: str, scale: float, mean: tuple[float, ...]
) -> None:
    found = Preprocessing.from_metadata(metadata)
    assert found.normalisation is not None
    assert (found.order, found.normalisation.mean) == (order, mean)
    assert found.normalisation.scale == pytest.approx(scale)
    assert "the model" in found.normalisation.source


def test_names_of_ultralytics_are_labels() -> None:
    assert Preprocessing.from_metadata(ULTRALYTICS).labels == ("person", "traffic light", "car")
    for odd in ("", "{1: 'a'}", "{0: 'a', 2: 'b'}", "names", "{0: open('x')}", "{" * 100_000):
        assert Preprocessing.from_metadata(ULTRALYTICS | {"names": odd}).labels == ()


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        (Normalisation(), "pixel"),
        (Normalisation(1 / 255), "pixel / 255"),
        (Normalisation(1 / 127.5, (1.0,)), "pixel / 127.5 - 1"),
        (Normalisation(0.5), "pixel / 2"),
        (Normalisation(3.0), "pixel * 3"),
        (Normalisation(1 / 255, (0.5,), (0.25,)), "(pixel / 255 - 0.5) / 0.25"),
        (Normalisation(1.0, (0.0,), (2.0, 3.0, 4.0)), "pixel / [2, 3, 4]"),
    ],
)
def test_formulas(numbers: Normalisation, text: str) -> None:
    assert numbers.formula == text
