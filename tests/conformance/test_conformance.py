"""ONNX's backend suite in its quick form: interpreted, but for the first case of each operator."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from conformance import run
from conformance.suite import (
    CONSTANTS,
    GOOD,
    OTHER,
    REFUSED,
    RIGHT,
    UNNAMED,
    WRONG,
    Case,
    cases,
    compiled,
    known,
    operators,
    outcome,
)
from leanconv.errors import InputError, LeanConvError
from leanconv.graph.narrow_codes import given as given_numbers
from leanconv.graph.narrow_codes import taken
from leanconv.graph.network_inputs import NeedsInputsError
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import run_passes
from leanconv.graph.verify import check_flowing, verify
from leanconv.types import BFLOAT16, NARROW, DType
from support.onnx_models import interpreted
from support.waiting import HANG_S

Arrays = Mapping[str, Any]


def imported(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    read = read_model(model.SerializeToString())
    if not all(isinstance(each, np.ndarray) for each in inputs.values()):
        raise InputError(f"{operators(model)}: got what is no array; expected arrays")
    shapes = {name: array.shape for name, array in inputs.items()}
    values: dict[str, np.ndarray] = {}
    try:
        graph = read.bind(shapes)
    except NeedsInputsError as error:
        values = {name: inputs[name] for name in error.names}
        graph = read.bind(shapes, values=values)
    known_types = {each.name: each.dtype for each in read.inputs}
    given = {
        name: codes_of(array, known_types[name])
        for name, array in inputs.items()
        if name not in values
    }
    found = interpreted(check_flowing(run_passes(verify(graph))), given)
    kinds = dict(zip(read.outputs, read.output_dtypes, strict=True))
    return {name: numbers_of(array, kinds[name]) for name, array in found.items()}


def codes_of(array: np.ndarray, kind: DType | None) -> np.ndarray:
    """An input as the graph holds it: bits of bfloat16, codes of narrow types."""
    held = taken(array, kind) if kind in (BFLOAT16, *NARROW) else None
    return array if held is None else held


def numbers_of(array: np.ndarray, kind: DType | None) -> np.ndarray:
    """An output as a user gets it."""
    coded = kind in (BFLOAT16, *NARROW) and array.dtype == kind.numpy
    return given_numbers(array, kind) if coded and kind is not None else array


def imported_or_compiled(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    """Compiled where a part of it runs in NumPy after the network: then it is no graph alone."""
    try:
        return imported(model, inputs)
    except LeanConvError:
        return compiled(model, inputs)


def forms(case: Case) -> set[tuple[str, ...]]:
    """What a compiled case is the first of: an operator with types of elements."""
    model, ((inputs, outputs), *_) = case.load()
    kinds = sorted({str(np.asarray(each).dtype) for each in (*inputs, *outputs)})
    return {(op, *kinds) for op in operators(model)}


def test_what_was_right_is_right_and_nothing_is_wrong() -> None:
    kept = known(run.KEPT)
    found: dict[str, tuple[str, str]] = {}
    seen: set[tuple[str, ...]] = set()
    for name, case in cases().items():
        if case.kind == "real":  # large networks, which other tests run
            continue
        first = name in kept and not forms(case) <= seen
        found[name] = outcome(case, compiled if first else imported_or_compiled)
        if first:
            seen |= forms(case)
    assert run.regressed(found, kept) == []
    bad = {name: each for name, each in found.items() if each[0] not in (*GOOD, REFUSED)}
    assert bad == {}
    counts = Counter(what for what, _ in found.values())
    assert counts[RIGHT] + counts[CONSTANTS] > 1000
    assert len({op for op, *_ in seen}) > 100


def test_outcomes() -> None:
    def spoiled(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
        return {name: array + 1 for name, array in imported(model, inputs).items()}

    def refusing(text: str) -> Any:
        def compute(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
            raise InputError(text)

        return compute

    assert outcome(cases()["test_relu"], spoiled)[0] == WRONG
    assert outcome(cases()["test_relu"], refusing("node 'x' (Relu) is not taken"))[0] == REFUSED
    assert outcome(cases()["test_relu"], refusing("not taken"))[0] == UNNAMED
    assert outcome(cases()["test_relu"], lambda model, inputs: {})[0] == OTHER
    assert outcome(cases()["test_relu"]) == (RIGHT, "")
    assert outcome(cases()["test_expand_dim_changed"])[0] in (RIGHT, CONSTANTS)


def test_the_script_says_what_is_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "KEPT", tmp_path / "right.txt")
    run.KEPT.write_text("test_relu\ntest_identity_opt: right with constants\n")
    arguments = ["--only", "^test_(relu|identity_opt)$", "--processes", "1"]
    assert run.main(arguments) == 1
    printed = capsys.readouterr().out
    assert "worse: test_identity_opt was right with constants, is refused" in printed
    assert "test_relu: right" in printed
    assert "2 cases: right 1" in printed


def test_a_case_that_hangs_or_crashes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def ill(case: Case) -> tuple[str, str]:
        if case.name == "test_abs":
            time.sleep(600)
        if case.name == "test_acos":
            os._exit(9)
        return RIGHT, ""

    class Early(run.Worker):
        """One who is given the case that hangs long before its time, so that nobody waits."""

        def give(self, name: str) -> None:
            super().give(name)
            if name == "test_abs":
                self.since -= HANG_S

    monkeypatch.setattr(run, "outcome", ill)
    monkeypatch.setattr(run, "Worker", Early)
    found = run.run_all(["test_abs", "test_acos", "test_relu"], 1, HANG_S)
    assert found == {
        "test_abs": (OTHER, f"took more than {HANG_S:g} s"),
        "test_acos": (OTHER, "the process ended with exit code 9"),
        "test_relu": (RIGHT, ""),
    }
