"""The emulator of the tests notices what it is for, and what `make test-arm` needs is told."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from leanconv.codegen.emitter import Function
from leanconv.codegen.machine_code import compile_text
from leanconv.target import preset
from support.emulated import LoadedObject, call

NEON = preset("neoverse-n1")
SCRIPT = Path(__file__).parent / "prepare.py"
_RETURN = bytes.fromhex("c0035fd6")  # ret
_CLOBBER = bytes.fromhex("080080d2")  # mov x8, #0
_CLOBBER_KEPT = bytes.fromhex("130080d2")  # mov x19, #0


def code(far: int = 0) -> LoadedObject:
    """`args[1][0] = args[0][far] + constant table`, whose constants need relocations."""
    e = Function("f", [("args", "ptr")])
    x, y = e.pointer(0, "float"), e.pointer(1, "float")
    e.store(e.load(x.at(far), "<4 x float>") * 3.25, y)
    return LoadedObject(compile_text(e.finish(), NEON))


def run(loaded: LoadedObject) -> np.ndarray:
    x, y = np.arange(4, dtype="f4"), np.zeros(4, "f4")
    table = np.array([x.ctypes.data, y.ctypes.data], np.int64)
    call(loaded, "f", [table.ctypes.data], [table, x, y])
    return y


def patched(instruction: bytes) -> LoadedObject:
    """The same with another first instruction, and an end after it."""
    loaded = code()
    start = loaded.symbols["f"] - loaded.memory.ctypes.data
    loaded.memory[start : start + 8] = np.frombuffer(instruction + _RETURN, np.uint8)
    return loaded


def test_code_runs() -> None:
    assert run(code()).tolist() == [0, 3.25, 6.5, 9.75]


def test_memory_that_was_not_given_cannot_be_reached() -> None:
    unicorn = pytest.importorskip("unicorn", reason="unicorn is not installed")
    with pytest.raises(unicorn.UcError, match="UNMAPPED"):
        run(code(far=1 << 40))


def test_registers_of_the_caller_must_be_kept() -> None:
    assert not run(patched(_CLOBBER)).any()
    with pytest.raises(AssertionError, match="registers of the caller"):
        run(patched(_CLOBBER_KEPT))


@pytest.fixture
def prepare() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("prepare", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_missing_is_named_with_its_mend(
    prepare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare.shutil, "which", lambda name: None)
    with pytest.raises(prepare.PrepareError, match="qemu-aarch64 is missing: apt-get install qemu"):
        prepare.prepare(tmp_path / "aarch64")
    assert not list(tmp_path.iterdir())


def test_the_wheels_are_those_of_the_package(prepare: ModuleType) -> None:
    names = {text.split(">")[0] for text in prepare.requirements()}
    assert {"numpy", "llvmlite", "onnx", "pytest", "pytest-timeout", "pytest-xdist"} <= names
    assert not {"triton", "mypy", "onnxruntime"} & names
