"""Machine code in this process: it works while it is held, and leaves nothing behind."""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path

import pytest

from leanconv.codegen import linking
from leanconv.codegen.compiler import compile_text, load_text
from leanconv.codegen.host import host

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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_many_libraries_leave_no_memory_behind() -> None:
    body = compile_text(TEXT, host())

    def resident() -> int:
        for _ in range(MANY):
            linking.link({"answer": body}, {"answer": "answer"})
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    resident()
    before = resident()
    assert resident() + resident() - 2 * before < MANY * 1024  # a kilobyte each
