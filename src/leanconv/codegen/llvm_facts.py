"""LLVM's answers about itself and this processor, kept on disk: asking it means loading it.

The processor says what it is by the instruction CPUID, from which LLVM finds its name. The
operating system lists other features, and what emulates a processor (a debugger of memory, say)
answers the instruction alone.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from leanconv.codegen import backend
from leanconv.codegen.backend import release_llvm_pages
from leanconv.codegen.cache import entries_in
from leanconv.codegen.elf_objects import CodePages, takes_objects

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
    """CPUID's answers that identify the kind of processor; None where it cannot be asked."""
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


_STORE_BYTES = 2**20
_FORM = 1  # of an entry


class LLVMFacts(NamedTuple):
    """LLVM's answers.

    Attributes:
        version: llvmlite's and LLVM's.
        cpu: LLVM's name of this processor.
        features: whether it has each, as LLVM takes them: "+avx2,-sse4a".
        triple: of this process.
    """

    version: str
    cpu: str
    features: str
    triple: str

    @property
    def has(self) -> Mapping[str, bool]:
        """Presence of each of the processor's features, by LLVM's name."""
        signs = (each for each in self.features.split(",") if each)
        return {each[1:]: each.startswith("+") for each in signs}


@functools.cache
def llvm_facts() -> LLVMFacts:
    """LLVM's answers, from disk where the same library was asked on such a processor before."""
    key = _key()
    if key is None:
        return asked()
    store = entries_in("machine", _STORE_BYTES)
    body = store.get(key)
    if body is not None:
        try:
            found = LLVMFacts(**json.loads(body))
        except (ValueError, TypeError, RecursionError):
            store.refuse(key)
        else:
            if all(isinstance(each, str) for each in found):
                return found
    facts = asked()
    store.put(key, json.dumps(facts._asdict()).encode())
    return facts


def asked() -> LLVMFacts:
    """LLVM's answers, from LLVM itself."""
    llvm = backend.llvm
    facts = LLVMFacts(
        f"{backend.llvmlite.__version__} {llvm.llvm_version_info}",
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
        llvm.get_process_triple(),
    )
    release_llvm_pages()
    return facts


def _key() -> str | None:
    """Return the key of the answers: processor and library; None if either is unknown."""
    chip, spec = processor(), importlib.util.find_spec("llvmlite")
    if chip is None or spec is None or spec.submodule_search_locations is None:
        return None
    found = []
    for folder in spec.submodule_search_locations:
        for file in Path(folder, "binding").glob("*llvmlite.*"):
            status = os.stat(file)
            found.append((str(file), status.st_size, status.st_mtime_ns, status.st_ino))
    text = repr((_FORM, backend.version(), sorted(found), chip))
    return hashlib.sha256(text.encode()).hexdigest()[:40] if found else None
