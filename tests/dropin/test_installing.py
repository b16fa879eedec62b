"""`install()`: who imports onnxruntime finds leanconv's sessions; each case in its own process."""

from __future__ import annotations

import subprocess
import sys

import pytest

NET = """
import onnx, numpy as np, leanconv.onnxruntime
from onnx import helper, TensorProto
def net(op, domain=""):
    node = helper.make_node(op, ["x"], ["y"], domain=domain)
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy"]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:])
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8).SerializeToString()
x = np.float32([-1, 1])
"""


def ran(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", NET + code], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_packages_find_ours_and_then_the_real_one_again() -> None:
    ran("""
leanconv.onnxruntime.install()
leanconv.onnxruntime.install()
import onnxruntime as ort, importlib.util
assert ort.InferenceSession is leanconv.onnxruntime.InferenceSession
assert importlib.util.find_spec("onnxruntime") is not None
from onnxruntime import InferenceSession, SessionOptions, get_available_providers
from onnxruntime.capi import _pybind_state
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, Fail
import onnxruntime.capi.onnxruntime_inference_collection as c
assert c.InferenceSession is InferenceSession
try:
    import onnxruntime.quantization
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("found a module of the real one below ours")
s = InferenceSession(net("Relu"), providers=["CPUExecutionProvider"])
assert s.run(None, {"x": x})[0].tolist() == [0, 1]
try:
    s.run(None, {"x": x[:1]})
except InvalidArgument:
    pass
leanconv.onnxruntime.uninstall()
import onnxruntime
assert onnxruntime.__version__ != leanconv.onnxruntime.__version__
assert type(onnxruntime.InferenceSession(net("Relu"))) is not type(s)
""")


def test_the_real_one_stays_reachable_for_what_is_lacking() -> None:
    text = ran("""
leanconv.onnxruntime.install()
import onnxruntime, logging
logging.basicConfig()
s = onnxruntime.InferenceSession(net("FastGelu", "com.microsoft"))
assert abs(s.run(None, {"x": x})[0][1] - 0.8412) < 1e-3
import sys
assert sys.modules["onnxruntime"] is onnxruntime
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession
assert InferenceSession is leanconv.onnxruntime.InferenceSession
""")
    assert "FastGelu" in text


@pytest.mark.parametrize("first", ["import onnxruntime", ""])
def test_an_import_before_is_warned_of(first: str) -> None:
    text = ran(f"""
{first}
import logging
logging.basicConfig()
leanconv.onnxruntime.install()
import onnxruntime
assert onnxruntime.InferenceSession is leanconv.onnxruntime.InferenceSession
leanconv.onnxruntime.uninstall()
""")
    assert ("imported before install" in text) == bool(first)
