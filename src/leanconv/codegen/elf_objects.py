"""Objects of kernels, loaded into this process without LLVM.

What LLVM makes of a kernel refers to nothing but itself: code and constants, and distances from
one to the other. On Linux and x86-64 that is loaded here, in a tenth of the time that LLVM's linker
takes, and LLVM's library of 120 MB is not touched. An object that holds anything else is refused,
and LLVM links it.

The format: System V Application Binary Interface, and its supplement for AMD64.

Pages that hold code are written first, then run, never both.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

_IDENTITY = b"\x7fELF\x02\x01\x01"  # of 64 bits, little-endian, version 1
_RELOCATABLE, _X86_64 = 1, 62
_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_DISTANCE = struct.Struct("<i")
_PROGRAM, _SYMBOLS, _RELOCATIONS, _OLD_RELOCATIONS = 1, 2, 4, 9  # kinds of sections
_UNWINDING = 0x70000001  # tables for exceptions, of which none passes through kernels
_WRITTEN, _LOADED, _RUN, _MERGED, _TEXTS = 1, 2, 4, 0x10, 0x20  # flags of sections
_GLOBAL = 1
_PC32, _PLT32 = 2, 4  # distances of 32 bits from the place itself


class NotPlainError(Exception):
    """An object holds something that is not loaded here."""


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    about: int
    alignment: int
    entry: int


class _Symbol(NamedTuple):
    name: bytes
    is_global: bool
    section: int
    value: int


class _Object:
    """The parts of an object that are loaded.

    Raises:
        NotPlainError: it is none of x86-64, or holds something else.
        struct.error, ValueError, IndexError: it is damaged.
    """

    def __init__(self, data: bytes) -> None:
        kind, machine, _, _, _, table, _, _, _, _, size, count, _ = _HEADER.unpack_from(data)
        if not data.startswith(_IDENTITY) or (kind, machine) != (_RELOCATABLE, _X86_64):
            raise NotPlainError("it is no object of x86-64")
        self._data = data
        places = range(table, table + count * size, size)
        self.sections = [_Section(*_SECTION.unpack_from(data, place)) for place in places]
        self.loaded = {
            number: each
            for number, each in enumerate(self.sections)
            if each.flags & _LOADED and each.kind != _UNWINDING
        }
        for each in self.loaded.values():
            others = each.flags & ~(_LOADED | _RUN | _MERGED | _TEXTS)
            end = each.offset + each.size
            if each.kind != _PROGRAM or others or each.alignment > 4096 or end > len(data):
                raise NotPlainError("it holds data that is written to, or of another kind")
        if any(each.kind == _OLD_RELOCATIONS for each in self.sections):
            raise NotPlainError("its relocations are of another form")

    def body(self, section: _Section) -> bytes:
        return self._data[section.offset : section.offset + section.size]

    def symbols(self, section: _Section) -> list[_Symbol]:
        names, found = self.body(self.sections[section.link]), []
        for name, about, _, where, value, _ in _SYMBOL.iter_unpack(self.body(section)):
            text = names[name : names.index(0, name)]
            found.append(_Symbol(text, about >> 4 == _GLOBAL, where, value))
        return found

    def relocations(self) -> Iterator[tuple[int, int, int, _Symbol, int]]:
        """Section, place in it, kind, symbol and summand of each distance to be filled in."""
        for each in self.sections:
            if each.kind != _RELOCATIONS or each.about not in self.loaded:
                continue
            symbols = self.symbols(self.sections[each.link])
            for place, about, summand in _RELOCATION.iter_unpack(self.body(each)):
                yield each.about, place, about & 0xFFFFFFFF, symbols[about >> 32], summand


def takes_objects() -> bool:
    """Return whether objects may be loaded here: on Linux and x86-64."""
    return sys.platform == "linux" and os.uname().machine == "x86_64" and sys.maxsize > 2**32


def load_objects(bodies: Iterable[bytes]) -> LoadedObjects:
    """Load objects side by side: their code first, then their constants.

    Raises:
        NotPlainError: one holds something that is not loaded here, or is damaged, or the system
            gives no memory for code.
    """
    try:
        return _loaded([_Object(body) for body in bodies])
    except (struct.error, ValueError, IndexError, KeyError, OSError) as error:
        raise NotPlainError(f"it cannot be loaded ({error})") from error


def _loaded(objects: Sequence[_Object]) -> LoadedObjects:
    parts: tuple[dict[tuple[int, int], int], ...] = ({}, {})  # offsets of sections
    sizes = [0, 0]
    for number, each in enumerate(objects):
        for index, section in each.loaded.items():
            part = 0 if section.flags & _RUN else 1
            start = -(-sizes[part] // max(1, section.alignment)) * max(1, section.alignment)
            parts[part][number, index], sizes[part] = start, start + section.size
    pages = CodePages(*sizes)
    places = {key: pages.code + start for key, start in parts[0].items()}
    places |= {key: pages.constants + start for key, start in parts[1].items()}
    symbols: dict[str, int] = {}
    for number, each in enumerate(objects):
        own = {index: places[number, index] for index in each.loaded}
        for index, body in _filled(each, own).items():
            pages.write(own[index], body)
        for section in each.sections:
            for symbol in each.symbols(section) if section.kind == _SYMBOLS else ():
                if symbol.is_global and symbol.section in own:
                    symbols[symbol.name.decode()] = own[symbol.section] + symbol.value
    pages.seal()
    return LoadedObjects(pages, symbols)


def _filled(each: _Object, places: dict[int, int]) -> dict[int, bytes]:
    """The sections of an object with the distances from these addresses filled in."""
    bodies = {index: bytearray(each.body(section)) for index, section in each.loaded.items()}
    for section, place, kind, symbol, summand in each.relocations():
        if kind not in (_PC32, _PLT32) or symbol.section not in places:
            raise NotPlainError(f"it refers to something else (relocation {kind})")
        distance = places[symbol.section] + symbol.value + summand - (places[section] + place)
        _DISTANCE.pack_into(bodies[section], place, distance)
    return {index: bytes(body) for index, body in bodies.items()}


class CodePages:
    """One private mapping of code and its constants, freed with the last reference.

    Args:
        code_bytes: of the first part, which is run.
        constant_bytes: of the second part, which begins at a page of its own.

    Attributes:
        code, constants: addresses of the two parts.

    Raises:
        OSError: the system gives no such memory.
    """

    def __init__(self, code_bytes: int, constant_bytes: int = 0) -> None:
        self._code_bytes = _whole(code_bytes)
        self._bytes = self._code_bytes + _whole(constant_bytes)
        self._map = mmap.mmap(-1, self._bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._anchor = ctypes.c_char.from_buffer(self._map)  # which keeps it where it is
        self.code = ctypes.addressof(self._anchor)
        self.constants = self.code + self._code_bytes

    def write(self, address: int, data: bytes) -> None:
        """Put bytes at an address of one of the parts; before `seal`."""
        start = address - self.code
        self._map[start : start + len(data)] = data

    def seal(self) -> None:
        """Let the first part be run, and neither be written to any more.

        Raises:
            OSError: the system does not allow it.
        """
        parts = (
            (self.code, self._code_bytes, mmap.PROT_READ | mmap.PROT_EXEC),
            (self.constants, self._bytes - self._code_bytes, mmap.PROT_READ),
        )
        for address, size, permitted in parts:
            if size and _mprotect()(address, size, permitted):
                number = ctypes.get_errno()
                raise OSError(number, f"mprotect refuses {size} bytes of code")


class LoadedObjects:
    """Objects in this process; their code is freed with the last reference to this.

    Args:
        pages: memory that holds them.
        symbols: addresses of their functions.
    """

    def __init__(self, pages: CodePages, symbols: Mapping[str, int]) -> None:
        self._pages, self._symbols = pages, symbols

    def __getitem__(self, symbol: str) -> int:
        return self._symbols[symbol]


def _whole(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


@functools.cache
def _mprotect() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None, use_errno=True).mprotect
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function
