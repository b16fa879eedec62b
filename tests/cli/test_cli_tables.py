"""Tables at every width of a terminal: no row loses what it is about, no line is too long."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from leanconv.cli.bench import print_document
from leanconv.cli.table import Column, cells_of, lay_out, shortened, wrapped
from support.cli_fakes import Call

WIDTHS = (60, 80, 100, 130, 200)
Terminal = Callable[[int], None]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, call: Call) -> Terminal:
    """Make standard output look like a terminal of so many columns."""

    def of(width: int) -> None:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)

    return of


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A network whose layers are called as exporters call them."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], [], "input"
    for number in range(6):
        block = f"/backbone/features/features.{number}/conv/conv.{number % 2}"
        for op, name in (("Conv", f"{block}/Conv"), ("Sigmoid", f"{block}/act/Sigmoid")):
            inputs = [x]
            if op == "Conv":
                w = rng.standard_normal((8, 3 if x == "input" else 8, 3, 3), np.float32)
                weights.append(numpy_helper.from_array(w, f"{name}.weight"))
                inputs.append(f"{name}.weight")
            x = f"{name}_output_0"
            pads = {"pads": [1, 1, 1, 1]} if op == "Conv" else {}
            nodes.append(helper.make_node(op, inputs, [x], name=name, **pads))
    pool = "/backbone/GlobalAveragePool"
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["y"], name=pool))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("input", (1, 3, 16, 16)), ("y", (1, 8, 1, 1)))
    ]
    graph = helper.make_graph(nodes, "deep", ends[:1], ends[1:], weights)
    opset = [helper.make_opsetid("", 17)]
    path = tmp_path_factory.mktemp("models") / "deep.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return str(path)


def layers_of(text: str) -> list[tuple[str, str, str, str]]:
    """Layer, operation, algorithm and time of each row; further lines of a row are left out."""
    lines = re.sub(r"\x1b\[\d*m", "", text).splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("layer"))
    second, third = (lines[begin].index(word) for word in ("operation", "algorithm"))
    rows = []
    for line in itertools.takewhile(lambda line: line[:1] not in ("", "("), lines[begin + 2 :]):
        if not line.startswith(" "):
            algorithm, time = re.split(r" {2,}", line[third:])[:2]
            rows.append((line[:second].strip(), line[second:third].strip(), algorithm, time))
    return rows


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", ["explain", "profile"])
def test_every_layer_operation_and_algorithm_is_seen(
    call: Call, terminal: Terminal, deep: str, command: str, width: int
) -> None:
    more = ("--repeat", "1") if command == "profile" else ()
    document = json.loads(call(command, deep, "--json", *more).out)
    terminal(width)
    result = call(command, deep, *more)
    assert result.code == 0
    rows = layers_of(result.out)
    algorithm = "words" if command == "explain" else "algorithm"
    expected = [(each["name"], each["op"], each[algorithm]) for each in document["layers"]]
    assert len(rows) == len(expected)
    for column in range(3):
        names = {layer[column]: row[column] for layer, row in zip(expected, rows, strict=True)}
        assert len(set(names.values())) == len(names), f"different names look alike: {names}"
        for name, shown in names.items():
            pieces = ".*".join(map(re.escape, shown.split("…")))
            assert shown.strip("…")
            assert re.search(pieces, name), (name, shown)
    assert all(re.fullmatch(r"[\d.]+ [num]?s", time) for *_, time in rows)


COMMANDS = [
    ("explain", "ic64ih56oc64oh54kh3"),
    ("algorithms", "ic16ih14oc16kh3"),
    ("winograd", "6", "5"),
    ("verify", "examples/digits/digits.onnx", "--count", "1"),
    ("explain", "examples/digits/digits.onnx"),
    ("explain", "examples/digits/digits.onnx", "--layer", "Conv_0"),
    ("run", "examples/digits/digits.onnx", "examples/digits/images/digit_7_a.png", "--repeat", "1"),
]


@pytest.mark.drawn
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda a: "-".join(a[:1] + a[2:4]))
def test_no_line_is_longer_than_the_terminal(
    call: Call, terminal: Terminal, arguments: tuple[str, ...], width: int
) -> None:
    terminal(width)
    result = call(*arguments)
    assert result.code == 0, result.err
    lines = re.sub(r"\x1b\[\d*m", "", result.out).splitlines()
    assert len(lines) > 3
    assert max(map(cells_of, lines)) <= width


def test_what_goes_to_a_pipe_is_whole_and_on_one_line(call: Call, deep: str) -> None:
    """However narrow the terminal of the reader is: `leanconv explain MODEL | grep …`."""
    document = json.loads(call("explain", deep, "--json").out)
    lines = call("explain", deep).out.splitlines()
    assert all(line == line.rstrip() for line in lines)
    for layer in document["layers"]:
        (line,) = [line for line in lines if line.startswith(f"{layer['name']} ")]
        assert re.match(rf"\S+ +{layer['op']} +{re.escape(layer['words'])} +\d", line)


def test_wide_shows_all_columns_in_any_terminal(call: Call, terminal: Terminal, deep: str) -> None:
    document = json.loads(call("explain", deep, "--json").out)
    terminal(80)
    shown = call("explain", deep, "--wide").out
    assert "next best" in shown
    assert "…" not in shown
    selectors = {layer["selector"] for layer in document["layers"]} - {None}
    assert selectors
    assert all(selector in shown for selector in selectors)


def test_a_layer_is_found_by_what_the_table_calls_it(
    call: Call, terminal: Terminal, deep: str
) -> None:
    terminal(80)
    name = next(name for name, *_ in layers_of(call("explain", deep).out) if "…" in name)
    shown = call("explain", deep, "--layer", name)
    assert shown.code == 0, shown.err
    assert "why it lost" in shown.out
    several = call("explain", deep, "--layer", "features")
    assert several.code == 1
    assert "6 layers have 'features' in their names" in several.err


def test_the_next_best_is_told_from_the_chosen(call: Call, deep: str) -> None:
    document = json.loads(call("explain", deep, "--json").out)
    lines = call("explain", deep).out.splitlines()
    for layer in document["layers"]:
        (line,) = [line for line in lines if line.startswith(f"{layer['name']} ")]
        assert not re.search(rf"  {re.escape(layer['words'])}: ", line), line


def test_what_has_no_room_in_a_row_stands_below_it(
    call: Call, terminal: Terminal, deep: str
) -> None:
    """The reason why the next best lost, for one: what was chosen and why can always be read."""
    document = json.loads(call("explain", deep, "--json").out)
    terminal(80)
    whole = " ".join(re.sub(r"\x1b\[\d*m", "", call("explain", deep).out).split())
    for layer in document["layers"]:
        reasons = [c["reason"] for c in layer["candidates"] if not c["chosen"]]
        assert not reasons or any(f": {reason}" in whole for reason in reasons)


def test_the_promises_come_before_the_layers(call: Call, deep: str) -> None:
    for command in (("explain", deep), ("profile", deep, "--repeat", "1")):
        lines = call(*command).out.splitlines()
        table = next(i for i, line in enumerate(lines) if line.startswith("layer"))
        head = "\n".join(lines[:table])
        words = (
            "predicted",
            "expected error",
            "memory",
            "weights",
            "buffers between layers",
            "asked for",
        )
        for word in words if command[0] == "explain" else ("all layers", "medians"):
            assert word in head


def test_reasons_are_in_words_and_selectors_are_what_options_take(call: Call, deep: str) -> None:
    document = json.loads(call("explain", deep, "--json").out)
    candidates = [c for layer in document["layers"] for c in layer["candidates"]]
    winograd = [c for c in candidates if c["algorithm"] == "winograd"]
    assert winograd
    assert all(re.fullmatch(r"winograd F\(\d+x\d+, \d+x\d+\)", c["words"]) for c in winograd)
    assert "winograd:" not in call("explain", deep).out
    layer = next(each for each in document["layers"] if each["op"] == "Conv")
    candidate = next(c for c in layer["candidates"] if c["algorithm"] == "winograd")
    option = f"{layer['name']}={candidate['selector']}"
    again = json.loads(call("explain", deep, "--algorithm", option, "--json").out)
    (same,) = [each for each in again["layers"] if each["name"] == layer["name"]]
    assert (same["words"], same["selector"]) == (candidate["words"], candidate["selector"])
    problem = json.loads(call("explain", "ic16ih14oc16kh3", "--json").out)
    assert problem["selector"].split(":")[0] == problem["algorithm"]
    rows = json.loads(call("algorithms", "ic16ih14oc16kh3", "--json").out)["algorithms"]
    assert all(row["selector"].startswith(row["algorithm"]) for row in rows if not row["reason"])


def test_a_comparison_of_many_engines_is_read_at_any_width(
    capsys: pytest.CaptureFixture[str], terminal: Terminal
) -> None:
    names = ["leanconv", "onnxruntime", "openvino", "xnnpack", "torch", "torch-nhwc", "ncnn", "mnn"]
    engines = {name: {"median_ns": 1e6 + 1234.0 * i} for i, name in enumerate(names)}
    ratios = {name: 1.25 + i for i, name in enumerate([*names[1:], "best"])}
    case = {"name": f"cv1 {'ic3ih227oc96oh55kh11sh4' * 2}", "engines": engines, "ratios": ratios}
    document = {
        "cases": [case],
        "machine": {"cpu": "a CPU of some maker with a long name"},
        "effort": {"threads": 2, "processes": 3, "rounds": 5},
        "summary": {},
        "left_out": [],
        "missing": {},
        "busy_cpus_before": 0.0,
        "failures": [],
    }
    for width in WIDTHS:
        terminal(width)
        print_document(document)
        text = capsys.readouterr().out
        lines = re.sub(r"\x1b\[\d*m", "", text).splitlines()
        assert max(map(cells_of, lines)) <= width
        whole = " ".join(" ".join(lines).split())
        for number, name in enumerate(names):
            assert name in whole
            assert f"{1.25 + number:.2f}" in whole


def test_progress_takes_one_line_of_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that is broken by the terminal cannot be cleared."""
    from leanconv.cli import output

    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    shown = output.Progress(f"planning {'folder/' * 20}model.onnx")
    shown._show()
    shown.close()
    line = capsys.readouterr().err.split("\x1b[K")[1]
    assert line.startswith("planning")
    assert "model.onnx" in line
    assert cells_of(line) < 40


# -- the layout by itself ----------------------------------------------------------------------
def test_names_are_cut_in_the_middle_and_stay_different() -> None:
    names = [f"/features/features.{i}/conv/conv.{j}/Conv" for i in range(18) for j in range(3)]
    for width in (12, 16, 20, 30, 60):
        short = shortened(names, width)
        if short is None:
            assert width < 18  # two lines, then
            continue
        assert len(set(short.values())) == len(names)
        assert all(cells_of(text) <= width for text in short.values())
    assert shortened(names, 20)[names[-1]] == "features.17…conv.2"
    assert shortened(["inverted_residual rows", "direct"], 18) == {
        "inverted_residual rows": "inverted_res… rows",
        "direct": "direct",
    }


def test_lines_are_broken_at_blanks() -> None:
    assert wrapped("one two three", 8) == ["one two", "three"]
    assert wrapped("  one two three", 8, "  ") == ["  one", "    two", "    thre", "    e"]
    assert wrapped("abcdefghij", 4) == ["abcd", "efgh", "ij"]
    assert wrapped("", 4) == [""]
    assert wrapped("文字 文字", 4) == ["文字", "文字"]


def test_letters_that_the_output_lacks_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from leanconv.cli.output import print_table

    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    print_table(["name", "value"], [["字", "1"]])
    sys.stdout.flush()
    lines = raw.getvalue().decode("ascii").splitlines()
    assert lines[1] == "-----------"
    assert lines[2].startswith("?")


def test_names_are_broken_at_slashes_or_not_at_all() -> None:
    """Where no short forms tell them apart."""
    names = [f"/a/{'x' * i}/{'y' * j}" for i in range(1, 9) for j in range(1, 9)]
    assert shortened(names, 10) is None
    rows = [[name, "1"] for name in names]
    lines = lay_out([Column("layer", "name"), Column("time")], rows, 16)
    parts = {part for name in names for part in name.split("/")}
    assert {part for line in lines[2:] for part in line.split()[0].split("/")} <= parts
    assert wrapped("at /backbone/features/conv", 12) == ["at", "/backbone/", "features/", "conv"]


def test_what_goes_below_a_row_is_whole() -> None:
    columns = [Column("who", "name"), Column("much"), Column("why", "prose", optional=1)]
    lines = lay_out(columns, [["one", "1 B", "it was there"], ["two", "2 B", "-"]], 20)
    assert lines[2:] == ["one   1 B", "    why it was there", "two   2 B"]


CELLS = st.text(st.characters(codec="ascii", categories=("L", "N", "P")), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=8), st.integers(24, 140))
def test_nothing_is_lost_at_any_width(rows: list[tuple[str, str, str]], width: int) -> None:
    columns = [Column("who", "name"), Column("much"), Column("why", "prose")]
    lines = lay_out(columns, rows, width)
    assert all(cells_of(line) <= width for line in lines)
    whole = "".join("".join(lines).split())
    for _, number, why in rows:
        assert number in whole
        assert set(why) <= set(whole)
