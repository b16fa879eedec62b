"""Compile configurations for one architecture, and print what came out as lines of JSON.

Run by `test_gpu_compile.py` in a process of its own: without TRITON_INTERPRET, without a GPU.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import triton
from configurations import depthwise_codes, gemm_codes, method_codes, patch_codes

from leanconv.gpu.device.compiler import compile_cubin

TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def resources(image: bytes) -> dict[str, Any]:
    """Registers, stack and instructions of a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        command = [TOOL, "-res-usage", "-sass", "-elf", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = dict(re.findall(r"(REG|STACK):(\d+)", text))
    found = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)", text, re.M)
    sizes = re.findall(r"Ordinal : 0x(\w+)\s+Offset\s+: \w+\s+Size\s+: 0x(\w+)", text)
    return {
        "registers": int(used["REG"]),
        "stack": int(used["STACK"]),
        "instructions": Counter(found),
        "parameters": [size for _, size in sorted((int(n, 16), int(s, 16)) for n, s in sizes)],
    }


def main(arch: int) -> None:
    seen = set()
    families = (gemm_codes, patch_codes, depthwise_codes, method_codes)
    for name, code in chain.from_iterable(family(arch) for family in families):
        if code in seen:
            continue
        seen.add(code)
        start = time.perf_counter()
        cubin = compile_cubin(code, arch)
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
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
