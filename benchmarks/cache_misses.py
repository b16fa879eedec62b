"""Misses of the last cache, im2col against MEC, counted by valgrind on code emitted for AVX2.

    python benchmarks/cache_misses.py               writes docs/results/cache_misses.json and .md
    python benchmarks/cache_misses.py --layer cv8 --last 1MiB,16 --method direct
    python benchmarks/cache_misses.py --page        write the page again from the JSON

Each method's kernels are emitted for the preset `haswell`, whose instructions valgrind knows, and
linked with a `main`, emitted too, that runs them one after the other on one thread, as often as it
has arguments. Cachegrind simulates a first data cache of 32 KiB, 8 ways, and a last cache as asked.
A run without arguments is subtracted; what is left of one pass is the first pass, which finds
nothing in the caches, and the difference of two passes and one is a further pass.

Needs valgrind and a C compiler's linker driver (gcc or cc). Nothing here depends on time.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness import RESULTS, rewrite_pages, script, write_results
from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.select import choice_named, choose
from leanconv.api.conv_choice import conv_problem
from leanconv.cli.engines import machine
from leanconv.cli.options import positive
from leanconv.cli.output import print_json, print_table, progress
from leanconv.codegen.host import host
from leanconv.codegen.machine_code import compile_text
from leanconv.errors import InputError
from leanconv.planner.packing import Preparation
from leanconv.reference.layers import LAYERS
from leanconv.spec import ConvSpec
from leanconv.spec.format import aligned
from leanconv.target import preset
from leanconv.units import format_bytes, parse_bytes
from pages.cache_misses import page

NAME = "cache_misses"
TARGET = "haswell"
METHODS = ("im2col:rows=whole", "mec:solution=A", "mec:solution=B", "im2win:rows=whole", "direct")
LINE, FIRST = 64, "32768,8,64"
EVENTS = ("Ir", "I1mr", "ILmr", "Dr", "D1mr", "DLmr", "Dw", "D1mw", "DLmw")


@dataclass(frozen=True)
class Cache:
    """A last cache.

    Attributes:
        size_bytes: of all of it.
        ways: lines of a set.
    """

    size_bytes: int
    ways: int

    @staticmethod
    def parse(text: str) -> Cache:
        """Read `20MiB,20` (an argparse type).

        Raises:
            ArgumentTypeError: the sets would not be a power of two, which cachegrind wants.
        """
        size, _, ways = text.partition(",")
        cache = Cache(parse_bytes(size), int(ways) if ways.isdecimal() else 16)
        sets = cache.size_bytes // (cache.ways * LINE) if cache.ways else 0
        if sets < 1 or sets & (sets - 1) or sets * cache.ways * LINE != cache.size_bytes:
            raise argparse.ArgumentTypeError(
                f"{text!r} has {cache.size_bytes / LINE / max(1, cache.ways):g} sets of lines; "
                "expected a power of two, such as 20MiB,20"
            )
        return cache

    def __str__(self) -> str:
        return f"{format_bytes(self.size_bytes)}, {self.ways} ways"


CACHES = (Cache(2**20, 16), Cache(2 * 2**20, 16), Cache(20 * 2**20, 20))


# -- the program -------------------------------------------------------------------------------
def candidate_of(spec: ConvSpec, method: str) -> Candidate:
    """What the method does on the target, on plain arrays."""
    return choose(conv_problem(spec, None), preset(TARGET), choice_named(method))


def functions_of(candidate: Candidate) -> list[str]:
    """A name for each piece's function, which cachegrind will show."""
    return [f"{type(p.kernel).__name__}_{i}" for i, p in enumerate(candidate.kernels)]


def main_text(spec: ConvSpec, candidate: Candidate) -> str:
    """LLVM IR of `main`: the buffers, and all pieces in order as often as there are arguments.

    Numbers are zero, which costs the caches the same; tables of integers are what they are.
    """
    packing = candidate.packing(np.zeros(spec.weight_shape, spec.dtype), {})
    sizes = {"x": spec.input_bytes, "y": spec.output_bytes, **candidate.temporaries}
    sizes["scratch"] = max(64, candidate.scratch_bytes)
    lines = []
    for role, size in candidate.constant_bytes.items():
        if packing[role][0].source().dtype == np.int64:
            numbers = np.zeros(size // 8, np.int64)
            Preparation.of(
                {role: packing[role]}, {role: numbers.ctypes.data}, host(), threads=1
            ).run()
            values = ", ".join(f"i64 {v}" for v in numbers)
            lines.append(f"@{role} = internal global [{numbers.size} x i64] [{values}], align 64")
        else:
            sizes[role] = size
    for role, size in sizes.items():
        kind = f"[{aligned(size)} x i8]"
        lines.append(f"@{role} = internal global {kind} zeroinitializer, align 64")
    calls = []
    for i, (name, use) in enumerate(zip(functions_of(candidate), candidate.kernels, strict=True)):
        table = ", ".join(f"ptr @{role}" for role in use.roles)
        lines.append(f"@args.{i} = internal global [{len(use.roles)} x ptr] [{table}]")
        lines.append(f"declare void @{name}(ptr, i64, i64, ptr)")
        chunks = use.kernel.chunks
        calls.append(f"  call void @{name}(ptr @args.{i}, i64 0, i64 {chunks}, ptr @scratch)")
    body = "\n".join(calls)
    return (
        "\n".join(lines)
        + f"""
define i32 @main(i32 %count, ptr %arguments) {{
entry:
  br label %top
top:
  %i = phi i32 [1, %entry], [%next, %pass]
  %more = icmp slt i32 %i, %count
  br i1 %more, label %pass, label %leave
pass:
{body}
  %next = add i32 %i, 1
  br label %top
leave:
  ret i32 0
}}
"""
    )


def build(spec: ConvSpec, candidate: Candidate, folder: Path) -> Path:
    """Emit, compile and link the program.

    Raises:
        InputError: there is no linker, or it refuses.
    """
    linker = shutil.which("gcc") or shutil.which("cc")
    if linker is None:
        raise InputError("no gcc or cc is installed, which links the program; install one")
    target = preset(TARGET)
    texts = {"main": main_text(spec, candidate)}
    for name, use in zip(functions_of(candidate), candidate.kernels, strict=True):
        kernel = use.kernel
        texts[name] = kernel.emit(target).replace(f"@{kernel.NAME}(", f"@{name}(", 1)
    objects = []
    for name, text in texts.items():
        objects.append(folder / f"{name}.o")
        objects[-1].write_bytes(compile_text(text, target))
    program = folder / "program"
    done = subprocess.run(
        [linker, "-o", program, *objects], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise InputError(f"{linker} could not link the program: {done.stderr[:500]}")
    return program


# -- counting ----------------------------------------------------------------------------------
Counts = dict[str, np.ndarray]


def count(program: Path, passes: int, cache: Cache) -> Counts:
    """Run the program under cachegrind and return the events of each function, and of `all`.

    Raises:
        InputError: valgrind is missing or fails.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise InputError("valgrind is not installed; install it, or leave this benchmark out")
    out = program.with_suffix(".out")
    command = [
        valgrind,
        "--tool=cachegrind",
        "--cache-sim=yes",
        f"--I1={FIRST}",
        f"--D1={FIRST}",
        f"--LL={cache.size_bytes},{cache.ways},{LINE}",
        f"--cachegrind-out-file={out}",
        str(program),
        *["pass"] * passes,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not out.exists():
        raise InputError(f"valgrind failed ({done.returncode}): {done.stderr[-500:]}")
    return parse_counts(out.read_text(encoding="utf-8"))


def parse_counts(text: str) -> Counts:
    """Read cachegrind's file.

    Raises:
        InputError: its events are not those that are expected.
    """
    found = re.search(r"^events: (.*)$", text, re.MULTILINE)
    if found is None or tuple(found[1].split()) != EVENTS:
        raise InputError(f"cachegrind counted {found and found[1]!r}; expected {' '.join(EVENTS)}")
    counts: Counts = {"all": np.zeros(len(EVENTS), np.int64)}
    function = ""
    for line in text.splitlines():
        if line.startswith("fn="):
            function = line[3:]
        elif line[:1].isdigit():
            numbers = np.array([int(n) for n in line.split()[1:]], np.int64)
            numbers = np.pad(numbers, (0, len(EVENTS) - numbers.size))
            counts[function] = counts.get(function, 0) + numbers
            counts["all"] = counts["all"] + numbers
    return counts


def difference(more: Counts, less: Counts, functions: Sequence[str]) -> dict[str, dict[str, int]]:
    """Data references and misses that one run has more than another, of all and by function."""
    result = {}
    for name in ("all", *functions):
        zero = np.zeros(len(EVENTS), np.int64)
        events = dict(zip(EVENTS, more.get(name, zero) - less.get(name, zero), strict=True))
        result[name] = {
            "instructions": int(events["Ir"]),
            "references": int(events["Dr"] + events["Dw"]),
            "first_misses": int(events["D1mr"] + events["D1mw"]),
            "last_misses": int(events["DLmr"] + events["DLmw"]),
        }
    return result


def measure(spec: ConvSpec, method: str, caches: Sequence[Cache]) -> dict[str, Any]:
    """Count one method with each last cache."""
    candidate = candidate_of(spec, method)
    functions = functions_of(candidate)
    passes = []
    with tempfile.TemporaryDirectory(prefix="leanconv-misses-") as folder:
        program = build(spec, candidate, Path(folder))
        for cache in caches:
            base, once, twice = (count(program, n, cache) for n in (0, 1, 2))
            passes.append(
                {
                    "last_bytes": cache.size_bytes,
                    "ways": cache.ways,
                    "first": difference(once, base, functions),
                    "further": difference(twice, once, functions),
                }
            )
    return {
        "parameters": candidate.details,
        "lowered_bytes": candidate.shared_bytes,
        "functions": functions,
        "caches": passes,
    }


def print_method(method: str, result: dict[str, Any]) -> None:
    """Print one method's table."""
    rows = []
    for cache in result["caches"]:
        for kind in ("first", "further"):
            for name, n in cache[kind].items():
                share = n["last_misses"] / max(1, n["references"])
                rows.append(
                    [
                        format_bytes(cache["last_bytes"]),
                        kind,
                        name,
                        f"{n['references']:,}",
                        f"{n['first_misses']:,}",
                        f"{n['last_misses']:,}",
                        f"{100 * share:.3f} %",
                    ]
                )
    heads = ["last cache", "pass", "of", "references", "D1 misses", "LL misses", "share"]
    print_table(heads, rows, title=f"{method}: {result['parameters']}", left=3)


def main() -> int:
    """Count what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layer", choices=LAYERS, default="cv10", metavar="LAYER")
    parser.add_argument("--batch", type=positive, default=1, metavar="N", help="default 1")
    parser.add_argument("--layout", choices=("NCHW", "NHWC"), default="NCHW")
    parser.add_argument("--method", action="append", metavar="TEXT", help="only this (repeatable)")
    parser.add_argument(
        "--last", action="append", type=Cache.parse, metavar="BYTES,WAYS", help="last cache"
    )
    parser.add_argument("--page", action="store_true", help="write the page of earlier results")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON to this file")
    options = parser.parse_args()
    if options.page:
        rewrite_pages(NAME, page)
        return 0
    chosen = (options.layer, options.batch, options.layout) != ("cv10", 1, "NCHW")
    if not (chosen or options.method or options.last or options.out):
        options.out = RESULTS / f"{NAME}.json"  # the same on every machine
    spec = ConvSpec.parse(LAYERS[options.layer], batch=options.batch, layout=options.layout)
    document = {
        "machine": machine.describe().to_json(),
        "layer": options.layer,
        "problem": str(spec),
        "layout": spec.layout,
        "target": TARGET,
        "first_cache": FIRST,
        "methods": {},
    }
    with progress("counting") as shown:
        for method in options.method or METHODS:
            shown.say(f"counting {method}")
            result = measure(spec, method, options.last or CACHES)
            document["methods"][method] = result
            if not options.json:
                print_method(method, result)
    write_results(document, options.out, page)
    if options.json:
        print_json(document)
    return 0


if __name__ == "__main__":
    script(main)
