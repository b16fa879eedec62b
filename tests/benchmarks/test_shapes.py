"""New shapes of small networks: what is drawn, measured, counted, compared, summed up."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import shapes
from harness import ROOT, results_folder
from leanconv.cli.options import UsageError
from shape_cases import WIDTHS, Case, Must, Step, cases, levels, pyramid, sizes, widths
from shape_results import FULL, Sample, Taken, by_minute, failures, growth, missed, summary
from support.onnx_models import model

MIB = 2**20
TAKEN = Taken((1, 3, 48, 320), 50, 5, 2, 100 * MIB, 10 * MIB, "digest")


def convolution(file: Path, channels: int = 8, nhwc: bool = False) -> Path:
    """A network of one convolution, for images of any size."""
    weights = np.random.default_rng(0).standard_normal((channels, 3, 3, 3)).astype(np.float32)
    x, y = ("turned", "y") if nhwc else ("x", "y")
    nodes = [helper.make_node("Conv", [x, "w"], [y], pads=[1, 1, 1, 1])]
    if nhwc:
        nodes.insert(0, helper.make_node("Transpose", ["x"], ["turned"], perm=[0, 3, 1, 2]))
    extents = ("n", "h", "w", 3) if nhwc else ("n", 3, "h", "w")
    proto = model(nodes, {"x": extents}, ["y"], {"w": weights})
    file.write_bytes(proto.SerializeToString())
    return file


def test_shapes_are_distinct_within_bounds_and_the_same_for_a_seed() -> None:
    drawn = widths(random.Random(1), 100)
    assert drawn == widths(random.Random(1), 100) != widths(random.Random(2), 100)
    assert len(set(drawn)) == 100
    assert all(shape[:3] == (1, 3, 48) and WIDTHS[0] <= shape[3] <= WIDTHS[1] for shape in drawn)
    drawn = sizes(random.Random(1), 900)
    assert len(set(drawn)) == 900, "all that there are"
    assert {side for shape in drawn for side in shape[2:]} == set(range(32, 961, 32))
    drawn = levels(random.Random(1), 40)
    assert len(set(drawn)) == 40


def test_a_pyramid_is_that_of_mtcnn() -> None:
    found = pyramid(640, 480)
    assert found[0] == (1, 384, 288, 3), "faces of 20 pixels have 12"
    assert found[1] == (1, 273, 205, 3)
    assert all(min(shape[1:3]) >= 12 for shape in found)
    assert min(found[-1][1:3]) * 0.709 < 12.5


def test_cases_need_their_models_and_draw_alike_whichever_others_there_are() -> None:
    names = ("recogniser", "detector", "pnet", "yolo", "mobilenetv2", "resnet50", "resnet101")
    models = {name: Path(f"{name}.onnx") for name in names}
    found, missing = cases(models, 0, 3, 100)
    assert not missing
    assert len(found) == 10
    for case in found:
        assert all(len(sequence) > case.before for sequence in case.sequences)
        assert all(len(set(sequence)) == len(sequence) for sequence in case.sequences)
    memory = next(case for case in found if case.name == "memory")
    assert [step.shape[3] for step in memory.sequences[0]][:2] == [2304, 32]
    assert len(memory.sequences[0]) - memory.before == 100
    few, missing = cases({"recogniser": models["recogniser"]}, 0, 3, 100)
    assert missing["sizes"] == "needs --detector FILE"
    assert "resnet101 after resnet50" in missing
    assert all(case in found for case in few)


def test_medians_and_growth_leave_out_what_came_before() -> None:
    first = [replace(TAKEN, first_ns=1000), TAKEN, replace(TAKEN, memory_bytes=103 * MIB)]
    second = [replace(TAKEN, first_ns=2000), TAKEN, replace(TAKEN, first_ns=90, kernels=0)]
    found = summary([first, second], before=1)
    assert (found["median_ns"], found["worst_ns"], found["again_ns"]) == (50, 90, 5)
    assert (found["kernels"], found["kernels_median"]) == (6, 2)
    assert found["grown_memory_bytes"] == 1.5 * MIB
    assert found["grown_plan_bytes"] == 0
    assert [len(sequence) for sequence in found["sequences"]] == [3, 3]
    assert "grown_memory_bytes" not in summary([first], before=0)
    json.dumps(found)


def test_a_soak_is_told_by_the_minute_and_growth_is_that_of_its_second_half() -> None:
    grown = [
        Sample(20.0 * i, replace(TAKEN, first_ns=i, memory_bytes=(100 + i) * MIB)) for i in range(6)
    ]
    minutes = by_minute(grown)
    assert [m["shapes"] for m in minutes] == [3, 3]
    assert [m["kernels"] for m in minutes] == [6, 6]
    assert [m["worst_ns"] for m in minutes] == [2, 5]
    assert growth(grown) == pytest.approx(105 / 102 - 1)
    assert growth(grown[::-1]) == growth(grown[:1]) == growth([]) == 0
    late = [{"kernels": 1}] * 7
    assert missed({"soak": {"growth": 0.2, "minutes": late}}) == [
        "soak: memory grew by 20.0% in the second half",
        "soak: 2 kernels were compiled after 5 minutes",
    ]
    assert missed({"soak": {"growth": 0.0, "minutes": late[:5]}}) == []


def test_wrong_answers_are_failures_and_limits_are_missed() -> None:
    ours = {"median_ns": 60e6, "worst_ns": 70e6, "kernels": 1, "grown_memory_bytes": 5}
    case = {
        "must": {"median_s": 0.05, "worst_s": 0.1, "full_s": 0.01, "kernels": 0, "grown_bytes": 5},
        "difference": 1e-6,
        "same_bits": True,
        "engines": {"leanconv": ours, FULL: {"median_ns": 20e6}},
    }
    assert missed({"cases": {"widths": case}}) == [
        "widths: median_s is 0.06, the limit is 0.05",
        "widths: full_s is 0.02, the limit is 0.01",
        "widths: kernels is 1, the limit is 0",
    ]
    assert failures({"cases": {"widths": case}}) == []
    broken = {**case, "difference": float("inf"), "same_bits": False}
    document = {"cases": {"widths": broken, "sizes": {"error": "no"}}, "soak": {"difference": 1e-4}}
    assert [line.partition(":")[0] for line in failures(document)] == [
        "widths",
        "widths",
        "sizes",
        "soak",
    ]
    assert missed({"cases": {"sizes": {"error": "no"}}}) == []


def test_results_of_a_cpu_have_a_folder() -> None:
    folder = ROOT / "docs" / "results"
    assert results_folder("AMD EPYC (family/model 25/17)") == folder / "amd-epyc-25-17"
    name = "Intel(R) Xeon(R) Platinum 8488C CPU @ 2.40GHz (family/model 6/143)"
    assert results_folder(name) == folder / "intel-xeon-platinum-8488c-6-143"


@pytest.fixture
def bench(tmp_path: Path) -> shapes.Bench:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    installed, missing = shapes.find(shapes.ENGINES, [sys.executable])
    assert not missing
    return shapes.Bench(installed, 1, tmp_path)


def test_a_case_is_measured_beside_onnxruntime(bench: shapes.Bench) -> None:
    file = convolution(bench.folder / "net.onnx")
    deeper = convolution(bench.folder / "deeper.onnx", channels=40)
    sequence = Step(file, (1, 3, 9, 40)), Step(file, (1, 3, 17, 33)), Step(deeper, (1, 3, 8, 8))
    found = shapes.measure(Case("small", (sequence,), 1, Must(kernels=100)), bench)
    assert found["difference"] < 1e-5
    assert found["same_bits"]
    assert found["must"] == {"kernels": 100}
    ours, full, other = (found["engines"][name] for name in ("leanconv", FULL, "onnxruntime"))
    empty, filled = ours["sequences"][0], full["sequences"][0]
    assert empty[0]["kernels"] > 0
    assert [step["kernels"] for step in filled] == [0, 0, 0]
    assert [step["digest"] for step in filled] == [step["digest"] for step in empty]
    assert empty[0]["plan_bytes"] < empty[1]["plan_bytes"] < empty[2]["plan_bytes"]
    assert [step["kernels"] for step in other["sequences"][0]] == [0, 0, 0]
    if sys.platform == "linux":
        assert empty[0]["memory_bytes"] > 10 * MIB
    assert other["worst_ns"] >= other["median_ns"] > 0


def test_an_engine_that_fails_is_said(bench: shapes.Bench) -> None:
    file = convolution(bench.folder / "net.onnx")
    found = shapes.attempted(Case("small", ((Step(file, (1, 5, 8, 8)),),)), bench)
    assert "leanconv" in found["error"]


def test_random_shapes_go_through_one_process_for_a_time(bench: shapes.Bench) -> None:
    models = {"pnet": convolution(bench.folder / "net.onnx", nhwc=True)}
    found = shapes.soak(models, bench, seed=0, seconds=0.01)
    assert found["difference"] < 1e-5
    (minute,) = found["minutes"]
    assert minute["shapes"] >= 1
    assert minute["kernels"] > 0


def test_the_command_writes_its_json(
    bench: shapes.Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = convolution(bench.folder / "net.onnx", nhwc=True)
    out = bench.folder / "out.json"
    arguments = ["--pnet", str(file), "--processes", "1", "--threads", "1", "--wait", "0"]
    monkeypatch.setattr(shapes, "cases", lambda *_: ([_small(file)], {"sizes": "needs a file"}))
    monkeypatch.setattr(sys, "argv", ["shapes.py", *arguments, "--out", str(out)])
    assert shapes.main() == 0
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["machine"]["cpu"]
    assert document["machine"]["time_utc"]
    assert document["effort"]["threads"] == 1
    assert document["cases"]["small"]["difference"] < 1e-5
    (line,) = document["missed"]
    assert line.startswith("small: kernels is ")
    printed = capsys.readouterr().out
    assert "small" in printed
    assert "sizes: needs a file" in printed


def _small(file: Path) -> Case:
    return Case("small", ((Step(file, (1, 9, 9, 3)),),), 0, Must(kernels=0), full=False)


def test_what_is_not_there_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(match: str, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["shapes.py", *arguments])
        with pytest.raises(UsageError, match=match):
            shapes.main()

    fails("--pnet is .*absent.onnx; expected an ONNX file", "--pnet", str(tmp_path / "absent.onnx"))
    fails("case 'sizes': needs --detector FILE", "sizes")
    fails("case 'width': expected one of first mobilenetv2", "width")
    fails("--soak needs --recogniser FILE or", "--soak", "1")
