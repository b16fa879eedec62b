"""The sweep of all operators: none is forgotten, cases can be loaded, and the page says why."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import operators
from leanconv.graph.convert import FILE_RULES
from leanconv.graph.onnx_import import read_model
from leanconv.graph.value import NeedsValuesError
from operator_cases import NO_CASE, Case, built, cases


def test_every_operator_has_a_case_or_a_reason() -> None:
    assert operators.missing() == []


def test_no_case_and_no_reason_is_of_an_operator_that_is_not_taken() -> None:
    named = {case.operator for case in cases()}
    assert named <= set(FILE_RULES)
    assert set(NO_CASE) <= set(FILE_RULES)
    assert not named & set(NO_CASE), "an operator with cases needs no reason"
    assert all(NO_CASE.values())


def test_each_case_is_there_once() -> None:
    assert [
        name for name, count in Counter(case.name for case in cases()).items() if count > 1
    ] == []


def test_what_is_explained_is_there() -> None:
    names = {case.name for case in cases()} | {case.operator for case in cases()}
    assert set(operators.EXPLAINED) <= names


def _bound(case: Case) -> None:
    data, given = built(case)
    try:
        graph = read_model(data).bind({name: x.shape for name, x in given.items()})
    except NeedsValuesError:  # how much it gives is known in a run
        return
    assert graph.outputs, case.name


def test_files_are_as_their_words_say() -> None:
    for case in {case.operator: case for case in cases()}.values():
        _bound(case)


@pytest.mark.exhaustive
def test_all_files_are_as_their_words_say() -> None:
    for case in cases():
        _bound(case)


def test_words_of_a_case() -> None:
    _, given = built(Case("Where", "b:4x5 i64:4x5@3..9 =i64:7"))
    assert given["x0"].dtype == np.bool_
    assert given["x0"].any() != given["x0"].all()
    assert given["x1"].shape == (4, 5)
    assert given["x1"].dtype == np.int64
    assert set(given["x1"].ravel()) <= set(range(3, 9))
    assert set(given) == {"x0", "x1"}


def _row(name: str, ratio: float) -> dict[str, object]:
    seconds = {"leanconv": 1e-3, "onnxruntime": ratio * 1e-3}
    operator = name.partition(" ")[0]
    return {
        "name": name,
        "operator": operator,
        "ratio": ratio,
        "seconds": seconds,
        "difference": 0.0,
    }


def test_the_page_has_the_slow_cases_with_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "EXPLAINED", {"Tile": "rows are short"})
    rows = [_row("Abs 8", 1.5), _row("Tile 3x4 =i64:2,2", 0.5), _row("Exp 8", 0.8)]
    rows.append({"name": "Celu 8", "operator": "Celu", "refused": "onnxruntime: it has none"})
    machine = {"cpu": "CPU", "time_utc": "2026-11-28T00:00:00", "commit": "abc"}
    text = operators.page({"machine": machine, "effort": {"threads": 1}, "rows": rows})
    slow, every = text.split("## All operators")
    assert "| `Tile 3x4 =i64:2,2` | 1.0000 | 0.5000 | 0.50 | rows are short |" in slow
    assert "| `Exp 8` | 1.0000 | 0.8000 | 0.80 | not known yet |" in slow
    assert "Abs" not in slow
    assert "| Abs | 1 | 1.50 | 1.50 | `8` |" in every
    assert "it has none" in every


def test_answers_are_compared_by_kind() -> None:
    codes = [np.array([1, 2, 250], np.uint8)]
    assert operators.difference(codes, [np.array([2, 2, 249], np.uint8)]) == 0.0
    assert operators.difference(codes, [np.array([3, 2, 250], np.uint8)]) == 1.0
    floats = [np.array([1.0, np.nan], np.float32)]
    assert operators.difference(floats, floats) == 0.0
    assert operators.difference(floats, [np.array([2.0, np.nan], np.float32)]) == 0.5
