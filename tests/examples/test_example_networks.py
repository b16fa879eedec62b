"""The network builders: valid ONNX, the papers' sizes, sane outputs that see the image."""

from __future__ import annotations

from math import erf
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from examples.networks import (
    FULL_NETWORKS,
    SMALL_NETWORKS,
    mobilenet_v2,
    resnet50,
    resnet101,
    vgg16,
)
from examples.networks.build import main as build
from examples.networks.builder import NetBuilder
from examples.networks.images import random_images
from examples.networks.layers import activation, divisible

OPSETS = (7, 8, 9, 10, 11, 12, 13, 15, 18, 20, 22)
OLDEST = {"convnext_like": 9, "segmentation_like": 13}


def parameters(model: onnx.ModelProto) -> int:
    """Count what training would change: everything but constants and running statistics."""
    return sum(
        int(np.prod(tensor.dims))
        for tensor in model.graph.initializer
        if "." in tensor.name and "running" not in tensor.name
    )


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """Run on onnxruntime, one thread."""
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, {"input": x})[0])


def image_shape(model: onnx.ModelProto) -> tuple[int, int, int]:
    _, *sizes = (axis.dim_value for axis in model.graph.input[0].type.tensor_type.shape.dim)
    channels, height, width = sizes
    return channels, height, width


@pytest.mark.parametrize("name", SMALL_NETWORKS)
def test_small_networks_run_and_see_the_image(name: str) -> None:
    model = SMALL_NETWORKS[name]()
    onnx.checker.check_model(model, full_check=True)
    y = run(model, random_images((6, *image_shape(model)), seed=5))
    declared = [axis.dim_value or 6 for axis in model.graph.output[0].type.tensor_type.shape.dim]
    assert list(y.shape) == declared
    assert np.isfinite(y).all()
    spread = np.sqrt(np.square(y).mean())
    assert 0.05 < spread < 30
    assert y.std(axis=0).mean() > 0.1 * spread  # images differ, and so do their answers
    assert len(model.SerializeToString()) < 1_000_000


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("name", SMALL_NETWORKS)
def test_every_opset_is_valid(name: str, opset: int) -> None:
    if opset < OLDEST.get(name, 7):
        with pytest.raises(ValueError, match=r"expected .*(9|13) or later"):
            SMALL_NETWORKS[name](opset=opset)
    else:
        onnx.checker.check_model(SMALL_NETWORKS[name](opset=opset), full_check=True)


@pytest.mark.parametrize("name", FULL_NETWORKS)
def test_full_networks_at_small_width(name: str) -> None:
    model = FULL_NETWORKS[name](image=64, width=0.125, classes=20, seed=3)
    onnx.checker.check_model(model, full_check=True)
    y = run(model, random_images((4, 3, 64, 64), seed=2))
    assert y.shape == (4, 20)
    assert 0.2 < np.sqrt(np.square(y).mean()) < 30
    assert y.std(axis=0).mean() > 0.05


def test_parameter_counts_are_the_papers() -> None:
    assert parameters(mobilenet_v2()) == 3_504_872
    assert parameters(mobilenet_v2(folded=True)) == 3_487_816
    assert parameters(resnet50()) == 25_557_032


def test_parameter_counts_of_the_large_networks() -> None:
    assert parameters(resnet101()) == 44_549_160
    at_32 = parameters(vgg16(image=32))  # 224 would draw half a gigabyte
    assert at_32 + (7 * 7 - 1) * 512 * 4096 == 138_357_544


def test_batch_norm_is_unfolded_and_the_topology_right() -> None:
    ops = [node.op_type for node in mobilenet_v2().graph.node]
    assert (ops.count("Conv"), ops.count("BatchNormalization"), ops.count("Clip")) == (52, 52, 35)
    assert (ops.count("Add"), ops.count("Gemm"), ops.count("GlobalAveragePool")) == (10, 1, 1)
    convs = [n for n in resnet101(width=0.05).graph.node if n.op_type == "Conv"]
    assert len(convs) == 104


def test_sizes_and_symbols() -> None:
    def dims(model: onnx.ModelProto) -> list[int | str]:
        return [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]

    assert dims(mobilenet_v2(width=0.35)) == ["N", 3, 224, 224]
    assert dims(mobilenet_v2(width=0.35, image=None)) == ["N", 3, "H", "W"]
    assert dims(resnet50(width=0.1, image=(96, 160), batch=8)) == [8, 3, 96, 160]


def test_the_seed_decides() -> None:
    first, again, other = (mobilenet_v2(width=0.1, seed=s).SerializeToString() for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_given_weights_are_used_and_checked() -> None:
    given = {
        t.name: numpy_helper.to_array(t) for t in mobilenet_v2(width=0.1, seed=1).graph.initializer
    }
    assert mobilenet_v2(width=0.1, seed=9, params=given) == mobilenet_v2(width=0.1, seed=1)
    with pytest.raises(ValueError, match=r"stem.conv.weight.*got shape .*expected"):
        mobilenet_v2(width=0.1, params={**given, "stem.conv.weight": np.zeros((1, 3, 3, 3))})
    del given["head.bn.bias"]
    with pytest.raises(KeyError, match=r"head\.bn\.bias"):
        mobilenet_v2(width=0.1, params=given)


def test_old_files_list_their_weights_as_inputs() -> None:
    model = mobilenet_v2(width=0.1, opset=7)
    assert model.ir_version == 3
    assert len(model.graph.input) == 1 + len(model.graph.initializer)


@pytest.mark.parametrize(
    ("kind", "opset"),
    [
        (k, o)
        for k in ("relu6", "hard_swish", "gelu", "silu", "hard_sigmoid", "elu")
        for o in (9, 14, 20)
    ],
)
def test_activations_mean_the_same_in_every_opset(kind: str, opset: int) -> None:
    b = NetBuilder("one", opset=opset)
    b.output(activation(b, b.input(1, 8, 1), kind), [1, 1, 8, 8])
    x = np.linspace(-8, 8, 64, dtype=np.float32).reshape(1, 1, 8, 8)
    double = x.astype(np.float64)
    expected = {
        "relu6": np.clip(double, 0, 6),
        "hard_swish": double * np.clip(double / 6 + 0.5, 0, 1),
        "hard_sigmoid": np.clip(double / 6 + 0.5, 0, 1),
        "gelu": 0.5 * double * (1 + np.vectorize(erf)(double / np.sqrt(2))),
        "silu": double / (1 + np.exp(-double)),
        "elu": np.where(double > 0, double, np.expm1(double)),
    }[kind]
    assert np.abs(run(b.build(), x) - expected).max() < 2e-6


def test_divisible_follows_the_width_rule() -> None:
    assert [divisible(c) for c in (32 * 0.35, 16 * 0.35, 24 * 0.35, 320 * 1.4, 24)] == [
        16,
        8,
        8,
        448,
        24,
    ]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "models" / "m.onnx"
    assert (
        build(
            [
                "mobilenetv2",
                "--out",
                str(path),
                "--width",
                "0.1",
                "--image",
                "64x96",
                "--batch",
                "2",
            ]
        )
        == 0
    )
    assert run(onnx.load(path), random_images((2, 3, 64, 96))).shape == (2, 1000)
    assert [p.name for p in path.parent.iterdir()] == ["m.onnx"]
    assert "153 nodes" in capsys.readouterr().out
    split = tmp_path / "e.onnx"
    assert build(["resnext_like", "--out", str(split), "--external"]) == 0
    assert (tmp_path / "e.onnx.data").stat().st_size > split.stat().st_size
    with pytest.raises(SystemExit) as stopped:
        build(["alexnet_like", "--out", str(split), "--image", "64"])
    assert stopped.value.code == 2
    assert "no option --image" in capsys.readouterr().err
