"""Files that a user names: whatever lies there ends in an error, soon, and in little memory."""

from __future__ import annotations

import ast
import os
import re
import zipfile
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import leanconv as lc
from leanconv.cli.images import read_image
from leanconv.cli.preprocessing import PRESETS, Preprocessing, read_labels
from leanconv.errors import InputError, LeanConvError
from leanconv.files import open_regular, read_whole
from leanconv.graph.onnx_import import read_model
from leanconv.planner.plan_file import read_plan
from leanconv.quantizer import samples
from support.hostile import bounded, held

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "leanconv"
MODEL = ROOT / "examples" / "digits" / "digits.onnx"
UNIT = Preprocessing(normalisation=PRESETS["unit"].normalisation)
PICTURE = ROOT / "examples" / "digits" / "images" / "digit_7_a.png"


@pytest.fixture(scope="module")
def net() -> lc.Network:
    return lc.load(MODEL, threads=1)


def external_data(path: Path) -> None:
    """A model whose weights lie in the file."""
    proto = onnx.load_from_string(held([4, 4, 3, 3], data_location=TensorProto.EXTERNAL))
    proto.graph.initializer[0].ClearField("raw_data")
    proto.graph.initializer[0].external_data.add(key="location", value=path.name)
    model = path.with_suffix(".model")
    model.write_bytes(proto.SerializeToString())
    read_model(model)


READERS: dict[str, Callable[[Path, lc.Network], object]] = {
    "model": lambda path, net: lc.load(path),
    "plan": lambda path, net: read_plan(path),
    "image": lambda path, net: read_image(path, (1, 1, 28, 28), UNIT),
    "labels": lambda path, net: read_labels(str(path)),
    "sample": lambda path, net: samples.read_sample(path, net.inputs),
    "weights": lambda path, net: external_data(path),
}
KINDS: dict[str, Callable[[Path], object]] = {
    "a FIFO": lambda path: os.mkfifo(path),
    "a folder": lambda path: path.mkdir(),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a FIFO": lambda path: (os.mkfifo(f"{path}2"), path.symlink_to(f"{path.name}2")),
    "zeros of a terabyte": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")
@pytest.mark.parametrize(
    ("reader", "kind"),
    # Weights are the first bytes of a file, which is mapped, however much follows them.
    [pair for pair in product(READERS, KINDS) if pair != ("weights", "zeros of a terabyte")],
)
def test_what_is_no_file_of_a_bounded_size_is_an_error(
    tmp_path: Path, net: lc.Network, reader: str, kind: str
) -> None:
    path = tmp_path / "x.bin"
    KINDS[kind](path)
    with bounded(), pytest.raises(LeanConvError, match="expected|cannot be read"):
        READERS[reader](path, net)


def test_of_a_huge_file_weights_are_the_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    KINDS["zeros of a terabyte"](path)
    with bounded():
        external_data(path)


def test_a_sample_that_grows_when_it_is_unpacked_is_an_error(
    tmp_path: Path, net: lc.Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for number in range(8):
            bundle.writestr(f"{number}.npy", bytes(1 << 20))
    assert path.stat().st_size < 1 << 20
    monkeypatch.setattr(samples, "_MOST_BYTES", 4 << 20)
    with bounded(), pytest.raises(InputError, match="when unpacked; expected at most 4194304"):
        samples.read_sample(path, net.inputs)


def test_pictures_of_kinds_that_run_other_programs_are_refused(tmp_path: Path) -> None:
    """Pillow has Ghostscript read PostScript."""
    path = tmp_path / "picture.png"
    path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n")
    with pytest.raises(InputError, match="picture.* is .*; expected one of PNG"):
        read_image(path, (1, 1, 8, 8), UNIT)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP"])
def test_pictures_of_the_usual_kinds_are_read(tmp_path: Path, kind: str) -> None:
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "picture"
    image.new("RGB", (8, 8), (255, 255, 255)).save(path, kind)
    assert read_image(path, (1, 1, 8, 8), UNIT).x.max() == 1.0


# -- the one that opens --------------------------------------------------------------------
def test_a_file_is_read_to_its_end_and_no_further(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1000)
    (tmp_path / "link").symlink_to(path)
    with open_regular(tmp_path / "link", 1000) as file:
        assert read_whole(file) == b"x" * 1000
    with pytest.raises(InputError, match="plan .* has 1000 bytes; expected at most 999 bytes; why"):
        open_regular(path, 999, what="plan", advice="why")
    with pytest.raises(OSError, match="link"):
        open_regular(tmp_path / "link", follow=False)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "absent")


def test_a_refused_file_is_closed(tmp_path: Path) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("only Linux lists a process's open files")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(InputError):
            open_regular(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


# Modules that open files in other ways, and what these are: never one that a user names.
OPEN_OTHERS = {
    "files.py": "opens all others",
    "codegen/private_folder.py": "folders of the cache, and new files in them",
    "api/library_links.py": "an object that was written for it",
    "api/wheel.py": "a library that it has linked, and leanconv's own sources",
    "api/image_places.py": "an image that it maps, after open_regular, and /proc",
    "images/zarr_arrays.py": "folders with arrays, after open_regular of what describes them",
    "images/tiff.py": "an image that it maps, after open_regular",
    "dask/__init__.py": "the file of an image that the caller has mapped",
    "codegen/compiler.py": "leanconv's own sources",
    "gpu/device/compiler.py": "leanconv's own sources",
    "codegen/host.py": "/proc and /sys",
    "codegen/keys.py": "leanconv's own sources",
    "codegen/process_limits.py": "/proc and /sys",
    "codegen/kernel.py": "loops, no files",
    "cli/engines/engine_leanconv.py": "a problem that `bench` has written for it",
    "torch/gradient_engine.py": "the same, where leanconv is not imported",
    "codegen/backend.py": "/proc, and llvmlite's library",
    "cli/engines/machine.py": "/proc",
    "cli/times.py": "/proc",
    "runtime/memory.py": "/proc",
    "runtime/shared_library.py": "a file of a stated size beside a library; wheels hold a copy",
    "cli/engines/worker.py": "its own standard output",
    "cli/output.py": "bundles that commands write, and /dev/null",
}
READING = {"open", "read_bytes", "read_text", "fromfile", "memmap", "loadtxt", "genfromtxt"}


def readings(source: str) -> list[int]:
    """The lines that open a file for reading, but for those that are given an open one."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            library = ast.unparse(node.func) == "leanconv.open"
            if name in READING and not library and "Image" not in ast.dump(node.func):
                found.append(node.lineno)
    return found


SOURCES = {
    path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(PACKAGE.rglob("*.py"))
}


def test_files_are_opened_in_one_place() -> None:
    opening = {
        name: lines
        for name, source in SOURCES.items()
        if any(word in source for word in READING) and (lines := readings(source))
    }
    others = {name: lines for name, lines in opening.items() if name not in OPEN_OTHERS}
    assert not others, "open these with leanconv.files.open_regular"
    for name in ("files.py", "codegen/private_folder.py", "codegen/host.py"):
        assert opening[name]  # the search does see them


def test_nothing_is_unpickled() -> None:
    """NumPy's files may hold Python objects, which are code."""
    loads = [
        (name, call)
        for name, source in SOURCES.items()
        for call in re.findall(r"np\.load\(.*\)", source)
    ]
    assert loads
    assert [name for name, call in loads if "allow_pickle=False" not in call] == []
    importing = re.compile(r"^\s*(import|from) (pickle|marshal|shelve|dill|joblib)\b", re.MULTILINE)
    found = [name for name, source in SOURCES.items() if importing.search(source)]
    assert found == ["dask/workers.py"]  # whose digest is of what Dask will pickle
    assert re.findall(r"pickle\.\w+", SOURCES[found[0]]) == ["pickle.PickleBuffer", "pickle.dumps"]


def test_a_named_sample_is_read(tmp_path: Path, net: lc.Network) -> None:
    x = np.zeros((1, 1, 28, 28), "f4")
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", **{net.inputs[0].name: x})
    for name in ("x.npy", "x.npz"):
        (array,) = samples.read_sample(tmp_path / name, net.inputs).arrays.values()
        np.testing.assert_array_equal(array, x)
