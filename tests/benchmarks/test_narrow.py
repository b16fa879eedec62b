"""Libraries that ask the CPU what it has are held to AVX2, and to nothing less."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

import narrow

ASKING = """
#include <cpuid.h>
#include <stdio.h>

int main(void)
{
    unsigned a, b, c, d, e, f, g, h;
    __cpuid_count(7, 0, a, b, c, d);
    __cpuid_count(1, 0, e, f, g, h);
    printf("%x %x %x %x %x\\n", b, c, d, e, g);
    return 0;
}
"""
AVX512, VNNI, AMX = 0xDC230000, 1 << 11, 7 << 22

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64"
    or platform.system() != "Linux"
    or any(shutil.which(tool) is None for tool in ("cc", "objdump", "readelf")),
    reason="it needs x86-64 Linux, a C compiler and binutils",
)


def test_a_program_is_held(tmp_path: Path) -> None:
    source, program = tmp_path / "asking.c", tmp_path / "asking"
    source.write_text(ASKING, encoding="utf-8")
    subprocess.run(["cc", "-O1", "-o", str(program), str(source)], check=True)

    def answers(**given: str) -> list[int]:
        done = subprocess.run(
            [program], env={**os.environ, **given}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return [int(word, 16) for word in done.stdout.split()]

    plain = answers()
    assert narrow.hold(program) >= 2
    assert narrow.hold(program) == 0  # nothing is left that asks
    held = answers(LD_PRELOAD=str(narrow.make_answers(tmp_path)))
    assert held[0] & AVX512 == held[1] & VNNI == held[2] & AMX == 0
    assert held[0] == plain[0] & ~AVX512
    assert held[3:] == plain[3:]  # the family, FMA and all else


def test_what_asks_nothing_stays(tmp_path: Path) -> None:
    file = tmp_path / "data.so"
    file.write_bytes(b"\x7fELF no code")
    assert narrow.hold(file) == 0
    assert file.read_bytes() == b"\x7fELF no code"
