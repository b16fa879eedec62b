"""What the processor says of itself: the instruction CPUID, from which LLVM finds its name.

The operating system lists other features, and what emulates a processor (a debugger of memory, say)
answers the instruction alone.
"""

from __future__ import annotations

import ctypes
import struct

from leanconv.codegen.code_pages import CodePages
from leanconv.codegen.elf_objects import takes_objects

# void ask(uint32_t leaf, uint32_t part, uint32_t answer[4]), as System V's convention has it
_ASK = bytes.fromhex(
    "53"  # push rbx
    "4989d0"  # mov r8, rdx
    "89f8"  # mov eax, edi
    "89f1"  # mov ecx, esi
    "0fa2"  # cpuid
    "418900"  # mov [r8], eax
    "41895804"  # mov [r8 + 4], ebx
    "41894808"  # mov [r8 + 8], ecx
    "4189500c"  # mov [r8 + 12], edx
    "5b"  # pop rbx
    "c3"  # ret
)
# uint64_t states(): what the system keeps of vector registers
_STATES = bytes.fromhex("31c9 0f01d0 48c1e220 4809d0 c3")  # xgetbv of ecx = 0, in one register
_BOTH = 64  # where the second one begins
# Leaf, part, and which of eax, ebx, ecx, edx are the same on all cores.
_LEAVES = (
    (0x0, 0, "abcd"),
    (0x1, 0, "acd"),
    (0x7, 0, "abcd"),
    (0x7, 1, "abcd"),
    (0x7, 2, "abcd"),
    (0xD, 1, "a"),
    (0x14, 0, "b"),
    (0x19, 0, "b"),
    (0x1E, 1, "a"),
    (0x24, 0, "b"),
    (0x80000000, 0, "abcd"),
    (0x80000001, 0, "cd"),
    (0x80000008, 0, "b"),
)
_SAVES = 1 << 27  # ecx of leaf 1: the system has said which states it keeps


def processor() -> bytes | None:
    """All that tells the kind of processor; None where it cannot be asked."""
    if not takes_objects():
        return None
    try:
        pages = CodePages(_BOTH + len(_STATES))
        pages.write(pages.code, _ASK)
        pages.write(pages.code + _BOTH, _STATES)
        pages.seal()
    except OSError:
        return None
    answer = (ctypes.c_uint32 * 4)()
    ask = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, type(answer))(pages.code)
    states = ctypes.CFUNCTYPE(ctypes.c_uint64)(pages.code + _BOTH)
    facts, last = [], {0: 0, 0x80000000: 0x80000000}
    for leaf, part, registers in _LEAVES:
        if leaf > last[leaf & 0x80000000]:
            continue
        ask(leaf, part, answer)
        facts += [leaf, part, *(answer["abcd".index(each)] for each in registers)]
        if leaf in last:
            last[leaf] = answer[0]
        elif leaf == 1 and answer[2] & _SAVES:
            facts += struct.unpack("<2I", struct.pack("<Q", states()))
    return struct.pack(f"<{len(facts)}I", *facts)
