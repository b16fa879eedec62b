"""LSTM, GRU and RNN by kernels, as NumPy's float64 gives them: sizes, cells, lengths, packing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leanconv.codegen.host import host
from leanconv.graph.ops.recurrent import GATE_FUNCTIONS, GATES, Cell, Gate
from leanconv.kernels import recurrence
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64, DType
from support.forms import shared
from support.nodes import DTYPES, TARGETS, Case

USUAL = {
    "LSTM": tuple(map(Gate, ("Sigmoid", "Tanh", "Tanh"))),
    "GRU": tuple(map(Gate, ("Sigmoid", "Tanh"))),
    "RNN": (Gate("Tanh"),),
}
RESULTS = {"LSTM": ("Y", "Y_h", "Y_c"), "GRU": ("Y", "Y_h"), "RNN": ("Y", "Y_h")}
CELLS = [
    (Cell("LSTM", USUAL["LSTM"]),),
    (Cell("LSTM", USUAL["LSTM"]), Cell("LSTM", USUAL["LSTM"], reverse=True)),
    (Cell("LSTM", USUAL["LSTM"], 0.5, coupled=True, reverse=True),),
    (Cell("GRU", USUAL["GRU"]), Cell("GRU", USUAL["GRU"], reverse=True)),
    (Cell("GRU", USUAL["GRU"], linear_before_reset=True),),
    (Cell("RNN", USUAL["RNN"]), Cell("RNN", (Gate("Relu"),), reverse=True)),
]


def case(
    cells: tuple[Cell, ...],
    sizes: tuple[int, int, int],
    dtype: str,
    *,
    given: bool = True,
    results: tuple[str, ...] = (),
    packed: bool = True,
    codes: str = "",
    zeros: bool = False,
) -> Case:
    """A node over steps, a batch and hidden units, with all its optional inputs or without.

    Its recurrent weights are codes of a type, if one is named, with zero points or without.
    """
    (steps, batch, hidden), kind = sizes, cells[0].kind
    directions, rows = len(cells), GATES[kind] * hidden
    generator = np.random.default_rng(hidden)

    def normal(*shape: int) -> np.ndarray:
        return (generator.standard_normal(shape) / 2).astype(dtype)

    arrays: list[Any] = [normal(steps, batch, directions * rows), normal(directions, rows, hidden)]
    if given:
        lstm = kind == "LSTM"
        arrays.append(normal(directions, batch, hidden))
        arrays.append(normal(directions, batch, hidden) if lstm else None)
        arrays.append(normal(directions, 3 * hidden) if lstm else None)
        arrays.append(normal(directions, hidden) if cells[0].linear_before_reset else None)
        arrays.append(generator.integers(-1, steps + 3, batch).astype(np.int32))
    if codes:
        ends = np.iinfo(codes)
        arrays[1] = generator.integers(ends.min, ends.max + 1, arrays[1].shape).astype(codes)
        arrays += [None] * (7 - len(arrays))
        arrays.append(generator.uniform(0.001, 0.004, (directions, rows)).astype(dtype))
        if zeros:
            columns = generator.integers(ends.min, ends.max + 1, (directions, rows))
            arrays.append(columns.astype(dtype))
    attributes = {"cells": cells, "results": results or RESULTS[kind]}
    return Case(recurrence, "Recurrence", arrays, attributes, (1,) if packed else ())


def check(made: Case, target: Target) -> None:
    wide = {n: a.astype("f8") if a.dtype.kind == "f" else a for n, a in made.values.items()}
    found, expected = made.run_all(target), Case.expected_all(_with(made, wide))
    roundoff = np.finfo(found[0].dtype).eps
    for y, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(y, wanted, rtol=0, atol=100 * roundoff)


def _with(made: Case, values: dict[str, np.ndarray]) -> Case:
    other = object.__new__(Case)
    other.__dict__.update(made.__dict__, values=values)
    return other


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("number", "dtype", "target"),
    [
        pytest.param(number, dtype, target, id=f"{number}-{dtype}-{target.name}")
        for target in TARGETS
        for dtype in DTYPES
        for number in range(len(CELLS))
        if target is TARGETS[0] or number % 2 == (dtype == FLOAT32)  # elsewhere in one type
    ],
)
def test_cells(number: int, dtype: DType, target: Target) -> None:
    cells = CELLS[number]
    for sizes in ((3, 3, 17), (1, 1, 5), (4, 1, 33), (2, 18, 16)):
        check(case(cells, sizes, dtype, given=(number + sizes[0]) % 2 == 0), target)
    check(case(cells, (3, 2, 9), dtype), target)


@pytest.mark.drawn
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("codes", ["int8", "uint8"])
def test_weights_that_are_codes(codes: str, target: Target) -> None:
    """They are floats in registers alone: of few rows and of many, with zero points and without."""
    for number, sizes in enumerate(((3, 3, 17), (4, 1, 33), (2, 18, 16), (2, 9, 40), (1, 1, 5))):
        how: Any = {"given": number % 2 == 0, "codes": codes, "zeros": number % 2 == 1}
        check(case(CELLS[number], sizes, "float32", **how), target)
    check(case(CELLS[0], (3, 2, 20), "float32", codes=codes, zeros=True, packed=False), target)


@pytest.mark.drawn
@pytest.mark.parametrize("hidden", [1, 7, 8, 15, 16, 31, 48, 64, 100])
def test_hidden_units_and_batches(hidden: int) -> None:
    for batch in (1, 2, 5, 8, 17, 33):
        check(case(CELLS[hidden % len(CELLS)], (2, batch, hidden), "float32"), host())


@pytest.mark.drawn
@pytest.mark.parametrize("target", [host(), preset("haswell")], ids=lambda t: t.name)
@pytest.mark.parametrize("batch", [4, 6, 7, 9, 11, 12, 13, 14, 16, 23, 49, 60])
def test_tiles_of_rows(batch: int, target: Target) -> None:
    """Whole tiles and those that overlap the one before: each row is computed once, states too."""
    for number in (1, 3, 4, 5):
        check(case(CELLS[number], (2, batch, 20), "float32", given=bool(batch % 2)), target)


def test_sums_do_not_depend_on_the_batch() -> None:
    """A sequence has the same bits alone, among few and among many."""
    for cells in (CELLS[0], CELLS[4]):
        made = case(cells, (3, 30, 33), "float32", given=False)
        first, *_ = made.run_all(host())
        for rows in (1, 3, 8, 13):
            few = case(cells, (3, rows, 33), "float32", given=False, packed=False)
            few.inputs["x0"][:] = made.values["x0"][:, :rows]
            few.inputs["x1"][:] = made.values["x1"]
            y, *_ = few.run_all(host())
            assert y.tobytes() == np.ascontiguousarray(first[:, :, :rows]).tobytes(), rows


@pytest.fixture
def in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """All layers are computed as those are whose weights are too many for a core."""
    monkeypatch.setattr(recurrence, "_in_rounds", lambda *_: True)


@pytest.mark.drawn
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("number", range(len(CELLS)))
@pytest.mark.usefixtures("in_rounds")
def test_steps_that_threads_share(number: int, target: Target) -> None:
    dtype = FLOAT64 if number == 3 else FLOAT32
    for sizes in ((3, 3, 17), (1, 1, 5), (4, 1, 64)):
        check(case(CELLS[number], sizes, dtype, given=(number + sizes[0]) % 2 == 0), target)
    check(case(CELLS[number], (2, 9, 40), dtype, codes="int8", zeros=number % 2 == 0), target)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.usefixtures("in_rounds")
def test_one_result_of_steps_that_threads_share(target: Target) -> None:
    check(case(CELLS[0], (3, 7, 100), "float32", results=("Y_c",)), target)


def test_which_layers_share_each_step() -> None:
    for cells, sizes, rounds in (
        (CELLS[0], (3, 1, 64), 1),
        (CELLS[0], (3, 1, 256), 5),
        (CELLS[0], (600, 1, 256), 1),
        (CELLS[1], (3, 1, 256), 1),
        (CELLS[1], (3, 1, 512), 10),
        (CELLS[1], (3, 17, 512), 10),
        (CELLS[0], (3, 17, 64), 1),
        (CELLS[0], (3, 64, 256), 5),
        (CELLS[0], (3, 600, 256), 1),
    ):
        (call,) = case(cells, sizes, "float32").lower(preset("sapphirerapids"), False).calls
        assert call.kernel.rounds == rounds


def test_codes_are_a_quarter_of_the_bytes() -> None:
    """So that two directions of 512 units stay in the L2 of the cores that do one each."""
    for codes, rounds in (("", 10), ("int8", 1)):
        made = case(CELLS[1], (3, 1, 512), "float32", codes=codes)
        lowered = made.lower(preset("sapphirerapids"), False)
        (call,), (packing,) = lowered.calls, lowered.packings
        assert call.kernel.rounds == rounds
        assert sum(packing.bytes.values()) == 2 * 4 * 512 * 512 * (1 if codes else 4)


@pytest.mark.usefixtures("in_rounds")
def test_one_form_of_shared_steps_for_all_batches_and_lengths() -> None:
    sizes = [(2, 2, 20), (2, 3, 20), (7, 9, 20), (30, 16, 20)]
    lowered = [case(CELLS[1], each, "float32").lower(host(), False) for each in sizes]
    assert shared([each.calls[0].kernel for each in lowered])


def test_weights_of_a_run_are_packed_by_a_kernel() -> None:
    for cells in CELLS:
        check(case(cells, (2, 3, 20), "float32", packed=False), host())


def test_any_of_the_results() -> None:
    for results in (("Y",), ("Y_h",), ("Y_c",), ("Y", "Y_c"), ("Y_h", "Y_c")):
        check(case(CELLS[1], (3, 2, 20), "float32", results=results), host())


def test_functions_of_gates() -> None:
    for name in GATE_FUNCTIONS:
        for clip in (np.inf, 0.4):
            cell = Cell("RNN", (Gate(name, 0.3, 0.6),), clip)
            check(case((cell,), (2, 2, 20), "float32"), host())


def test_not_a_number_stays_in_its_sequence() -> None:
    made = case(CELLS[0], (3, 4, 20), "float32", given=False)
    made.inputs["x0"][1, 2] = np.nan
    y, _, _ = made.run_all(host())
    assert np.isnan(y[1:, :, 2]).all()
    assert np.isfinite(np.delete(y, 2, axis=2)).all()


def test_one_form_for_all_batches_and_lengths() -> None:
    for cells in (CELLS[1], CELLS[3]):
        made = case(cells, (2, 2, 20), "float32")
        (call,) = made.lower(host(), False).calls
        sizes = [(2, 3, 20), (7, 9, 20), (30, 16, 20), (5, 17, 20), (9, 100, 20)]
        others = (case(cells, each, "float32").lower(host(), False).calls[0] for each in sizes)
        assert shared([call.kernel, *(each.kernel for each in others)])


@pytest.mark.drawn
@pytest.mark.parametrize("name", ["icelake-server", "haswell", "neoverse-n1"])
@pytest.mark.parametrize("number", range(len(CELLS)))
def test_nothing_is_called_on_any_machine(number: int, name: str) -> None:
    text = case(CELLS[number], (4, 8, 64), "float32").assembles(preset(name), False)
    assert "\tbl\t" not in text
    assert "callq" not in text
