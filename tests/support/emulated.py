"""Call AArch64 machine code on another machine, in this process: objects loaded into an emulator.

The emulator (the package unicorn) sees the pages of the arrays that it is given at the addresses
that they have here, so that tables of addresses need no change. Every other page is unmapped: an
access there ends the call with an error.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

PAGE = 4096
_STACK_BYTES = 1 << 20
_ALLOCATED = 2  # flag of a section that lies in memory
_EMPTY = 8  # type of a section without bytes in the file
_SYMBOLS, _RELOCATIONS = 2, 4  # types of sections
# How many bits an instruction's 12-bit offset is shifted by: LDR of that size, or ADD.
_LOW_12 = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}
_PREL32, _ABS64, _PAGE_21 = 261, 257, 275
_BRANCHES = (282, 283)  # B and BL


@dataclass(frozen=True)
class _Section:
    """A section header of an ELF file of 64 bits."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


class LoadedObject:
    """An object file in memory that is ready to run at its address.

    Attributes:
        memory: the array that holds it.
        symbols: addresses by name.
    """

    def __init__(self, body: bytes) -> None:
        """Place the sections and apply the relocations.

        Raises:
            NotImplementedError: the object has a relocation that is not known here.
        """
        table, entry, count = struct.unpack_from("<Q10xHH", body, 40)
        sections = [
            _Section(*struct.unpack_from("<IIQQQQIIQQ", body, table + entry * number))
            for number in range(count)
        ]
        places, size = {}, 0
        for number, section in enumerate(sections):
            if section.flags & _ALLOCATED:
                size += -size % max(16, section.align)
                places[number] = size
                size += section.size
        self.memory = np.zeros(size + PAGE, np.uint8)
        skipped = -self.memory.ctypes.data % PAGE
        self._base = self.memory.ctypes.data + skipped
        self._bytes = memoryview(self.memory)[skipped:]
        for number, place in places.items():
            section = sections[number]
            if section.kind != _EMPTY:
                end = section.offset + section.size
                self._bytes[place : place + section.size] = body[section.offset : end]
        (symbols,) = (section for section in sections if section.kind == _SYMBOLS)
        names = sections[symbols.link].offset
        addresses: list[int | None] = []
        self.symbols: dict[str, int] = {}
        for at in range(symbols.offset, symbols.offset + symbols.size, symbols.entry):
            name, _, _, home, value, _ = struct.unpack_from("<IBBHQQ", body, at)
            address = self._base + places[home] + value if home in places else None
            addresses.append(address)
            text = body[names + name : body.index(b"\0", names + name)].decode()
            if address is not None and text:
                self.symbols[text] = address
        for section in sections:
            if section.kind == _RELOCATIONS and section.info in places:
                for at in range(section.offset, section.offset + section.size, section.entry):
                    place, info, addend = struct.unpack_from("<QQq", body, at)
                    target = addresses[info >> 32]
                    assert target is not None, "a symbol that the object does not define"
                    self._relocate(places[section.info] + place, info & 0xFFFFFFFF, target + addend)

    def _relocate(self, place: int, kind: int, target: int) -> None:
        """Put an address into an instruction or a word (ELF for the Arm 64-bit Architecture)."""
        here = self._base + place
        if kind == _ABS64:
            struct.pack_into("<Q", self._bytes, place, target)
            return
        if kind == _PREL32:
            struct.pack_into("<i", self._bytes, place, target - here)
            return
        (word,) = struct.unpack_from("<I", self._bytes, place)
        if kind == _PAGE_21:
            pages = (target >> 12) - (here >> 12)
            word |= (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
        elif kind in _BRANCHES:
            word |= target - here >> 2 & 0x3FFFFFF
        elif kind in _LOW_12:
            word |= ((target & 0xFFF) >> _LOW_12[kind]) << 10
        else:
            raise NotImplementedError(f"relocation {kind} of AArch64")
        struct.pack_into("<I", self._bytes, place, word)


def call(
    code: LoadedObject, function: str, arguments: Sequence[int], memory: Iterable[np.ndarray]
) -> int:
    """Call a function with the calling convention of AArch64; a test without unicorn is skipped.

    Args:
        code: where the function is.
        function: its name.
        arguments: up to eight words.
        memory: arrays that it may reach, in whole pages.

    Returns:
        What the function returns, as a word.

    Raises:
        unicorn.UcError: it reached other memory, or an instruction is unknown.
        AssertionError: it changed a register that belongs to its caller.
    """
    unicorn = pytest.importorskip("unicorn", reason="unicorn is not installed")
    arm = unicorn.arm64_const
    emulator = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
    emulator.ctl_set_cpu_model(arm.UC_CPU_ARM64_MAX)
    stack = np.full(_STACK_BYTES + PAGE, 0xFF, np.uint8)
    for start, end in _pages((*memory, code.memory, stack)):
        emulator.mem_map_ptr(start, end - start, unicorn.UC_PROT_ALL, ctypes.c_void_p(start))
    emulator.reg_write(arm.UC_ARM64_REG_CPACR_EL1, 3 << 20)  # vector registers may be used
    for number, value in enumerate(arguments):
        emulator.reg_write(arm.UC_ARM64_REG_X0 + number, value & (1 << 64) - 1)
    top = (stack.ctypes.data + _STACK_BYTES) // 16 * 16
    kept = {arm.UC_ARM64_REG_SP: top, arm.UC_ARM64_REG_X29: 0x1D}
    kept |= {arm.UC_ARM64_REG_X19 + number: 0x13 + number for number in range(10)}
    kept |= {arm.UC_ARM64_REG_D8 + number: 0x8080 + number for number in range(8)}
    for register, value in kept.items():
        emulator.reg_write(register, value)
    back = code.memory.ctypes.data + len(code.memory) - 4  # the last word: nothing lies there
    emulator.reg_write(arm.UC_ARM64_REG_LR, back)
    emulator.emu_start(code.symbols[function], back)
    changed = [register for register, value in kept.items() if emulator.reg_read(register) != value]
    assert not changed, "registers of the caller were changed"
    return int(emulator.reg_read(arm.UC_ARM64_REG_X0))


def _pages(arrays: Iterable[np.ndarray]) -> Iterator[tuple[int, int]]:
    """The pages on which arrays lie, as spans that do not touch."""
    spans = sorted(
        (
            array.ctypes.data // PAGE * PAGE,
            -(-(array.ctypes.data + max(1, array.nbytes)) // PAGE) * PAGE,
        )
        for array in arrays
    )
    start, end = spans[0]
    for first, last in spans[1:]:
        if first > end:
            yield start, end
            start, end = first, last
        end = max(end, last)
    yield start, end
