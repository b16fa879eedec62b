"""What users meet in networks with integers and truth values: types, errors, plans, copies."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import leanconv as lc
from leanconv.errors import InputError
from support.onnx_models import reference
from support.typed_models import MODELS, arrays

NAMES = tuple(MODELS)


def same(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    assert list(found) == list(wanted)
    for name, array in found.items():
        assert array.dtype == wanted[name].dtype
        np.testing.assert_allclose(array, wanted[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_answers_and_types_at_several_sizes(name: str) -> None:
    proto = MODELS[name]()
    net = lc.load(proto, threads=2)
    declared = {value.name: value.type.tensor_type.elem_type for value in proto.graph.input}
    assert {each.name: each.dtype.onnx for each in net.inputs} == declared
    for sizes in ((1, 7, 9), (3, 16, 17), (1, 7, 9)):
        given = arrays(name, *sizes)
        found, wanted = net.run(given), reference(proto, given)
        same(found, wanted)
        assert [each.dtype for each in net.outputs] == [array.dtype for array in wanted.values()]
        assert net.run(None, given)[0].dtype == found["y"].dtype
    whole = arrays(name, 1, 7, 9)
    ways = {each: np.asfortranarray(array) for each, array in whole.items()}
    same(net.run(ways), net.run(whole))


@pytest.mark.parametrize("name", NAMES)
def test_plans_copies_and_options(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    proto, given = MODELS[name](), arrays(name, 2, 7, 9)
    net = lc.load(proto, threads=1)
    wanted = net.run(given)
    for each in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net)):
        same(each.run(given), wanted)
    file = str(tmp_path / "plan.json")
    net.plan.save(file)
    with caplog.at_level(logging.WARNING):
        saved = lc.load(proto, threads=1, plan=file)
        same(saved.run(given), wanted)
    assert not caplog.records  # it fitted
    assert [step.algorithm for step in saved.plan.steps] == [
        step.algorithm for step in net.plan.steps
    ]
    ranges = {each: tuple(array.shape) for each, array in given.items()}
    same(lc.load(proto, threads=1, shapes=ranges).run(given), wanted)
    same(lc.load(proto, threads=1, memory_limit=net.used_bytes).run(given), wanted)
    measured = lc.load(proto, threads=1, samples=[given], max_error=1e-3)
    same(measured.run(given), wanted)
    assert measured.plan.predicted_error <= 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_reports(name: str) -> None:
    given = arrays(name, 1, 7, 9)
    net = lc.load(MODELS[name](), threads=1)
    net.run(given)
    steps = [step.op for step in net.plan.steps]
    typed = dict(zip(NAMES, ("ArgMax", "TopK", "Expression", "Where"), strict=True))
    assert typed[name] in steps
    assert all(op in net.explain() for op in steps)
    assert len(net.profile(given, 1)) == len(steps)
    assert net.report()["layers"]


@pytest.mark.parametrize("name", NAMES)
def test_double_precision_leaves_integers_as_they_are(name: str) -> None:
    given, net = arrays(name, 1, 7, 9), lc.load(MODELS[name](), threads=1, dtype="float64")
    double = {n: x.astype("f8") if x.dtype == np.float32 else x for n, x in given.items()}
    assert {each.name: each.dtype for each in net.inputs} == {n: x.dtype for n, x in double.items()}
    found = net.run(double)["y"]
    assert found.dtype == ("int64" if name == "segmenter" else "float64")
    np.testing.assert_allclose(found, reference(MODELS[name](), given)["y"], rtol=1e-4, atol=1e-5)


def test_a_wrong_dtype_is_refused_with_the_right_one() -> None:
    given, net = arrays("masked_attention", 2, 7, 9), lc.load(MODELS["masked_attention"]())
    mask = given["mask"]
    for wrong in (mask.astype(bool), mask.astype("f4"), mask.astype("i4"), mask.astype("u8")):
        with pytest.raises(InputError) as caught:
            net.run({**given, "mask": wrong})
        assert str(caught.value) == (
            f"input 'mask' is {wrong.dtype}[2x9]; expected int64[NxL]: give x.astype('int64')"
        )
    with pytest.raises(InputError, match=r"is int64.*expected float32.*often divided by 255"):
        net.run({**given, "x": given["x"].astype("i8")})


def test_truth_values_are_whatever_is_not_zero() -> None:
    given, net = arrays("masked_attention", 2, 7, 9), lc.load(MODELS["masked_attention"]())
    wanted = net.run(given)
    same(net.run({**given, "mask": given["mask"] * -(2**40)}), wanted)


def test_types_other_than_the_computed_one_are_shown() -> None:
    shown = {name: repr(lc.load(MODELS[name]())) for name in NAMES}
    assert shown == {
        "segmenter": "<Network x[Nx3xHxW] -> y of int64, float32>",
        "classifier": "<Network x[Nx3xHxW] -> y, which of int64, places of int64, float32>",
        "byte_images": "<Network x[NxHxWx3] of uint8 -> y, float32>",
        "masked_attention": "<Network x[NxLx16], mask[NxL] of int64 -> y, float32>",
    }
