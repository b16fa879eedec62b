"""Commands on networks whose inputs or outputs are integers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import leanconv
from leanconv.cli.engines import machine
from leanconv.cli.network_inputs import input_shapes, random_inputs
from support.cli_fakes import Call
from support.typed_models import MODELS, arrays

SHAPES = {
    name: tuple(
        word
        for each, array in arrays(name, 1, 8, 9).items()
        for word in ("--shape", f"{each}={'x'.join(map(str, array.shape))}")
    )
    for name in MODELS
}


@pytest.mark.parametrize("name", MODELS)
def test_commands_that_make_their_inputs(name: str, call: Call, tmp_path: Path) -> None:
    file = str(tmp_path / "network.onnx")
    onnx.save(MODELS[name](), file)
    for command in ("explain", "verify", "profile", "warm"):
        result = call(command, file, *SHAPES[name], "--json")
        assert result.code == 0, (command, result.out, result.err)
        assert json.loads(result.out)


def test_random_inputs_are_of_the_types_that_are_declared() -> None:
    net = leanconv.load(MODELS["masked_attention"]())
    shapes = input_shapes(net, [("x", (1, 9, 16)), ("mask", (1, 9))])
    found = random_inputs(net, shapes)
    assert {name: x.dtype for name, x in found.items()} == {"x": "float32", "mask": "int64"}
    assert np.isfinite(net.run(found)["y"]).all()


def test_an_image_for_a_network_that_takes_bytes(call: Call, tmp_path: Path) -> None:
    from PIL import Image

    file, picture = str(tmp_path / "network.onnx"), str(tmp_path / "picture.png")
    onnx.save(MODELS["byte_images"](), file)
    pixels = arrays("byte_images", 1, 8, 9)["x"]
    Image.fromarray(pixels[0]).save(picture)
    result = call("run", file, picture, "--layout", "NHWC", "--json")
    assert result.code == 0, result.out + result.err
    wanted = leanconv.load(MODELS["byte_images"]())(pixels)
    assert f"{wanted.max():.4f}"[:5] in result.out


def test_bench_takes_integers(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(machine, "wait_until_quiet", lambda *_: 0.0)
    name, file = "masked_attention", str(tmp_path / "network.onnx")
    onnx.save(MODELS[name](), file)
    few = ("--processes", "1", "--rounds", "1", "--seconds", "0.01", "--threads", "1")
    engines = ("--engine", "leanconv", "--engine", "onnxruntime")
    result = call("bench", file, *SHAPES[name], *engines, *few, "--json")
    assert result.code == 0, result.out + result.err
    (case,) = json.loads(result.out)["cases"]
    assert set(case["engines"]) == {"leanconv", "onnxruntime"}
