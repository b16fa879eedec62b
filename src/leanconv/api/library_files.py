"""What is written beside a compiled network: its C header, and a description as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Any

import leanconv.types as types
from leanconv.graph.ir import TensorType
from leanconv.planner.network_plan import NetworkPlan
from leanconv.runtime import static_text
from leanconv.types import DType
from leanconv.units import counted, shape_text

_C_TYPES = {
    types.FLOAT32: "float",
    types.FLOAT64: "double",
    types.BOOL: "uint8_t",
    types.FLOAT16: "uint16_t",
    types.BFLOAT16: "uint16_t",
}
_WORDS = frozenset(
    [
        "alignas",
        "alignof",
        "asm",
        "auto",
        "bool",
        "break",
        "case",
        "catch",
        "char",
        "class",
        "const",
        "constexpr",
        "continue",
        "decltype",
        "default",
        "delete",
        "do",
        "double",
        "else",
        "enum",
        "explicit",
        "export",
        "extern",
        "false",
        "float",
        "for",
        "friend",
        "goto",
        "if",
        "inline",
        "int",
        "long",
        "mutable",
        "namespace",
        "new",
        "noexcept",
        "nullptr",
        "operator",
        "private",
        "protected",
        "public",
        "register",
        "restrict",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "struct",
        "switch",
        "template",
        "this",
        "throw",
        "true",
        "try",
        "typedef",
        "typeid",
        "typename",
        "union",
        "unsigned",
        "using",
        "virtual",
        "void",
        "volatile",
        "while",
    ]
)


def members(values: Mapping[str, TensorType], otherwise: str) -> dict[str, tuple[str, TensorType]]:
    """Return the members of the struct for some values: by name in C, the file's name and type.

    Args:
        values: inputs or outputs.
        otherwise: the name where nothing of the file's can stand in C.
    """
    found: dict[str, tuple[str, TensorType]] = {}
    for name, kind in values.items():
        word = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or otherwise
        word = f"{otherwise}_{word}" if word[0].isdigit() or word in _WORDS else word
        wanted, number = word, 1
        while wanted in found:
            wanted, number = f"{word}_{number}", number + 1
        found[wanted] = name, kind
    return found


def c_type(dtype: DType) -> str:
    """Return the C type of an element."""
    return _C_TYPES.get(dtype, f"{dtype}_t")


def summary(name: str, plan: NetworkPlan, block_bytes: int, weight_bytes: int) -> dict[str, Any]:
    """Return what a library takes, gives and needs, as JSON has it.

    Args:
        name: the prefix of its functions.
        plan: what it runs.
        block_bytes: of the caller's block.
        weight_bytes: of packed weights.
    """

    def described(values: Mapping[str, TensorType]) -> list[dict[str, Any]]:
        return [
            {"name": n, "shape": list(t.shape), "dtype": str(t.dtype), "bytes": t.bytes}
            for n, t in values.items()
        ]

    target = plan.target
    return {
        "name": name,
        "inputs": described(plan.inputs),
        "outputs": described(plan.results),
        "threads": plan.threads,
        "block_bytes": block_bytes,
        "block_alignment": static_text.ALIGNMENT,
        "arena_bytes": plan.arena_bytes,
        "weight_bytes": weight_bytes,
        "predicted_error": plan.predicted_error,
        "target": {
            "name": target.name,
            "cpu": target.cpu,
            "isa": target.isa,
            "triple": target.triple,
            "extensions": list(target.extensions),
        },
        "steps": [{"name": s.name, "op": s.op, "algorithm": s.algorithm} for s in plan.steps],
    }


def header(
    name: str,
    facts: Mapping[str, Any],
    inputs: Mapping[str, tuple[str, TensorType]],
    outputs: Mapping[str, tuple[str, TensorType]],
) -> str:
    """Return the C header of a library, for C99 and C++.

    Args:
        name: the prefix of its functions.
        facts: of `summary`.
        inputs, outputs: of `members`.
    """
    macro = name.upper()
    lines: list[str] = []
    sizes: list[str] = []
    for const, values in (("const ", inputs), ("", outputs)):
        for word, (given, kind) in values.items():
            shape = shape_text(kind.shape)
            lines.append(f"  /* {_shown(given)}: {kind.dtype} {shape} */")
            lines.append(f"  {const}{c_type(kind.dtype)} *{word};")
            sizes.append(f"#define {macro}_{word.upper()}_ELEMENTS {prod(kind.shape)}")
    target = facts["target"]
    return _HEADER.format(
        name=name,
        macro=macro,
        bytes=facts["block_bytes"],
        alignment=static_text.ALIGNMENT,
        threads=counted(facts["threads"], "thread"),
        target=f"{target['cpu']} ({target['isa']}), {target['triple']}",
        members="\n".join(lines),
        sizes="\n".join(sizes),
        null_pointer=static_text.NULL_POINTER,
        index_outside=static_text.INDEX_OUTSIDE,
        wrong_cpu=static_text.WRONG_CPU,
        not_aligned=static_text.NOT_ALIGNED,
    )


def _shown(name: str) -> str:
    """Return a file's name so that it can stand in a comment."""
    return re.sub(r"[^ -~]|\*/|\\", "?", name)[:80]


_HEADER = """\
/* A network compiled by leanconv for {target}; {threads} take part. */
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
  {macro}_NOT_ALIGNED = {not_aligned}
}};

/* Row-major arrays of the caller; none may lie in another one or in the arena. */
typedef struct {name}_io {{
{members}
}} {name}_io;

/* The bytes of the arena that the functions below are given, {macro}_ARENA_BYTES. */
size_t {name}_arena_bytes(void);

/* 0 where the code can run, else {macro}_WRONG_CPU. */
int {name}_check_cpu(void);

/* Prepare an arena, once, and again where it has been moved. Several arenas are several instances,
   which may run at once. */
int {name}_init(void *arena);

/* Run. The outputs are complete where it returns 0. An arena runs one call at a time. */
int {name}_run(const {name}_io *io, void *arena);

/* Names, shapes, types and bytes of all that, the plan and the target, as JSON. */
extern const char {name}_json[];

/* End the workers of an arena, before its memory is freed. */
int {name}_close(void *arena);

#ifdef __cplusplus
}}
#endif
#endif
"""
