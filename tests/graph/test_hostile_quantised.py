"""Quantised operators with scales, zero points and axes that do not fit: errors, nothing else."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest

import leanconv as lc
from leanconv.errors import LeanConvError, ModelError
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import PASSES, run_passes
from support.interpret import interpret
from support.quantised_cases import GROUPS, Draw, elementwise, floats, products
from support.quantised_models import model

F = np.float32
_NUMBERS = (np.nan, np.inf, -np.inf, 0, -1, 1e-45, 3e38, 1e-38)
_TYPES = ("int8", "uint8", "int32", "float32", "int64", "float16", "int16", "bool", "float64")
_INTEGERS = (-1, 0, 1, 2, 3, 100, 2**31, -(2**40))


def changed(rng: np.random.Generator, array: Any) -> np.ndarray:
    """Another number, type or shape in a constant's or an input's place."""
    array = np.array(array)
    kind = int(rng.integers(7))
    if kind == 0 and array.dtype.kind == "f":
        array.reshape(-1)[:1] = rng.choice(_NUMBERS)
        return array
    if kind <= 1:
        with np.errstate(all="ignore"):
            return array.astype(str(rng.choice(_TYPES)))
    if kind == 2:
        return array.reshape(*array.shape, 1)
    if kind == 3:
        return np.stack([array, array])
    if kind == 4:
        return array[..., :0] if array.ndim else array
    return (
        array.reshape(-1)[: kind - 4]
        if kind == 5
        else np.repeat(array, 2, -1 if array.ndim else None)
    )


@pytest.mark.parametrize("number", range(len(GROUPS)))
def test_only_errors_of_the_model(number: int) -> None:
    make, dtype = GROUPS[number]
    cases = list(make(Draw(dtype)).values())
    answered, refused = 0, []
    for seed in range(40):
        rng = np.random.default_rng((seed, number))
        proto, inputs, held = copy.deepcopy(cases[rng.integers(len(cases))])
        given = dict(inputs), dict(held)
        for which in rng.integers(3, size=int(rng.integers(1, 3))):
            values = given[which % 2] or given[0]
            name = str(rng.choice(list(values)))
            values[name] = changed(rng, values[name])
        for attribute in proto.attribute:
            if attribute.ints and not rng.integers(4):
                attribute.ints[0] = int(rng.choice(_INTEGERS))
            elif attribute.type == attribute.INT and not rng.integers(4):
                attribute.i = int(rng.choice(_INTEGERS))
        try:
            answer(proto, *given)
            answered += 1
        except LeanConvError as error:
            refused.append(str(error))
    assert answered
    assert refused
    unhelpful = [text for text in refused if "expected" not in text and "bind a lar" not in text]
    assert not unhelpful


def answer(proto: Any, inputs: dict[str, Any], held: dict[str, Any]) -> dict[str, np.ndarray]:
    arrays = {name: np.asarray(array) for name, array in inputs.items()}
    made = model([proto], arrays, held, proto.output)
    shapes = {name: array.shape for name, array in arrays.items()}
    graph = read_model(made.SerializeToString()).bind(shapes)
    return interpret(run_passes(graph, PASSES, check=True), arrays)


CASES = {**elementwise(Draw(np.uint8)), **floats(Draw(np.uint8)), **products(Draw(np.uint8))}


@pytest.mark.parametrize(
    ("case", "name", "array", "what"),
    [
        ("QuantizeLinear", "s", F(0), "the scale .* is 0.0; expected positive, finite"),
        ("QuantizeLinear", "s", F(-0.5), "the scale .* is -0.5; expected positive, finite"),
        ("DequantizeLinear", "s", F(np.nan), "the scale .* is nan; expected finite"),
        ("DequantizeLinear", "z", np.int8(3), "zero point of int8; expected one of"),
        ("QuantizeLinear", "z", np.int32(3), "codes of int32"),
        ("QuantizeLinear-axis", "s", np.ones(4, F), "a scale .* and a zero point"),
        ("DequantizeLinear-blocks", "z", np.ones(5, np.uint8), "a scale .* and a zero point"),
        ("QLinearAdd", "as", F(np.inf), "QLinearAdd.*the scale .* is inf; expected positive"),
        ("QLinearAdd", "az", np.int8(1), "the zero point .* is int8; expected uint8"),
        ("QLinearMul", "ys", np.ones(3, F), "expected one float and one code"),
        ("QLinearConcat", "bs", F(0), "QLinearConcat.*is 0.0; expected positive"),
        ("QGemm-0-0", "c", np.ones(11, F), "the bias is float32.*; expected int32"),
        ("QGemm-0-11", "wz", np.zeros(11, np.uint8), "the zero point .*; expected one type"),
        ("MatMulInteger", "w", np.ones((29, 11), np.int8), "expected matrices that multiply"),
    ],
)
def test_messages(case: str, name: str, array: Any, what: str) -> None:
    proto, inputs, held = CASES[case]
    with pytest.raises((ModelError, LeanConvError), match=what):
        answer(proto, dict(inputs), {**held, name: array})


@pytest.mark.parametrize("case", ["QLinearAdd", "QLinearMul", "QLinearMatMul", "QGemm-0-0"])
def test_tiny_scales_warn_of_nothing(case: str) -> None:
    """Factors that overflow are a file's matter: no warning of NumPy's at load or in a run."""
    name = next(each for each in CASES if each.startswith(case))
    proto, inputs, held = CASES[name]
    held = {**held, "ys": F(1e-42)}
    arrays = {key: np.asarray(array) for key, array in inputs.items()}
    made = model([proto], arrays, held, proto.output).SerializeToString()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer(proto, inputs, held)
        lc.load(made, threads=1).run(arrays)
