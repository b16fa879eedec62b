"""The instructions of a function under construction, but those of memory and of control flow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from leanconv.codegen.values import (
    Index,
    Number,
    Pointer,
    Same,
    Value,
    element_of,
    lanes_of,
    literal,
    mangled,
    vector,
)
from leanconv.symbolic import Symbol
from leanconv.target import Target
from leanconv.types import FLOAT32, as_dtype

Carry = list[Value]

# The half precisions in which operands lie whose kernel is emitted, "" for others.
_halves_of_operands: ContextVar[tuple[str, ...]] = ContextVar("halves_of_operands", default=())


@contextmanager
def halves_of_operands(dtypes: Sequence[str]) -> Iterator[None]:
    """While a kernel is emitted, let operands that it takes for float32 be halves in memory.

    Args:
        dtypes: for each operand, the name of its half precision; `""` for one as it is.
    """
    token = _halves_of_operands.set(tuple(as_dtype(name).llvm if name else "" for name in dtypes))
    try:
        yield
    finally:
        _halves_of_operands.reset(token)


_rounds_to_bfloat16: ContextVar[bool] = ContextVar("rounds_to_bfloat16", default=False)
_plain_floats: ContextVar[bool] = ContextVar("plain_floats", default=False)


@contextmanager
def rounding_by(target: Target) -> Iterator[None]:
    """While a kernel is emitted, round by the instructions that a target has."""
    token = _rounds_to_bfloat16.set("bf16" in target.extensions)
    plain = _plain_floats.set(target.plain_floats)
    try:
        yield
    finally:
        _rounds_to_bfloat16.reset(token)
        _plain_floats.reset(plain)


def _halves(x: Value) -> tuple[Value, Value]:
    """Return a double as the sum of two that have half of its bits each."""
    scaled = x * 134217729.0
    upper = scaled - (scaled - x)
    return upper, x - upper


class Instructions:
    """The text of a function so far; every method appends instructions in program order."""

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
        self._halves = _halves_of_operands.get()
        self.rounds_to_bfloat16 = _rounds_to_bfloat16.get()
        self.plain_floats = _plain_floats.get()
        self._words: dict[str, list[str]] = {}  # instructions at entry, by what they define

    def held_element(self, operand: int, element: str) -> str:
        """LLVM's type of the elements of an operand that the kernel takes for those of `element`.

        Raises:
            NotImplementedError: they are halves, which the kernel does not take for float32.
        """
        half = self._halves[operand] if operand < len(self._halves) else ""
        if half and element != FLOAT32.llvm:
            raise NotImplementedError(f"operand {operand} is {half} in memory, not {element}")
        return half or element

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
        """`a * b + c`, with one rounding where the target has an instruction for that."""
        if self.plain_floats:
            return a * b + c
        return self.intrinsic(f"llvm.fma.{mangled(a.kind)}", a.kind, a, b, c)

    def exact_fma(self, a: Value, b: Value, c: Value) -> Value:
        """`a * b + c` of floats, exact wherever a float has the result; else nearly so.

        Where the target has no instruction for that, doubles multiply floats exactly, and halves of
        doubles multiply doubles (T. J. Dekker, A floating-point technique for extending the
        available precision, 1971); these have to be below 2^996.
        """
        if not self.plain_floats:
            return self.fma(a, b, c)
        if element_of(a.kind) == FLOAT32.llvm:
            wide = vector("double", lanes_of(a.kind))
            x, y, z = (self.convert("fpext", each, wide) for each in (a, b, c))
            return self.convert("fptrunc", x * y + z, a.kind)
        (x, rest_x), (y, rest_y) = (_halves(each) for each in (a, b))
        product = a * b
        lost = ((x * y - product) + x * rest_y + rest_x * y) + rest_x * rest_y
        return (product + c) + lost

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
