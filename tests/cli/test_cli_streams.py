"""Output that is closed, full, without a reader or of few letters; words that are nearly right."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from leanconv.cli.bench import add_measure_options
from leanconv.cli.engines import processes
from leanconv.cli.main import build_parser
from leanconv.cli.options import byte_count, duration
from leanconv.cli.output import in_options, print_json
from leanconv.errors import SpecError
from leanconv.graph.network_inputs import NeedsInputsError
from leanconv.reference.layers import LAYERS
from leanconv.spec import ConvSpec
from leanconv.units import parse_bytes, parse_ns
from support.cli_fakes import Call, FakeNetwork

DIGITS = "examples/digits/digits.onnx"
ALONE = ("--engine", "leanconv", "--wait", "0", "--seconds", "0", "--warmup", "0")
COMMANDS = {
    "run": (DIGITS, "examples/digits/images/digit_7_a.png", "--repeat", "1"),
    "explain": (DIGITS,),
    "verify": (DIGITS, "--count", "1"),
    "profile": (DIGITS, "--repeat", "1"),
    "bench": ("ic3ih9oc4kh3", *ALONE, "--processes", "1", "--rounds", "1"),
    "algorithms": ("ic3ih9oc4kh3",),
    "winograd": ("6", "5"),
    "warm": (DIGITS,),
    "machine": ("--wide",),
}
CONDITIONS = {
    "no reader": "{} | true",
    "no output": "{} >&-",
    "no errors": "{} 2>&-",
    "none of both": "{} >&- 2>&-",
    "no input": "{} <&-",
    "few letters": "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 {}",
    "few letters without input": "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 {} <&-",
    "help in few letters": "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 {} --help",
}


def shell(line: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command line in a shell, where `{}` is `leanconv` with arguments."""
    command = " ".join([sys.executable, "-m", "leanconv", *arguments])
    text = "set -o pipefail; " + line.format(command)
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, errors="replace")


def check(condition: str, command: str) -> None:
    result = shell(CONDITIONS[condition], command, *COMMANDS[command])
    told = result.stdout + result.stderr
    assert result.returncode == 0, told
    for word in ("Traceback", "Error", "Exception ignored", "defect", "�"):
        assert word not in told
    if "letters" in condition:
        assert told.isascii()
        assert len(result.stdout) > 100


@pytest.mark.parametrize("condition", CONDITIONS)
def test_no_traceback_whatever_the_output_is(condition: str) -> None:
    check(condition, "winograd")


# Streams that are closed are so for all of Python: a third of the commands meets each. One of each
# third is drawn.
CLOSED = ("no output", "no errors", "none of both")


@pytest.mark.drawn
@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "closed"),
    [(command, CLOSED[number % len(CLOSED)]) for number, command in enumerate(COMMANDS)],
)
def test_no_command_ends_in_a_traceback(command: str, closed: str) -> None:
    for condition in ("no reader", "few letters without input", "help in few letters", closed):
        check(condition, command)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_an_output_that_is_full_is_said() -> None:
    result = shell("{} > /dev/full", "winograd", "2", "3", "--json")
    assert result.returncode == 1
    # On a busy machine a line of progress comes before it.
    (line,) = [line for line in result.stderr.splitlines() if not line.endswith(" …")]
    assert re.fullmatch("leanconv: .*: No space left on device", line)


def test_errors_are_said_where_nobody_hears_them() -> None:
    assert shell("{} 2>&-", "winograd", "2", "3", "--points", "7").returncode == 2
    assert shell("{} 2>&-", "winograd", "two", "3").returncode == 2


def test_json_has_no_numbers_that_json_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(
        {"a": [1.5, float("nan")], "b": {"c": (float("inf"), "NaN")}, "d": np.float64("nan")}
    )
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found == {"a": [1.5, None], "b": {"c": [None, "NaN"]}, "d": None}


# -- words ------------------------------------------------------------------------------------
def test_wrong_words_are_nearly_right(call: Call) -> None:
    for line, meant in (
        ("expain m.onnx", "did you mean explain?"),
        ("explain m.onnx --memroy-limit 8M", "did you mean --memory-limit?"),
        ("verify m.onnx --cuont 3", "did you mean --count?"),
        ("explain m.onnx --dtype flaot32", "did you mean float32?"),
    ):
        result = call(*line.split())
        assert meant in result.err, line
    assert call("explain", "m.onnx", "--zzzz").code == 2
    assert "did you mean" not in call("explain", "m.onnx", "--zzzz").err
    assert "`leanconv explain --help` lists all" in call("explain", "m.onnx", "--zzzz").err
    assert "did you mean 'Conv_0'" in call("explain", DIGITS, "--layer", "Cnov_0").err


def _parsers(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.Action]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, each in action.choices.items():
                yield from _parsers(each, command)
        else:
            yield name, action


def test_every_option_has_words_and_every_default_is_said() -> None:
    for command, action in _parsers(build_parser(), "leanconv"):
        name = "/".join(action.option_strings) or action.dest
        assert action.help, f"{command} {name} has no words"
        assert action.help != argparse.SUPPRESS
        default = action.default
        if isinstance(default, int | float) and not isinstance(default, bool) and default != 1:
            assert str(default).removesuffix(".0") in action.help, (command, name)


def test_threads_default_alike_in_all_commands() -> None:
    found = [
        (action.default, action.help)
        for command, action in _parsers(build_parser(), "leanconv")
        if "--threads" in action.option_strings and "compile" not in command
    ]  # what is compiled runs elsewhere, in one thread if nobody says another number
    assert len(found) == 9
    assert len(set(found)) == 1
    assert found[0][0] is None
    benchmark = argparse.ArgumentParser()
    add_measure_options(benchmark, threads=2)  # results are for two, on any machine
    assert benchmark.parse_args([]).threads == 2


def test_messages_name_options_as_the_command_line_does() -> None:
    assert in_options("give memory_limit=557696 or more") == "give --memory-limit 557696 or more"
    named = "algorithms names 'conv1', which is no convolution"
    assert in_options(named).startswith("--algorithm names")
    told = "give max_error=8.6e-06 or more, or dtype='float64'"
    assert in_options(told) == "give --max-error 8.6e-06 or more, or --dtype float64"
    assert in_options(str(NeedsInputsError(["trips"]))).endswith("; expected --value trips=N")


def test_a_sample_that_is_none_is_not_said_to_be_loaded_unsafely(
    call: Call, tmp_path: Path
) -> None:
    sample = tmp_path / "text.npy"
    sample.write_text("hello\n")
    result = call("verify", DIGITS, str(sample))
    assert result.code == 1
    assert "text.npy is a text file" in result.err
    assert "pickle" not in result.err


def test_a_batch_that_the_file_fixes_cannot_be_given(network: FakeNetwork, call: Call) -> None:
    network.shape = (1, 1, 8, 8)
    fixed = call("profile", "m.onnx", "--batch", "3")
    assert fixed.code == 1
    assert "--batch 3" in fixed.err
    assert "x 1x1x8x8" in fixed.err
    assert call("profile", "m.onnx").code == 0


# -- bytes, layers, engines -------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8M", 8 * 2**20),
        ("8MiB", 8 * 2**20),
        ("8 MiB", 8 * 2**20),
        ("8MB", 8_000_000),
        ("8k", 8192),
        ("8K", 8192),
        ("1.5G", 3 * 2**29),
        ("1T", 2**40),
        ("0.5 kB", 500),
        ("77", 77),
        ("1 byte", 1),
    ],
)
def test_bytes_as_people_write_them(text: str, count: int) -> None:
    assert parse_bytes(text) == byte_count(text) == count


def test_durations_as_people_write_them() -> None:
    for text, count in (("2ms", 2_000_000), ("500us", 500_000), ("0", 0), ("1.5 s", 1_500_000_000)):
        assert parse_ns(text) == duration(text) == count
    for text in ("2", "2h", "ms", "-1ms", "", "9" * 30 + "s"):
        with pytest.raises(SpecError, match="is no time; expected text such as '2ms'"):
            parse_ns(text)


def test_a_letter_that_is_no_unit_is_refused(call: Call) -> None:
    for text in ("8X", "M", "8 M B", "1.5.2G", "-8M", ""):
        result = call("explain", "cv9", f"--memory-limit={text}")
        assert result.code == 2
        assert "is not a number of bytes" in result.err


def test_the_layers_of_the_paper_are_known_by_name(call: Call, tmp_path: Path) -> None:
    for command in ("algorithms", "explain"):
        named = json.loads(call(command, "cv11", "--json").out)
        assert named["problem"] == str(ConvSpec.parse(LAYERS["cv11"]))
    unknown = call("explain", "cv13")
    assert unknown.code == 1
    assert "cv1 to cv12" in unknown.err


def test_without_other_engines_bench_says_how_to_get_them(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "absent_modules", lambda _, modules: _others(modules))
    result = call("bench", "cv9")
    assert result.code == 1
    assert "pip install onnxruntime openvino ai-edge-litert," in result.err
    assert "--engine leanconv" in result.err
    named = call("bench", "cv9", "--engine", "leanconv", "--engine", "openvino")
    assert named.code == 1
    assert "pip install openvino," in named.err


def _others(modules: tuple[str, ...]) -> list[str]:
    return [name for name in modules if name in ("onnxruntime", "openvino", "ai_edge_litert")]
