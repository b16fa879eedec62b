"""What is written beside a compiled network: a C header, a description as JSON, an example."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

from leanconv.graph.ir import TensorType
from leanconv.graph.onnx_import import Model
from leanconv.planner.network_plan import NetworkPlan
from leanconv.runtime import shared_library as interface
from leanconv.runtime.static_library import StaticLibrary
from leanconv.types import named_dtype
from leanconv.units import counted, shape_text

# Words of C and C++ that no member can be.
_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
    alignas alignof asm auto bool break case catch char class const constexpr continue decltype
    default delete do double else enum explicit export extern false float for friend goto if
    inline int long mutable namespace new noexcept nullptr operator private protected public
    register restrict return short signed sizeof static struct switch template this throw true
    try typedef typeid typename union unsigned using virtual void volatile while
    """,
    )
)
Summary: TypeAlias = "dict[str, Any]"


def members(values: Sequence[Summary], otherwise: str) -> dict[str, Summary]:
    """Return the members of the struct for some values, by name in C.

    Args:
        values: inputs or outputs, of `summary`.
        otherwise: the name where nothing of the file's can stand in C.
    """
    found = dict[str, Summary]()
    for value in values:
        word = re.sub(r"[^A-Za-z0-9_]+", "_", value["name"]).strip("_") or otherwise
        word = f"{otherwise}_{word}" if word[0].isdigit() or word in _WORDS else word
        wanted, number = word, 1
        while wanted in found:
            wanted, number = f"{word}_{number}", number + 1
        found[wanted] = value
    return found


def c_type(dtype: str) -> str:
    """Return the C type of an element; of a float that C lacks, the type of its bits."""
    kind = named_dtype(dtype)
    if kind.is_float and kind.bytes >= 4:
        return "float" if kind.bytes == 4 else "double"
    return f"{'int' if kind.kind == 'int' else 'uint'}{8 * kind.bytes}_t"


def summary(
    name: str,
    model: Model,
    plans: Sequence[Mapping[str, NetworkPlan]],
    library: StaticLibrary,
    weight_bytes: int,
    packed_bytes: int,
    weights_file: str | None,
) -> Summary:
    """Return what a library takes, gives and needs, as JSON has it.

    Args:
        name: the prefix of its functions.
        model: as read from its file.
        plans: for each target, what its functions run, by their names.
        library: its functions.
        weight_bytes: of weights and tables in the file.
        packed_bytes: of the weights in the caller's block.
        weights_file: the file of the weights; None where they are in the library.
    """

    kinds = {each.name: each.dtype for each in model.inputs}
    kinds |= {n: kind for n, kind in zip(model.outputs, model.output_dtypes, strict=True) if kind}

    def described(values: Mapping[str, TensorType]) -> list[Summary]:
        found = []
        for n, t in values.items():
            found.append({"name": n, "shape": list(t.shape), "dtype": t.dtype, "bytes": t.bytes})
            if n in kinds and kinds[n].held != kinds[n]:  # of which NumPy and C have the codes
                found[-1]["codes"] = kinds[n]
        return found

    def planned(plan: NetworkPlan, indices: Sequence[tuple[int, str]]) -> Summary:
        return {
            "target": plan.target.name,
            "arena_bytes": plan.arena_bytes,
            "weight_bytes": plan.weight_bytes,
            "predicted_error": plan.predicted_error,
            "indices": [{"at": at, "text": text} for at, text in indices],
            "steps": [{"name": s.name, "op": s.op, "algorithm": s.algorithm} for s in plan.steps],
        }

    return {
        "name": name,
        "threads": next(iter(plans[0].values())).threads,
        "block_bytes": library.block_bytes,
        "block_alignment": interface.ALIGNMENT,
        "target_at": library.chosen,
        "weight_bytes": weight_bytes,
        "packed_bytes": packed_bytes,
        "weights_file": weights_file,
        "targets": [
            {
                "name": target.name,
                "cpu": target.cpu,
                "isa": target.isa,
                "triple": target.triple,
                "extensions": list(target.extensions),
            }
            for target in library.targets
        ],
        "runs": [
            {
                "function": f"{name}_{run}",
                "inputs": described(plan.inputs),
                "outputs": described(plan.results),
                "plans": [
                    planned(each[run], found[run])
                    for each, found in zip(plans, library.indices, strict=True)
                ],
            }
            for run, plan in plans[0].items()
        ],
    }


def _processor(target: Mapping[str, Any]) -> str:
    """Return a target's processor for a header: LLVM's name of it, or ours where it has none."""
    return f"{target['name'] if target['cpu'] == 'generic' else target['cpu']} ({target['isa']})"


def header(facts: Summary) -> str:
    """Return the C header of a library, for C99 and C++."""
    name, macro, outside = facts["name"], facts["name"].upper(), facts["weights_file"]
    lines, sizes, runs = list[str](), list[str](), list[str]()
    for number, run in enumerate(facts["runs"]):
        suffix = run["function"].removeprefix(f"{name}_run").upper()
        runs.append(f"int {run['function']}(const {name}_io *io, void *arena);")
        for const, key in (("const ", "inputs"), ("", "outputs")):
            for word, value in members(run[key], key[:-1]).items():
                shape, dtype = value["shape"], value["dtype"]
                if number == 0:
                    shown = shape_text(tuple(shape)) if len(facts["runs"]) == 1 else ""
                    lines.append(f"  /* {_shown(value['name'])}: {dtype} {shown}".rstrip() + " */")
                    lines.append(f"  {const}{c_type(dtype)} *{word};")
                sizes.append(f"#define {macro}_{word.upper()}_ELEMENTS{suffix} {prod(shape)}")
    if outside is not None:
        sizes.append(f"#define {macro}_WEIGHT_BYTES {facts['weight_bytes']}")
    targets = ", ".join(_processor(each) for each in facts["targets"])
    return _HEADER.format(
        name=name,
        macro=macro,
        bytes=facts["block_bytes"],
        alignment=interface.ALIGNMENT,
        threads=counted(facts["threads"], "thread"),
        target=f"{targets}, {facts['targets'][0]['triple']}",
        members="\n".join(lines),
        sizes="\n".join(sizes),
        runs="\n".join(runs),
        null_pointer=interface.NULL_POINTER,
        index_outside=interface.INDEX_OUTSIDE,
        wrong_cpu=interface.WRONG_CPU,
        not_aligned=interface.NOT_ALIGNED,
        wrong_weights=interface.WRONG_WEIGHTS,
        not_prepared=interface.NOT_PREPARED,
        given="" if outside is None else ", const void *weights",
        weights="" if outside is None else _WEIGHTS.format(macro=macro, file=_shown(outside)),
    )


def example(facts: Summary, header_name: str, object_name: str) -> dict[str, str]:
    """Return a C program that runs a library's first function on files, and how to build it.

    Args:
        facts: of `summary`.
        header_name, object_name: of the files beside it.

    Returns:
        The texts by the names of files.
    """
    name, run = facts["name"], facts["runs"][0]
    outside, values = facts["weights_file"], [*run["inputs"], *run["outputs"]]
    inputs, outputs = len(run["inputs"]), len(run["outputs"])
    arrays, read, written = list[str](), list[str](), list[str]()
    for number, value in enumerate(values):
        array, size = f"array{number}", value["bytes"]
        arrays.append(f"static {c_type(value['dtype'])} {array}[{max(1, prod(value['shape']))}];\n")
        if number < inputs:
            read.append(f"  read_file(argv[{number + 1}], {array}, {size});\n")
        else:
            written.append(f"  write_file(argv[{number + 1}], {array}, {size});\n")
    weights = ""
    if outside is not None:
        size, room = (f"{name.upper()}_{each}" for each in ("WEIGHT_BYTES", "ARENA_ALIGNMENT"))
        arrays.append(f"static unsigned char packed[{size} + {room} - 1];\n")
        weights = (
            f'  void *weights = aligned(packed);\n  read_file("{outside}", weights, {size});\n'
        )
    texts = {"main.c": _EXAMPLE, "CMakeLists.txt": _CMAKE}
    return {
        file: text.format(
            name=name,
            macro=name.upper(),
            run=run["function"],
            header=header_name,
            object=object_name,
            files=" ".join(
                [f"INPUT{i}" for i in range(inputs)] + [f"OUTPUT{i}" for i in range(outputs)]
            ),
            count=inputs + outputs,
            arrays="".join(arrays),
            pointers=", ".join(f"array{i}" for i in range(inputs + outputs)),
            read="".join(read),
            written="".join(written),
            weights=weights,
            given="" if outside is None else ", weights",
            threads=" Threads::Threads" if facts["threads"] > 1 else "",
            find="find_package(Threads REQUIRED)\n" if facts["threads"] > 1 else "",
        )
        for file, text in texts.items()
    }


def _shown(name: str) -> str:
    """Return a file's name so that it can stand in a comment."""
    return re.sub(r"[^ -~]|\*/|\\", "?", name)[:80]


_WEIGHTS = """`weights` is where the {macro}_WEIGHT_BYTES of {file}
   are, mapped or read, at a multiple of {macro}_ARENA_ALIGNMENT; they stay there. """
_HEADER = """\
/* A network compiled by leanconv for {target}; a run takes {threads}. */
#ifndef {macro}_H
#define {macro}_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#define {macro}_ARENA_BYTES {bytes}
#define {macro}_ARENA_ALIGNMENT {alignment}
{sizes}

enum {{
  {macro}_OK = 0,
  {macro}_NULL_POINTER = {null_pointer},
  {macro}_INDEX_OUTSIDE = {index_outside}, /* an index among the inputs lies outside of its axis */
  {macro}_WRONG_CPU = {wrong_cpu},
  {macro}_NOT_ALIGNED = {not_aligned},
  {macro}_WRONG_WEIGHTS = {wrong_weights},
  {macro}_NOT_PREPARED = {not_prepared} /* {name}_init has not prepared the arena where it is */
}};

/* Row-major arrays of the caller; none may lie in another one or in the arena. */
typedef struct {name}_io {{
{members}
}} {name}_io;

/* The bytes of the arena that the functions below are given, {macro}_ARENA_BYTES. */
size_t {name}_arena_bytes(void);

/* 0 where the code can run, else {macro}_WRONG_CPU. */
int {name}_check_cpu(void);

/* Prepare an arena, once. To move it, close it before, and prepare it again. Several arenas are
   several instances, which may run at once. {weights}*/
int {name}_init(void *arena{given});

/* Run. The outputs are complete where it returns 0. An arena runs one call at a time. */
{runs}

/* Names, shapes, types and bytes of all that, the plan and the target, as JSON. */
extern const char {name}_json[];

/* End the workers of an arena, before its memory is freed. */
int {name}_close(void *arena);

#ifdef __cplusplus
}}
#endif
#endif
"""
_EXAMPLE = """\
/* Runs {name} on files of row-major elements: main {files} */
#include <stdio.h>
#include <stdlib.h>

#include "{header}"

static unsigned char memory[{macro}_ARENA_BYTES + {macro}_ARENA_ALIGNMENT - 1];
{arrays}
/* The first address from here on at a multiple of {macro}_ARENA_ALIGNMENT. */
static void *aligned(unsigned char *start) {{
  return start + (0 - (uintptr_t)start) % {macro}_ARENA_ALIGNMENT;
}}

static void fail(const char *what) {{
  fprintf(stderr, "%s\\n", what);
  exit(1);
}}

static void read_file(const char *path, void *data, size_t bytes) {{
  FILE *file = fopen(path, "rb");
  if (!file || fread(data, 1, bytes, file) != bytes) fail(path);
  fclose(file);
}}

static void write_file(const char *path, const void *data, size_t bytes) {{
  FILE *file = fopen(path, "wb");
  if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file)) fail(path);
}}

int main(int argc, char **argv) {{
  const {name}_io io = {{{pointers}}};
  void *arena = aligned(memory);
  if (argc != {count} + 1) fail("usage: main {files}");
{weights}  if ({name}_init(arena{given}) != {macro}_OK) fail("this CPU cannot run it");
{read}  if ({run}(&io, arena) != {macro}_OK) fail("an index lies outside of its axis");
  {name}_close(arena);
{written}  return 0;
}}
"""
_CMAKE = """\
cmake_minimum_required(VERSION 3.13)
project({name} C)
{find}add_executable(main main.c)
set_target_properties(main PROPERTIES C_STANDARD 99)
target_link_libraries(main ${{CMAKE_CURRENT_SOURCE_DIR}}/{object}{threads})
"""
