"""`lc.quantize` on the digits network and on small ones, judged by onnx and onnxruntime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import leanconv as lc
from leanconv.cli.main import main
from leanconv.errors import InputError, LeanConvError, ModelError, SpecError, UnsupportedError
from leanconv.quantizer.samples import Arrays, checked_samples
from support.networks_to_quantise import fixed_times, model, normal
from support.pruned_networks import chain

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
NANS = np.full((1, 4, 3, 3), np.nan, np.float32)


def digits() -> tuple[np.ndarray, np.ndarray]:
    """The held-out digits as the network takes them, and what they show."""
    held = np.load(DIGITS / "held_out.npz")
    images = (held["images"].astype(np.float32) / 255.0 - 0.5) / 0.5
    return images.astype(np.float32), held["labels"]


def judged(data: bytes, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What onnxruntime gives for a file that onnx finds valid."""
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, inputs)
    return found


@pytest.mark.parametrize("ranges", ["min-max", "mse", "percentile", "entropy"])
def test_digits_keep_their_answers(ranges: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed_times(monkeypatch)
    images, labels = digits()
    made = lc.quantize(DIGITS / "digits.onnx", images[:120], ranges=ranges, threads=1)
    exact = lc.load(DIGITS / "digits.onnx")(images)
    (found,) = judged(made.data, {"input": images})
    assert np.mean(found.argmax(1) == exact.argmax(1)) >= 0.995
    assert np.mean(found.argmax(1) == labels) >= 0.99
    assert made.score >= 0.98
    assert made.samples == (8, 7)
    assert made.error < 0.03
    assert {layer.precision for layer in made.layers} == {"int8"}
    assert len(made.data) < (DIGITS / "digits.onnx").stat().st_size / 2


def test_what_is_measured_is_what_onnxruntime_gives() -> None:
    images, labels = digits()
    made = lc.quantize(DIGITS / "digits.onnx", images[:64], labels=labels[:64], threads=1)
    assert made.score_name == "accuracy"
    held_out = np.concatenate([images[begin : begin + 8] for begin in range(8, 64, 16)])
    (found,) = judged(made.data, {"input": held_out})
    exact = lc.load(DIGITS / "digits.onnx")(held_out)
    error = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    assert made.error == pytest.approx(error, rel=0.2)


_CONV = helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1])
_NETWORKS = {
    "normalised": (
        [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
            helper.make_node("Mul", ["two", "n"], ["t"]),
            helper.make_node("Sub", ["t", "b3"], ["r"]),
            helper.make_node("Relu", ["r"], ["y"]),
        ],
        {"s": normal(5, seed=1), "m": normal(5, seed=2), "v": normal(5, seed=3) ** 2},
    ),
    "residual": (
        [
            _CONV,
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("Conv", ["r", "w5"], ["d"], pads=[1, 1, 1, 1]),
            helper.make_node("Add", ["d", "r"], ["a"]),
            helper.make_node("Concat", ["a", "c"], ["k"], axis=1),
            helper.make_node("MaxPool", ["k"], ["p"], kernel_shape=[2, 2]),
            helper.make_node("Conv", ["p", "w10"], ["y"]),
        ],
        {"w5": normal(5, 5, 3, 3, seed=4), "w10": normal(3, 10, 1, 1, seed=5)},
    ),
    "products": (
        [
            _CONV,
            helper.make_node("GlobalAveragePool", ["c"], ["g"]),
            helper.make_node("Flatten", ["g"], ["f"]),
            helper.make_node("Gemm", ["f", "wg", "bg"], ["h"], transB=1),
            helper.make_node("Relu", ["h"], ["i"]),
            helper.make_node("MatMul", ["i", "wm"], ["j"]),
            helper.make_node("Softmax", ["j"], ["y"], axis=1),
        ],
        {"wg": normal(7, 5), "bg": normal(7), "wm": normal(7, 4)},
    ),
    "transposed": (
        [
            _CONV,
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("ConvTranspose", ["r", "wt", "bt"], ["t"], name="up", strides=[2, 2]),
            helper.make_node("Sigmoid", ["t"], ["h"]),
            helper.make_node(
                "ConvTranspose", ["h", "wu"], ["y"], strides=[3, 2], pads=[1, 0, 0, 1]
            ),
        ],
        {"wt": normal(5, 6, 2, 2), "bt": normal(6), "wu": normal(6, 3, 3, 4)},
    ),
    "grouped": (
        [
            helper.make_node("Conv", ["x", "wd"], ["d"], group=4, pads=[1, 1, 1, 1]),
            helper.make_node("Sigmoid", ["d"], ["s0"]),
            helper.make_node("Mul", ["d", "s0"], ["t"]),
            helper.make_node("ConvTranspose", ["t", "wt"], ["u"], group=2, strides=[2, 2]),
            helper.make_node("Add", ["u", "b6"], ["e"]),
            helper.make_node("Conv", ["e", "w6"], ["y"]),
        ],
        {
            "wd": normal(8, 1, 3, 3),
            "wt": normal(8, 3, 2, 2),
            "b6": normal(1, 6, 1, 1),
            "w6": normal(2, 6, 1, 1),
        },
    ),
}


@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize("name", _NETWORKS)
def test_small_networks(name: str, opset: int) -> None:
    nodes, weights = _NETWORKS[name]
    shared = {"w": normal(5, 4, 3, 3), "b": normal(5), "two": np.float32(2) * np.ones(1, "f")}
    shared["b3"] = normal(5, 1, 1)
    read = {each for node in nodes for each in node.input}
    held = {key: array for key, array in {**shared, **weights}.items() if key in read}
    rank = 2 if name == "products" else 4
    data = model(nodes, ["n", 4, 8, 8], held, opset, rank)
    samples = [normal(1, 4, 8, 8, seed=seed) for seed in range(8)]
    made = lc.quantize(data, samples, threads=1)
    assert made.error < 0.08
    x = normal(3, 4, 8, 8, seed=99)
    (found,), (exact,) = judged(made.data, {"x": x}), judged(data, {"x": x})
    assert np.linalg.norm(found - exact) < 0.08 * np.linalg.norm(exact)
    parsed = onnx.load_from_string(made.data)
    assert "BatchNormalization" not in {node.op_type for node in parsed.graph.node}


def test_a_transposed_convolution_is_quantised_as_others_are() -> None:
    nodes, weights = _NETWORKS["transposed"]
    data = model(nodes, ["n", 4, 8, 8], {"w": normal(5, 4, 3, 3), "b": normal(5), **weights}, 14)
    made = lc.quantize(data, [normal(1, 4, 8, 8, seed=seed) for seed in range(8)], threads=1)
    assert {layer.op for layer in made.layers} == {"Conv", "ConvTranspose"}
    held = {array.name: array for array in onnx.load_from_string(made.data).graph.initializer}
    kinds = {array.data_type for name, array in held.items() if name.startswith(("wt", "wu"))}
    assert onnx.TensorProto.INT8 in kinds
    x = normal(2, 4, 8, 8, seed=99)
    (expected,) = judged(made.data, {"x": x})
    found = lc.load(made.data, threads=1)(x)
    np.testing.assert_allclose(found, expected, atol=0.05 * np.abs(expected).max())


def test_zeros_of_a_pruned_network_stay_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which float32 leaves out and codes multiply: no more weights are not 0."""
    fixed_times(monkeypatch)
    built = chain((0.95, 0.9))
    images = np.random.default_rng(0).standard_normal((10, 1, 64, 28, 28)).astype(np.float32)
    made = lc.quantize(built, [{"x": each} for each in images], threads=1)
    assert {layer.precision for layer in made.layers} == {"int8"}
    graph = onnx.load_from_string(made.data).graph
    arrays = [onnx.numpy_helper.to_array(each) for each in graph.initializer]
    zeros = sorted(np.mean(each == 0) for each in arrays if each.ndim == 4)
    assert len(zeros) == 2
    assert (zeros[0] >= 0.895, zeros[1] >= 0.945) == (True, True)
    net = lc.load(made.data, threads=1)
    session = onnxruntime.InferenceSession(made.data, providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": images[0]})
    np.testing.assert_allclose(net(images[0]), wanted, rtol=0, atol=1e-5)
    assert not any(step.algorithm == "sparse" for step in net.plan.steps)


def test_softmax_over_several_axes_is_kept() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Softmax", ["c"], ["s"]),
        helper.make_node("Squeeze", ["s"], ["y"], axes=[2]),
    ]
    data = model(nodes, [2, 4, 1, 6], {"w": normal(5, 4, 1, 1)}, 11, 3)
    made = lc.quantize(data, [normal(2, 4, 1, 6)], threads=1)
    x = normal(2, 4, 1, 6)
    (found,), (exact,) = judged(made.data, {"x": x}), judged(data, {"x": x})
    assert found.shape == exact.shape == (2, 5, 6)
    assert np.abs(found - exact).max() < 0.05


def test_a_large_bias_fits() -> None:
    weights = {"w": normal(2, 4, 1, 1) * np.float32(1e-9), "b": np.array([1e4, -2e4], np.float32)}
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"])]
    data = model(nodes, [1, 4, 3, 3], weights)
    x = normal(1, 4, 3, 3)
    made = lc.quantize(data, [x, x], threads=1)
    (found,) = judged(made.data, {"x": x})
    np.testing.assert_allclose(found[0, :, 0, 0], weights["b"], rtol=1e-5)


def test_samples_in_files_and_functions(tmp_path: Path) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    data = model(nodes, [1, 4, 3, 3], {"w": normal(2, 4, 1, 1)})
    arrays = [normal(1, 4, 3, 3, seed=seed) for seed in range(4)]
    for number, array in enumerate(arrays):
        np.savez(tmp_path / f"{number}.npz", x=array)
    first = lc.quantize(data, arrays, threads=1)
    assert lc.quantize(data, tmp_path, threads=1).data == first.data
    assert lc.quantize(data, ({"x": x} for x in arrays), threads=1).data == first.data
    seen: list[str] = []
    lc.quantize(data, arrays, threads=1, progress=lambda stage, *_: seen.append(stage))
    assert {"calibrating inputs", "scoring held out samples"} <= set(seen)
    scores = []

    def metric(found: Arrays, exact: Arrays, inputs: Arrays) -> float:
        scores.append(float(np.abs(found["y"] - exact["y"]).max()))
        assert inputs["x"].shape == (1, 4, 3, 3)
        return 0.25

    made = lc.quantize(data, arrays, metric=metric, threads=1)
    assert (made.score_name, made.score, made.float_score) == ("metric", 0.25, 0.25)
    assert scores


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"samples": []}, InputError, "no samples"),
        ({"samples": 3}, InputError, "expected an array"),
        ({"samples": "nofile"}, InputError, "sample 'nofile' cannot be read: there is no such"),
        ({"samples": ["no.npy"]}, InputError, "sample 'no.npy' cannot be read: there is no"),
        ({"samples": "a\0b"}, InputError, "cannot be read"),
        ({"samples": [normal(1, 4, 3)]}, InputError, "expected float32\\[1x4x3x3"),
        ({"samples": {"z": normal(1, 4, 3, 3)}}, InputError, "holds z; expected x"),
        ({"samples": [NANS]}, InputError, "sample 1 of 1: input 'x' has NaN"),
        ({"samples": [normal(1, 4, 3, 3), NANS]}, InputError, "sample 2 of 2: input 'x' has NaN"),
        ({"samples": [np.full((1, 4, 3, 3), np.inf, np.float32)]}, InputError, "infinity"),
        ({"ranges": "best"}, SpecError, "min-max"),
        ({"labels": [1, 2, 3]}, InputError, "expected a whole number for each of"),
        ({"labels": [1], "metric": len}, SpecError, "one of them"),
        ({"metric": 3}, SpecError, "expected a function"),
        ({"metric": lambda *_: 1 / 0}, InputError, "ZeroDivisionError"),
        ({"metric": lambda *_: float("nan")}, InputError, "finite"),
    ],
)
def test_what_does_not_fit_is_refused(
    changes: dict[str, Any], error: type[LeanConvError], words: str
) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    data = model(nodes, [1, 4, 3, 3], {"w": normal(2, 4, 1, 1)})
    given = {"samples": [normal(1, 4, 3, 3)], "threads": 1, **changes}
    with pytest.raises(error, match=words):
        lc.quantize(data, **given)


def test_one_array_is_halved() -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    data = model(nodes, ["n", 4, 3, 3], {"w": normal(2, 4, 1, 1)})
    spec = lc.load(data, threads=1).inputs
    for count in (9, 16, 24, 100):
        taken = checked_samples(normal(count, 4, 3, 3), spec)
        first, second = (sum(len(s["x"]) for s in taken.half(n)) for n in (0, 1))
        assert first + second == count
        assert 0 <= first - second <= 8
        assert max(len(s["x"]) for s in taken) <= 8
    with pytest.raises(InputError, match="sample 1 of 1: input 'x' is empty"):
        lc.quantize(data, normal(0, 4, 3, 3), threads=1)


def test_outputs_that_overflow_in_float_are_refused() -> None:
    conv = [helper.make_node("Conv", ["x", "w"], ["y"])]
    data = model(conv, [1, 4, 3, 3], {"w": np.full((2, 4, 1, 1), 3e38, np.float32)})
    large = np.full((1, 4, 3, 3), 100.0, np.float32)
    with pytest.raises(ModelError, match="output 'y' has NaN or infinite numbers in float32"):
        lc.quantize(data, [large, large], threads=1)
    with pytest.raises(ModelError, match="on sample 2"):
        lc.quantize(data, [large * np.float32(1e-9), large], threads=1)


def test_networks_that_cannot_be_quantised() -> None:
    x, w = normal(1, 4, 3, 3), normal(2, 4, 1, 1)
    relu = model([helper.make_node("Relu", ["x"], ["y"])], [1, 4, 3, 3], {})
    with pytest.raises(UnsupportedError, match="no Conv, Gemm or MatMul"):
        lc.quantize(relu, [x])
    conv = [helper.make_node("Conv", ["x", "w"], ["y"])]
    with pytest.raises(UnsupportedError, match="opset 10; expected 11"):
        lc.quantize(model(conv, [1, 4, 3, 3], {"w": w}, opset=10), [x])
    with pytest.raises(ModelError, match="weights that are NaN"):
        lc.quantize(model(conv, [1, 4, 3, 3], {"w": w * np.float32(np.nan)}), [x])
    with pytest.raises(InputError, match="cannot be read"):
        lc.quantize("no such file.onnx", [x])


def test_nodes_that_nothing_needs_do_not_matter() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"]),
        helper.make_node("Conv", ["x", "w", "w"], ["z"], group=3),
        helper.make_node("BatchNormalization", ["z", "w", "w", "w", "w"], ["u"]),
    ]
    data = model(nodes, [1, 4, 3, 3], {"w": normal(2, 4, 1, 1)})
    assert len(lc.quantize(data, [normal(1, 4, 3, 3)], threads=1).layers) == 1
    wrong = [helper.make_node("Conv", ["x", "w"], ["y"], group=3)]
    data = model(wrong, ["n", 4, 3, 3], {"w": normal(2, 4, 1, 1)})
    with pytest.raises(LeanConvError, match="group|channels"):
        lc.quantize(data, [normal(1, 4, 3, 3)], threads=1)


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed_times(monkeypatch)
    images, labels = digits()
    folder = tmp_path / "samples"
    folder.mkdir()
    for number in range(12):
        np.save(folder / f"{number:02}.npy", images[number : number + 1])
    np.save(tmp_path / "labels.npy", labels[:12])
    given = ["quantize", str(DIGITS / "digits.onnx"), str(folder), "-o", str(tmp_path / "q.onnx")]
    assert main([*given, "--threads", "1", "--labels", str(tmp_path / "labels.npy")]) == 0
    said, told = capsys.readouterr()
    assert "23 of 23 layers in int8; accuracy" in said
    assert said.split("\n")[0].split() == ["layer", "operation", "parameters", "precision", "time"]
    assert "time -: computed together with the next layer below" in said
    assert said.count("the score is of 12 samples") == 1
    assert "the score" not in told  # warnings stand in what is printed alone
    assert len(set(told.splitlines())) == len(told.splitlines())
    assert " of " not in told.replace("inputs of layers", "")
    (found,) = judged((tmp_path / "q.onnx").read_bytes(), {"input": images[:12]})
    assert found.shape == (12, 10)


def test_the_command_s_metrics_and_pages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes, weights = _NETWORKS["residual"]
    held = {"w": normal(5, 4, 3, 3), "b": normal(5), **weights}
    network, folder = tmp_path / "small.onnx", tmp_path / "samples"
    network.write_bytes(model(nodes, ["n", 4, 8, 8], held))
    folder.mkdir()
    for number in range(12):
        np.save(folder / f"{number:02}.npy", normal(1, 4, 8, 8, seed=number))
    script = tmp_path / "metric.py"
    script.write_text("def score(found, exact, inputs):\n    return 0.5\n")
    given = ["quantize", str(network), str(folder), "-o", str(tmp_path / "q.onnx")]
    assert main([*given, "--threads", "1", "--json", "--metric", str(script)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["score"] == 0.5
    assert report["verified_on"] == 6
    page = tmp_path / "page.html"
    drop = ["--max-accuracy-drop", "1", "--metric", str(script), "--html", str(page)]
    assert main([*given, "--threads", "1", *drop]) == 0
    html = page.read_text("utf-8")
    assert html.startswith("<!doctype html>")
    assert html.count("<svg") == html.count("</svg>") >= 1
    assert "int8" in html
    script.write_text("score = 3\n")
    assert main([*given, "--metric", str(script)]) == 1
    assert main([*given, "--metric", str(script), "--labels", "x.npy"]) == 2
    assert main([*given[:2], str(tmp_path / "none"), *given[3:]]) == 1
    (tmp_path / "empty").mkdir()
    assert main([*given[:2], str(tmp_path / "empty"), *given[3:]]) == 1
    assert "holds no files" in capsys.readouterr().err


def test_the_command_refuses_what_it_must_not_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = tmp_path / "digits.onnx"
    network.write_bytes((DIGITS / "digits.onnx").read_bytes())
    np.save(tmp_path / "one.npy", digits()[0][:1])
    given = ["quantize", str(network), str(tmp_path / "one.npy"), "--threads", "1", "-o"]
    assert main([*given, str(network)]) == 1
    assert "is the float32 network itself" in capsys.readouterr().err
    assert main([*given, str(tmp_path / "none" / "q.onnx")]) == 1
    assert "cannot be written: there is no folder" in capsys.readouterr().err
    assert main([*given, str(tmp_path / "q.onnx"), "--html", str(tmp_path / "none" / "q")]) == 1
    assert "cannot be written: there is no folder" in capsys.readouterr().err
    assert not (tmp_path / "q.onnx").exists()
    assert main([*given, str(tmp_path / "q.onnx")]) == 0
    assert "on the only sample, on which it was calibrated too" in capsys.readouterr().out
