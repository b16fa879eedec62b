"""OrtValues and bindings beside those of the real onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as real
import pytest
from onnx import helper

import leanconv.onnxruntime as ours
from leanconv.onnxruntime import exceptions
from support.onnx_models import model

X = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)


def session(module: Any = ours) -> Any:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    return module.InferenceSession(model(nodes, {"x": ("n", 4)}, ["y", "z"]).SerializeToString())


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "u1", "i2", "i4", "i8", "?"])
def test_values_say_what_onnxruntimes_say(dtype: str) -> None:
    array = X.astype(dtype)
    mine, other = (each.OrtValue.ortvalue_from_numpy(array) for each in (ours, real))
    for name in [
        "shape",
        "data_type",
        "element_type",
        "device_name",
        "tensor_size_in_bytes",
        "has_value",
        "is_tensor",
        "is_sparse_tensor",
        "is_tensor_sequence",
        "data_ptr",
    ]:
        assert getattr(mine, name)() == getattr(other, name)(), name
    assert mine.numpy() is array or np.shares_memory(mine.numpy(), array)
    np.testing.assert_array_equal(np.asarray(mine), array)
    np.testing.assert_array_equal(np.from_dlpack(mine), array)
    made = ours.OrtValue.ortvalue_from_shape_and_type([2, 3], array.dtype)
    assert (made.shape(), made.data_type()) == ([2, 3], mine.data_type())


def test_values_are_refused_as_onnxruntime_does() -> None:
    with pytest.raises(exceptions.Fail, match="cuda"):
        ours.OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    with pytest.raises(exceptions.InvalidArgument, match="complex"):
        ours.OrtValue.ortvalue_from_numpy(X.astype("c8"))
    with pytest.raises(exceptions.InvalidArgument, match="99"):
        ours.OrtValue.ortvalue_from_shape_and_type([2], 99)
    value = ours.OrtValue.ortvalue_from_numpy(X.copy())
    value.update_inplace(X + 1)
    np.testing.assert_array_equal(value.numpy(), X + 1)
    with pytest.raises(exceptions.InvalidArgument, match="expected"):
        value.update_inplace(X[:1])


def test_runs_with_values() -> None:
    value = ours.OrtValue.ortvalue_from_numpy(X)
    (z,) = session().run_with_ort_values(["z"], {"x": value})
    np.testing.assert_array_equal(z.numpy(), -X)


@pytest.mark.parametrize("module", [ours, real])
def test_what_is_bound_is_read_and_written(module: Any) -> None:
    run = session(module)
    bound = run.io_binding()
    place = module.OrtValue.ortvalue_from_numpy(np.full((3, 4), np.nan, np.float32))
    bound.bind_cpu_input("x", X)
    bound.bind_ortvalue_output("z", place)
    bound.bind_output("y")
    run.run_with_iobinding(bound)
    np.testing.assert_array_equal(place.numpy(), -X)
    z, y = bound.copy_outputs_to_cpu()
    np.testing.assert_array_equal(z, -X)
    np.testing.assert_array_equal(y, np.maximum(X, 0))
    assert [each.shape() for each in bound.get_outputs()] == [[3, 4], [3, 4]]


@pytest.mark.parametrize("module", [ours, real])
def test_memory_is_bound_by_its_address(module: Any) -> None:
    run = session(module)
    bound = run.io_binding()
    source, target = X.copy(), np.full((3, 4), np.nan, np.float32)
    bound.bind_input("x", "cpu", 0, np.float32, source.shape, source.ctypes.data)
    bound.bind_output("y", "cpu", 0, np.float32, target.shape, target.ctypes.data)
    run.run_with_iobinding(bound)
    np.testing.assert_array_equal(target, np.maximum(X, 0))


def test_places_that_do_not_fit_are_refused() -> None:
    run = session()
    bound = run.io_binding()
    bound.bind_cpu_input("x", X)
    bound.bind_ortvalue_output("y", ours.OrtValue.ortvalue_from_shape_and_type([2, 4], np.float32))
    with pytest.raises(exceptions.InvalidArgument, match=r"\[3, 4\].*\[2, 4\]"):
        run.run_with_iobinding(bound)
    with pytest.raises(exceptions.InvalidArgument, match="shape"):
        bound.bind_output("y", buffer_ptr=X.ctypes.data)
    bound.clear_binding_inputs()
    with pytest.raises(ValueError, match="missing"):
        run.run_with_iobinding(bound)


def unfitting(module: Any, case: str) -> None:
    """Bind what a network does not take, and run it."""
    run = session(module)
    bound = run.io_binding()
    bound.bind_output("unknown" if case == "output" else "y")
    if case != "missing":
        bound.bind_cpu_input("x", {"type": X.astype("f8"), "rank": X[0]}.get(case, X))
    if case == "name":
        bound.bind_cpu_input("unknown", X)
    if case == "place":
        place = module.OrtValue.ortvalue_from_numpy(np.zeros((5, 4), np.float32))
        bound.bind_ortvalue_output("y", place)
    if case == "elements":
        module.OrtValue.ortvalue_from_numpy(X.copy()).update_inplace(X[:1])
    run.run_with_iobinding(bound)


@pytest.mark.parametrize("module", [ours, real])
@pytest.mark.parametrize("case", ["name", "output", "missing", "type", "rank", "place", "elements"])
def test_what_does_not_fit_is_a_runtime_error(module: Any, case: str) -> None:
    """As in onnxruntime; `run` itself raises its named errors."""
    with pytest.raises(RuntimeError):
        unfitting(module, case)
