"""Objects that are loaded without LLVM do what LLVM's linker makes of them, or are refused."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from leanconv.codegen import host as host_module
from leanconv.codegen import linking
from leanconv.codegen.cache import entries_in
from leanconv.codegen.compiler import compile_text
from leanconv.codegen.elf_objects import LoadedObjects, NotPlainError, load_objects, takes_objects
from leanconv.codegen.host import host, processor

pytestmark = [
    pytest.mark.usefixtures("real_compiler"),
    pytest.mark.skipif(not takes_objects(), reason="LLVM links objects here"),
]

TABLES = """
@words = internal constant [4 x i64] [i64 1, i64 2, i64 42, i64 3]
@wide = internal constant [8 x float] [float 0.5, float 1.5, float 2.5, float 3.5,
                                       float 4.5, float 5.5, float 6.5, float 7.5], align 64

define i64 @at(i64 %i) {
  %p = getelementptr i64, ptr @words, i64 %i
  %x = load i64, ptr %p
  %y = call i64 @doubled(i64 %x)
  ret i64 %y
}
define i64 @doubled(i64 %x) noinline {
  %y = add i64 %x, %x
  ret i64 %y
}
define double @mixed(i64 %i, double %x) {
  %p = getelementptr float, ptr @wide, i64 %i
  %y = load float, ptr %p
  %z = fpext float %y to double
  %s = fmul double %x, 0x3FF8000000000000
  %t = fadd double %s, %z
  ret double %t
}
"""
OTHERS = {
    "what is written to": "@n = internal global i64 0\ndefine i64 @f() { store volatile i64 1, "
    "ptr @n\n %x = load volatile i64, ptr @n\n ret i64 %x }",
    "a function of the system": "declare i64 @strlen(ptr)\n@t = internal constant [2 x i8] "
    'c"a\\00"\ndefine i64 @f() { %x = call i64 @strlen(ptr @t)\n ret i64 %x }',
    "an address": "@t = internal constant i64 1\n@p = internal constant ptr @t\ndefine i64 @f() "
    "{ %q = load volatile ptr, ptr @p\n %x = load i64, ptr %q\n ret i64 %x }",
}


def _called(code: linking.Code) -> list[float]:
    integers = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    floats = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_double)
    at, mixed = integers(code["at"]), floats(code["mixed"])
    return [*(at(n) for n in range(4)), *(mixed(n, 3.0) for n in range(8))]


def test_functions_find_their_constants_and_each_other() -> None:
    body = compile_text(TABLES, host())
    answer = compile_text("define i64 @answer() { ret i64 42 }", host())
    loaded = load_objects([answer, body, answer.replace(b"answer", b"second")])
    expected = [2, 4, 84, 6, *(n + 0.5 + 4.5 for n in range(8))]
    assert _called(loaded) == expected
    for name in ("answer", "second"):
        assert ctypes.CFUNCTYPE(ctypes.c_int64)(loaded[name])() == 42
    with linking.lock:
        assert _called(linking._free_linker().link({"a": body}, ["at", "mixed"])) == expected


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_what_refers_to_anything_else_is_linked_by_llvm(text: str) -> None:
    body = compile_text(text, host())
    with pytest.raises(NotPlainError):
        load_objects([body])
    batch = linking.link({"f": body}, ["f"])
    assert not isinstance(batch._tracker, LoadedObjects)
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(batch.address("f"))() == 1


def test_damaged_objects_are_refused() -> None:
    body = compile_text(TABLES, host())
    for length in range(0, len(body), 7):
        with pytest.raises(NotPlainError):
            load_objects([body[:length]])
    with pytest.raises(NotPlainError):
        load_objects([b"\x00" * len(body)])


def test_code_and_constants_cannot_be_written_to() -> None:
    loaded = load_objects([compile_text(TABLES, host())])
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    rights = {
        fields[1]
        for fields in maps
        for start, end in [[int(n, 16) for n in fields[0].split("-")]]
        if start <= loaded["at"] < end or start <= loaded._pages.constants < end
    }
    assert rights == {"r-xp", "r--p"}


# -- without LLVM ----------------------------------------------------------------------------
_WARM = """
import sys
import numpy as np
import leanconv as lc
y = lc.conv2d(np.ones((1, 3, 8, 8), "f4"), np.ones((4, 3, 3, 3), "f4"), padding=1, threads=1)
print(y.max(), "llvmlite.binding" in sys.modules)
"""


def test_a_process_whose_code_is_in_the_cache_does_not_load_llvm(tmp_path: Path) -> None:
    path = ":".join(path for path in sys.path if path and "startup" not in path)
    environment = {**os.environ, "LEANCONV_CACHE_DIR": str(tmp_path), "PYTHONPATH": path}
    for name in ("TEST_MACHINE", "TEST_OBJECTS"):
        environment.pop(name, None)
    command = [sys.executable, "-c", _WARM]
    for loaded in ("True", "False"):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["27.0", loaded]


def test_facts_are_asked_anew_where_their_entry_is_no_such() -> None:
    key = host_module._facts_key()
    assert key is not None
    store, facts = entries_in("machine", 2**20), host_module.asked()
    assert all(facts)
    assert facts.has["sse2"]
    number = json.dumps({**facts._asdict(), "cpu": 1}).encode()
    for wrong in (b"[]", b"{", b'{"cpu": 1}', number):
        store.put(key, wrong)
        assert host_module.llvm_facts.__wrapped__() == facts
    assert host_module.llvm_facts.__wrapped__() == facts


def test_all_cores_say_the_same_of_themselves() -> None:
    cores = os.sched_getaffinity(0)
    try:
        found = set()
        for core in cores:
            os.sched_setaffinity(0, {core})
            found.add(processor())
    finally:
        os.sched_setaffinity(0, cores)
    assert len(found) == 1
    assert found.pop()
