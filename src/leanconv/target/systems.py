"""Operating systems by name, for which code can be emitted on any machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from leanconv.errors import SpecError
from leanconv.target.target import Target

# LLVM's triples, by the processor's architecture.
SYSTEMS: Mapping[str, Mapping[str, str]] = {
    "linux": {
        "x86_64": "x86_64-unknown-linux-gnu",
        "aarch64": "aarch64-unknown-linux-gnu",
    },
    "android": {
        "x86_64": "x86_64-unknown-linux-android21",
        "aarch64": "aarch64-unknown-linux-android21",
    },
    "macos": {"x86_64": "x86_64-apple-macosx11.0.0", "aarch64": "arm64-apple-macosx11.0.0"},
    "ios": {"aarch64": "arm64-apple-ios14.0.0"},
    "windows": {"x86_64": "x86_64-pc-windows-gnu"},
    "freebsd": {"x86_64": "x86_64-unknown-freebsd", "aarch64": "aarch64-unknown-freebsd"},
    "none": {"x86_64": "x86_64-unknown-none-elf", "aarch64": "aarch64-unknown-none-elf"},
}
# Words of a triple, the more special first, and the system that they are.
_WORDS = {
    "android": "android",
    "linux": "linux",
    "macos": "macos",
    "darwin": "macos",
    "ios": "ios",
    "windows": "windows",
    "mingw32": "windows",
    "freebsd": "freebsd",
}
_ALSO = {"arm64": "aarch64", "amd64": "x86_64"}


def architecture(triple: str) -> str:
    """Return the architecture of a triple: `"x86_64"`, `"aarch64"`, `"wasm32"`."""
    arch = triple.split("-")[0]
    return _ALSO.get(arch, arch)


def system_of(triple: str) -> str:
    """Return the system of a triple, of `SYSTEMS`, or `"wasm"`."""
    if triple.startswith("wasm"):
        return "wasm"
    return next((name for word, name in _WORDS.items() if word in triple), "none")


def on_system(target: Target, system: str) -> Target:
    """Return a processor under another system.

    Args:
        target: the processor.
        system: a name, of `SYSTEMS`, or an LLVM triple.

    Raises:
        SpecError: there is no such system, or it does not run on the processor.
    """
    arch = architecture(target.triple)
    known = [name for name, triples in SYSTEMS.items() if arch in triples]
    if not known:
        raise SpecError(f"got {target.name}:{system}; expected {target.name} alone")
    triple = SYSTEMS.get(system, {}).get(arch) or _normal(system)
    if triple.count("-") < 2 or architecture(triple) != arch:
        raise SpecError(
            f"got {target.name}:{system}; expected one of {', '.join(known)} after the colon, or "
            f"an LLVM triple that begins with {arch}"
        )
    return replace(target, triple=triple)


def _normal(triple: str) -> str:
    """Return a triple with a vendor, and with LLVM's name of mingw's system."""
    first, *rest = triple.replace("w64-mingw32", "w64-windows-gnu").split("-")
    if rest and rest[0] in ("linux", "windows", "freebsd", "none"):
        rest.insert(0, "unknown")
    return "-".join((first, *rest))
