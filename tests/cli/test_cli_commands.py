"""The sub-commands run, explain and profile, and the exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import helper

import leanconv
from leanconv.cli.main import build_parser
from leanconv.cli.verify import _row
from leanconv.target import preset
from leanconv.types import FLOAT64
from support.cli_fakes import Call, FakeNetwork
from support.onnx_models import model
from support.small_inputs import IMAGE, by_rate

Picture = Callable[..., str]


def test_run_prints_answer_latency_and_memory(
    network: FakeNetwork, call: Call, picture: Picture
) -> None:
    network.metadata["labels"] = json.dumps([f"tenth {i}" for i in range(10)])
    result = call("run", "m.onnx", picture(191), picture(20), "--repeat", "2")
    assert result.code == 0
    assert "tenth 7" in result.out
    assert "tenth 0" in result.out
    assert "memory predicted 4,096 bytes (4 KiB), used 4,096 bytes (4 KiB): as predicted" in (
        result.out
    )
    assert "latency" in result.out
    assert len(network.seen) == 2 * (1 + 2)
    parts = ("start and imports", "process: ")  # for who asks where time and memory go
    assert not any(part in result.out for part in parts)
    verbose = call("run", "m.onnx", picture(191), "--verbose").out
    assert all(part in verbose for part in parts)


def test_run_json_holds_everything(network: FakeNetwork, call: Call, picture: Picture) -> None:
    image = picture(191)
    result = call("run", "m.onnx", image, "--json", "--top", "3", "--threads", "2")
    document = json.loads(result.out)
    assert document["memory_predicted_bytes"] == document["memory_used_bytes"] == 4096
    (one,) = document["images"]
    assert one["image"] == image
    assert one["latency_ns"] > 0
    assert one["answers"][0]["label"] == "7"
    assert len(one["answers"]) == 3
    assert one["answers"][0]["probability"] == pytest.approx(np.exp(8) / (np.exp(8) + 9))
    assert network.options["threads"] == 2
    assert network.options["reproducible"] is False


def test_run_passes_the_budget_in_bytes(network: FakeNetwork, call: Call, picture: Picture) -> None:
    assert call("run", "m.onnx", picture(1), "--memory-limit", "12 MiB").code == 0
    assert network.options["memory_limit"] == 12 * 2**20
    assert call("run", "m.onnx", picture(1), "--memory-limit", "12 parsecs").code == 2
    assert call("run", "m.onnx", picture(1), "--memory-limit", "9" * 400 + ".0 GB").code == 2


def test_run_fails_when_memory_is_not_as_predicted(
    network: FakeNetwork, call: Call, picture: Picture
) -> None:
    network.used_bytes = 5000
    result = call("run", "m.onnx", picture(1))
    assert result.code == 3
    assert "NOT as predicted" in result.out


def test_run_refuses_an_output_of_nan(
    network: FakeNetwork, call: Call, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    nan = np.full((1, 10), np.nan, np.float32)
    monkeypatch.setattr(FakeNetwork, "__call__", lambda *_: nan)
    result = call("run", "m.onnx", picture(1))
    assert result.code == 1
    assert "NaN" in result.err


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("missing.onnx", "leanconv: missing.onnx: there is no such file"),
        ("broken.onnx", "leanconv: broken.onnx is no ONNX file; \N{REPLACEMENT CHARACTER}"),
    ],
)
def test_errors_are_one_clean_line(
    network: FakeNetwork, call: Call, picture: Picture, model: str, expected: str
) -> None:
    result = call("run", model, picture(1))
    assert result.code == 1
    assert result.out == ""
    assert result.err.startswith(expected)
    assert result.err.count("\n") == 1
    assert "\x1b" not in result.err


def test_a_defect_is_called_one(
    network: FakeNetwork, call: Call, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("lost")

    monkeypatch.setitem(vars(leanconv), "load", broken)
    result = call("run", "m.onnx", picture(1))
    assert result.code == 70
    assert "defect" in result.err


def test_memory_that_is_lacking_is_no_defect(
    network: FakeNetwork, call: Call, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def large(*_: Any, **__: Any) -> None:
        np.empty(2**45, np.float64)

    monkeypatch.setitem(vars(leanconv), "load", large)
    result = call("run", "m.onnx", picture(1))
    assert result.code == 1
    assert "memory could not be had" in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("run", "m.onnx"),
        ("run", "m.onnx", "i.png", "--threads", "0"),
        ("run", "m.onnx", "i.png", "--dtype", "int8"),
        ("profile", "m.onnx", "--shape", "x=1,0,3"),
        ("profile", "m.onnx", "--repeat", "many"),
    ],
)
def test_wrong_usage_is_code_2(call: Call, arguments: tuple[str, ...]) -> None:
    assert call(*arguments).code == 2


def options_with_values() -> list[tuple[str, str]]:
    """Every option of every command that reads its text as something but a file."""
    (commands,) = [a.choices for a in build_parser()._actions if isinstance(a.choices, dict)]
    return [
        (command, action.option_strings[0])
        for command, parser in commands.items()
        for action in parser._actions
        if action.option_strings and action.type not in (None, Path)
    ]


@pytest.mark.parametrize(("command", "flag"), options_with_values())
def test_an_option_that_makes_no_sense_is_code_2(call: Call, command: str, flag: str) -> None:
    """Before any file is opened, and alike for all commands."""
    files = {"run": ["m.onnx", "i.png"], "winograd": ["4", "3"]}.get(command, ["m.onnx"])
    for text in ("-1", "many", "nan", ""):
        result = call(command, *files, f"{flag}={text}")
        assert result.code == 2, f"{flag}={text}: {result.err}"
        assert f"argument {flag}: " in result.err
    if "threads" in flag:
        for text in ("0", "1025"):
            assert call(command, *files, f"{flag}={text}").code == 2


def test_help_and_version(call: Call) -> None:
    shown = call("--help")
    assert shown.code == 0
    assert "exit codes:" in shown.out
    version = call("--version")
    assert version.code == 0
    assert version.out.startswith("leanconv ")


def test_explain_a_problem(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def plan_conv2d(x_shape: Any, w: np.ndarray, **options: Any) -> Any:
        given.update(options, x_shape=x_shape, w_shape=w.shape, dtype=str(w.dtype))
        return SimpleNamespace(
            algorithm="direct",
            parameters="tile 14x2",
            selector="direct",
            workspace_bytes=0,
            weight_bytes=10,
            memory_bytes=10,
            predicted_error=1e-7,
            explain=lambda: "direct won",
        )

    monkeypatch.setitem(vars(leanconv), "plan_conv2d", plan_conv2d)
    result = call("explain", "ic3ih224oc64oh112kh7sh2ph3", "--json", "--dtype", "float64")
    document = json.loads(result.out)
    assert result.code == 0
    assert document["algorithm"] == "direct"
    assert document["flops"] == 2 * 64 * 112 * 112 * 3 * 49
    assert given["x_shape"] == (1, 3, 224, 224)
    assert given["w_shape"] == (64, 3, 7, 7)
    assert given["stride"] == (2, 2)
    assert given["padding"] == (3, 3, 2, 2)  # top, left, bottom, right
    assert given["dtype"] == FLOAT64


def test_explain_says_what_is_wrong_with_a_problem(call: Call) -> None:
    result = call("explain", "ic64ih56oc64oh10kh3")
    assert result.code == 1
    assert "oh10" in result.err


def test_profile(network: FakeNetwork, call: Call) -> None:
    result = call("profile", "m.onnx", "--repeat", "7", "--batch", "3")
    assert result.code == 0
    assert "32.0" in result.out  # 64000 FLOPs in 2000 ns
    assert "80.0%" in result.out
    assert network.seen[0].shape == (3, 1, 8, 8)
    document = json.loads(call("profile", "m.onnx", "--sort", "--json").out)
    assert [layer["name"] for layer in document["layers"]] == ["conv0", "relu0"]
    assert document["total_median_ns"] == 2500.0
    assert document["other_median_ns"] == 500.0
    assert document["total_predicted_ns"] == 2280
    peak = 2 * 16 * preset("znver4").costs.ghz * 2  # of two threads
    assert document["peak_gflops"] == pytest.approx(peak)
    assert document["layers"][0]["gflops"] == 32.0
    assert document["layers"][0]["peak_share"] == pytest.approx(32 / peak)
    assert document["layers"][1]["peak_share"] is None
    assert "1.8 us" in result.out  # predicted
    assert "ready in " in result.out
    assert "; first run " in result.out
    assert "not convolution: 20.0% of the measured time, 500 ns (Relu 500 ns)" in result.out
    assert document["layers"][0]["calls"] == 20


def test_open_shapes_must_be_given(network: FakeNetwork, call: Call) -> None:
    network.shape = ("N", 3, "H", "W")
    result = call("profile", "m.onnx")
    assert result.code == 1
    assert "--shape x=" in result.err
    assert call("profile", "m.onnx", "--shape", "x=2,3,16,24").code == 0
    assert network.seen[-1].shape == (2, 3, 16, 24)
    assert call("profile", "m.onnx", "--shape", "1,3,9,9").code == 0
    assert "has 4" in call("profile", "m.onnx", "--shape", "x=2,3").err
    assert "'z'" in call("profile", "m.onnx", "--shape", "z=2,3,4,5").err


def test_values_of_small_inputs(call: Call, tmp_path: Path) -> None:
    """`--value` where a network is one of several by the value of an input."""
    file = str(tmp_path / "rate.onnx")
    Path(file).write_bytes(by_rate().SerializeToString())
    shape = ("--shape", "x=1x3x6x5")
    refused = call("explain", file, *shape)
    assert refused.code != 0
    assert "follows from the value of 'rate'" in refused.err
    for command in ("explain", "profile"):
        found = call(command, file, *shape, "--value", "rate=8000")
        assert found.code == 0, found.err
    assert call("verify", file, *shape, "--value", "rate=16000", "--count", "1").code == 0
    for value in ("x=3", "rate=1,2", "rate=soon", "y=1"):
        assert call("explain", file, *shape, "--value", value).code != 0


def test_small_inputs_of_samples_and_of_the_command_line_are_alike(
    call: Call, picture: Picture, tmp_path: Path
) -> None:
    """A value that decides what runs comes from the .npz that holds it, or from `--value`."""
    file, both, alone = (str(tmp_path / name) for name in ("rate.onnx", "both.npz", "x.npy"))
    Path(file).write_bytes(by_rate().SerializeToString())
    np.savez(both, x=IMAGE, rate=np.array(16000))
    np.save(alone, IMAGE)
    narrow = "--value", "rate=8000"

    def shape(*arguments: str) -> list[int]:
        found = call("run", file, *arguments, "--repeat", "1", "--json")
        assert found.code == 0, found.err
        (image,) = json.loads(found.out)["images"]
        (output,) = image["outputs"]
        return list(output["shape"])

    assert shape(both) == [1, 4, 4, 3]
    assert shape(both, "--shape", "x=1x3x6x5") == [1, 4, 4, 3]
    assert shape(both, *narrow) == [1, 4, 6, 5]  # the command line is nearer
    assert shape(alone, *narrow) == [1, 4, 6, 5]
    assert shape(alone, *narrow, "--shape", "x=1x3x6x5") == [1, 4, 6, 5]
    image = picture(90, (5, 6), "RGB")
    sized = "--shape", "x=1x3x6x5"
    assert shape(image, "--preset", "unit", *narrow, *sized) == [1, 4, 6, 5]
    assert "expected x, rate" in call("run", file, alone).err
    assert "--value NAME=N" in call("run", file, picture(90), "--preset", "unit").err
    assert call("verify", file, alone, *narrow).code == 0
    fields = json.loads(
        call("explain", file, "--fields", "--shape", "x=1x3x6x5", "--json", *narrow).out
    )["fields"]
    assert [row["extent"] for row in fields] == [1, 1]
    for sizes in ("x=1x3x6x5", "x=1x3x6x5-6"):
        warmed = call("warm", file, "--shape", sizes, *narrow)
        assert warmed.code == 0, warmed.err
    assert "follows from the value of 'rate'" in call("warm", file, "--shape", "x=1x3x6x5").err


def test_a_network_by_a_rate_is_quantised(call: Call, tmp_path: Path) -> None:
    file, both, out = (str(tmp_path / name) for name in ("rate.onnx", "both.npz", "q.onnx"))
    kernel = np.ones((4, 4, 1, 1), np.float32)
    Path(file).write_bytes(by_rate(then=kernel).SerializeToString())
    np.savez(both, x=IMAGE, rate=np.array(16000))
    made = call("quantize", file, both, "-o", out, "--memory-limit", "1M", "--threads", "1")
    assert made.code == 0, made.err
    assert call("run", out, both, "--repeat", "1").code == 0


def test_a_picture_that_is_not_there_comes_before_how_it_is_read(
    network: FakeNetwork, call: Call, picture: Picture
) -> None:
    network.metadata = {}
    for command in ("run", "verify"):
        result = call(command, "m.onnx", "nosuch.jpg")
        assert result.code == 1
        assert "nosuch.jpg: there is no such file" in result.err
        assert "--preset" not in result.err
    assert "expected --preset" in call("run", "m.onnx", picture(9)).err


def test_a_shape_that_nodes_do_not_take_is_named_as_an_option(call: Call) -> None:
    given = ("examples/digits/digits.onnx", "examples/digits/images/digit_0_a.png")
    result = call("run", *given, "--shape", "1x3x32x32")
    assert result.code == 1
    assert "do not take input 1x3x32x32, which --shape states: " in " ".join(result.err.split())


def test_a_file_that_fixes_several_images_is_run_with_a_shape_for_one(
    call: Call, picture: Picture, tmp_path: Path
) -> None:
    file, image = str(tmp_path / "ten.onnx"), picture(90, (8, 6), "RGB")
    made = model([helper.make_node("Relu", ["x"], ["y"])], {"x": (10, 3, 4, 4)}, ["y"], {})
    Path(file).write_bytes(made.SerializeToString())
    refused = call("run", file, image, "--preset", "bytes")
    assert refused.code == 1
    assert "give --shape 1x3x4x4" in refused.err
    for shape in ("1x3x4x4", "1x3x6x8"):
        assert call("run", file, image, "--preset", "bytes", "--shape", shape).code == 0


def test_verify_counts_integers_and_names_what_numpy_computes(call: Call, tmp_path: Path) -> None:
    """Of what NumPy computes no plan states an error; a place that differs is no distance."""
    file = str(tmp_path / "places.onnx")
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Cast", ["places"], ["floats"], to=1),
        helper.make_node("Mul", ["floats", "tenth"], ["scaled"]),
        helper.make_node("Exp", ["scaled"], ["y"]),
    ]
    made = model(nodes, {"x": (4, 5)}, ["places", "y"], {"tenth": np.float32(0.1)})
    Path(file).write_bytes(made.SerializeToString())
    found = call("verify", file, "--count", "1")
    assert found.code == 0, found.out
    assert "with what NumPy computes 1e-05 is accepted: kept" in " ".join(found.out.split())
    assert "0 of 40 differ" in found.out
    row = _row("one", "y", np.array([1, 2]), np.array([1, 3]))
    assert (row["error"], row["differing"], row["text"]) == (0.0, 1, "1 of 2 differ")
    assert _row("one", "y", np.ones(2), np.ones(3))["text"] == "2, not 3"
