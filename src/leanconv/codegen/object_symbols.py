"""The symbols of an object file: which it defines for others, and which it needs of others."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from leanconv.codegen import wasm_files
from leanconv.records import dataclass


@dataclass(frozen=True)
class ObjectSymbols:
    """Names as C has them.

    Attributes:
        format: `"elf"`, `"coff"`, `"macho"` or `"wasm"`.
        defined: what other files may use.
        needed: what other files have to define.
    """

    format: str
    defined: frozenset[str]
    needed: frozenset[str]


def object_symbols(body: bytes | bytearray) -> ObjectSymbols:
    """Read the table of symbols of a relocatable object of 64 bits, or of WebAssembly.

    Raises:
        ValueError: it is of another kind.
    """
    for name, mark, read in (
        ("elf", b"\x7fELF\x02", _elf),
        ("macho", b"\xcf\xfa\xed\xfe", _macho),
        ("wasm", b"\0asm", _wasm),
        ("coff", b"\x64\x86", _coff),
        ("coff", b"\x64\xaa", _coff),
    ):
        if body.startswith(mark):
            found = list(read(body))
            defined = frozenset(symbol for symbol, there in found if there)
            return ObjectSymbols(name, defined, frozenset(s for s, there in found if not there))
    raise ValueError("an object file of no known kind")


_Found = Iterator[tuple[str, bool]]  # a global name, and whether it is defined


def _text(body: bytes | bytearray, at: int) -> str:
    return body[at : body.index(b"\0", at)].decode()


def _elf(body: bytes | bytearray) -> _Found:
    (sections,) = struct.unpack_from("<Q", body, 40)
    size, count = struct.unpack_from("<HH", body, 58)
    rows = [struct.unpack_from("<IIQQQQII", body, sections + size * i) for i in range(count)]
    for _, kind, _, _, offset, length, link, _ in rows:
        if kind == 2:  # symbols, whose names section `link` has
            for at in range(offset, offset + length, 24):
                name, info, _, home = struct.unpack_from("<IBBH", body, at)
                if name and info >> 4:
                    yield _text(body, rows[link][4] + name), home != 0


def _coff(body: bytes | bytearray) -> _Found:
    table, count = struct.unpack_from("<II", body, 8)
    names, skipped = table + 18 * count, 0
    for at in range(table, names, 18):
        if skipped:
            skipped -= 1
            continue
        zeros, offset, value, section, _, kind, skipped = struct.unpack_from("<IIIhHBB", body, at)
        if kind == 2:  # external
            short = body[at : at + 8].rstrip(b"\0").decode() if zeros else ""
            yield short or _text(body, names + offset), section != 0 or value != 0


def _macho(body: bytes | bytearray) -> _Found:
    (commands,) = struct.unpack_from("<I", body, 16)
    at = 32
    for _ in range(commands):
        command, size = struct.unpack_from("<II", body, at)
        if command == 2:  # LC_SYMTAB
            symbols, count, names = struct.unpack_from("<III", body, at + 8)
            for place in range(symbols, symbols + 16 * count, 16):
                name, kind = struct.unpack_from("<IB", body, place)
                if kind & 1:
                    yield _text(body, names + name).removeprefix("_"), bool(kind & 0xE)
        at += size


def _wasm(body: bytes | bytearray) -> _Found:
    for symbol in wasm_files.symbols(body):
        yield symbol.name, symbol.defined
