"""Sessions of compiled libraries, which need no LLVM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import leanconv.onnxruntime as ours
from leanconv.onnxruntime.exceptions import InvalidArgument, NoSuchFile
from support.onnx_models import small_cnn
from support.opened_libraries import library, linked

pytestmark = linked
SHAPE = (1, 3, 16, 16)
X = np.random.default_rng(0).standard_normal(SHAPE).astype("f4")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("library")
    return str(library(folder, small_cnn(batch=1), shapes=SHAPE))


def test_a_session_of_a_library(file: str) -> None:
    session = ours.InferenceSession(file, providers=["CPUExecutionProvider"])
    (x,), (y,) = session.get_inputs(), session.get_outputs()
    assert (x.name, x.shape, x.type) == ("x", [1, 3, 16, 16], "tensor(float)")
    assert (y.name, y.shape, y.type) == ("y", [1, 5], "tensor(float)")
    assert session.get_modelmeta().graph_name == "net"
    assert session.network is None
    wanted = ours.InferenceSession(small_cnn(batch=1).SerializeToString()).run(None, {"x": X})
    (found,) = session.run(["y"], {"x": X})
    assert np.allclose(found, wanted[0], atol=1e-5)
    with pytest.raises(InvalidArgument, match="input 'x' is float64"):
        session.run(None, {"x": X.astype("f8")})
    with pytest.raises(ValueError, match="missing"):
        session.run(None, {})


def test_a_session_of_a_library_loads_no_llvm(file: str) -> None:
    program = f"""
import sys
import leanconv.onnxruntime as ort
import numpy as np
ort.InferenceSession({file!r}).run(None, {{"x": np.zeros({SHAPE}, "f4")}})
unwanted = "llvmlite", "leanconv.codegen", "leanconv.planner", "leanconv.kernels"
print(*[name for name in sys.modules if name.startswith(unwanted)])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"


def test_files_that_no_session_takes(file: str, tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile):
        ours.InferenceSession(str(tmp_path / "libnone.so"))
    (tmp_path / "libempty.so").touch()
    with pytest.raises(InvalidArgument, match="no shared library"):
        ours.InferenceSession(tmp_path / "libempty.so")
