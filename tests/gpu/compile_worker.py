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
from configurations import depthwise_codes, gemm_codes, method_codes

from leanconv.gpu.device.compiler import compile_cubin

TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def resources(image: bytes) -> dict[str, Any]:
    """Registers, stack and instructions of a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        texts = [
            subprocess.run(
                [TOOL, option, file.name], capture_output=True, text=True, check=True
            ).stdout
            for option in ("-res-usage", "-sass")
        ]
    used = dict(re.findall(r"(REG|STACK):(\d+)", texts[0]))
    found = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)", texts[1], re.M)
    return {
        "registers": int(used["REG"]),
        "stack": int(used["STACK"]),
        "instructions": Counter(found),
    }


def main(arch: int) -> None:
    seen = set()
    for name, code in chain(gemm_codes(arch), depthwise_codes(arch), method_codes(arch)):
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
