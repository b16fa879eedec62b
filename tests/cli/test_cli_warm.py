"""The sub-command warm: what it compiles is there for the next process, and it says how much."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import leanconv
from leanconv.cli import warm
from leanconv.cli.warm import USUAL, usual_network
from leanconv.codegen import compiler
from leanconv.codegen.cache import DiskCache
from leanconv.settings import Settings
from support.cli_fakes import Call
from support.onnx_models import small_cnn


@pytest.fixture
def cnn(tmp_path: Path) -> str:
    """A small network whose batch and image size are open."""
    file = tmp_path / "cnn.onnx"
    file.write_bytes(small_cnn().SerializeToString())
    return str(file)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that nothing has been written to."""
    settings = Settings(cache_dir=tmp_path / "cache")
    cache = DiskCache(settings.cache_dir / "objects", settings.cache_bytes)
    monkeypatch.setattr(compiler, "object_cache", lambda: cache)
    monkeypatch.setattr(compiler, "loaded", lambda key: None)
    monkeypatch.setattr(warm, "current_settings", lambda: settings)
    return settings.cache_dir


def test_what_is_compiled_once_is_there_the_next_time(
    call: Call, cnn: str, empty_cache: Path
) -> None:
    shapes = ("--shape", "1x3x96x96", "--shape", "1x3x128x96")
    first = json.loads(call("warm", cnn, *shapes, "--json").out)
    small, _, large, _ = first["networks"]
    assert [row["sizes"] for row in first["networks"]] == ["open", "fixed"] * 2
    assert small["forms"] == small["compiled"] > 0
    assert large["compiled"] < large["forms"]
    assert first["compiled"] == sum(row["compiled"] for row in first["networks"])
    held = sum(file.stat().st_size for file in empty_cache.rglob("*") if file.is_file())
    assert first["cache_bytes"] == held > 0
    again = json.loads(call("warm", cnn, *shapes, "--json").out)
    assert [row["compiled"] for row in again["networks"]] == [0] * 4
    assert [row["forms"] for row in again["networks"]] == [r["forms"] for r in first["networks"]]


def test_what_is_warm_is_there_for_run_and_for_a_loaded_network(
    call: Call, cnn: str, empty_cache: Path, tmp_path: Path
) -> None:
    shape = (1, 3, 48, 40)
    assert call("warm", cnn, "--shape", "1x3x48x40").code == 0
    sample = tmp_path / "x.npy"
    np.save(sample, np.ones(shape, "f4"))
    for given in ((), ("--shape", "1x3x48x40")):
        found = json.loads(call("run", cnn, str(sample), *given, "--repeat", "1", "--json").out)
        assert found["compiled_kernels"] == 0
    net = leanconv.load(cnn)
    net.bind(shape)
    assert net.compiled.network.compiled_forms == 0


def test_a_shape_in_place_of_one_that_the_file_fixes(
    call: Call, empty_cache: Path, tmp_path: Path
) -> None:
    file = tmp_path / "fixed.onnx"
    file.write_bytes(small_cnn(batch=2).SerializeToString())
    (row,) = json.loads(call("warm", str(file), "--shape", "1x3x32x32", "--json").out)["networks"]
    assert row["sizes"] == "fixed"
    assert call("verify", str(file), "--shape", "1x3x32x32", "--count", "1").code == 0


def test_a_range_is_compiled_whole(call: Call, cnn: str, empty_cache: Path) -> None:
    ranges = ("--shape", "1x3x32x30-34", "--shape", "x=1-2x3x16-32/8x16")
    first = json.loads(call("warm", cnn, *ranges, "--json").out)
    wide, several = first["networks"]
    assert wide["inputs"] == {"x": [1, 3, 32, [30, 34]]}
    assert several["inputs"] == {"x": [[1, 2], 3, [16, 32, 8], 16]}
    assert wide["forms"] == wide["compiled"] > 0
    again = json.loads(call("warm", cnn, *ranges, "--json").out)
    assert [row["compiled"] for row in again["networks"]] == [0, 0]
    assert [row["forms"] for row in again["networks"]] == [wide["forms"], several["forms"]]
    for shape in ("1x3x32x31", "2x3x24x16"):
        row, _ = json.loads(call("warm", cnn, "--shape", shape, "--json").out)["networks"]
        assert row["compiled"] == 0
    shown = call("warm", cnn, *ranges).out
    assert "x 1x3x32x30-34" in shown
    assert "x 1-2x3x16-32/8x16" in shown


@pytest.mark.parametrize(
    ("shape", "code", "words"),
    [
        ("1x3x32x34-30", 1, "the least extent first"),
        ("1x3x32x30-35/2", 1, "a number of steps after it"),
        ("1x3x32", 1, "3 extents for input x, which has 4"),
        ("y=1x3x32x30-34", 1, "names the input 'y'"),
        ("1x3x32x-34", 2, "is no shape"),
        ("1x3x32x30-34/0", 2, "is no shape"),
        ("1x3x32x30-32-34", 2, "is no shape"),
    ],
)
def test_wrong_ranges(call: Call, cnn: str, shape: str, code: int, words: str) -> None:
    result = call("warm", cnn, "--shape", shape, "--shape", "1x3x8x8-9")
    assert result.code == code
    assert words in " ".join(result.err.split())


def test_it_says_how_to_copy_the_folder(call: Call, cnn: str, empty_cache: Path) -> None:
    result = call("warm", cnn, "--shape", "x=1x3x8x8")
    assert result.code == 0, result.err
    assert "forms compiled; the cache has" in result.out
    assert f"copy {empty_cache} to a machine" in result.out
    assert f"chmod -R a+rX {empty_cache}" in result.out


def test_a_folder_that_keeps_nothing_is_not_met(call: Call, cnn: str, empty_cache: Path) -> None:
    empty_cache.write_text("a file")
    assert call("warm", cnn, "--shape", "1x3x8x8").code == 3


def test_wrong_usage(call: Call, cnn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("warm").code == 2
    assert call("warm", "--usual", "--shape", "1x3x8x8").code == 2
    nothing = Settings(cache_dir=Path("cache"), cache_bytes=0)
    monkeypatch.setattr(warm, "current_settings", lambda: nothing)
    result = call("warm", cnn)
    assert result.code == 1
    assert "LEANCONV_CACHE_BYTES" in result.err


@pytest.mark.parametrize("name", USUAL)
def test_usual_networks_are_whole(name: str) -> None:
    graph = usual_network(name).bind({"x": (1, 3, 224, 224)})
    (output,) = graph.outputs
    assert graph.types[output].shape == (1, 1000)
    convolutions = sum(node.op == "Conv" for node in graph.nodes)
    assert convolutions == {"MobileNetV2": 52, "ResNet-18": 20, "ResNet-50": 53}[name]


def test_shared_weights_are_packed_ahead(
    call: Call, cnn: str, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(cache_dir=empty_cache)
    monkeypatch.setattr("leanconv.api.cpu_backend.current_settings", lambda: settings)
    monkeypatch.setattr("leanconv.planner.weights._LEAST_BYTES", 0)
    for command in (("warm",), ("warm", "--shared-weights")):
        assert call(*command, cnn, "--shape", "1x3x32x32").code == 0
    (file,) = (empty_cache / "weights").glob("*.weights")
    assert file.stat().st_size > 1000
