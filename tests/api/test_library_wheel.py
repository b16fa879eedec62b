"""Wheels of compiled networks: what is in them, and that they run with NumPy alone."""

from __future__ import annotations

import ast
import base64
import csv
import hashlib
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import leanconv as lc
from leanconv.errors import SpecError
from support.onnx_models import model, small_cnn
from support.opened_libraries import linked

pytestmark = linked
SHAPE = (1, 3, 16, 16)
_PROGRAM = """
import sys
folder, image, found = sys.argv[1:]
sys.path.insert(0, folder)
sys.modules["leanconv"] = sys.modules["llvmlite"] = None
import numpy as np
import small_net
x = np.load(image)
with small_net.load() as net:
    y = net.run({"x": x})["y"]
    assert np.array_equal(y, net.run(x)["y"])
    for wrong in ({"z": x}, {"x": x.astype("f8")}, {"x": x[:, :2]}, {"x": x.tolist()}):
        try:
            net.run(wrong)
        except ValueError as error:
            print(error)
print(net.facts["name"], len(net.runs), small_net.__version__)
np.save(found, y)
"""


def wheel(folder: Path, made: onnx.ModelProto, name: str = "small_net-1.0.whl") -> Path:
    (file,) = lc.compile(made.SerializeToString(), folder / name).files
    return file


@pytest.mark.skipif(find_spec("pip") is None, reason="pip is not installed")
def test_a_wheel_is_installed_and_runs_with_numpy_alone(tmp_path: Path) -> None:
    made = small_cnn(batch=1)
    for axis, extent in enumerate(SHAPE):
        made.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = extent
    file = wheel(tmp_path, made)
    assert file.name.startswith("small_net-1.0-py3-none-")
    assert sorted(tmp_path.iterdir()) == [file]
    site, image, found = tmp_path / "site", tmp_path / "x.npy", tmp_path / "y.npy"
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "-q"]
    subprocess.run([*pip, "--target", str(site), str(file)], check=True, timeout=250)
    x = np.random.default_rng(0).standard_normal(SHAPE).astype("f4")
    np.save(image, x)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(site), str(image), str(found)],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load(found), lc.load(made, threads=1)(x))
    *errors, ports = done.stdout.splitlines()
    assert len(errors) == 4
    assert all("expected" in error for error in errors)
    assert ports == "small_net 1 1.0"


def test_a_wheel_records_its_files_and_is_the_same_again(tmp_path: Path) -> None:
    made = model([helper.make_node("Relu", ["x"], ["y"])], {"x": (2, 3)}, ["y"])
    file = wheel(tmp_path, made)
    before = file.read_bytes()
    assert wheel(tmp_path, made).read_bytes() == before
    with zipfile.ZipFile(file) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
        assert archive.testzip() is None
    rows = {row[0]: row[1:] for row in csv.reader(files[_about("RECORD")].decode().splitlines())}
    assert rows.keys() == files.keys()
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        wanted = ["", ""] if name == _about("RECORD") else [f"sha256={digest}", str(len(data))]
        assert rows[name] == wanted
    tag = file.stem.removeprefix("small_net-1.0-")
    assert f"Tag: {tag}\n" in files[_about("WHEEL")].decode()


def _about(file: str) -> str:
    return f"small_net-1.0.dist-info/{file}"


def test_names_of_a_file_do_no_harm_in_a_module(tmp_path: Path) -> None:
    name = 'x"""\nraise SystemExit("run")\n{target}\\'
    made = model([helper.make_node("Relu", [name], ["y"])], {name: (2, 3)}, ["y"])
    with zipfile.ZipFile(wheel(tmp_path, made)) as archive:
        text = archive.read("small_net/__init__.py").decode()
    kinds = [type(statement) for statement in ast.parse(text).body]
    assert kinds == [ast.Expr, ast.ImportFrom, ast.ImportFrom, ast.Assign, ast.FunctionDef]
    assert "SystemExit" in (ast.get_docstring(ast.parse(text)) or "")


@pytest.mark.parametrize("name", ["net.whl", "net-.whl", "class-1.0.whl", "a.b-1.0.whl", "n-x.whl"])
def test_names_of_no_wheel(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"expected NAME-VERSION\.whl as in net-1\.0\.whl"):
        wheel(tmp_path, small_cnn(batch=1), name)
