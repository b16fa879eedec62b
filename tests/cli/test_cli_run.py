"""What `leanconv run` says of outputs: class scores where they are that, else their ranges."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from leanconv.cli.run_report import class_scores
from leanconv.types import FLOAT16, FLOAT32, FLOAT64
from support.cli_fakes import Call, FakeNetwork
from support.onnx_models import model

Picture = Callable[..., str]
RNG = np.random.default_rng(0)


def softmax(scores: np.ndarray) -> np.ndarray:
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def array(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("output", "only", "labels", "because"),
    [
        (array(1, 10), True, 0, "shape"),  # a classifier without a softmax
        (softmax(array(1, 1000)), True, 0, "probabilities"),
        (np.log(softmax(array(1, 1000))), False, 0, "probabilities"),
        (softmax(array(1, 2)), False, 0, "probabilities"),  # beside boxes
        (softmax(array(1, 7)).reshape(1, 7, 1, 1), True, 0, "probabilities"),
        (array(1, 80), False, 80, "labels"),
        (array(1, 80, 1, 1), True, 80, "labels"),
        (array(1, 80), True, 79, "shape"),  # no name is given to the wrong class
        (array(1, 4), False, 0, ""),  # a box
        (array(1, 10), False, 0, ""),  # landmarks
        (array(1, 25200, 85), True, 0, ""),  # boxes and their classes
        (array(1, 84, 840), True, 84, ""),
        (softmax(array(1, 40, 66)), True, 66, ""),  # a text, letter by letter
        (1 / (1 + np.exp(-array(1, 1, 64, 64))), True, 0, ""),  # a map
        (array(1, 21, 8, 8), True, 21, ""),  # a map of classes
        (array(1, 512, 1, 1), True, 0, ""),
        (array(1, 1), True, 0, ""),
        (array(2, 10), True, 0, ""),
        (np.zeros((1, 0), np.float32), True, 0, ""),
        (np.array([[True, False]]), True, 0, ""),
    ],
)
def test_class_scores_are_told_from_other_outputs(
    output: np.ndarray, only: bool, labels: int, because: str
) -> None:
    assert class_scores(output, only, labels) == because


def test_a_map_is_no_class(network: FakeNetwork, call: Call, picture: Picture) -> None:
    network.results = {"map": np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 1, 8, 8)}
    image = picture(191)
    shown = call("run", "m.onnx", image)
    assert shown.code == 0
    assert "%" not in shown.out
    (row,) = [line for line in shown.out.splitlines() if "map" in line]
    assert row.split()[1:7] == ["map", "1x1x8x8", FLOAT32, "0", "0.5", "1"]
    (answer,) = json.loads(call("run", "m.onnx", image, "--json").out)["images"]
    assert answer["answers"] == []
    (output,) = answer["outputs"]
    assert output["shape"] == [1, 1, 8, 8]
    assert (output["min"], output["max"]) == (0.0, 1.0)
    assert output["classes"] is None


def test_all_outputs_are_printed_and_what_is_no_number_is_counted(
    network: FakeNetwork, call: Call, picture: Picture
) -> None:
    boxes = np.array([[1, np.nan, np.inf, 3]], np.float32)
    network.results = {
        "boxes": boxes,
        "chances": np.array([[0.25, 0.75]], np.float32),
        "count": np.array(3, np.int64),
        "nothing": np.full((1, 2, 2, 2), np.nan, np.float32),
    }
    image = picture(191)
    shown = call("run", "m.onnx", image)
    assert shown.code == 0, shown.err
    rows = {line.split()[1]: line for line in shown.out.splitlines() if line.startswith(image)}
    assert list(rows) == ["boxes", "chances", "count", "nothing"]
    assert "1 NaN, 1 infinite" in rows["boxes"]
    assert "1 75.0%" in rows["chances"]
    assert "int64" in rows["count"]
    assert "8 NaN" in rows["nothing"]
    (answer,) = json.loads(call("run", "m.onnx", image, "--json").out)["images"]
    found = {output["name"]: output for output in answer["outputs"]}
    assert (found["boxes"]["min"], found["boxes"]["mean"], found["boxes"]["max"]) == (1, 2, 3)
    assert (found["boxes"]["nan"], found["boxes"]["infinite"]) == (1, 1)
    assert found["nothing"]["mean"] is None
    assert found["chances"]["classes_because"] == "probabilities"
    assert answer["answers"][0] == {"label": "1", "probability": 0.75}


def test_scores_without_labels_are_said_to_be_guessed(
    network: FakeNetwork, call: Call, picture: Picture
) -> None:
    assert "y 1x10 has no labels" in call("run", "m.onnx", picture(1)).out
    network.metadata["labels"] = json.dumps([f"tenth {i}" for i in range(10)])
    assert "has no labels" not in call("run", "m.onnx", picture(1)).out


def test_labels_from_a_file(
    network: FakeNetwork, call: Call, picture: Picture, tmp_path: Path
) -> None:
    file = tmp_path / "labels.txt"
    names = [f"class {i}" for i in range(10)]
    for text in ("\n".join(names) + "\n", json.dumps(names)):
        file.write_text(text)
        result = call("run", "m.onnx", picture(191), "--labels", str(file))
        assert "class 7" in result.out
    file.write_text("one\ntwo\n")
    result = call("run", "m.onnx", picture(191), "--labels", str(file))
    assert result.code == 1
    assert "holds 2 names, and no output has a value for each: y 1x10" in result.err
    file.write_bytes(b"\xff\xfe\x00")
    assert "no text in UTF-8" in call("run", "m.onnx", picture(1), "--labels", str(file)).err


def test_outputs_are_saved_by_name(
    network: FakeNetwork, call: Call, picture: Picture, tmp_path: Path
) -> None:
    network.results = {"a/b": array(1, 3, 4), "file": array(1, 2)}
    file, one, two = tmp_path / "out.npz", picture(1), picture(2)
    assert call("run", "m.onnx", one, "--save", str(file)).code == 0
    with np.load(file) as saved:
        assert set(saved) == {"a/b", "file"}
        assert np.array_equal(saved["a/b"], network.results["a/b"])
    result = call("run", "m.onnx", one, two, one, "--save", str(file), "--json")
    assert json.loads(result.out)["saved"] == str(file)
    with np.load(file) as saved:
        assert set(saved) == {f"{image}:{name}" for image in (one, two) for name in ("a/b", "file")}
    before = file.read_bytes()
    assert call("run", "m.onnx", "no such.png", "--save", str(file)).code == 1
    assert file.read_bytes() == before  # nothing half done, and nothing left beside it
    assert [p.name for p in tmp_path.glob("*.npz*")] == ["out.npz"]
    assert not list(tmp_path.glob(".*"))
    assert call("run", "m.onnx", one, "--save", str(tmp_path / "out.txt")).code == 2
    missing = tmp_path / "no folder" / "out.npz"
    refused = call("run", "m.onnx", one, "--save", str(missing))
    assert refused.code == 1
    assert str(missing) in refused.err


def test_open_sizes_are_given_rounded_or_the_images(
    network: FakeNetwork, call: Call, picture: Picture
) -> None:
    network.shape = ("N", 1, "H", "W")
    image = picture(191, size=(40, 20))
    for options, expected in (
        ((), (1, 1, 20, 40)),
        (("--multiple", "16"), (1, 1, 16, 48)),
        (("--shape", "1x1x12x10"), (1, 1, 12, 10)),
        (("--shape", "x=1,1,12,10"), (1, 1, 12, 10)),
    ):
        assert call("run", "m.onnx", image, *options).code == 0
        assert network.seen[-1].shape == expected
    several = call("run", "m.onnx", image, "--shape", "2x1x12x10")
    assert several.code == 1
    assert "each image is run by itself" in several.err


def test_fits_are_told_so_that_boxes_find_their_way_back(
    network: FakeNetwork, call: Call, picture: Picture
) -> None:
    image = picture(255, size=(40, 20))
    network.metadata |= {"input_scale": "1", "input_mean": "[0]"}
    options = ("--shape", "1x1x8x8", "--fit", "letterbox", "--fill", "7", "--json")
    (answer,) = json.loads(call("run", "m.onnx", image, *options).out)["images"]
    assert network.seen[-1][0, 0, 0, 0] == 7
    assert answer["image_size"] == [20, 40]
    assert answer["image_scale"] == [0.2, 0.2]
    assert answer["image_offset"] == [2, 0]
    assert answer["inputs"] == {"x": [1, 1, 8, 8]}
    assert call("run", "m.onnx", image, "--fit", "anyhow").code == 2
    assert call("run", "m.onnx", image, "--fill", "256").code == 2


def test_options_say_what_metadata_do_not(
    network: FakeNetwork, call: Call, picture: Picture
) -> None:
    network.shape = (1, 8, 8, 3)
    image = picture((51, 102, 255), mode="RGB")
    options = ("--layout", "NHWC", "--scale", "1/255", "--mean", "0.2,0.2,0.5", "--std=0.5")
    assert call("run", "m.onnx", image, *options).code == 0
    np.testing.assert_allclose(network.seen[-1][0, 0, 0], [0.0, 0.4, 1.0], atol=1e-6)
    assert "try --layout NHWC" in call("run", "m.onnx", image).err
    for wrong in ("--mean=1,2", "--mean=x", "--std=0", "--std=nan"):
        result = call("run", "m.onnx", image, wrong)
        assert result.code == 2, wrong
        assert wrong[:5] in result.err


def test_arrays_are_inputs_too(network: FakeNetwork, call: Call, tmp_path: Path) -> None:
    x = np.full((1, 1, 8, 8), 0.35, np.float64)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    result = call("run", "m.onnx", str(tmp_path / "x.npy"), str(tmp_path / "x.npz"), "--json")
    document = json.loads(result.out)
    assert [image["answers"][0]["label"] for image in document["images"]] == ["3", "3"]
    assert "image_size" not in document["images"][0]


def test_a_network_of_several_inputs_takes_them_by_name(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "two.onnx"
    add = helper.make_node("Add", ["a", "b"], ["y"])
    file.write_bytes(model([add], {"a": (2, 5), "b": (2, 5)}, ["y"]).SerializeToString())
    np.savez(tmp_path / "ab.npz", a=np.ones((2, 5)), b=np.arange(10.0).reshape(2, 5))
    result = call("run", str(file), str(tmp_path / "ab.npz"), "--repeat", "1")
    assert result.code == 0, result.err
    assert result.out.splitlines()[2].split()[1:7] == ["y", "2x5", FLOAT32, "1", "5.5", "10"]


def test_arrays_of_other_dtypes_are_noted_or_refused(
    network: FakeNetwork, call: Call, tmp_path: Path
) -> None:
    for dtype in (FLOAT16, FLOAT32, FLOAT64, "uint8", "int64", "bool"):
        np.save(tmp_path / f"{dtype}.npy", np.ones((1, 1, 8, 8), dtype))
    shown = call("run", "m.onnx", str(tmp_path / "float64.npy"), "--json")
    (image,) = json.loads(shown.out)["images"]
    note = "x is float64, converted to float32 (--dtype float64 computes in float64)"
    assert image["image_notes"] == [note]
    assert f"float64.npy: {note}" in call("run", "m.onnx", str(tmp_path / "float64.npy")).out
    for exact in (FLOAT16, FLOAT32):
        assert "converted" not in call("run", "m.onnx", str(tmp_path / f"{exact}.npy")).out
    for dtype in ("uint8", "int64", "bool"):
        refused = call("run", "m.onnx", str(tmp_path / f"{dtype}.npy"))
        assert refused.code == 1
        assert f"holds x of {dtype}[1x1x8x8]; expected float32" in refused.err
        assert "give x.astype('float32')" in refused.err


@pytest.mark.parametrize(
    "given", [("--preset", "unit"), ("--scale", "1/255", "--mean", "0.5"), ("--multiple", "32")]
)
def test_options_of_pictures_are_not_taken_for_arrays(
    network: FakeNetwork, call: Call, tmp_path: Path, picture: Picture, given: tuple[str, ...]
) -> None:
    sample = str(tmp_path / "x.npy")
    np.save(sample, np.ones((1, 1, 8, 8), np.float32))
    refused = call("run", "m.onnx", sample, *given)
    assert refused.code == 2
    assert f"{given[0]}" in refused.err
    assert "x.npy" in refused.err
    assert call("run", "m.onnx", sample, picture(3), *given).code == 0
    assert "there are no pictures" in call("verify", "m.onnx", *given).err


def test_one_bad_picture_does_not_take_the_answers_of_the_others(
    network: FakeNetwork, call: Call, picture: Picture, tmp_path: Path
) -> None:
    good, bad, other = picture(191), tmp_path / "notpic.jpg", picture(7)
    bad.write_text("no picture")
    line = ("run", "m.onnx", good, str(bad), str(tmp_path / "absent.png"), other)
    shown = call(*line)
    assert shown.code == 1
    assert good in shown.out
    assert other in shown.out
    complaints = shown.err.splitlines()
    pairs = zip(("notpic.jpg", "absent.png"), complaints, strict=True)
    assert all(name in text for name, text in pairs)
    result = call(*line, "--json")
    document = json.loads(result.out)
    assert result.code == 1
    assert [image["image"] for image in document["images"]] == [good, other]
    assert [image["image"] for image in document["failed"]] == list(line[3:5])
    nothing = call("run", "m.onnx", str(bad), str(tmp_path / "absent.png"))
    assert (nothing.code, nothing.out, len(nothing.err.splitlines())) == (1, "", 2)


def test_memory_is_that_of_the_size_that_takes_most(
    call: Call, tmp_path: Path, picture: Picture
) -> None:
    file = tmp_path / "relu.onnx"
    ends = [("x", "a"), ("a", "y")]
    nodes = [helper.make_node("MaxPool", [a], [b], kernel_shape=[2, 2]) for a, b in ends]
    made = model(nodes, {"x": ("N", 1, "H", "W")}, ["y"], {})
    file.write_bytes(made.SerializeToString())
    images = [picture(7, size) for size in ((8, 8), (64, 64), (16, 16))]
    line = ("run", str(file), *images, "--preset", "unit", "--repeat", "1")
    document = json.loads(call(*line, "--json").out)
    each = [image["memory_predicted_bytes"] for image in document["images"]]
    assert each[0] < each[2] < each[1]
    assert document["memory_predicted_bytes"] == document["memory_used_bytes"] == each[1]
    assert f"memory of the size that takes most: predicted {each[1]:,} bytes" in call(*line).out


def test_a_size_that_does_not_fit_the_layers_gets_a_hint(
    call: Call, tmp_path: Path, picture: Picture
) -> None:
    nodes = [
        helper.make_node("MaxPool", ["x"], ["half"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Resize", ["half", "", "scales"], ["twice"], mode="nearest"),
        helper.make_node("Add", ["x", "twice"], ["y"]),
    ]
    scales = np.array([1, 1, 2, 2], np.float32)
    file = tmp_path / "unet.onnx"
    made = model(nodes, {"x": ("N", 1, "H", "W")}, ["y"], {"scales": scales})
    file.write_bytes(made.SerializeToString())
    image = picture(7, size=(9, 8))
    result = call("run", str(file), image, "--preset", "unit")
    assert result.code == 1
    assert "try --multiple 2," in result.err
    assert "--multiple 32" not in result.err
    assert call("run", str(file), image, "--preset", "unit", "--multiple", "2").code == 0
