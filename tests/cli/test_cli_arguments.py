"""Options between the files, shapes in every form, and problems that cannot be read."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from leanconv.cli.main import build_parser
from leanconv.cli.options import named_shape
from leanconv.units import shape_text
from support.cli_fakes import Call, FakeNetwork

Picture = Callable[..., str]
MODEL = "examples/digits/digits.onnx"


def test_options_may_stand_between_a_model_and_its_samples(call: Call, tmp_path: Path) -> None:
    sample = str(tmp_path / "s.npy")
    np.save(sample, np.ones((1, 1, 32, 32), np.float32))
    result = call("verify", MODEL, "--threads", "1", sample, "--json")
    assert result.code == 0, result.err
    assert [row["sample"] for row in json.loads(result.out)["rows"]] == [sample]


@pytest.mark.parametrize(
    "line",
    [
        "run m.onnx --threads 1 a.png b.png",
        "run --threads 1 m.onnx a.png --json b.png",
        "run m.onnx a.png --threads 1 b.png --json",
        "verify m.onnx --threads 2 a.npy b.npy",
        "verify --json m.onnx",
        "explain --threads 2 m.onnx",
        "profile --repeat 3 m.onnx --json",
        "bench --rounds 1 layers",
        "algorithms --threads 2 ic3ih9oc4kh3 --json",
        "winograd 4 --json 3",
        "winograd --points=0,1,-1,1/2 4 3",
    ],
)
def test_every_command_takes_options_anywhere(line: str) -> None:
    words = line.split()
    parsed = vars(build_parser().parse_args(words))
    values = ("--threads", "--repeat", "--rounds")
    bare = [
        word
        for before, word in itertools.pairwise(words)
        if not word.startswith("--") and before not in values
    ]
    found: list[str] = []
    for name in ("model", "what", "problem", "images", "samples", "m", "r"):
        value = parsed.get(name, [])
        found += map(str, value) if isinstance(value, list) else [str(value)]
    assert found == bare


@pytest.mark.parametrize("line", ["run m.onnx", "verify", "winograd 4", "profile m.onnx other"])
def test_what_is_missing_or_too_much_is_code_2(call: Call, line: str) -> None:
    assert call(*line.split()).code == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,3,640,640", ("", (1, 3, 640, 640))),
        ("1x3x640x640", ("", (1, 3, 640, 640))),
        ("x=1,3,640,640", ("x", (1, 3, 640, 640))),
        ("x=1x3x640x640", ("x", (1, 3, 640, 640))),
        ("(1, 3, 640, 640)", ("", (1, 3, 640, 640))),
        ("in x=[1 3 640 640]", ("in x", (1, 3, 640, 640))),
        ("a=b=7", ("a=b", (7,))),
    ],
)
def test_shapes_in_every_form(text: str, expected: tuple[str, tuple[int, ...]]) -> None:
    assert named_shape(text) == expected


@pytest.mark.parametrize("text", ["", "x=", "1x", "1x0x3", "-1,3", "1;3", "1x3x?x?", "²x1"])
def test_what_is_no_shape_is_told_with_one_that_is(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="give one such as 1x3x224x224"):
        named_shape(text)


def test_shapes_of_messages_are_shapes_of_options(network: FakeNetwork, call: Call) -> None:
    network.shape = ("N", 3, "H", "W")
    told = call("profile", "m.onnx").err
    option = told.split("--shape ")[1].split()[0]
    assert option == "x=1x3x224x224"
    assert call("profile", "m.onnx", "--shape", option.replace("224", "8")).code == 0
    assert network.seen[-1].shape == (1, 3, 8, 8)
    assert named_shape(shape_text((2, 3, 5)))[1] == (2, 3, 5)


@pytest.mark.parametrize("command", ["explain", "bench", "algorithms"])
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("resnet", None),
        ("ic64ih56kh3", "lacks oc"),
        ("ic64ih56oc64kh3zz9", "cannot be read at 'zz9'"),
        ("ih56ic64oc64oh10kh3", "oh10"),
        ("", None),
    ],
)
def test_a_problem_that_cannot_be_read_says_what_one_looks_like(
    call: Call, command: str, text: str, told: str | None
) -> None:
    result = call(command, text)
    assert result.code == 1
    assert result.err.count("\n") == 1
    assert "such as ic64ih56oc64oh54kh3: [mbN] [gN] icN ihN" in result.err
    assert result.err.count("such as") == 1
    if told is not None:
        assert told in result.err


@pytest.mark.parametrize("command", ["explain", "bench", "algorithms"])
def test_a_layer_that_is_none_is_told_from_a_problem(call: Call, command: str) -> None:
    result = call(command, "cv99")
    assert result.code == 1
    assert "there is no layer 'cv99'; expected cv1 to cv12" in result.err


@pytest.mark.parametrize("problem", ["cv9", "ic64ih56oc64oh54kh3"])
@pytest.mark.parametrize("command", ["run", "verify", "profile", "warm"])
def test_commands_of_models_say_that_they_take_no_problems(
    call: Call, command: str, problem: str
) -> None:
    result = call(command, problem, *(["x.png"] if command == "run" else []))
    assert result.code == 1
    assert f"is a problem; `leanconv {command}` takes models only" in result.err


def test_a_file_that_does_not_exist_is_called_one(call: Call) -> None:
    result = call("algorithms", "models/resnet50.onnx")
    assert result.code == 1
    assert "is the name of a file that does not exist, expected a problem" in result.err
    assert "'examples/digits/digits.onnx' is a file" in call("algorithms", MODEL).err
    for command in ("explain", "bench"):
        result = call(command, "models/resnet50.onnx")
        assert result.code == 1
        assert "there is no such file" in result.err
        assert result.err.count("models/resnet50.onnx") == 1


def test_a_problem_may_begin_with_any_of_its_sizes(call: Call) -> None:
    result = call("explain", "ih9ic3oc4kh3", "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["problem"].startswith("mb1ic3ih9")
