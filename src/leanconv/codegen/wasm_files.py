"""WebAssembly's files: the symbols of an object, and the module that it becomes.

An object that LLVM writes is a module already, all of whose places are right where it stands alone:
data begins at address 0. It takes memory, the table of functions and the stack's pointer from
others, and gives nothing. A module has these of its own, and gives functions, data and memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum

from leanconv.errors import CompileError
from leanconv.records import dataclass

HEAD = b"\0asm\1\0\0\0"
STACK_BYTES = 1 << 16
_PAGE = 1 << 16
_END, _I32_CONST, _I32, _FUNCREF = 0x0B, 0x41, 0x7F, 0x70
_UNDEFINED, _NAMED, _BOUND_HERE = 0x10, 0x40, 6  # flags of a symbol; the last: local or hidden


class _Section(IntEnum):
    CUSTOM = 0
    TYPE = 1
    IMPORT = 2
    FUNCTION = 3
    TABLE = 4
    MEMORY = 5
    GLOBAL = 6
    EXPORT = 7
    ELEMENTS = 9
    CODE = 10
    DATA = 11
    DATA_COUNT = 12


class Sort(IntEnum):
    """What a symbol, or something that is imported or exported, is."""

    FUNCTION = 0
    DATA = 1
    GLOBAL = 2
    SECTION = 3
    TAG = 4
    TABLE = 5


@dataclass(frozen=True)
class Symbol:
    """A symbol that other files see.

    Attributes:
        name: of it.
        sort: function, data or another one.
        defined: whether it is in this object.
        place: a function's number; the address of data.
    """

    name: str
    sort: Sort
    defined: bool
    place: int


class _Reader:
    """Numbers and names, one after the other."""

    def __init__(self, body: bytes | bytearray, at: int, end: int) -> None:
        self.body, self.at, self.end = body, at, end

    def byte(self) -> int:
        self.at += 1
        return self.body[self.at - 1]

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value, shift = value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    def name(self) -> str:
        length = self.number()
        self.at += length
        return self.body[self.at - length : self.at].decode()

    def part(self) -> _Reader:
        """Return what has its length before it."""
        length = self.number()
        self.at += length
        return _Reader(self.body, self.at - length, self.at)

    def rest(self) -> bytes:
        return bytes(self.body[self.at : self.end])


def _sections(body: bytes | bytearray) -> Iterator[tuple[int, _Reader]]:
    whole = _Reader(body, len(HEAD), len(body))
    while whole.at < whole.end:
        kind = whole.byte()
        yield kind, whole.part()


def _imports(section: _Reader) -> Iterator[tuple[str, int]]:
    """Yield what is imported: names, and kinds as a module numbers them."""
    for _ in range(section.number()):
        section.name()
        name, kind = section.name(), section.byte()
        yield name, kind
        if kind == 0:  # a function, of a type
            section.number()
        elif kind == 3:  # a global: its type, and whether it changes
            section.at += 2
        else:  # a table, of a type, or a memory: limits
            section.at += kind == 1
            limits = 1 + (section.number() & 1)
            for _ in range(limits):
                section.number()


def _segments(section: _Reader) -> Iterator[tuple[int, int]]:
    """Yield the address and the bytes of each part of the data."""
    for _ in range(section.number()):
        flags, op = section.number(), section.byte()
        if flags or op != _I32_CONST:
            raise CompileError("data whose address is not a number; please report it")
        address = section.number()
        if section.byte() != _END:
            raise CompileError("data whose address is not a number; please report it")
        size = section.number()
        section.at += size
        yield address, size


def symbols(body: bytes | bytearray) -> list[Symbol]:
    """Return the functions and data that an object gives to others or takes from them."""
    taken, data, found = list[str](), list[tuple[int, int]](), list[Symbol]()
    for kind, section in _sections(body):
        if kind == _Section.IMPORT:
            taken = [name for name, sort in _imports(section) if sort == 0]
        elif kind == _Section.DATA:
            data = list(_segments(section))
        elif kind == _Section.CUSTOM and section.name() == "linking":
            section.number()  # the version
            while section.at < section.end:
                table, part = section.byte(), section.part()
                if table == 8:
                    found = list(_table(part, taken, data))
    return found


def _table(
    part: _Reader, taken: Sequence[str], data: Sequence[tuple[int, int]]
) -> Iterator[Symbol]:
    for _ in range(part.number()):
        sort, flags, name, place = Sort(part.byte()), part.number(), "", 0
        defined = not flags & _UNDEFINED
        if sort is Sort.DATA:
            name = part.name()
            if defined:
                segment, offset, _ = part.number(), part.number(), part.number()
                place = data[segment][0] + offset
        else:
            place = part.number()
            if sort is not Sort.SECTION and (defined or flags & _NAMED):
                name = part.name()
            elif sort is Sort.FUNCTION:
                name = taken[place]
        if name and sort in (Sort.FUNCTION, Sort.DATA) and not flags & _BOUND_HERE:
            yield Symbol(name, sort, defined, place)


def module(body: bytes | bytearray) -> bytes:
    """Return an object as a module: it gives its symbols, `memory` and `__heap_base`.

    Behind `__heap_base` the memory is the caller's; it can grow.

    Raises:
        CompileError: the object needs functions or data of others.
    """
    kept, end, functions = dict[int, bytes](), 0, 0
    for kind, section in _sections(body):
        text = section.rest()
        if kind == _Section.IMPORT:
            others = [name for name, sort in _imports(section) if sort == 0]
            if others:
                raise CompileError(f"the object needs {', '.join(others)} of others")
        elif kind == _Section.DATA:
            end = max(map(sum, _segments(section)), default=0)
        elif kind == _Section.ELEMENTS:
            functions = _elements(section)
        if kind not in (_Section.CUSTOM, _Section.IMPORT):
            kept[kind] = text
    stack = -(-end // 16) * 16 + STACK_BYTES
    given = [each for each in symbols(body) if each.defined]
    numbers = {each.name: each.place for each in given if each.sort is Sort.DATA}
    numbers["__heap_base"] = stack
    exports = [(each.name, 0, each.place) for each in given if each.sort is Sort.FUNCTION]
    exports += [(name, 3, 1 + place) for place, name in enumerate(numbers)]
    exports.append(("memory", 2, 0))
    pages = -(-stack // _PAGE)
    kept[_Section.TABLE] = b"\1" + bytes((_FUNCREF, 0)) + _leb(1 + functions)
    kept[_Section.MEMORY] = b"\1\0" + _leb(pages)
    kept[_Section.GLOBAL] = _leb(1 + len(numbers)) + _global(stack, True)
    kept[_Section.GLOBAL] += b"".join(_global(number, False) for number in numbers.values())
    kept[_Section.EXPORT] = _leb(len(exports)) + b"".join(
        _leb(len(name)) + name.encode() + bytes((kind,)) + _leb(place)
        for name, kind, place in exports
    )
    order = sorted(_Section, key=lambda kind: 9.5 if kind == _Section.DATA_COUNT else kind)
    parts = [bytes((kind,)) + _leb(len(kept[kind])) + kept[kind] for kind in order if kind in kept]
    return HEAD + b"".join(parts)


def _elements(section: _Reader) -> int:
    """Return how many functions have an address; the first one's is 1."""
    last = 0
    for _ in range(section.number()):
        flags, op, first, ended = section.number(), section.byte(), section.number(), section.byte()
        if flags or op != _I32_CONST or ended != _END:
            raise CompileError("functions in a table of another kind; please report it")
        count = section.number()
        for _ in range(count):
            section.number()
        last = max(last, first + count - 1)
    return last


def _global(value: int, changes: bool) -> bytes:
    return bytes((_I32, changes, _I32_CONST)) + _leb(value, signed=True) + bytes((_END,))


def _leb(value: int, signed: bool = False) -> bytes:
    """Return a number of at least 0 in LEB128."""
    digits = list[int]()
    while value >= (0x40 if signed else 0x80):
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*digits, value))
