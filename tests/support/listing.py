"""Assembly of kernels, for reading: its loops, multiply-adds, spills."""

from __future__ import annotations

import re
from dataclasses import dataclass

from leanconv.codegen import backend, machine_code
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.linking import lock
from leanconv.target import Target

_LABEL = re.compile(r"^(\.?L[A-Za-z]*\d+_\d+):")
_JUMP = re.compile(r"^\s+(?:j\w+|b\.?\w*|cbn?z|tbn?z)\s+(?:[^#/]*,\s*)?(\.?L[A-Za-z]*\d+_\d+)\b")
_FMA = re.compile(r"^\s+(?:vfmadd\d+p[sd]|fmla)\b")
_VECTOR = re.compile(r"%[xyz]mm\d|\bq\d")
_STACK = re.compile(r"\(%rsp\b|\[sp\b")


def assembly(kernel: Kernel, target: Target) -> str:
    """Emit a kernel as assembly: any target, not only this machine's."""
    return assembly_text(kernel.text(target), target)


def assembly_text(text: str, target: Target) -> str:
    """Compile LLVM IR to assembly.

    Raises:
        CompileError: the text is not valid LLVM IR, a fault of the generator.
    """
    with lock:  # LLVM makes code outside its own lock, and forks wait for this one
        machine = machine_code.new_machine(target, False)
        with machine_code._parsed(text, backend.llvm.create_context()) as module:
            return machine_code._emit(module, machine, False).decode()


@dataclass(frozen=True)
class Loop:
    """A loop that holds no other one: its instructions."""

    lines: tuple[str, ...]

    @property
    def fmas(self) -> int:
        """Vector multiply-adds of one iteration."""
        return sum(bool(_FMA.match(line)) for line in self.lines)

    @property
    def stack_references(self) -> list[str]:
        """Instructions that touch the stack: spills and reloads."""
        return [line.strip() for line in self.lines if _STACK.search(line)]

    @property
    def vector_spills(self) -> list[str]:
        """Those of them that move a vector."""
        return [line for line in self.stack_references if _VECTOR.search(line)]


def innermost_loops(assembly: str) -> list[Loop]:
    """Find the spans from a label to a jump back to it that hold no smaller such span."""
    lines = assembly.splitlines()
    places = {m[1]: i for i, line in enumerate(lines) if (m := _LABEL.match(line))}
    spans = []
    for i, line in enumerate(lines):
        jump = _JUMP.match(line)
        if jump and jump[1] in places and places[jump[1]] <= i:
            spans.append((places[jump[1]], i))
    inner = [
        (a, b)
        for a, b in spans
        if not any((c, d) != (a, b) and a <= c and d <= b for c, d in spans)
    ]
    return [Loop(tuple(lines[a : b + 1])) for a, b in inner]


def multiply_loops(assembly: str) -> list[Loop]:
    """The innermost loops that multiply and add."""
    return [loop for loop in innermost_loops(assembly) if loop.fmas]
