"""Sessions beside those of the real onnxruntime: what they say of a network, take, give, refuse."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as real
import pytest
from onnx import TensorProto, helper

import leanconv.onnxruntime as ours
from leanconv.onnxruntime import exceptions
from support.onnx_models import model as network_model
from support.onnx_models import small_cnn

X = np.random.default_rng(0).standard_normal((2, 3, 4), dtype=np.float32)


def described() -> onnx.ModelProto:
    """A network with all that a file says of itself; y is x without its negative numbers."""
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["y"]),
            helper.make_node("Neg", ["x"], ["a"]),
            helper.make_node("Mul", ["a", "w"], ["z"]),
        ],
        "the graph",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, None]),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [1]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3, "?"]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 3, None]),
        ],
        [helper.make_tensor("w", TensorProto.FLOAT, [1], [2.0])],
        doc_string="about the graph",
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, producer_name="a tool", ir_version=8)
    model.domain, model.model_version, model.doc_string = "org.example", 4, "about it"
    helper.set_model_props(model, {"alphabet": "abc\ndé", "empty": ""})
    return model


def lacking() -> onnx.ModelProto:
    """A network with an operation that leanconv lacks and onnxruntime has."""
    node = helper.make_node("BiasGelu", ["x", "b"], ["y"], domain="com.microsoft")
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor("b", TensorProto.FLOAT, [4], [0.5, 1, 2, 3])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def both(model: onnx.ModelProto) -> tuple[Any, Any]:
    data = model.SerializeToString()
    return ours.InferenceSession(data), real.InferenceSession(data)


# -- what is said ------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [described(), small_cnn(), small_cnn(batch=2)])
def test_inputs_and_outputs_are_named_and_typed_alike(model: onnx.ModelProto) -> None:
    mine, other = both(model)
    for name in ("get_inputs", "get_outputs"):
        pairs = zip(getattr(mine, name)(), getattr(other, name)(), strict=True)
        for a, b in pairs:
            assert (a.name, a.type) == (b.name, b.type)
            assert [n if isinstance(n, int) else "open" for n in a.shape] == [
                n if isinstance(n, int) else "open" for n in b.shape
            ]
    assert [i.shape for i in mine.get_inputs()] == [i.shape for i in other.get_inputs()]


def test_metadata_is_alike() -> None:
    mine, other = (each.get_modelmeta() for each in both(described()))
    for name in [
        "custom_metadata_map",
        "description",
        "domain",
        "graph_description",
        "graph_name",
        "producer_name",
        "version",
    ]:
        assert getattr(mine, name) == getattr(other, name), name


def test_a_file_is_read_as_its_bytes_are(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(described().SerializeToString())
    for given in (path, str(path)):
        assert ours.InferenceSession(given).get_inputs()[0].shape == ["n", 3, None]


# -- runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [None, [], ["z"], ["z", "y"], ["y", "y"], ("y",)])
def test_outputs_come_as_from_onnxruntime(names: Any) -> None:
    mine, other = (each.run(names, {"x": X}) for each in both(described()))
    assert isinstance(mine, list)
    for a, b in zip(mine, other, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("given", [X.tolist(), X[:, :, ::2], X[::-1], np.asfortranarray(X)])
def test_whatever_numpy_makes_an_array_of_is_taken(given: Any) -> None:
    mine, other = (each.run(None, {"x": given}) for each in both(described()))
    for a, b in zip(mine, other, strict=True):
        np.testing.assert_array_equal(a, b)


BAD: dict[str, Callable[[Any], Any]] = {
    "type": lambda s: s.run(None, {"x": X.astype("f8")}),
    "extent": lambda s: s.run(None, {"x": X[:, :2]}),
    "rank": lambda s: s.run(None, {"x": X[0]}),
    "missing": lambda s: s.run(None, {}),
    "input": lambda s: s.run(None, {"x": X, "q": X}),
    "output": lambda s: s.run(["q"], {"x": X}),
    "feed": lambda s: s.run(None, X),
    "file": lambda s: type(s)("no/such/file.onnx"),
    "bytes": lambda s: type(s)(b"not a network"),
    "no bytes": lambda s: type(s)(3),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_refused_by_the_same_name(case: str) -> None:
    mine, other = both(described())
    with pytest.raises(Exception) as theirs:  # noqa: PT011  its class is what is compared
        BAD[case](other)
    with pytest.raises(Exception) as raised:  # noqa: PT011
        BAD[case](mine)
    assert raised.type.__name__ == theirs.type.__name__
    if issubclass(raised.type, exceptions.OnnxRuntimeError):
        assert str(raised.value).split(" : ")[:3] == str(theirs.value).split(" : ")[:3]


def test_a_run_that_is_to_end_does() -> None:
    options = ours.RunOptions()
    options.terminate = True
    with pytest.raises(exceptions.Fail, match="terminate"):
        both(described())[0].run(None, {"x": X}, options)


def test_runs_of_several_threads() -> None:
    session = ours.InferenceSession(small_cnn().SerializeToString())
    images = [np.full((1, 3, 16 + n % 2, 16), n, np.float32) for n in range(8)]
    wanted = [session.run(None, {"x": x})[0] for x in images]
    found: list[Any] = [None] * len(images)

    def compute(number: int) -> None:
        for _ in range(20):
            found[number] = session.run(None, {"x": images[number]})[0]

    threads = [threading.Thread(target=compute, args=(n,)) for n in range(len(images))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_run_in_the_background_calls_back() -> None:
    session, told, done = both(described())[0], [], threading.Event()

    def callback(*given: Any) -> None:
        told.append(given)
        done.set()

    session.run_async(["y"], {"x": X}, callback, "mine")
    assert done.wait(60)
    ((results, data, error),) = told
    np.testing.assert_array_equal(results[0], np.maximum(X, 0))
    assert (data, error) == ("mine", "")
    done.clear()
    session.run_async(["y"], {"x": X[0]}, callback, 5)
    assert done.wait(60)
    assert told[1][:2] == ([], 5)
    assert "INVALID_ARGUMENT" in told[1][2]


class Pickled(ours.InferenceSession):
    """As face recognisers have it: sent as its path."""

    def __init__(self, model_path: str, **more: Any) -> None:
        super().__init__(model_path, **more)
        self.model_path = model_path

    def __getstate__(self) -> dict[str, str]:
        return {"model_path": self.model_path}

    def __setstate__(self, state: dict[str, str]) -> None:
        self.__init__(state["model_path"])  # type: ignore[misc]


def test_a_subclass_is_pickled_its_own_way(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(described().SerializeToString())
    session = Pickled(str(path), providers=["CPUExecutionProvider"])
    for sent in (pickle.loads(pickle.dumps(session)), copy.deepcopy(session)):
        np.testing.assert_array_equal(sent.run(["y"], {"x": X})[0], np.maximum(X, 0))


# -- options -----------------------------------------------------------------------------------


def test_threads_are_obeyed_and_other_options_are_kept() -> None:
    options = ours.SessionOptions()
    theirs = real.SessionOptions()
    mine = {name for name in dir(theirs) if not name.startswith("_")} - set(dir(options))
    assert {name for name in mine if not callable(getattr(theirs, name))} == set()
    options.intra_op_num_threads = 1
    options.any_other_name = 3  # type: ignore[attr-defined]
    options.graph_optimization_level = ours.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.add_session_config_entry("a", "b")
    assert options.get_session_config_entry("a") == "b"
    with pytest.raises(RuntimeError, match="zz"):
        options.get_session_config_entry("zz")
    session = ours.InferenceSession(small_cnn(batch=2).SerializeToString(), options)
    session.run(None, {"x": np.zeros((2, 3, 8, 8), "f4")})
    assert session.network.plan.threads == 1
    options.intra_op_num_threads = "two"  # type: ignore[assignment]
    with pytest.raises(exceptions.InvalidArgument, match="two"):
        ours.InferenceSession(small_cnn().SerializeToString(), options)


def test_extents_are_fixed_by_options() -> None:
    data = small_cnn(batch="N").SerializeToString()
    shapes = []
    for module in (ours, real):
        options = module.SessionOptions()
        options.add_free_dimension_override_by_name("N", 2)
        session = module.InferenceSession(data, options)
        shapes.append([each.shape[0] for each in session.get_inputs()])
    assert shapes == [[2], [2]]


def test_providers_that_are_not_there_are_left_out() -> None:
    data, names = described().SerializeToString(), ["NoSuchProvider", "CPUExecutionProvider"]
    with pytest.warns(UserWarning, match="NoSuchProvider") as first:
        session = ours.InferenceSession(data, providers=names)
    with pytest.warns(UserWarning, match="NoSuchProvider") as second:
        session.set_providers(names)
    assert [each.filename for each in (*first, *second)] == [__file__] * 2
    assert session.get_providers() == ["CPUExecutionProvider"]
    options = {"arena_extend_strategy": "kSameAsRequested"}
    session = ours.InferenceSession(data, providers=[("CPUExecutionProvider", options)])
    assert session.get_provider_options() == {"CPUExecutionProvider": options}
    with pytest.raises(exceptions.InvalidArgument, match="2 provider_options for 1"):
        ours.InferenceSession(data, None, ["CPUExecutionProvider"], [{}, {}])
    assert ours.get_available_providers() == ["CPUExecutionProvider"]
    assert ours.get_device() == real.get_device() == "CPU"


def test_profiling_writes_a_trace(tmp_path: Path) -> None:
    options = ours.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace")
    session = ours.InferenceSession(small_cnn(batch=1).SerializeToString(), options)
    assert session.get_profiling_start_time_ns() > 0
    for _ in range(3):
        session.run(None, {"x": np.zeros((1, 3, 16, 16), "f4")})
    file = session.end_profiling()
    events = json.loads(Path(file).read_text(encoding="utf-8"))
    assert [e["name"] for e in events].count("model_run") == 3
    steps = [e for e in events if e["cat"] == "Node"]
    assert len(steps) == len(session.network.plan.steps)
    assert all(e["ph"] == "X" and e["dur"] >= 1 for e in events)
    assert session.end_profiling() == ""
    assert both(described())[0].end_profiling() == ""


# -- what leanconv lacks -----------------------------------------------------------------------


def test_onnxruntime_computes_what_is_lacking(caplog: pytest.LogCaptureFixture) -> None:
    mine, other = both(lacking())
    warned = [each.getMessage() for each in caplog.records if each.name.startswith("leanconv.o")]
    assert len(warned) == 1
    assert "BiasGelu" in warned[0]
    x = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(mine.run(None, {"x": x})[0], other.run(None, {"x": x})[0])
    assert mine.network is None
    assert mine.get_outputs()[0].shape == ["n", 4]
    with pytest.raises(exceptions.InvalidArgument, match="INVALID_ARGUMENT"):
        mine.run(None, {"x": x[0]})


def test_a_decoder_with_an_empty_past_stays_here() -> None:
    names = ["q", "k", "v", "", "p", "pv"]
    node = helper.make_node("Attention", names, ["y", "z", "zv"], is_causal=1)
    past, steps = (1, 2, "P", 4), (1, 2, "S", 4)
    proto = network_model(
        [node],
        dict.fromkeys("qkv", steps) | dict.fromkeys(names[4:], past),
        ["y", "z", "zv"],
        {},
        23,
    )
    mine, other = both(proto)
    generator = np.random.default_rng(0)
    for rows, before in ((3, 0), (1, 3)):
        extents = dict.fromkeys("qkv", rows) | dict.fromkeys(names[4:], before)
        feed = {
            name: generator.standard_normal((1, 2, extent, 4), np.float32)
            for name, extent in extents.items()
        }
        for a, b in zip(mine.run(None, feed), other.run(None, feed), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
        assert mine.network is not None


def test_arrays_that_the_network_does_not_fit_are_invalid_arguments() -> None:
    """A kernel larger than the image: the file is sound, the array is wrong."""
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, "h", "w"])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, None, None])
    kernel = helper.make_tensor("w", TensorProto.FLOAT, [1, 1, 5, 5], [1.0] * 25)
    graph = helper.make_graph([node], "g", [image], [result], [kernel])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    small = np.ones((1, 1, 3, 3), np.float32)
    for session in both(model):
        with pytest.raises(Exception, match="INVALID_ARGUMENT") as raised:
            session.run(None, {"x": small})
        assert type(raised.value).__name__ == "InvalidArgument"


def test_without_onnxruntime_what_is_lacking_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leanconv.onnxruntime.engines.real", lambda: None)
    with pytest.raises(exceptions.NotImplemented, match=r"9 : NOT_IMPLEMENTED.*BiasGelu"):
        ours.InferenceSession(lacking().SerializeToString())
