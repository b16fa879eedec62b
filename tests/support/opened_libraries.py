"""Small compiled networks for `leanconv.open`, and libraries that are none."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import leanconv as lc

linked = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("cc") is None,
    reason="libraries are linked by cc, and checked on Linux",
)


def library(folder: Path, model: Any, name: str = "net", **options: Any) -> Path:
    """Compile a network; return its library."""
    source = model if isinstance(model, str | Path) else model.SerializeToString()
    return lc.compile(source, folder / f"lib{name}.so", **options).files[0]


def made_of_c(path: Path, text: str) -> Path:
    """Make a library of a text in C."""
    file = path.with_suffix(".c")
    file.write_text(text, encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(path), str(file)], check=True)
    return path


def pretended(path: Path, description: Any, result: int = 0) -> Path:
    """Make a library with the functions of a compiled one; all but the first return `result`."""
    text = description if isinstance(description, str) else json.dumps(description)
    functions = (
        f"int net_{each}(void) {{ return {result}; }}" for each in ("init", "run", "close")
    )
    lines = "unsigned long net_arena_bytes(void) { return 64; }", *functions
    return made_of_c(path, f"const char net_json[] = {json.dumps(text)};\n" + "\n".join(lines))
