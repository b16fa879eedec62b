"""Loads and stores, and the conversions that they make where memory holds half precision.

An address knows the type of its elements. Where that is float16 or bfloat16 and a float is loaded
or stored, elements are converted on their way: a kernel that computes in float32 reads and writes
half precision by nothing but the elements of its addresses.

    x = e.pointer(0, "half")
    v = e.load(x.at(i * 16), "<16 x float>")     sixteen halves, converted: exact
    e.store(v + v, y.at(i * 16))                 rounded to the nearest, the even one of two

| type | to float32 | from float32 |
|---|---|---|
| float16 | LLVM's `fpext`: one instruction on all our targets | `fptrunc`: one instruction |
| bfloat16 | the upper half of a word: a shift | `fptrunc` where a target has it, else integers |

Numbers are rounded to the nearest, the even one of two; those beyond the largest become infinite,
and a NaN stays one. Subnormal halves are numbers like any others, whatever the state of the CPU;
of bfloat16, whose subnormal numbers are float32's, they may be zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

from leanconv.codegen.instructions import Instructions
from leanconv.codegen.values import (
    Index,
    Pointer,
    Value,
    bytes_of,
    element_of,
    lanes_of,
    mangled,
    vector,
)
from leanconv.symbolic import Symbol
from leanconv.types import BFLOAT16, FLOAT16, FLOAT32, FLOATS

_ELEMENTS = (FLOAT16.llvm, BFLOAT16.llvm)
_BITS = "i16"  # as they are loaded and stored: vectors of halves have no masked forms everywhere
_WORD, _HALF_BITS = "i32", 16
_ROUND, _QUIET = 0x7FFF, 0x400000  # just below half of the last place; what makes a NaN quiet


def is_half(element: str) -> bool:
    """Return whether LLVM's type of an element is one of half precision."""
    return element in _ELEMENTS


def loads_as(held: str, element: str) -> bool:
    """Return whether elements in memory are loaded and stored as those of a type."""
    return held == element or (is_half(held) and element == FLOAT32.llvm)


def bits_kind(kind: str) -> str:
    """The integers with as many bits as halves, one for each lane."""
    return vector(_BITS, lanes_of(kind))


def from_bits(e: Instructions, bits: Value, element: str, kind: str) -> Value:
    """Halves as they lie in memory as floats, or as halves, of a type with as many lanes."""
    lanes = lanes_of(kind)
    if element_of(kind) == FLOAT32.llvm and element == BFLOAT16.llvm:
        words = e.convert("zext", bits, vector(_WORD, lanes)) << _HALF_BITS
        return e.convert("bitcast", words, kind)
    if element_of(kind) == FLOAT32.llvm and e.plain_floats:
        return _widened(e, bits, kind)
    halves = e.convert("bitcast", bits, vector(element, lanes))
    return halves if element_of(kind) == element else e.convert("fpext", halves, kind)


def to_bits(e: Instructions, value: Value, element: str) -> Value:
    """Floats, or halves, as halves lie in memory."""
    lanes = lanes_of(value.kind)
    if is_half(element_of(value.kind)) and element_of(value.kind) != element:  # the other one
        value = e.convert("fpext", value, vector(FLOAT32.llvm, lanes))
    arithmetic = element == BFLOAT16.llvm and not e.rounds_to_bfloat16
    if element_of(value.kind) == FLOAT32.llvm and arithmetic:
        return _upper_half(e, value)
    if element_of(value.kind) == FLOAT32.llvm and element == FLOAT16.llvm and e.plain_floats:
        return _narrowed(e, value)
    if element_of(value.kind) != element:
        value = e.convert("fptrunc", value, vector(element, lanes))
    return e.convert("bitcast", value, bits_kind(value.kind))


def _upper_half(e: Instructions, value: Value) -> Value:
    """The upper halves of float32 numbers, rounded: 32 bits of a number are an integer's."""
    words = e.convert("bitcast", value, vector(_WORD, lanes_of(value.kind)))
    shift = e.const(words.kind, _HALF_BITS)
    last = e.define(f"lshr {words}, {shift.text}", words.kind) & 1
    rounded = words + (last + _ROUND)
    chosen = e.select(value.compare("uno", value), words | _QUIET, rounded)
    upper = e.define(f"lshr {chosen}, {shift.text}", words.kind)
    return e.convert("trunc", upper, bits_kind(value.kind))


# float16 in words of float32: how far its bits lie below, and numbers there.
_LOWER, _EXPONENT, _INFINITE = 13, 0x0F800000, 0x7F800000
_MOST, _LEAST_NORMAL, _HALF_INFINITE, _HALF_NAN = 0x477FFFFF, 0x38800000, 0x7C00, 0x7E00
_REBIASED = 2.0**112


def _widened(e: Instructions, bits: Value, kind: str) -> Value:
    """float16 as float32, by integers: a product with a power of two mends the exponent."""
    words = e.convert("zext", bits, vector(_WORD, lanes_of(kind)))
    moved = (words & 0x7FFF) << _LOWER
    size = e.convert("bitcast", e.convert("bitcast", moved, kind) * _REBIASED, words.kind)
    size = e.select(moved.compare("uge", _EXPONENT), moved | _INFINITE, size)
    return e.convert("bitcast", size | ((words & 0x8000) << _HALF_BITS), kind)


def _narrowed(e: Instructions, value: Value) -> Value:
    """float32 as float16, by integers; a sum with 1/2 rounds what has no normal number."""
    words = e.convert("bitcast", value, vector(_WORD, lanes_of(value.kind)))
    size = words & 0x7FFFFFFF
    small = (
        e.convert("bitcast", e.convert("bitcast", size, value.kind) + 0.5, words.kind) - 0x3F000000
    )
    last = e.define(f"lshr {size}, {e.const(words.kind, _LOWER).text}", words.kind) & 1
    rounded = size + (last + (0xFFF - (112 << 23)))
    normal = e.define(f"lshr {rounded}, {e.const(words.kind, _LOWER).text}", words.kind)
    found = e.select(size.compare("ult", _LEAST_NORMAL), small, normal)
    found = e.select(size.compare("ugt", _MOST), e.const(words.kind, _HALF_INFINITE), found)
    found = e.select(size.compare("ugt", _INFINITE), e.const(words.kind, _HALF_NAN), found)
    sign = e.define(f"lshr {words}, {e.const(words.kind, _HALF_BITS).text}", words.kind) & 0x8000
    return e.convert("trunc", found | sign, bits_kind(value.kind))


_FLOATS = tuple(dtype.llvm for dtype in FLOATS)


class Memory(Instructions):
    """A function's loads and stores."""

    def load(self, address: Pointer, kind: str = "", align: int = 0) -> Value:
        """Load a value, by default one as it is computed with, and aligned as elements are."""
        kind = kind or _computed(address.element)
        held = _held(address.element, kind)
        align = align or bytes_of(element_of(held))
        loaded = self.define(f"load {held}, {address}, align {align}", held)
        return loaded if held == kind else from_bits(self, loaded, _half(address, kind), kind)

    def load_index(self, address: Pointer) -> Index:
        """Load an i64 of a table as an index."""
        return self.index(self.load(address, "i64"))

    def store(self, value: Value, address: Pointer, align: int = 0) -> None:
        """Store a value; the alignment defaults to one element's."""
        value = self._stored(value, address)
        align = align or bytes_of(element_of(value.kind))
        self.emit(f"store {value}, {address}, align {align}")

    def stream(self, value: Value, address: Pointer) -> None:
        """Store a vector past the caches, at an address aligned as it is; see `fence`."""
        self._declared["nontemporal"] = "!0 = !{i32 1}"
        align = bytes_of(element_of(value.kind)) * lanes_of(value.kind)
        self.emit(f"store {value}, {address}, align {align}, !nontemporal !0")

    def fence(self) -> None:
        """Make what was stored past the caches visible to what other threads do later."""
        self.emit("fence seq_cst")

    def _stored(self, value: Value, address: Pointer) -> Value:
        """Convert a value to the type that is stored at an address."""
        if _held(address.element, value.kind) == value.kind:
            return value
        return to_bits(self, value, _half(address, value.kind))

    def broadcast(self, address: Pointer, kind: str) -> Value:
        """Load one element into every lane of a vector type."""
        element, lanes = element_of(kind), lanes_of(kind)
        held = _held(address.element, element)
        loaded = self.splat(self.load(address, held), lanes)
        # Halves are converted in all lanes: one instruction then does both.
        return loaded if held == element else from_bits(self, loaded, _half(address, kind), kind)

    def first_lanes(self, count: Value | int, lanes: int) -> Value:
        """A mask of the first `count` lanes: a constant, or computed from a word or an index."""
        kind = vector("i32", lanes)
        if isinstance(count, Symbol):
            return self.const(kind, range(lanes)).compare("ult", self.const(kind, count))
        if isinstance(count, Value):
            limit = self.splat(self.convert("trunc", count, "i32"), lanes)
            return self.const(kind, range(lanes)).compare("slt", limit)
        return self.const(vector("i1", lanes), [int(i < count) for i in range(lanes)])

    def masked_load(self, address: Pointer, kind: str, mask: Value, align: int = 0) -> Value:
        """Load the lanes of a mask, zero elsewhere; masked-off lanes are never touched.

        Aligned as elements are by default.
        """
        held = _held(address.element, kind)
        aligned = self.const("i32", align or bytes_of(element_of(held)))
        name = f"llvm.masked.load.{mangled(held)}.p0"
        loaded = self.intrinsic(name, held, address, aligned, mask, self.zero(held))
        return loaded if held == kind else from_bits(self, loaded, _half(address, kind), kind)

    def gather(self, base: Pointer, indices: Value, mask: Value) -> Value:
        """Load the elements of 32-bit indices, zero off the mask, which is never touched."""
        lanes = lanes_of(indices.kind)
        kind, places = vector(_computed(base.element), lanes), vector("ptr", lanes)
        held = _held(base.element, kind)
        at = self.define(f"getelementptr {base.element}, {base}, {indices}", places)
        align = self.const("i32", bytes_of(base.element))
        name = f"llvm.masked.gather.{mangled(held)}.{mangled(places)}"
        loaded = self.intrinsic(name, held, at, align, mask, self.zero(held))
        return loaded if held == kind else from_bits(self, loaded, base.element, kind)

    def scatter(self, value: Value, base: Pointer, indices: Value, mask: Value) -> None:
        """Store the lanes of a mask at 32-bit indices; masked-off lanes are never touched."""
        value, places = self._stored(value, base), vector("ptr", lanes_of(indices.kind))
        at = self.define(f"getelementptr {base.element}, {base}, {indices}", places)
        align = self.const("i32", bytes_of(base.element))
        name = f"llvm.masked.scatter.{mangled(value.kind)}.{mangled(places)}"
        self.effect(name, value, at, align, mask)

    def masked_store(self, value: Value, address: Pointer, mask: Value) -> None:
        """Store the lanes of a mask; masked-off lanes are never touched."""
        value = self._stored(value, address)
        align = self.const("i32", bytes_of(element_of(value.kind)))
        self.effect(f"llvm.masked.store.{mangled(value.kind)}.p0", value, address, align, mask)

    def load_first(self, address: Pointer, kind: str, count: Value | int) -> Value:
        """Load the first `count` lanes: a plain load when that is known to be all of them."""
        lanes = lanes_of(kind)
        if not isinstance(count, Value) and count >= lanes:
            return self.load(address, kind)
        return self.masked_load(address, kind, self.first_lanes(count, lanes))

    def store_first(self, value: Value, address: Pointer, count: Value | int) -> None:
        """Store the first `count` lanes: a plain store when that is known to be all of them."""
        lanes = lanes_of(value.kind)
        if not isinstance(count, Value) and count >= lanes:
            self.store(value, address)
        elif isinstance(count, int) and count == 1:
            # LLVM 22 stores the whole lane of what is narrowed under a mask of one lane.
            self.store(self.extract(value, 0), address)
        else:
            self.masked_store(value, address, self.first_lanes(count, lanes))

    def store_lanes(self, value: Value, address: Pointer, first: int, count: int) -> None:
        """Store `count` lanes from `first` on, in pieces of a power of two: no mask is needed."""
        while count:
            piece = min(1 << count.bit_length() - 1, lanes_of(value.kind))
            whole = piece == lanes_of(value.kind)
            some = value if whole else self.shuffle(value, None, range(first, first + piece))
            self.store(some if piece > 1 else self.extract(value, first), address)
            address, first, count = address.at(piece), first + piece, count - piece

    def prefetch(self, address: Pointer, write: bool = False, locality: int = 3) -> None:
        """Prefetch a line: locality 3, 2, 1 for L1, L2, L3."""
        hints = (self.const("i32", int(write)), self.const("i32", locality), self.const("i32", 1))
        self.effect("llvm.prefetch.p0", address, *hints)

    def barrier(self) -> None:
        """Keep the loads and stores before this before those after it; no instruction.

        LLVM compares each pair of hundreds of stores in a row: 432 of them took 0.7 s to compile,
        with a barrier every 16 they take 0.05 s, and the code is the same.
        """
        self.emit('fence syncscope("singlethread") acq_rel')

    def local(self, element: str, count: int) -> Pointer:
        """A small aligned array in this function's frame (at most 4 KiB)."""
        assert count * bytes_of(element) <= 4096, "a larger array belongs in the scratch"
        self._count += 1
        name = f"%local{self._count}"
        self._allocas.append(f"  {name} = alloca [{count} x {element}], align 64")
        return Pointer(self, "ptr", name, element)

    def table(self, values: Sequence[int]) -> Pointer:
        """The address of constant i32 numbers."""
        name = f"@{self.name}.table{len(self._tables)}"
        numbers = ", ".join(f"i32 {value}" for value in values)
        self._tables.append(
            f"{name} = private unnamed_addr constant [{len(values)} x i32] [{numbers}], align 64"
        )
        return Pointer(self, "ptr", name, "i32")


def _held(element: str, kind: str) -> str:
    """Return the type in memory of a value of a type, at an address of such elements."""
    halves = is_half(element_of(kind)) or (is_half(element) and element_of(kind) in _FLOATS)
    return bits_kind(kind) if halves else kind


def _half(address: Pointer, kind: str) -> str:
    """Return the half precision at an address; if it knows of none, that of the value itself."""
    return address.element if is_half(address.element) else element_of(kind)


def _computed(element: str) -> str:
    """The type in which elements at an address are computed with."""
    return FLOAT32.llvm if is_half(element) else element
