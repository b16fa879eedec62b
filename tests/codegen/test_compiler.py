"""The compiler: what the key depends on, damaged objects, and processes killed while compiling."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from leanconv.algorithms.common.conv import with_conv
from leanconv.codegen import compiler, keys
from leanconv.codegen.cache import DiskCache
from leanconv.codegen.forms import instance_of
from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.errors import CompileError
from leanconv.target import PRESETS, Target, preset
from leanconv.types import FLOAT64, Precision
from support.cache_check import python_path, run_program
from support.kernel_runner import run_kernel
from support.listing import assembly
from support.small_kernels import Scale, conv_kernel
from support.waiting import HANG_S, wait_until

pytestmark = pytest.mark.usefixtures("real_compiler")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    cache = DiskCache(tmp_path / "objects")
    monkeypatch.setattr(compiler, "object_cache", lambda: cache)
    return tmp_path / "objects"


def entries(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.o")}


def doubled(kernel: Kernel, target: Target | None = None) -> bool:
    x = np.arange(8, dtype="f4")
    return np.array_equal(run_kernel(kernel, x, x * np.nan, target=target), 2 * x)


# -- keys ----------------------------------------------------------------------------------
def test_equal_kernels_share_an_entry(folder: Path) -> None:
    library = compiler.load([Scale(2.0), Scale(2.0)])
    assert library.address(Scale(2.0)) == library.address(Scale(2.0))
    compiler.load([Scale(2.0)])
    assert len(entries(folder)) == 1


def test_every_field_of_the_kernel_is_in_its_form_or_words(folder: Path) -> None:
    kernel = conv_kernel("ic8ih6oc72kh3ph1", host())  # more than one panel on every target
    changed = [
        replace(with_conv(kernel, precision=Precision.of(FLOAT64)), lanes=host().lanes(FLOAT64)),
        replace(kernel, rows=kernel.rows + 1),
        with_conv(kernel, y_offset=1),
        replace(kernel, panels_inside=not kernel.panels_inside),
        with_conv(kernel, epilogue=replace(kernel.conv.epilogue, bias=True)),
        with_conv(kernel, window=replace(kernel.conv.window, pad=(0, 1, 0))),
        with_conv(kernel, x=replace(kernel.conv.x, image=7777)),
    ]
    found = [instance_of(k, host()) for k in [kernel, *changed]]
    assert len(set(found)) == 1 + len(changed)
    batches = [instance_of(with_conv(kernel, batch=batch), host()) for batch in (2, 5)]
    assert batches[0].digest == batches[1].digest
    compiler.load([Scale(2.0)])
    before = entries(folder)
    compiler.load([Scale(2.000001)])
    assert entries(folder) > before


def test_every_field_of_the_target_is_in_the_key() -> None:
    base = host()
    changes = {
        "name": "other",
        "isa": "other",
        "cpu": "generic",
        "features": "-fma",
        "triple": "x86_64-unknown-freebsd",
        "vector_bytes": 8,
        "registers": 8,
        "fma_units": 0.5,
        "fma_latency": 9,
        "l1_bytes": 1,
        "l2_bytes": 1,
        "l3_bytes": 1,
        "costs": replace(base.costs, prefetch_bytes=1),
        "extensions": ("other",),
    }
    targets = [base, *(replace(base, **{field: value}) for field, value in changes.items())]
    assert set(changes) == set(base.__dataclass_fields__)
    assert len({keys.key_of("k", target) for target in [*targets, *PRESETS.values()]}) == len(
        targets
    ) + len(PRESETS)


def test_the_generator_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys.key_of("k", host())
    monkeypatch.setattr(keys, "object_hash", lambda: "another version")
    assert keys.key_of("k", host()) != before


def test_targets_have_entries_of_their_own(folder: Path) -> None:
    if host().isa not in ("avx2", "avx512"):
        pytest.skip("this machine runs no AVX2 code")
    assert doubled(Scale(2.0))
    assert doubled(Scale(2.0), preset("haswell"))
    assert len(entries(folder)) == 2


# -- damage --------------------------------------------------------------------------------
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.99])
def test_truncated_objects_are_compiled_anew(
    folder: Path, caplog: pytest.LogCaptureFixture, keep: float
) -> None:
    caplog.set_level(logging.WARNING, "leanconv")
    assert doubled(Scale(2.0))
    (path,) = folder.glob("*.o")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole))])
    assert doubled(Scale(2.0))
    (record,) = caplog.records
    assert path.name in record.getMessage()
    assert path.read_bytes() == whole  # objects are the same whenever they are compiled


def test_random_damage_is_never_executed(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    random_ = random.Random(1)
    caplog.set_level(logging.WARNING, "leanconv")
    for count in range(1, 21):
        assert doubled(Scale(2.0))
        (path,) = folder.glob("*.o")
        data = bytearray(path.read_bytes())
        data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
        path.write_bytes(data)
        assert doubled(Scale(2.0))
        assert len(caplog.records) == count


def test_an_unusable_cache_changes_nothing_but_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "leanconv")
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file" / "objects")
    monkeypatch.setattr(compiler, "object_cache", lambda: cache)
    assert doubled(Scale(2.0))
    assert "cannot be written" in caplog.text


def test_invalid_code_names_the_generator() -> None:
    class Broken(Scale):
        def emit(self, target: Target) -> str:
            return "define void @kernel(ptr %args) { nonsense }"

    with pytest.raises(CompileError, match="generator emitted invalid code"):
        assembly(Broken(1.0), host())


def test_several_at_once_give_the_objects_of_one_by_one(folder: Path) -> None:
    kernels = [Scale(i + 0.25) for i in range(8)]
    for kernel in kernels:
        compiler.load([kernel])
    alone = {path.name: path.read_bytes() for path in folder.glob("*.o")}
    for path in folder.glob("*.o"):
        path.unlink()
    compiler.load(kernels)
    assert {path.name: path.read_bytes() for path in folder.glob("*.o")} == alone


def test_invalid_code_among_others_is_reported(folder: Path) -> None:
    @dataclass(frozen=True)
    class Broken(Scale):
        def emit(self, target: Target) -> str:
            return "define void @kernel(ptr %args) { nonsense }"

    with pytest.raises(CompileError, match="generator emitted invalid code"):
        compiler.load([Scale(2.0), Broken(3.0), Scale(4.0)])
    assert doubled(Scale(2.0))


# -- processes -----------------------------------------------------------------------------
_COMPILE = """
from support.small_kernels import Scale, conv_kernel
from leanconv.codegen import compiler
from leanconv.codegen.host import host
print("begun", flush=True)
for i in range(60):
    library = compiler.load([Scale(float(i)), Scale(i + 0.5)])
    assert library.address(Scale(float(i)))
print("done", flush=True)
"""


def test_killed_while_compiling_leaves_a_cache_that_works(tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    settings = {"LEANCONV_CACHE_DIR": str(tmp_path), "PYTHONPATH": python_path()}
    for least in range(0, 30, 5):
        process = subprocess.Popen(
            [sys.executable, "-c", _COMPILE],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **settings},
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        wait_until(lambda least=least: len(entries(folder)) > least)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        for path in folder.glob("*.o"):
            assert DiskCache(folder).get(path.stem) is not None, f"{path.name} is damaged"
    assert 25 < len(entries(folder)) <= 120
    result = run_program(_COMPILE, **settings)
    assert (result.returncode, result.stderr) == (0, "")
    assert len(entries(folder)) == 120


def test_two_processes_compile_the_same_at_once(tmp_path: Path) -> None:
    settings = {"LEANCONV_CACHE_DIR": str(tmp_path), "PYTHONPATH": python_path()}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", _COMPILE],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=settings,
        )
        for _ in range(2)
    ]
    for process in both:
        out, err = process.communicate(timeout=HANG_S)
        assert (process.returncode, out, err) == (0, "begun\ndone\n", "")
    assert len(entries(tmp_path / "objects")) == 120


def test_damage_is_told_in_the_log_of_a_plain_process(tmp_path: Path) -> None:
    program = "from leanconv.runtime.native import native\nnative()\nprint('runs')"
    settings = {"LEANCONV_CACHE_DIR": str(tmp_path), "PYTHONPATH": python_path()}
    assert run_program(program, **settings).stderr == ""
    (path,) = (tmp_path / "objects").glob("*.o")
    path.write_bytes(path.read_bytes()[:-5])
    result = run_program(program, **settings)
    assert result.stdout == "runs\n"
    assert "damaged" in result.stderr
    assert run_program(program, **settings).stderr == ""


def test_a_cache_of_no_bytes_is_no_cache(tmp_path: Path) -> None:
    program = "from leanconv.runtime.native import native\nnative()"
    settings = {"LEANCONV_CACHE_DIR": str(tmp_path), "PYTHONPATH": python_path()}
    result = run_program(program, LEANCONV_CACHE_BYTES="0", **settings)
    assert (result.returncode, result.stderr) == (0, "")
    assert not list(tmp_path.iterdir())
