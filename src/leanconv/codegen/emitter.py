"""A small typed emitter of LLVM IR text: functions, and loops that carry lists of values.

LLVM needs no pass over what comes out: loop-carried values become phis here, so nothing has to be
promoted from memory, and the code generator alone (7 ms a kernel) gives the speed of `-O3`.

    e = Function("axpy", [("args", "ptr"), ("lo", "i64"), ("hi", "i64"), ("scratch", "ptr")])
    x, y = e.pointer(0, "float"), e.pointer(1, "float")
    with e.loop("i", e.hi, start=e.lo) as i:
        v = e.load(x.at(i * 16), "<16 x float>")
        e.store(v + v, y.at(i * 16))
    text = e.finish()
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from leanconv.codegen.values import (
    Index,
    Number,
    Pointer,
    Same,
    Value,
    bytes_of,
    element_of,
    lanes_of,
    literal,
    mangled,
    vector,
)
from leanconv.symbols import Symbol

__all__ = [
    "Carry",
    "Function",
    "Index",
    "Pointer",
    "Value",
    "bytes_of",
    "element_of",
    "lanes_of",
    "vector",
]

Carry = list[Value]


class Function:
    """One function under construction; every method appends instructions in program order.

    The default signature is the kernel's: `(ptr args, i64 lo, i64 hi, ptr scratch)`, where `args`
    is a table of addresses, `lo` and `hi` bound the chunks to compute, and `scratch` is private to
    the calling thread.
    """

    KERNEL = (("args", "ptr"), ("lo", "i64"), ("hi", "i64"), ("scratch", "ptr"))

    def __init__(
        self,
        name: str,
        arguments: Sequence[tuple[str, str]] = KERNEL,
        returns: str = "void",
    ) -> None:
        self.name, self.returns = name, returns
        self.arguments = [self._made(kind, f"%{label}") for label, kind in arguments]
        self._signature = ", ".join(f"{kind} %{label}" for label, kind in arguments)
        self._count = 0
        self._lines = ["entry:"]
        self._block = "entry"
        self._declared: dict[str, str] = {}
        self._allocas: list[str] = []
        self._tables: list[str] = []
        self._words: dict[str, list[str]] = {}  # instructions at entry, by what they define

    # -- the kernel's arguments ------------------------------------------------------------
    @property
    def lo(self) -> Value:
        """First chunk to compute."""
        return self.arguments[1]

    @property
    def hi(self) -> Value:
        """One past the last chunk to compute."""
        return self.arguments[2]

    @property
    def scratch(self) -> Pointer:
        """This thread's scratch memory, aligned to 64 bytes."""
        return self.address(3)

    def address(self, argument: int, element: str = "i8") -> Pointer:
        """An argument that is an address, of such elements."""
        return Pointer(self, "ptr", self.arguments[argument].text, element)

    def pointer(self, index: int, element: str = "i8") -> Pointer:
        """Load the address of operand `index`, of such elements, from the kernel's table."""
        address = self.load(self.address(0, "i64").at(index), "ptr", align=8)
        return Pointer(self, "ptr", address.text, element)

    def pointers(self, names: Sequence[str], element: str, **others: str) -> dict[str, Pointer]:
        """Load the addresses of all operands: of `element`, or of `others[name]`."""
        return {
            name: self.pointer(index, others.get(name, element)) for index, name in enumerate(names)
        }

    # -- building blocks -------------------------------------------------------------------
    def _made(self, kind: str, text: str) -> Value:
        made: type[Value] = {"i64": Index, "ptr": Pointer}.get(kind, Value)
        return made(self, kind, text)

    def const(self, kind: str, value: Number | Symbol | Sequence[Number]) -> Value:
        """A constant, or a word of the table; a number is splatted over a vector's lanes."""
        if isinstance(value, Symbol):
            word = Value(self, kind, self._word(kind, value.base))
            return word if value.factor == 1 else word * value.factor
        return Value(self, kind, literal(kind, value))

    def _word(self, kind: str, extent: Symbol) -> str:
        """An extent: loaded at entry, and splatted there over a vector's lanes."""
        element, lanes = element_of(kind), lanes_of(kind)
        held = element if element in ("float", "double") else "i64"
        number = extent.trace.word(extent, held)
        name = f"%word{number}"
        lines = [
            f"{name}.at = getelementptr i64, ptr %args, i64 {-1 - number}",
            f"{name} = load {held}, ptr {name}.at, align 8",
        ]
        self._words.setdefault(name, lines)
        if element != held:
            whole, name = name, f"{name}.{element}"
            self._words.setdefault(name, [f"{name} = trunc {held} {whole} to {element}"])
        if lanes > 1:
            one, name = name, f"{name}.x{lanes}"
            zeros = f"<{lanes} x i32> zeroinitializer"
            lines = [
                f"{name}.0 = insertelement {kind} poison, {element} {one}, i64 0",
                f"{name} = shufflevector {kind} {name}.0, {kind} poison, {zeros}",
            ]
            self._words.setdefault(name, lines)
        return name

    def i64(self, value: Value | Number) -> Value:
        """An index as a value: numbers become constants, values stay as they are."""
        if isinstance(value, Value):
            return value
        if isinstance(value, Symbol):
            word = Index(self, "i64", self._word("i64", value.base))
            return word if value.factor == 1 else word * value.factor
        return Index(self, "i64", str(int(value)))

    def index(self, value: Value) -> Index:
        """Integers, loaded or computed, as positions that never overflow; no instruction."""
        assert element_of(value.kind)[0] == "i", f"an index is an integer; got {value}"
        return Index(self, value.kind, value.text)

    def frozen(self, value: Value | int) -> Value:
        """An index that LLVM keeps in one register.

        Else each address that is a sum with one has a pointer of its own, which a loop increments.
        """
        return self.i64(value).frozen()

    def zero(self, kind: str) -> Value:
        """Zero of any type, null for a pointer."""
        return Value(self, kind, "zeroinitializer" if kind[0] == "<" else literal(kind, 0))

    def poison(self, kind: str) -> Value:
        """LLVM's poison: for operands that are never used."""
        return Value(self, kind, "poison")

    def emit(self, line: str) -> None:
        """Append one instruction that defines nothing."""
        self._lines.append("  " + line)

    def define(self, expression: str, kind: str) -> Value:
        """Append one instruction and name its result."""
        return Value(self, kind, self.named(expression))

    def named(self, expression: str) -> str:
        """Append one instruction; return the name of its result."""
        self._count += 1
        name = f"%v{self._count}"
        self._lines.append(f"  {name} = {expression}")
        return name

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}.{self._count}"

    def _open_block(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self._block = label

    def intrinsic(self, name: str, returns: str, *args: Value) -> Value:
        """Call an LLVM intrinsic that returns a value."""
        return self.define(self._called(name, returns, args), returns)

    def _called(self, name: str, returns: str, args: Sequence[Value]) -> str:
        self._declare(name, returns, args)
        return f"call {returns} @{name}({', '.join(map(str, args))})"

    def effect(self, name: str, *args: Value) -> None:
        """Call an LLVM intrinsic for its effect."""
        self._declare(name, "void", args)
        self.emit(f"call void @{name}({', '.join(map(str, args))})")

    def _declare(self, name: str, returns: str, args: Sequence[Value]) -> None:
        if name not in self._declared:
            kinds = ", ".join(a.kind for a in args)
            self._declared[name] = f"declare {returns} @{name}({kinds})"

    # -- arithmetic ------------------------------------------------------------------------
    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """`a * b + c` with one rounding."""
        return self.intrinsic(f"llvm.fma.{mangled(a.kind)}", a.kind, a, b, c)

    def maximum(self, a: Value, b: Value) -> Value:
        """The larger of two, `b` where `a` is NaN: one instruction on x86."""
        return self.select(a.compare("ogt", b), a, b)

    def minimum(self, a: Value, b: Value) -> Value:
        """The smaller of two, `b` where `a` is NaN: one instruction on x86."""
        return self.select(a.compare("olt", b), a, b)

    def unary(self, name: str, a: Value) -> Value:
        """An intrinsic of one operand, named without its type: `sqrt`, `fabs`, `floor`, `rint`."""
        return self.intrinsic(f"llvm.{name}.{mangled(a.kind)}", a.kind, a)

    def select(self, condition: Value, a: Same, b: Value) -> Same:
        """`a` where the condition holds, else `b`."""
        return a.like(f"select {condition}, {a}, {b}")

    def smax(self, a: Same, b: Value | int) -> Same:
        """The larger of two signed integers."""
        return self._of_two("smax", a, b)

    def smin(self, a: Same, b: Value | int) -> Same:
        """The smaller of two signed integers."""
        return self._of_two("smin", a, b)

    def _of_two(self, name: str, a: Same, b: Value | int) -> Same:
        right = a.coerced(b)
        return a.like(self._called(f"llvm.{name}.{mangled(a.kind)}", a.kind, (a, right)))

    def convert(self, op: str, a: Value, kind: str) -> Value:
        """Convert by an LLVM cast: `bitcast`, `fpext`, `fptrunc`, `sitofp`, `fptosi`, `zext` …"""
        return self.define(f"{op} {a} to {kind}", kind)

    def splat(self, x: Value, lanes: int) -> Value:
        """Copy a scalar to every lane."""
        kind = vector(x.kind, lanes)
        if lanes == 1:
            return x
        one = self.define(f"insertelement {kind} poison, {x}, i64 0", kind)
        return self.define(
            f"shufflevector {one}, {kind} poison, <{lanes} x i32> zeroinitializer", kind
        )

    def shuffle(self, a: Value, b: Value | None, indices: Sequence[int]) -> Value:
        """Pick lanes of the concatenation of `a` and `b`; -1 leaves a lane undefined."""
        kind = vector(element_of(a.kind), len(indices))
        other = b or self.poison(a.kind)
        picks = ", ".join("i32 poison" if i < 0 else f"i32 {i}" for i in indices)
        return self.define(f"shufflevector {a}, {other}, <{len(indices)} x i32> <{picks}>", kind)

    def extract(self, a: Value, lane: int) -> Value:
        """One lane of a vector as a scalar."""
        if a.kind[0] != "<":
            return a
        return self.define(f"extractelement {a}, i64 {lane}", element_of(a.kind))

    def insert(self, a: Value, x: Value, lane: int) -> Value:
        """A copy of a vector with one lane replaced."""
        return self.define(f"insertelement {a}, {x}, i64 {lane}", a.kind)

    # -- memory ----------------------------------------------------------------------------
    def load(self, address: Pointer, kind: str = "", align: int = 0) -> Value:
        """Load a value, one element if no type is named; aligned as an element is by default."""
        kind = kind or address.element
        align = align or bytes_of(element_of(kind))
        return self.define(f"load {kind}, {address}, align {align}", kind)

    def load_index(self, address: Pointer) -> Index:
        """Load an i64 of a table as an index."""
        return self.index(self.load(address, "i64"))

    def store(self, value: Value, address: Pointer, align: int = 0) -> None:
        """Store a value; the alignment defaults to one element's."""
        align = align or bytes_of(element_of(value.kind))
        self.emit(f"store {value}, {address}, align {align}")

    def broadcast(self, address: Pointer, kind: str) -> Value:
        """Load one element into every lane of a vector type."""
        return self.splat(self.load(address, element_of(kind)), lanes_of(kind))

    def first_lanes(self, count: Value | int, lanes: int) -> Value:
        """A mask of the first `count` lanes: a constant, or computed from a word or an index."""
        kind = vector("i32", lanes)
        if isinstance(count, Symbol):
            return self.const(kind, range(lanes)).compare("ult", self.const(kind, count))
        if isinstance(count, Value):
            limit = self.splat(self.convert("trunc", count, "i32"), lanes)
            return self.const(kind, range(lanes)).compare("slt", limit)
        return self.const(vector("i1", lanes), [int(i < count) for i in range(lanes)])

    def masked_load(self, address: Pointer, kind: str, mask: Value) -> Value:
        """Load the lanes of a mask, zero elsewhere; masked-off lanes are never touched."""
        align = self.const("i32", bytes_of(element_of(kind)))
        name = f"llvm.masked.load.{mangled(kind)}.p0"
        return self.intrinsic(name, kind, address, align, mask, self.zero(kind))

    def gather(self, base: Pointer, indices: Value, mask: Value) -> Value:
        """Load the elements of 32-bit indices, zero off the mask, which is never touched."""
        lanes = lanes_of(indices.kind)
        kind, places = vector(base.element, lanes), vector("ptr", lanes)
        at = self.define(f"getelementptr {base.element}, {base}, {indices}", places)
        align = self.const("i32", bytes_of(base.element))
        name = f"llvm.masked.gather.{mangled(kind)}.{mangled(places)}"
        return self.intrinsic(name, kind, at, align, mask, self.zero(kind))

    def masked_store(self, value: Value, address: Pointer, mask: Value) -> None:
        """Store the lanes of a mask; masked-off lanes are never touched."""
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

    def store_parts(
        self, stores: Sequence[tuple[Value, Pointer]], count: Value | int, most: int
    ) -> None:
        """Store the first `count` lanes of vectors at addresses; `count` is at most `most`.

        By branches on powers of two, for cores on which a store under a mask is slow.
        """
        left = self.i64(count)
        values, lanes = [value for value, _ in stores], lanes_of(stores[0][0].kind)
        part, stored = lanes if most == lanes else lanes // 2, self.i64(0)
        while part:
            with self.when((left & part).compare("ne", 0), [values]):
                for j, (value, address) in enumerate(stores):
                    place = address.at(stored)
                    if part == 1:
                        self.store(self.extract(values[j], 0), place)
                    elif part == lanes:
                        self.store(value, place)
                    else:
                        self.store(self.shuffle(values[j], None, range(part)), place)
                        high = [*range(part, 2 * part), *[-1] * (lanes - part)]
                        values[j] = self.shuffle(values[j], None, high)
            stored = left & (2 * lanes - part)
            part //= 2

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

    # -- control ---------------------------------------------------------------------------
    @contextmanager
    def loop(
        self,
        label: str,
        stop: Value | int,
        carry: Sequence[Carry] = (),
        start: Value | int = 0,
        step: int = 1,
        until: Carry | None = None,
    ) -> Iterator[Value]:
        """Run `for i in range(start, stop, step)`; the body runs at least once.

        Args:
            label: name of the index, seen in the emitted code.
            stop: bound of the index.
            carry: lists of loop-carried values. The body replaces items in place; the next
                iteration and the code after the loop read the replaced items.
            start: first index.
            step: increment of the index.
            until: one i1 that the body sets where it is to be the last; also in `carry` where the
                code after the loop reads it.
        """
        cells = [(items, j) for items in carry for j in range(len(items))]
        first = self.i64(start)
        head, done, before = self._fresh(label), self._fresh(label + ".done"), self._block
        entering = [items[j] for items, j in cells]
        self.emit(f"br label %{head}")
        self._open_block(head)
        mark = len(self._lines)
        index = Index(self, "i64", self.named(""))
        phis = []
        for items, j in cells:
            phi = items[j].like("")
            items[j] = phi
            phis.append(phi)
        yield index
        following = index.like(f"add nuw nsw i64 {index.text}, {self.i64(step).text}")
        more = following.compare("ult", stop)
        if until is not None:
            more = more & (until[0] ^ 1)
        self.emit(f"br {more}, label %{head}, label %{done}")
        arrivals: list[tuple[Value, Value, Value]] = [(index, first, following)]
        arrivals += [
            (p, s, items[j]) for p, s, (items, j) in zip(phis, entering, cells, strict=True)
        ]
        for offset, (phi, came, goes) in enumerate(arrivals):
            assert came.kind == goes.kind == phi.kind, f"loop {label}: a carried type changed"
            self._lines[mark + offset] = (
                f"  {phi.text} = phi {phi.kind} [{came.text}, %{before}],"
                f" [{goes.text}, %{self._block}]"
            )
        self._open_block(done)

    @contextmanager
    def when(self, condition: Value, carry: Sequence[Carry] = ()) -> Iterator[None]:
        """Run the body if the condition holds; `carry` as in `loop`."""
        cells = [(items, j) for items in carry for j in range(len(items))]
        then, after, before = self._fresh("then"), self._fresh("after"), self._block
        entering = [items[j] for items, j in cells]
        self.emit(f"br {condition}, label %{then}, label %{after}")
        self._open_block(then)
        yield
        inside = self._block
        self.emit(f"br label %{after}")
        self._open_block(after)
        for old, (items, j) in zip(entering, cells, strict=True):
            new = items[j]
            if new is not old:
                items[j] = old.like(
                    f"phi {old.kind} [{old.text}, %{before}], [{new.text}, %{inside}]"
                )

    def chunks(self, *extents: int) -> _Chunks:
        """Loop over the kernel's chunks `lo <= i < hi`, split into coordinates, last fastest."""
        return _Chunks(self, extents)

    def split(self, index: Value, *extents: int) -> list[Value]:
        """An index below the extents' product as coordinates, the last one fastest."""
        coordinates: list[Value] = []
        for extent in reversed(extents[1:]):
            # Whether a symbol is 1 is not asked: that would be another form.
            outer = extents[: -1 - len(coordinates)]
            if all(isinstance(before, int) and before == 1 for before in outer):
                coordinates.insert(0, index)
                index = self.i64(0)
            else:
                coordinates.insert(0, index % extent)
                index = index // extent
        return [index, *coordinates]

    def finish(self, result: Value | None = None) -> str:
        """Close the function and return the text of the whole module."""
        self.emit(f"ret {result}" if result else "ret void")
        head = f"define {self.returns} @{self.name}({self._signature}) nounwind {{"
        words = [f"  {line}" for lines in self._words.values() for line in lines]
        body = [self._lines[0], *self._allocas, *words, *self._lines[1:]]
        return "\n".join([*self._tables, head, *body, "}", *self._declared.values(), ""])


class _Chunks:
    """Context manager of `Function.chunks`: yields one index value per extent."""

    def __init__(self, function: Function, extents: Sequence[int]) -> None:
        self._function, self._extents = function, extents
        self._loop = function.loop("chunk", function.hi, start=function.lo)

    def __enter__(self) -> list[Value]:
        return self._function.split(self._loop.__enter__(), *self._extents)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._loop.__exit__(kind, error, trace)  # type: ignore[arg-type]
