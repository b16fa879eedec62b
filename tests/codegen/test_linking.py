"""Machine code in this process: it works while it is held, and leaves nothing behind."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leanconv
from leanconv.codegen import linking
from leanconv.codegen.cache import DiskCache
from leanconv.codegen.compiler import compile_text, load, load_text
from leanconv.codegen.host import host
from support.kernel_runner import run_kernel
from support.small_kernels import Scale

pytestmark = pytest.mark.usefixtures("real_compiler")


@pytest.fixture(params=[True, False], ids=["loaded", "linked"], autouse=True)
def _without_llvm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects are loaded without LLVM where that can be, and linked by it."""
    if not request.param:
        monkeypatch.setattr(linking, "takes_objects", lambda: False)
    elif not linking.takes_objects():
        pytest.skip("LLVM links objects here")


TEXT = "define i64 @answer() { ret i64 42 }"
MANY = 4 * linking._LIBRARIES


def _answer(library: linking.Library) -> int:
    function = ctypes.CFUNCTYPE(ctypes.c_int64)(library.address("answer"))
    return int(function())


def test_libraries_outlive_the_linker_that_took_the_next_ones() -> None:
    held = [load_text(TEXT, ["answer"], "linking") for _ in range(2 * linking._LIBRARIES)]
    assert {_answer(library) for library in held} == {42}
    del held[::2]
    gc.collect()
    assert {_answer(library) for library in held} == {42}


def test_libraries_in_a_circle_end_whatever_is_collected_first() -> None:
    for _ in range(2 * linking._LIBRARIES):
        circle: list[object] = [load_text(TEXT, ["answer"], "linking")]
        circle.append(circle)
    del circle
    gc.collect()
    assert _answer(load_text(TEXT, ["answer"], "linking")) == 42


# -- shared code ---------------------------------------------------------------------------
def test_libraries_share_the_code_of_a_form() -> None:
    both = load([Scale(31.0), Scale(32.0)])
    one = load([Scale(32.0)])
    assert one.address(Scale(32.0)) == both.address(Scale(32.0))
    assert one.code_bytes == both.code_bytes  # the whole batch is kept by each
    more = load([Scale(32.0), Scale(33.0)])
    assert more.address(Scale(32.0)) == both.address(Scale(32.0))
    assert more.code_bytes > both.code_bytes


def test_code_is_freed_with_its_last_user() -> None:
    first = load([Scale(34.0)])
    (batch,) = first.batches
    tracker = weakref.ref(batch._tracker)
    del batch
    second = load([Scale(34.0), Scale(35.0)])
    del first
    gc.collect()
    assert tracker() is not None
    x = np.arange(8, dtype="f4")
    np.testing.assert_array_equal(run_kernel(Scale(34.0), x, x * np.nan), 34 * x)
    del second
    gc.collect()
    assert tracker() is None
    assert load([Scale(36.0)]).address(Scale(36.0))
    assert len(linking._loaded) <= 1 + sum(
        found() is not None for found in linking._loaded.values()
    )
    np.testing.assert_array_equal(run_kernel(Scale(34.0), x, x * np.nan), 34 * x)


def test_what_is_loaded_is_neither_read_nor_linked(monkeypatch: pytest.MonkeyPatch) -> None:
    held = load([Scale(37.0), Scale(38.0)])

    def refused(*_: object) -> None:
        raise AssertionError("touched")

    monkeypatch.setattr(DiskCache, "get_all", refused)
    monkeypatch.setattr(linking, "link", refused)
    again = load([Scale(38.0)])
    assert again.address(Scale(38.0)) == held.address(Scale(38.0))


def test_shapes_of_a_network_share_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two shapes whose kernels differ in extents only loads none."""
    w = np.ones((16, 16, 3, 3), np.float32)
    options: dict[str, Any] = {"padding": 1, "threads": 1, "algorithm": "direct"}
    first = leanconv.plan_conv2d((1, 16, 30, 30), w, **options)
    linked: list[object] = []
    link = linking.link
    monkeypatch.setattr(linking, "link", lambda *given: linked.append(given) or link(*given))
    second = leanconv.plan_conv2d((1, 16, 34, 30), w, **options)
    assert not linked
    assert first(np.ones((1, 16, 30, 30), "f4")).shape == (1, 16, 30, 30)
    assert second(np.ones((1, 16, 34, 30), "f4")).max() == 144


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_many_libraries_leave_no_memory_behind() -> None:
    body = compile_text(TEXT, host())

    def resident() -> int:
        for _ in range(MANY):
            linking.link({"answer": body}, ["answer"])
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    resident()
    before = resident()
    assert resident() + resident() - 2 * before < MANY * 1024  # a kilobyte each


FAR_APART = """
import ctypes, mmap
from leanconv.codegen.cache import DiskCache
from leanconv.codegen.compiler import load_text

load_text("define i64 @first() { ret i64 1 }", ["first"], "linking")  # maps LLVM and its threads
plugs = [mmap.mmap(-1, 4096, prot=0) for _ in range(4000)]  # in every hole between libraries
pages, between = [], []
for _ in range(40):
    pages.append(mmap.mmap(-1, 4096, prot=0))
    between.append(mmap.mmap(-1, 3 << 30, prot=0))  # 3 GiB of addresses
for page in pages:
    page.close()  # the holes that sections of a page are put into
table = "@table = internal constant [4 x i64] [i64 1, i64 2, i64 42, i64 3]"
body = "%p = getelementptr i64, ptr @table, i64 %i  %x = load i64, ptr %p  ret i64 %x"
held = [
    load_text(f"{table} define i64 @at{n}(i64 %i) {{ {body} }}", [f"at{n}"], "linking")
    for n in range(8)
]
for n, library in enumerate(held):
    at = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(library.address(f"at{n}"))
    assert at(2) == 42
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sets addresses aside")
def test_sections_are_not_put_far_apart(tmp_path: Path) -> None:
    """Two sections of an object more than 2 GiB apart once ended the process."""
    done = subprocess.run(
        [sys.executable, "-c", FAR_APART],
        env={**os.environ, "LEANCONV_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
