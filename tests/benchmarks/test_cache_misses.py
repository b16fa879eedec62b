"""Reading cachegrind's file; a program of a small layer, counted."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

import pytest

import cache_misses
from cache_misses import Cache
from leanconv.codegen.machine_code import compile_text
from leanconv.errors import InputError
from leanconv.spec import ConvSpec
from leanconv.target import preset

SPEC = ConvSpec.parse("mb2ic8ih10oc16oh8kh3")
FILE = """version: 1
desc: D1 cache: 32768 B, 64 B, 8-way associative
cmd: ./program
events: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw
fl=???
fn=main
0 10 1 1 2 0 0 3 1 0
fn=DirectConv_1
0 100 2 1 20 5 4 30 6 3
5 1
fn=main
0 5 0 0 1
summary: 116 3 2 23 5 4 33 7 3
"""


def test_events_are_summed_by_function() -> None:
    counts = cache_misses.parse_counts(FILE)
    assert counts["all"].tolist() == [116, 3, 2, 23, 5, 4, 33, 7, 3], "those of the summary"
    assert counts["main"].tolist() == [15, 1, 1, 3, 0, 0, 3, 1, 0]
    nothing = cache_misses.parse_counts(FILE.split("fl=")[0])
    found = cache_misses.difference(counts, nothing, ["DirectConv_1"])
    assert found["DirectConv_1"] == {
        "instructions": 101,
        "references": 50,
        "first_misses": 11,
        "last_misses": 7,
    }


def test_other_events_are_refused() -> None:
    with pytest.raises(InputError, match="expected Ir I1mr"):
        cache_misses.parse_counts("events: Ir\nfn=main\n0 1\n")


def test_caches_are_read() -> None:
    assert Cache.parse("20MiB,20") == Cache(20 * 2**20, 20)
    assert Cache.parse("1 MiB") == Cache(2**20, 16)
    for wrong in ("20MiB,16", "1MiB,0"):
        with pytest.raises(argparse.ArgumentTypeError, match="power of two"):
            Cache.parse(wrong)


@pytest.mark.parametrize("method", cache_misses.METHODS)
def test_the_program_compiles(method: str) -> None:
    candidate = cache_misses.candidate_of(SPEC, method)
    names = cache_misses.functions_of(candidate)
    text = cache_misses.main_text(SPEC, candidate)
    assert all(f"call void @{name}(" in text for name in names)
    assert b"main" in compile_text(text, preset(cache_misses.TARGET))


@pytest.mark.skipif(
    not (shutil.which("valgrind") and shutil.which("gcc")), reason="needs valgrind and gcc"
)
def test_a_program_runs_and_is_counted(tmp_path: Path) -> None:
    candidate = cache_misses.candidate_of(SPEC, "mec:solution=B")
    program = cache_misses.build(SPEC, candidate, tmp_path)
    assert subprocess.run([program, "pass"], check=False).returncode == 0
    base, once = (cache_misses.count(program, n, Cache(2**20, 16)) for n in (0, 1))
    lower, product = cache_misses.functions_of(candidate)
    found = cache_misses.difference(once, base, [lower, product])
    lines = candidate.shared_bytes // 64
    assert lines <= found[lower]["last_misses"] <= 2 * lines, "x is read and L written, once"
    assert found[product]["references"] > 9 * 8 * 64, "a load at least for every tap and column"
    both = found[lower]["references"] + found[product]["references"]
    start = 200  # what the start of a program reads differs a little from run to run
    assert both - start <= found["all"]["references"] <= 1.1 * both + start
