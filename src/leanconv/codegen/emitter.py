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

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from leanconv.codegen.instructions import Carry, halves_of_operands
from leanconv.codegen.memory import Memory
from leanconv.codegen.values import (
    Index,
    Pointer,
    Value,
    bytes_of,
    element_of,
    lanes_of,
    vector,
)

__all__ = [
    "Carry",
    "Function",
    "Index",
    "Pointer",
    "Value",
    "bytes_of",
    "element_of",
    "halves_of_operands",
    "lanes_of",
    "vector",
]


class Function(Memory):
    """One function under construction; every method appends instructions in program order.

    The default signature is the kernel's: `(ptr args, i64 lo, i64 hi, ptr scratch)`, where `args`
    is a table of addresses, `lo` and `hi` bound the chunks to compute, and `scratch` is private to
    the calling thread.
    """

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
        """Return an argument that is an address, of elements of a type."""
        return Pointer(self, "ptr", self.arguments[argument].text, element)

    def pointer(self, index: int, element: str = "i8") -> Pointer:
        """Load the address of operand `index`, of elements of a type, from the kernel's table."""
        address = self.load(self.address(0, "i64").at(index), "ptr", align=8)
        return Pointer(self, "ptr", address.text, self.held_element(index, element))

    def pointers(self, names: Sequence[str], element: str, **others: str) -> dict[str, Pointer]:
        """Load the addresses of all operands: of `element`, or of `others[name]`."""
        return {
            name: self.pointer(index, others.get(name, element)) for index, name in enumerate(names)
        }

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
    def when(
        self,
        condition: Value,
        carry: Sequence[Carry] = (),
        otherwise: Callable[[], None] | None = None,
    ) -> Iterator[None]:
        """Run the body if the condition holds, else the code that `otherwise` emits.

        `carry` as in `loop`; `otherwise` changes nothing of it.
        """
        cells = [(items, j) for items in carry for j in range(len(items))]
        then, after, before = self._fresh("then"), self._fresh("after"), self._block
        entering = [items[j] for items, j in cells]
        other = after if otherwise is None else self._fresh("else")
        self.emit(f"br {condition}, label %{then}, label %{other}")
        self._open_block(then)
        yield
        inside = self._block
        self.emit(f"br label %{after}")
        if otherwise is not None:
            self._open_block(other)
            otherwise()
            before = self._block
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
            # No guard on whether a symbol is 1: that would be another form.
            outer = extents[: -1 - len(coordinates)]
            if all(isinstance(before, int) and before == 1 for before in outer):
                coordinates.insert(0, index)
                index = self.i64(0)
            else:
                coordinates.insert(0, index % extent)
                index = index // extent
        return [index, *coordinates]

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
