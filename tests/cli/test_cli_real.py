"""The command line on the real library: real files in, answers out; bad files end as one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import helper

from leanconv.cli import bench
from leanconv.cli.engines import machine
from support.cli_fakes import Call
from support.onnx_models import model, small_cnn

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
MODEL = str(DIGITS / "digits.onnx")
PICTURE = str(DIGITS / "images" / "digit_7_a.png")
QUICK = ("--processes", "1", "--rounds", "1", "--seconds", "0.02", "--threads", "1")


@pytest.fixture
def cnn(tmp_path: Path) -> str:
    """A small network whose batch and image size are open."""
    file = tmp_path / "cnn.onnx"
    file.write_bytes(small_cnn().SerializeToString())
    return str(file)


def test_run(call: Call) -> None:
    result = call("run", MODEL, PICTURE, str(DIGITS / "images" / "digit_4_b.png"), "--repeat", "3")
    assert result.code == 0, result.err
    rows = [line.split() for line in result.out.splitlines() if "digit_" in line]
    assert [row[1] for row in rows] == ["7", "4"]
    assert "as predicted" in result.out
    assert "NOT" not in result.out


@pytest.mark.parametrize("options", [(), ("--threads", "1"), ("--dtype", "float64")])
def test_run_json(call: Call, options: tuple[str, ...]) -> None:
    document = json.loads(call("run", MODEL, PICTURE, "--json", "--top", "2", *options).out)
    assert document["memory_predicted_bytes"] == document["memory_used_bytes"] > 0
    (image,) = document["images"]
    assert image["answers"][0]["label"] == "7"
    assert image["answers"][0]["probability"] > 0.9
    assert len(image["answers"]) == 2
    assert image["latency_ns"] > 0


def test_run_with_too_small_a_budget_names_the_one_that_works(call: Call) -> None:
    refused = call("run", MODEL, PICTURE, "--memory-limit", "100 KiB")
    assert refused.code == 1
    assert refused.out == ""
    needed = refused.err.split("--memory-limit ")[1].split()[0]
    assert call("run", MODEL, PICTURE, "--memory-limit", needed).code == 0


@pytest.mark.parametrize("options", [(), ("--dtype", "float64"), ("--threads", "1")])
def test_explain_a_problem(call: Call, options: tuple[str, ...]) -> None:
    problem = "ic16ih20iw24oc32oh10ow12kh3sh2ph1"
    document = json.loads(call("explain", problem, "--json", *options).out)
    assert document["problem"].startswith("mb1ic16ih20iw24")
    assert document["flops"] == 2 * 32 * 10 * 12 * 16 * 9
    assert document["memory_bytes"] == document["workspace_bytes"] + document["weight_bytes"]
    assert 0 < document["predicted_error"] < 1e-5
    text = call("explain", problem, *options).out
    assert document["algorithm"] in text


def test_explain_a_problem_over_its_budget(call: Call) -> None:
    result = call("explain", "ic64ih28oc64kh3", "--memory-limit", "1 KiB")
    assert result.code == 1
    assert re.search(r"give --memory-limit \d+ or more", result.err)


def test_profile(call: Call, cnn: str) -> None:
    document = json.loads(call("profile", MODEL, "--batch", "2", "--repeat", "3", "--json").out)
    assert document["inputs"] == {"input": [2, 1, 32, 32]}
    assert sum(layer["share"] for layer in document["layers"]) == pytest.approx(1)
    assert all(layer["calls"] == 3 for layer in document["layers"])
    assert all(
        layer["least_ns"] <= layer["average_ns"] <= layer["most_ns"] for layer in document["layers"]
    )
    text = call("profile", cnn, "--shape", "1,3,16,16", "--repeat", "2", "--sort").out
    assert "GFLOP/s" in text
    assert "stem" in text


def test_bench_a_model_and_a_layer(call: Call, cnn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "wait_until_quiet", lambda *_: 0.0)
    engines = ("--engine", "leanconv", "--engine", "onnxruntime")
    for what in ((cnn, "--shape", "1,3,16,16"), ("ic3ih9oc4kh3",)):
        result = call("bench", *what, *QUICK, *engines, "--json")
        assert result.code == 0, result.err + result.out
        (case,) = json.loads(result.out)["cases"]
        assert case["ratios"]["onnxruntime"] > 0
        assert case["engines"]["leanconv"]["difference"] < 1e-5
    monkeypatch.setattr(bench, "LAYERS", {"one": "ic3ih9oc4kh3", "two": "ic4ih9oc3kh1"})
    document = json.loads(call("bench", "layers", *QUICK, *engines[:2], "--json").out)
    assert [case["name"].split()[0] for case in document["cases"]] == ["one", "two"]


# -- bad input ---------------------------------------------------------------------------------


def bad_models() -> dict[str, Callable[[Path], object]]:
    """Ways to spoil a file, by name."""
    whole = small_cnn().SerializeToString()
    strange = model([helper.make_node("Bernoulli", ["x"], ["y"])], {"x": (1, 3, 8, 8)}, ["y"])
    return {
        "missing.onnx": lambda file: None,
        "folder.onnx": lambda file: file.mkdir(),
        "empty.onnx": lambda file: file.write_bytes(b""),
        "text.onnx": lambda file: file.write_text("Dear Sir or Madam,\n" * 100),
        "truncated.onnx": lambda file: file.write_bytes(whole[: len(whole) // 2]),
        "random.onnx": lambda file: file.write_bytes(bytes(range(256)) * 40),
        "unsupported.onnx": lambda file: file.write_bytes(strange.SerializeToString()),
    }


@pytest.mark.parametrize("name", bad_models())
@pytest.mark.parametrize("command", ["run", "explain", "profile", "bench"])
def test_a_bad_model_is_one_line(call: Call, tmp_path: Path, command: str, name: str) -> None:
    file = tmp_path / name
    bad_models()[name](file)
    result = call(command, str(file), *([PICTURE] if command == "run" else []))
    assert result.code == 1, result.err
    assert result.out == ""
    assert result.err.startswith("leanconv: ")
    assert result.err.count("\n") == 1
    assert name in result.err


@pytest.mark.parametrize("name", ["missing.png", "folder.png", "text.png", "cut.png"])
def test_a_bad_picture_is_one_line(call: Call, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "cut.png").write_bytes(Path(PICTURE).read_bytes()[:200])
    result = call("run", MODEL, str(tmp_path / name))
    assert result.code == 1
    assert name in result.err
    assert result.err.count("\n") == 1


def test_a_network_that_takes_no_picture(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "rows.onnx"
    node = helper.make_node("Relu", ["x"], ["y"])
    file.write_bytes(model([node], {"x": ("N", 5)}, ["y"]).SerializeToString())
    result = call("run", str(file), PICTURE)
    assert result.code == 1
    assert "not an image" in result.err
    add = helper.make_node("Add", ["a", "b"], ["y"])
    two = model([add], {"a": (1, 5), "b": (1, 5)}, ["y"])
    file.write_bytes(two.SerializeToString())
    assert "2 inputs" in call("run", str(file), PICTURE).err


def test_metadata_that_cannot_be_read(call: Call, tmp_path: Path) -> None:
    proto = onnx.load(MODEL)
    next(p for p in proto.metadata_props if p.key == "labels").value = "[1, 2"
    file = tmp_path / "labels.onnx"
    file.write_bytes(proto.SerializeToString())
    result = call("run", str(file), PICTURE)
    assert result.code == 1
    assert "metadata labels" in result.err


def test_an_error_inside_the_run_is_one_line(call: Call, cnn: str) -> None:
    """Shapes are only bound at the first call: what it raises is told like all else."""
    result = call("profile", cnn, "--shape", "1,4,16,16")
    assert result.code == 1
    assert result.err.count("\n") == 1
    assert "1x4x16x16" in result.err


@pytest.mark.parametrize(
    ("variable", "value"),
    [("LEANCONV_TARGET", "z80"), ("LEANCONV_THREADS", "many"), ("LEANCONV_TARGET", "neoverse-n1")],
)
def test_wrong_settings_are_one_line(variable: str, value: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "leanconv", "run", MODEL, PICTURE],
        env={**os.environ, variable: value},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 1, result.stderr
    assert result.stdout == ""
    # On a busy machine a line of progress comes before it.
    (line,) = [line for line in result.stderr.splitlines() if not line.endswith(" …")]
    assert line.startswith("leanconv: ")


def test_a_cache_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    """At the default level of logs, on one line; the answer comes all the same."""
    (tmp_path / "file").write_text("")
    result = subprocess.run(
        [sys.executable, "-m", "leanconv", "run", MODEL, PICTURE, "--json"],
        env={**os.environ, "LEANCONV_CACHE_DIR": str(tmp_path / "file" / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0
    told = [line for line in result.stderr.splitlines() if "cannot be written" in line]
    assert len(told) == 1
    assert "set LEANCONV_CACHE_DIR to a folder that can be written" in told[0]
