"""The target that this process runs on, and permission to use its matrix tiles.

LLVM says what the processor is. Asking it means loading it, so that its answers are kept on disk.
The processor says what it is by the instruction CPUID, from which LLVM finds its name. The
operating system lists other features, and what emulates a processor (a debugger of memory, say)
answers the instruction alone.

Linux gives matrix tiles to a process that asks. The state of a thread grows by 8 KiB once it uses
them. Threads and forked children of a process that has asked may use them, too.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import json
import logging
import os
import platform
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from leanconv.codegen import backend
from leanconv.codegen.backend import release_llvm_pages
from leanconv.codegen.cache import entries_in
from leanconv.codegen.elf_objects import CodePages, takes_objects
from leanconv.codegen.process_limits import quota_cores
from leanconv.errors import SpecError
from leanconv.records import replace
from leanconv.target import PRESETS, RELATIVES, Target

log = logging.getLogger(__name__)

# void ask(uint32_t leaf, uint32_t part, uint32_t answer[4]), as System V's convention has it
ASK = bytes.fromhex(
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
STATES = bytes.fromhex("31c9 0f01d0 48c1e220 4809d0 c3")  # xgetbv of ecx = 0, in one register
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
        pages = CodePages(_BOTH + len(STATES))
        pages.write(pages.code, ASK)
        pages.write(pages.code + _BOTH, STATES)
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
    key = _facts_key()
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


def _facts_key() -> str | None:
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


_ARCH_PRCTL = 158  # the system call's number on x86-64
_REQUEST = 0x1023  # ARCH_REQ_XCOMP_PERM
_TILE_DATA = 18  # XFEATURE_XTILEDATA


@functools.cache
def may_use_tiles() -> bool:
    """Ask once for permission to use matrix tiles; False if the kernel refuses or is not Linux."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return False
    try:
        call = ctypes.CDLL(None).syscall
    except (OSError, AttributeError):
        return False
    return bool(call(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0)


_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1024, "M": 1024 * 1024}
# Features that a processor must have to run code for an instruction set.
_NEEDS = {
    "avx2": ("avx2", "fma"),
    "avx512": ("avx512f", "avx512vl", "avx512dq", "avx512bw"),
}
# LLVM's names of the features that the target's extensions are, by architecture.
X86_EXTENSIONS = {
    "amx_bf16": ("amx-tile", "amx-bf16"),
    "amx_int8": ("amx-tile", "amx-int8"),
    "avx_vnni": ("avxvnni",),
    "bf16": ("avx512bf16",),
    "fp16": ("avx512fp16",),
    "vbmi": ("avx512vbmi",),
    "vnni": ("avx512vnni",),
}
# Extensions whose instructions kernels have today.
_EMITTED = ("amx_int8", "avx_vnni", "dotprod", "vbmi", "vnni")
_ARM_EXTENSIONS = {
    "bf16": ("bf16",),
    "dotprod": ("dotprod",),
    "fp16": ("fullfp16",),
}


def _extensions(features: Mapping[str, bool]) -> tuple[str, ...]:
    """The extensions that this machine has, of those that a target may have."""
    known = _ARM_EXTENSIONS if platform.machine() in ("aarch64", "arm64") else X86_EXTENSIONS
    return tuple(
        name for name, needed in known.items() if all(features.get(each) for each in needed)
    )


def _allowed(extensions: tuple[str, ...]) -> tuple[str, ...]:
    """The extensions that this process may use: tiles have to be asked for."""
    tiles = [name for name in extensions if name.startswith("amx_")]
    if not tiles or may_use_tiles():
        return extensions
    return tuple(name for name in extensions if name not in tiles)


def _cache_bytes() -> dict[int, int]:
    """Sizes of the data caches by level, as the operating system states them; may be empty."""
    sizes: dict[int, int] = {}
    for index in sorted(_CACHES.glob("index*")):
        try:
            if (index / "type").read_text().strip() == "Instruction":
                continue
            level = int((index / "level").read_text())
            text = (index / "size").read_text().strip()
            sizes[level] = int(text[:-1]) * _UNITS[text[-1]]
        except (OSError, ValueError, KeyError):
            continue
    return sizes


def _closest_preset(cpu: str, features: Mapping[str, bool]) -> Target:
    has = {isa: all(features.get(name) for name in names) for isa, names in _NEEDS.items()}
    if features.get("amx-tile") and has["avx512"]:
        return PRESETS["sapphirerapids"]  # a hypervisor may state the model of an older one
    known = PRESETS.get(RELATIVES.get(cpu, cpu))
    if known and has.get(known.isa, True):  # a hypervisor may hide features of that name's
        return known
    if platform.machine() in ("aarch64", "arm64"):
        return PRESETS["neoverse-n1"]
    if has["avx512"]:
        return PRESETS["icelake-server"]
    if has["avx2"]:
        return PRESETS["haswell"]
    generic = PRESETS["haswell"]
    return replace(generic, name="generic", isa="generic", vector_bytes=16)


@functools.cache
def host() -> Target:
    """Detect this machine: the nearest preset, with its own features and cache sizes."""
    facts = llvm_facts()
    cpu, features, sizes = facts.cpu, facts.has, _cache_bytes()
    base = _closest_preset(cpu, features)
    if base.costs.cpu != cpu:
        log.info("no record of costs for %s: estimates use that of %s", cpu, base.costs.cpu)
    return replace(
        base,
        name="host",
        cpu=cpu,
        features=facts.features,
        triple=facts.triple,
        l1_bytes=sizes.get(1, base.l1_bytes),
        l2_bytes=sizes.get(2, base.l2_bytes),
        l3_bytes=base.costs.l3_found(sizes.get(3, base.l3_bytes)),
        extensions=_allowed(_extensions(features)),
    )


def check_runs_here(target: Target) -> None:
    """Check that this machine can run code for a target; it would die of it otherwise.

    Raises:
        SpecError: the target is of another architecture, or wider than this machine.
    """
    if target is host():
        return
    features = llvm_facts().has
    if not _runs(target, features):
        possible = [each.name for each in PRESETS.values() if _runs(each, features)]
        raise SpecError(
            f"code for target {target.name!r} cannot run on this machine ({host().cpu}); expected "
            f"{', '.join(possible) or 'none'}, or leave the target out"
        )


def _runs(target: Target, features: Mapping[str, bool]) -> bool:
    """Return whether a machine of this architecture with these features runs a target's code."""
    alike = target.triple.split("-")[0] == host().triple.split("-")[0]
    if target.isa == "neon" and not features:
        return alike  # not every system lists them
    known = _ARM_EXTENSIONS if target.isa == "neon" else X86_EXTENSIONS
    used = (known[name] for name in target.extensions if name in _EMITTED)
    needed = [*_NEEDS.get(target.isa, ()), *(name for names in used for name in names)]
    tiles = any(name.startswith("amx-") for name in needed)
    return alike and all(features.get(name) for name in needed) and (not tiles or may_use_tiles())


def usable_cores() -> int:
    """Cores that this process may use: its affinity, and the quotas of its control groups."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min(cores, quota_cores() or cores))
