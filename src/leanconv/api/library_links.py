"""From an object file to what a name asks for: archive, shared library, wheel, WebAssembly module.

Archives and modules are written here, for any system. Libraries are linked by the tool `cc`, for
the system that it runs on.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from leanconv.codegen.host import host
from leanconv.codegen.object_symbols import object_symbols
from leanconv.codegen.wasm_files import module
from leanconv.errors import InputError, SpecError
from leanconv.target import Target
from leanconv.target.systems import architecture, system_of

OBJECTS, ARCHIVES, MODULE, WHEEL = (".o", ".obj"), (".a", ".lib"), ".wasm", ".whl"
_LIBRARIES = {".so": ("linux", "android", "freebsd"), ".dylib": ("macos",), ".dll": ("windows",)}
SUFFIXES = (*OBJECTS, *ARCHIVES, *_LIBRARIES, MODULE, WHEEL)
_ALIGNED = 8  # names in the index of an archive, for all systems


def library_suffix(triple: str) -> str:
    """Return the suffix of shared libraries of a triple's system; `.so` where it has none."""
    fitting = (each for each, systems in _LIBRARIES.items() if system_of(triple) in systems)
    return next(fitting, ".so")


def linker_of(suffix: str, target: Target) -> tuple[str, ...]:
    """Return the tool that makes files of a suffix, with its options; nothing where none is needed.

    Args:
        suffix: of `SUFFIXES`.
        target: what the file is for.

    Raises:
        SpecError: nothing here makes such a file for this target.
        InputError: the tool is not there.
    """
    suffix = library_suffix(target.triple) if suffix == WHEEL else suffix
    system, here = system_of(target.triple), system_of(host().triple)
    if suffix in OBJECTS + ARCHIVES or (suffix, system) == (MODULE, "wasm"):
        return ()
    if system not in _LIBRARIES.get(suffix, ()):
        fitting = [each for each, systems in _LIBRARIES.items() if system in systems]
        expected = ", ".join([*((MODULE,) if system == "wasm" else fitting), ".o", ".a"])
        mend = ", or target='wasm32-simd128'" if suffix == MODULE else ""
        raise SpecError(
            f"a {suffix} file cannot be for {target.triple}; expected a name that ends in "
            f"{expected}{mend}"
        )
    if (system, architecture(target.triple)) != (here, architecture(host().triple)):
        raise SpecError(
            f"a {suffix} file for {target.triple} cannot be linked on this machine: cc links here "
            f"for {host().triple} alone; write an object (.o) or an archive (.a), and link that "
            "with the tools of the other system"
        )
    libraries = ("-lpthread",) if system == "linux" else ()
    stack = ("-Wl,-z,noexecstack",) if suffix == ".so" else ()
    path = shutil.which("cc")
    if path is None:
        raise InputError(f"'cc' is not there to make a {suffix} file; write a .o file")
    return path, "-shared", *stack, *libraries


def packed(file: Path, ready: Path, linker: Sequence[str]) -> None:
    """Make what a suffix says of an object.

    Args:
        file: the object.
        ready: what is made.
        linker: of `linker_of`.

    Raises:
        InputError: `cc` fails.
    """
    if ready.suffix in OBJECTS:
        os.replace(file, ready)
        return
    if ready.suffix in ARCHIVES:
        ready.write_bytes(archive(file.name, file.read_bytes()))
        return
    if ready.suffix == MODULE:
        ready.write_bytes(module(file.read_bytes()))
        return
    run = subprocess.run(
        [*linker, "-o", str(ready), str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise InputError(f"'cc' fails: {run.stderr.strip()[-300:]}; write a .o file")


def archive(name: str, body: bytes) -> bytes:
    """Return an archive of one object, with the index in which linkers look for its symbols.

    Args:
        name: the object's, of up to 15 letters.
        body: the object.
    """
    found = object_symbols(body)
    macos, count = found.format == "macho", len(found.defined)
    symbols = [f"{'_' if macos else ''}{symbol}\0".encode() for symbol in sorted(found.defined)]
    text = b"".join(symbols)
    text += b"\0" * (-len(text) % _ALIGNED)
    if macos:  # as ranlib writes it: each name's place and its object's; objects at multiples of 8
        length = 20 + 4 + 8 * count + 4 + len(text)
        row = [(sum(map(len, symbols[:i])), _OBJECT_AT + length) for i in range(count)]
        head = struct.pack(f"<I{2 * count}I", 8 * count, *(word for each in row for word in each))
        index = b"__.SYMDEF SORTED".ljust(20, b"\0") + head + struct.pack("<I", len(text)) + text
        padded = name.encode().ljust(20, b"\0") + body + b"\0" * (-len(body) % _ALIGNED)
        return _ARCHIVE + _member("#1/20", index) + _member("#1/20", padded)
    length = 4 + 4 * count + len(text)
    index = struct.pack(f">{1 + count}I", count, *[_OBJECT_AT + length] * count) + text
    return _ARCHIVE + _member("/", index) + _member(f"{name}/", body)


def _member(name: str, body: bytes) -> bytes:
    """Return a member of an archive, with neither a date nor an owner."""
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(body):<10}`\n"
    return head.encode() + body + b"\n" * (len(body) % 2)


_ARCHIVE = b"!<arch>\n"
_OBJECT_AT = len(_ARCHIVE) + len(_member("", b""))  # and the bytes of the index
