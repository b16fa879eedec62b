"""Processors by name, so that code for another one can be emitted, inspected and tested here."""

from __future__ import annotations

from collections.abc import Mapping

from leanconv.errors import SpecError
from leanconv.target.records import RECORDS
from leanconv.target.target import Target

_LINUX = "x86_64-unknown-linux-gnu"
_ARM = "aarch64-unknown-linux-gnu"
_KB, _MB = 1024, 1024 * 1024


def _x86(
    name: str, isa: str, units: float, latency: int, l1: int, l2: int, l3: int, *extensions: str
) -> Target:
    registers, width = (32, 64) if isa == "avx512" else (16, 32)
    facts = l1, l2, l3, RECORDS[name], extensions
    return Target(name, isa, name, "", _LINUX, width, registers, units, latency, *facts)


def _arm(
    name: str, units: float, latency: int, l1: int, l2: int, l3: int, *extensions: str
) -> Target:
    facts = l1, l2, l3, RECORDS[name], extensions
    return Target(name, "neon", name, "", _ARM, 16, 32, units, latency, *facts)


_INTEL = ("amx_bf16", "amx_int8", "avx_vnni", "bf16", "fp16", "vbmi", "vnni")
_AMD = ("bf16", "vbmi", "vnni")


PRESETS: dict[str, Target] = {
    t.name: t
    for t in (
        _x86("haswell", "avx2", 2, 5, 32 * _KB, 256 * _KB, 8 * _MB),
        _x86("skylake-avx512", "avx512", 2, 4, 32 * _KB, 1 * _MB, 16 * _MB),
        _x86("icelake-server", "avx512", 2, 4, 48 * _KB, 1280 * _KB, 24 * _MB, "vbmi", "vnni"),
        _x86("sapphirerapids", "avx512", 2, 4, 48 * _KB, 2 * _MB, 32 * _MB, *_INTEL),
        _x86("znver2", "avx2", 2, 5, 32 * _KB, 512 * _KB, 16 * _MB),
        _x86("znver3", "avx2", 2, 4, 32 * _KB, 512 * _KB, 32 * _MB),
        _x86("znver4", "avx512", 1, 4, 32 * _KB, 1 * _MB, 32 * _MB, *_AMD),
        _x86("znver5", "avx512", 2, 4, 48 * _KB, 1 * _MB, 32 * _MB, "avx_vnni", *_AMD),
        _arm("neoverse-n1", 2, 4, 64 * _KB, 1 * _MB, 32 * _MB, "dotprod", "fp16"),
        _arm("apple-m1", 4, 4, 128 * _KB, 12 * _MB, 0, "dotprod", "fp16"),
    )
}

# Processors that have no preset, by LLVM's names, and the one whose caches and units are most like
# theirs.
RELATIVES: Mapping[str, str] = {
    "znver1": "znver2",
    "broadwell": "haswell",
    "skylake": "haswell",
    "alderlake": "haswell",
    "raptorlake": "haswell",
    "meteorlake": "haswell",
    "cascadelake": "skylake-avx512",
    "cooperlake": "skylake-avx512",
    "icelake-client": "icelake-server",
    "tigerlake": "icelake-server",
    "rocketlake": "icelake-server",
    "emeraldrapids": "sapphirerapids",
    "graniterapids": "sapphirerapids",
    "neoverse-v1": "neoverse-n1",
    "neoverse-n2": "neoverse-n1",
    "neoverse-v2": "neoverse-n1",
    "apple-m2": "apple-m1",
    "apple-m3": "apple-m1",
    "apple-m4": "apple-m1",
}


def preset(name: str) -> Target:
    """Return the target of that name.

    Raises:
        SpecError: there is no such preset; the message lists those that exist.
    """
    if name not in PRESETS:
        raise SpecError(f"target {name!r} is not known; expected one of {', '.join(PRESETS)}")
    return PRESETS[name]
