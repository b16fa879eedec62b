"""Processors by name, so that code for another one can be emitted, inspected and tested here.

Zen 4 is the only one with a record of costs of its own so far; the others inherit it.
"""

from __future__ import annotations

from leanconv.errors import SpecError
from leanconv.target.target import Target

_LINUX = "x86_64-unknown-linux-gnu"
_ARM = "aarch64-unknown-linux-gnu"
_KB, _MB = 1024, 1024 * 1024


def _x86(name: str, isa: str, units: float, latency: int, l1: int, l2: int, l3: int) -> Target:
    registers, width = (32, 64) if isa == "avx512" else (16, 32)
    return Target(name, isa, name, "", _LINUX, width, registers, units, latency, l1, l2, l3)


def _arm(name: str, units: float, latency: int, l1: int, l2: int, l3: int) -> Target:
    return Target(name, "neon", name, "", _ARM, 16, 32, units, latency, l1, l2, l3)


PRESETS: dict[str, Target] = {
    t.name: t
    for t in (
        _x86("haswell", "avx2", 2, 5, 32 * _KB, 256 * _KB, 8 * _MB),
        _x86("skylake-avx512", "avx512", 2, 4, 32 * _KB, 1 * _MB, 16 * _MB),
        _x86("icelake-server", "avx512", 2, 4, 48 * _KB, 1280 * _KB, 24 * _MB),
        _x86("sapphirerapids", "avx512", 2, 4, 48 * _KB, 2 * _MB, 32 * _MB),
        _x86("znver2", "avx2", 2, 5, 32 * _KB, 512 * _KB, 16 * _MB),
        _x86("znver3", "avx2", 2, 4, 32 * _KB, 512 * _KB, 32 * _MB),
        _x86("znver4", "avx512", 1, 4, 32 * _KB, 1 * _MB, 32 * _MB),
        _x86("znver5", "avx512", 2, 4, 48 * _KB, 1 * _MB, 32 * _MB),
        _arm("neoverse-n1", 2, 4, 64 * _KB, 1 * _MB, 32 * _MB),
        _arm("apple-m1", 4, 4, 128 * _KB, 12 * _MB, 0),
    )
}


def preset(name: str) -> Target:
    """Return the target of that name.

    Raises:
        SpecError: there is no such preset; the message lists those that exist.
    """
    if name not in PRESETS:
        raise SpecError(f"target {name!r} is not known; expected one of {', '.join(PRESETS)}")
    return PRESETS[name]
