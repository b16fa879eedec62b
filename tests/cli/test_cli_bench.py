"""The machinery of `leanconv bench`: processes, rounds, ratios, the ONNX writer, exit codes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import leanconv
from leanconv.cli import bench, output
from leanconv.cli.bench import conv_model
from leanconv.cli.engines import machine, processes
from leanconv.cli.engines.processes import Crew, Engine, EngineError, EngineProcess, Installed
from leanconv.cli.engines.rounds import Effort, Outcome, Work, measure, ratios
from leanconv.cli.output import printable, progress
from leanconv.settings import current_settings
from leanconv.spec.conv import ConvSpec
from support.cli_fakes import Call

QUICK = Effort(threads=1, processes=2, rounds=2, seconds=0.01, warmup_seconds=0.0)

# Its process has a clock that goes on by what each of its runs is to take, and by nothing else.
FACTOR = """
import time
import numpy as np

now = [0]
time.perf_counter_ns = lambda: now[0]

def load(model, inputs, threads):
    print("engines may print what they like")
    def run():
        now[0] += {milliseconds} * 1_000_000
        return [inputs["x"] * {factor}]
    return run, "1.{factor}"
"""


def engine(folder: Path, name: str, source: str, modules: tuple[str, ...] = ("numpy",)) -> Engine:
    file = folder / f"fake_{name}.py"
    file.write_text(source)
    return Engine(name, file, modules)


@pytest.fixture
def engines(tmp_path: Path) -> tuple[Engine, ...]:
    """Ours thrice as quick as `slow`; `wrong` answers something else; `broken` cannot load."""
    return (
        engine(tmp_path, "leanconv", FACTOR.format(milliseconds=2, factor=2)),
        engine(tmp_path, "slow", FACTOR.format(milliseconds=6, factor=2)),
        engine(tmp_path, "wrong", FACTOR.format(milliseconds=3, factor=3)),
        engine(tmp_path, "broken", "def load(*_):\n    raise RuntimeError('no such luck')\n"),
        engine(tmp_path, "absent", "", ("a_module_that_nobody_has",)),
    )


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work("case", tmp_path / "model.onnx", {"x": np.arange(4, dtype=np.float32)})


def test_engines_are_found_or_said_to_be_missing(engines: tuple[Engine, ...]) -> None:
    found, missing = processes.find(engines, ["/no/such/python", sys.executable])
    assert [f.engine.name for f in found] == ["leanconv", "slow", "wrong", "broken"]
    assert {f.python for f in found} == {sys.executable}
    assert list(missing) == ["absent"]
    assert "a_module_that_nobody_has" in missing["absent"] or "python" in missing["absent"]


def test_leanconv_runs_in_this_interpreter_only() -> None:
    found, missing = processes.find([processes.LEANCONV], ["/no/such/python", sys.executable])
    assert found == []
    assert list(missing) == ["leanconv"]


def test_measure_compares_times_and_answers(engines: tuple[Engine, ...], work: Work) -> None:
    found, _ = processes.find(engines, [sys.executable])
    said: list[str] = []
    outcomes = {o.engine: o for o in measure(work, found, QUICK, said.append)}
    assert len(outcomes["leanconv"].round_medians_ns) == 4
    assert outcomes["leanconv"].version == "1.2"
    assert outcomes["leanconv"].difference == 0.0
    assert outcomes["slow"].difference == 0.0
    assert outcomes["wrong"].difference == pytest.approx(0.5)
    assert "no such luck" in str(outcomes["broken"].error)
    found_ratios = ratios(list(outcomes.values()))
    assert set(found_ratios) == {"slow", "wrong", "best"}
    assert found_ratios["best"] == found_ratios["slow"] == 3.0  # the other one is wrong
    assert said[-1] == "case: round 4 of 4"


def test_ratios_pair_the_rounds() -> None:
    ours = Outcome("leanconv", round_medians_ns=[100.0, 200.0, 100.0])
    a = Outcome("a", round_medians_ns=[150.0, 300.0, 150.0])
    b = Outcome("b", round_medians_ns=[100.0, 500.0, 400.0])
    failed = Outcome("c", error="it fell over")
    assert ratios([ours, a, b, failed]) == {"a": 1.5, "b": 2.5, "best": 1.5}
    assert ratios([ours]) == {}
    assert ratios([a, b]) == {}
    a.difference = 1e-3  # half precision, perhaps: shown, but no float32 engine
    assert ratios([ours, a, b]) == {"a": 1.5, "b": 2.5, "best": 2.5}
    assert ratios([ours, a]) == {"a": 1.5}


def test_a_process_that_dies_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    source = "import os, sys\ndef load(*_):\n    print('last words')\n    os._exit(9)\n"
    dead = engine(tmp_path, "dead", source)
    request = {"do": "load", "model": "", "inputs": str(tmp_path / "i.npz"), "threads": 1}
    np.savez(tmp_path / "i.npz", x=np.zeros(1))
    with (
        EngineProcess(Installed(dead, sys.executable)) as process,
        pytest.raises(EngineError, match="code 9"),
    ):
        process.ask(request)


def test_a_process_that_hangs_is_killed(tmp_path: Path) -> None:
    source = "import time\ndef load(*_):\n    time.sleep(60)\n"
    np.savez(tmp_path / "i.npz", x=np.zeros(1))
    request = {"do": "load", "model": "", "inputs": str(tmp_path / "i.npz"), "threads": 1}
    with (
        EngineProcess(Installed(engine(tmp_path, "hung", source), sys.executable)) as process,
        pytest.raises(EngineError, match="no answer in"),
    ):
        process.ask(request, timeout_s=1.0)


def test_unknown_requests_are_answered(tmp_path: Path) -> None:
    one = engine(tmp_path, "one", FACTOR.format(milliseconds=1, factor=1))
    with EngineProcess(Installed(one, sys.executable)) as process:
        with pytest.raises(EngineError, match="before load"):
            process.ask({"do": "run"})
        with pytest.raises(EngineError, match="unknown"):
            process.ask({"do": "dance"})


@pytest.mark.parametrize(
    "problem",
    [
        "mb2ic6ih9iw11oc4kh3kw2sh2sw1ph1pw0",
        "g3ic6ih9oc9kh3dh1ph2",
        "ic3iw20oc5kw4",
        "ic2id5ih6iw7oc3kd2kh3kw1",
    ],
)
def test_the_onnx_writer_is_read_alike_by_onnx(problem: str) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    spec = ConvSpec.parse(problem)
    generator = np.random.default_rng(0)
    weight = generator.integers(-3, 4, spec.weight_shape).astype(np.float32)
    x = generator.integers(-3, 4, spec.input_shape).astype(np.float32)
    model = onnx.load_from_string(conv_model(spec, weight))
    onnx.checker.check_model(model, full_check=True)
    (y,) = ReferenceEvaluator(model).run(None, {"x": x})
    assert y.shape == spec.output_shape
    (node,) = model.graph.node
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert tuple(attributes["pads"]) == spec.pad_begin + spec.pad_end
    assert attributes["group"] == spec.groups


def test_a_crew_keeps_living_processes_only_if_asked_to(engines: tuple[Engine, ...]) -> None:
    ours = Installed(engines[0], sys.executable)
    for keep in (False, True):
        with Crew(keep) as crew:
            first = crew.process(ours)
            assert crew.process(ours) is first
            crew.rest()
            assert first.alive is keep
            second = crew.process(ours)
            assert (second is first) is keep
            second.close()
            assert crew.process(ours) is not second
        assert not second.alive


def test_answers_are_held_to_the_exact_one(engines: tuple[Engine, ...], work: Work) -> None:
    exact = replace(work, exact=lambda: [3.0 * work.inputs["x"].astype(np.float64)])
    found, _ = processes.find(engines[:3], [sys.executable])
    outcomes = {o.engine: o for o in measure(exact, found, QUICK, lambda _: None)}
    assert outcomes["wrong"].difference == 0.0
    assert outcomes["slow"].difference == pytest.approx(1 / 3)
    assert outcomes["leanconv"].to_json()["grown_bytes"] >= 0


def test_a_summary_is_of_the_best_ratios() -> None:
    cases = [{"ratios": {"best": ratio}} for ratio in (0.5, 2.0, 8.0)] + [{"ratios": {}}]
    total = bench.summary({"cases": cases})
    assert total == {"geometric_mean": pytest.approx(2.0), "least": 0.5, "level_share": 2 / 3}
    assert bench.summary({"cases": []}) == {}


def test_the_layers_are_those_of_the_paper() -> None:
    gigamacs = {"cv1": 0.1054, "cv4": 2.3846, "cv5": 0.2458, "cv8": 0.8921, "cv12": 0.0590}
    assert len(bench.LAYERS) == 12
    for name, expected in gigamacs.items():
        assert ConvSpec.parse(bench.LAYERS[name]).flops / 2e9 == pytest.approx(expected, abs=6e-5)


def test_layer_works_are_models_with_inputs(tmp_path: Path) -> None:
    specs = {str(n): ConvSpec.parse("ic2ih5oc3kh3", batch=n) for n in (1, 4)}
    works = bench.layer_works(specs, tmp_path, exact=True)
    first = next(works)
    assert first.name == "1 mb1ic2ih5iw5oc3oh3ow3kh3kw3"
    assert first.model.exists()
    assert first.exact is not None
    network = leanconv.load(str(first.model))
    (answer,), (exact,) = network.run(dict(first.inputs)).values(), first.exact()
    assert exact.dtype == np.float64
    assert np.allclose(answer, exact, atol=1e-5)
    assert next(works).inputs["x"].shape == (4, 2, 5, 5)
    assert list(works) == []
    assert not first.model.exists()


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch, engines: tuple[Engine, ...]) -> None:
    """`leanconv bench` with the fake engines and without waiting."""
    monkeypatch.setattr(bench, "ENGINES", engines)
    monkeypatch.setattr(machine, "wait_until_quiet", lambda *_: 0.0)


OPTIONS = ("--processes", "1", "--rounds", "1", "--seconds", "0.01", "--threads", "1")


@pytest.mark.usefixtures("fakes")
def test_a_layer_of_the_paper_is_named_as_it_was_asked_for(call: Call) -> None:
    shown = call("bench", "cv12", "--engine", "leanconv", *OPTIONS)
    assert "cv12" in shown.out


@pytest.mark.usefixtures("fakes")
def test_bench_command(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    usual = ("bench", "ic2ih5oc3kh3", "--engine", "leanconv", "--engine", "slow", *OPTIONS)
    result = call(*usual, "--out", str(out), "--goal", "1.0")
    assert result.code == 0, result.out
    assert "slow/ours" in result.out
    document = json.loads(out.read_text())
    (case,) = document["cases"]
    assert case["ratios"]["best"] == 3.0
    assert document["failures"] == []
    assert document["machine"]["usable_cpus"] >= 1
    assert json.loads(call(*usual, "--json").out)["effort"]["rounds"] == 1


@pytest.mark.usefixtures("fakes")
def test_bench_fails_when_the_goal_is_missed_or_answers_differ(call: Call) -> None:
    usual = ("bench", "ic2ih5oc3kh3", *OPTIONS)
    missed = call(*usual, "--engine", "leanconv", "--engine", "slow", "--goal", "1000")
    assert missed.code == 3
    assert "the goal is 1000" in missed.out
    differ = call(*usual)
    assert differ.code == 3
    assert "wrong's answer differs" in differ.out
    assert "no such luck" in differ.out
    alone = call(*usual, "--engine", "leanconv", "--goal", "1.0")
    assert alone.code == 3
    assert "nobody to compare with" in alone.out
    assert call(*usual, "--engine", "nobody").code == 2


@pytest.mark.usefixtures("fakes")
def test_bench_refuses_a_busy_machine_when_strict(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "wait_until_quiet", lambda *_: 1.5)
    usual = ("bench", "ic2ih5oc3kh3", *OPTIONS, "--engine", "leanconv")
    assert "1.5 CPUs are busy" in call(*usual, "--strict").err
    assert "warning: 1.5 CPUs" in call(*usual).out


@pytest.mark.usefixtures("fakes")
def test_bench_says_how_long_it_waits_for_a_quiet_machine(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: float) -> float:
        time.sleep(0.2)
        return 0.0

    monkeypatch.setattr(machine, "wait_until_quiet", busy)
    monkeypatch.setattr(output, "PATIENCE_S", 0.01)
    usual = ("bench", "ic2ih5oc3kh3", *OPTIONS, "--engine", "leanconv")
    assert "quiet, 60 s at most (--wait)" in call(*usual).err
    assert "quiet, 1.5 s at most (--wait)" in call(*usual, "--wait", "1.5").err


def test_failures_see_nan() -> None:
    engine_result = {"difference": float("nan"), "median_ns": 1.0}
    case = {"name": "c", "engines": {"leanconv": engine_result}, "ratios": {}}
    assert bench.failures({"cases": [case]}, None) != []


def test_machine_names_no_host() -> None:
    import socket

    described = json.dumps(machine.describe().to_json())
    assert "usable_cpus" in described
    assert len(socket.gethostname()) < 3 or socket.gethostname() not in described
    assert machine.busy_cpus(0.05) >= 0.0


def test_the_code_of_another_cpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def described(target: str | None) -> str:
        settings = replace(current_settings(), target=target)
        monkeypatch.setattr(machine, "current_settings", lambda: settings)
        return machine.describe().cpu

    assert described("haswell") == f"{described(None)} as haswell"


def test_progress_speaks_after_a_second_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from leanconv.cli import output

    now, late = [0.0], []

    class Timer:
        """One that rings when this test says so."""

        def __init__(self, seconds: float, ring: Callable[[], None]) -> None:
            assert seconds == output.PATIENCE_S
            self.start, self.cancel = partial(late.append, ring), late.clear

    monkeypatch.setattr(output, "threading", SimpleNamespace(Timer=Timer))
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def wait(seconds: float) -> None:
        now[0] += seconds
        while late and seconds > output.PATIENCE_S:
            late.pop()()

    with progress("quick") as shown:
        wait(0.9 * output.PATIENCE_S)
        shown.say("quicker")
    wait(2 * output.PATIENCE_S)
    assert capsys.readouterr().err == ""
    with progress("slow\x07") as shown:
        wait(2 * output.PATIENCE_S)
        wait(2 * output.PATIENCE_S)
        shown.say("slower")
        shown.say("not told so soon")
    err = capsys.readouterr().err
    assert err == "leanconv: slow\N{REPLACEMENT CHARACTER} …\nleanconv: slower …\n"
    with progress("counting") as shown:
        for done in range(4):
            wait(1.5 * output.PATIENCE_S)
            shown.say("reading" if done < 3 else "planning", f", {done} of 4")
    told = "".join(f"leanconv: {stage} …\n" for stage in ("counting", "reading", "planning"))
    assert capsys.readouterr().err == told


def test_printable() -> None:
    assert (
        printable("a\x1b[2Jb\nc\tä")
        == "a\N{REPLACEMENT CHARACTER}[2Jb\nc\N{REPLACEMENT CHARACTER}ä"
    )
