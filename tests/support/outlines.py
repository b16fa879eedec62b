"""Outlines of emitted code: its loops, and the instructions of each body.

    for chunk in lo .. hi
      for tap in 0 .. 9
        for channel in 0 .. 64
          16 load, 14 broadcast, 28 fma

Loops and conditions are those that `emitter.Function` writes: a head with its label, its index as
the first phi, and a block `LABEL.done`; what is unrolled shows in the counts.
"""

from __future__ import annotations

import re
from collections import Counter

_BLOCK = re.compile(r"([\w.]+?)\.(\d+):$")
_INDEX = re.compile(r"%\w+ = phi i64 \[([^,]+), %[^]]+\]")
_BRANCH = re.compile(r"br i1 (%\w+), label %([\w.]+), label %([\w.]+)")
_COMPARE = re.compile(r"(%\w+) = icmp \w+ i64 [^,]+, (.+)")
_KINDS = (
    ("fma", re.compile(r"call .*@llvm\.fma")),
    ("masked load", re.compile(r"call .*@llvm\.masked\.load")),
    ("masked store", re.compile(r"call .*@llvm\.masked\.store")),
    ("prefetch", re.compile(r"call .*@llvm\.prefetch")),
    ("load", re.compile(r"= load ")),
    ("store", re.compile(r"store ")),
    ("broadcast", re.compile(r"= shufflevector .*zeroinitializer$")),
    ("shuffle", re.compile(r"= shufflevector ")),
    ("add", re.compile(r"= (fadd|fsub) ")),
    ("multiply", re.compile(r"= (fmul|fdiv) ")),
    ("compare and select", re.compile(r"= select ")),
)


def outline(text: str) -> str:
    """Return the loop nest of a function's LLVM IR, one line for each loop and each run of code.

    Args:
        text: as `Kernel.emit` returns it.
    """
    lines = [line.strip() for line in text.splitlines()]
    bounds, compared = {}, {}
    for line in lines:  # a loop's bound is at its end
        if found := _COMPARE.match(line):
            compared[found[1]] = found[2]
        elif found := _BRANCH.match(line):
            bounds[found[2]] = compared.get(found[1], "?")
    nest = _Nest()
    for number, line in enumerate(lines):
        block = _BLOCK.match(line)
        if block is None:
            kind = next((kind for kind, pattern in _KINDS if pattern.search(line)), None)
            if kind:
                nest.counts[kind] += 1
        elif block[1] == "after" or block[1].endswith(".done"):
            nest.close()
        elif block[1] == "then":
            nest.open("if")
        elif block[1] == "else":
            nest.close()
            nest.open("else")
        else:
            index = _INDEX.match(lines[number + 1])
            first, last = index[1] if index else "?", bounds[line[:-1]]
            nest.open(f"for {block[1]} in {_named(first)} .. {_named(last)}")
    nest.flush()
    return "\n".join(nest.lines) + "\n"


class _Nest:
    """Lines so far, and counts of the instructions since the last of them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.counts: Counter[str] = Counter()
        self._depth = 0

    def flush(self) -> None:
        if self.counts:
            counted = ", ".join(f"{count} {kind}" for kind, count in self.counts.items())
            self.lines.append("  " * self._depth + counted)
            self.counts.clear()

    def open(self, line: str) -> None:
        self.flush()
        self.lines.append("  " * self._depth + line)
        self._depth += 1

    def close(self) -> None:
        self.flush()
        self._depth -= 1


def _named(operand: str) -> str:
    """A number or an argument as it is; all computed values have one name."""
    name = operand.removeprefix("%")
    return "computed" if re.fullmatch(r"v\d+", name) else name
