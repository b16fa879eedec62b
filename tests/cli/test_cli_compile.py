"""`compile`: files, what is printed of them, sets of shapes, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.cli_fakes import Call

MODEL = "examples/digits/digits.onnx"


def test_an_object_is_written_and_described(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "net.o"
    result = call("compile", MODEL, "-o", str(out), "--target", "haswell", "--wide")
    assert result.code == 0
    files = [str(out.with_suffix(suffix)) for suffix in (".o", ".h", ".json")]
    assert result.out.startswith(f"{', '.join(files)}: for haswell, 1 thread; weights ")
    assert sorted(map(str, tmp_path.iterdir())) == sorted(files)


def test_json_and_shapes(call: Call, tmp_path: Path) -> None:
    """Several shapes without names are those of the only input."""
    out, shapes = tmp_path / "net.o", ["--shape", "1x1x32x32", "--shape", "2x1x32x32"]
    said = json.loads(call("compile", MODEL, "-o", str(out), *shapes, "--json").out)
    facts = json.loads(out.with_suffix(".json").read_text())
    assert said["files"][0] == str(out)
    assert (said["threads"], said["block_bytes"]) == (1, facts["block_bytes"])
    functions = [run["function"] for run in facts["runs"]]
    assert functions == ["net_run_1x1x32x32", "net_run_2x1x32x32"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([MODEL], 2, "-o/--output"),
        ([MODEL, "-o", "missing/net.o"], 1, "missing"),
        ([MODEL, "-o", "net.txt"], 1, "got --output 'net.txt'; expected a folder, or a name that "),
        ([MODEL, "-o", MODEL], 1, "is the network itself; expected another file"),
        (["missing.onnx", "-o", "net.o"], 1, "missing.onnx"),
        ([MODEL, "-o", "net.o", "--target", "pdp11"], 1, "target 'pdp11' is not known"),
        ([MODEL, "-o", "net.o", "--weights", "small"], 2, "small"),
        ([MODEL, "-o", "net.o", "--shape", "2x1x32x32", "--shape", "x=1"], 2, "without names"),
    ],
)
def test_what_is_refused(arguments: list[str], code: int, message: str, call: Call) -> None:
    result = call("compile", *arguments)
    assert result.code == code
    assert message in " ".join(result.err.split())
    assert not Path("net.o").exists()
