"""Compile configurations for one architecture, and print what came out as lines of JSON.

Run by `test_gpu_compile.py` in a process of its own: without TRITON_INTERPRET, without a GPU.
"""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import chain, islice
from pathlib import Path
from typing import Any

import triton

from leanconv.gpu.device.compiler import compile_cubin
from support.gpu.configurations import (
    box_codes,
    depthwise_codes,
    gemm_codes,
    method_codes,
    patch_codes,
    slice_codes,
)

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def _printed(tool: str, *arguments: str | Path) -> str:
    command = [TOOLS / tool, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def resources(image: bytes) -> dict[str, Any]:
    """Registers, stack and parameters of a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        text = _printed("cuobjdump", "-res-usage", "-elf", file.name)
    used = dict(re.findall(r"(REG|STACK):(\d+)", text))
    sizes = re.findall(r"Ordinal : 0x(\w+)\s+Offset\s+: \w+\s+Size\s+: 0x(\w+)", text)
    return {
        "registers": int(used["REG"]),
        "stack": int(used["STACK"]),
        "parameters": [size for _, size in sorted((int(n, 16), int(s, 16)) for n, s in sizes)],
    }


def code_of(image: bytes) -> bytes:
    """The instructions of the only function in a cubin, which is an ELF file of 64 bits."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    each, count, names = struct.unpack_from("<3H", image, 0x3A)
    sections = [
        struct.unpack_from("<I4xQQQQ", image, table + number * each) for number in range(count)
    ]
    strings = sections[names][3]
    (code,) = (
        image[offset : offset + size]
        for name, _, _, offset, size in sections
        if image.startswith(b".text.", strings + name)
    )
    return code


def instructions(
    codes: list[bytes], arch: int
) -> tuple[list[Counter[str]], list[bool], list[bool]]:
    """Of each code: how often each instruction stands in it, whether a product takes its left
    operand from registers, and whether the code may be a race.

    It may where such a product stands and a wait leaves products in flight: the next step would
    overwrite what they still read.

    All are disassembled as one: the tool takes a third of a second to start.
    """
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(b"".join(codes))
        file.flush()
        text = _printed("nvdisasm", "--binary", f"SM{arch}", "--no-dataflow", file.name)
    pattern = r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)([^;\n]*)"
    found = re.findall(pattern, text, re.M)
    assert len(found) * 16 == sum(map(len, codes)), "an instruction is 16 bytes"
    every = iter(found)
    each = [list(islice(every, len(code) // 16)) for code in codes]
    counted = [Counter(name for name, _ in one) for one in each]
    from_registers = [_from_registers(one) for one in each]
    races = [held and _in_flight(one) for held, one in zip(from_registers, each, strict=True)]
    return counted, from_registers, races


def _from_registers(code: list[tuple[str, str]]) -> bool:
    products = [rest for name, rest in code if name.startswith("HGMMA")]
    return any(re.match(r"\s*R\d+, R\d+", rest) for rest in products)


def _in_flight(code: list[tuple[str, str]]) -> bool:
    waits = [rest for name, rest in code if name == "WARPGROUP.DEPBAR.LE"]
    return any(not rest.strip().endswith("0x0") for rest in waits)


def main(arch: int) -> None:
    seen, rows, codes = set(), [], []
    families = (gemm_codes, patch_codes, slice_codes, box_codes, depthwise_codes, method_codes)
    for name, code in chain.from_iterable(family(arch) for family in families):
        if code in seen:
            continue
        seen.add(code)
        start = time.perf_counter()
        cubin = compile_cubin(code, arch)
        codes.append(code_of(cubin.image))
        row = {
            "name": name,
            "function": code.function,
            "constants": dict(code.constants),
            "types": dict(code.types),
            "warps": cubin.warps,
            "shared": cubin.shared_bytes,
            "seconds": time.perf_counter() - start,
            **resources(cubin.image),
        }
        rows.append(row)
    for row, counted, held, race in zip(rows, *instructions(codes, arch), strict=True):
        found = {"instructions": counted, "from_registers": held, "race": race}
        sys.stdout.write(json.dumps({**row, **found}) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
