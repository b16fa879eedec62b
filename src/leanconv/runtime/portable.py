"""Programs without an address in them, and their stages once they are linked.

A portable program is plain data: which code each stage runs, the words that this code reads, and
where its operands begin, counted from the memory that they are in. With the code of its forms and
its constants as bytes it could lie in a file, and be linked in any process of a like machine, any
number of times. A network's packing is one, too: its inputs are the arrays that are packed, its
constants are tables, and its one output is the constants of the program that runs.

    operand      where it begins
    Constant     among the program's constants
    Place        in the arena, as scratch does
    Slot         in an array that the caller gives: inputs first, then outputs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from leanconv.codegen.linking import Library
from leanconv.records import dataclass, replace
from leanconv.runtime.memory import ArenaPart
from leanconv.runtime.program import Constant, Place, Program, Slot, Stage

Operand: TypeAlias = "int | Constant | Place | Slot"


@dataclass(frozen=True)
class RepeatedStages:
    """Stages that run several times, one after the other, and again from the first.

    Attributes:
        first, stages: the index of the first stage, and the number of stages.
        times: number of runs.
        moving: operands that move each time: the stage, the number of the operand, the bytes.
    """

    first: int
    stages: int
    times: int
    moving: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True)
class StreamedConstant:
    """A constant that each run reads from the constants' file into the arena.

    Attributes:
        start: the first of its bytes in the file.
        bytes: its length.
        offset: of its place in the arena.
        free: the stage from whose beginning on nothing else has that place.
        needed: the first stage that reads them; it is no earlier.
    """

    start: int
    bytes: int
    offset: int
    free: int
    needed: int


@dataclass(frozen=True)
class PortableProgram:
    """Stages, and the memory that they need.

    Attributes:
        stages: in order; each one's `kernel` is a `KernelForm`, each operand none but those above.
        inputs, outputs: numbers of arrays that the caller gives and gets.
        threads: the most that take part; the arena has scratch for them.
        arena_bytes: bytes of the arena.
        constant_bytes: of its constants in memory.
        repeats: stages that run several times.
        streamed: constants that are read in each run, in the order in which they are needed.
        kept: where constants come from a file, those that stay in memory: the first byte in the
            file, the number of bytes, and the first one in memory.
    """

    stages: tuple[Stage, ...]
    inputs: int
    outputs: int
    threads: int
    arena_bytes: int
    constant_bytes: int
    repeats: tuple[RepeatedStages, ...] = ()
    streamed: tuple[StreamedConstant, ...] = ()
    kept: tuple[tuple[int, int, int], ...] = ()


def linked_stages(
    program: PortableProgram,
    constants: Callable[[int], Operand],
    given: Mapping[int, Operand] = MappingProxyType({}),
) -> list[Stage]:
    """The stages of a program with the addresses of constants in them.

    Args:
        program: to be linked.
        constants: gives the address of the constant that begins at a byte of them, or where else
            it is found.
        given: the addresses of arrays that are the same in each run, by number, or where else they
            begin; runs pass those that come before these.
    """

    def address(operand: Operand) -> Operand:
        if isinstance(operand, Constant):
            return constants(operand.offset)
        if not isinstance(operand, Slot) or operand.number not in given:
            return operand
        start = given[operand.number]
        if isinstance(start, int):
            return start + operand.offset
        return replace(start, offset=start.offset + operand.offset)

    return [replace(s, operands=tuple(map(address, s.operands))) for s in program.stages]


def told_program(
    program: PortableProgram, library: Library, arena: ArenaPart, paced: bool = True
) -> Program:
    """Link a program whose runs pass the address of all its constants, after the arrays.

    Args:
        program: to be linked, without repeats.
        library: has the code of its forms.
        arena: of at least `arena_bytes`.
        paced: as for `Program`.
    """
    slots = program.inputs + program.outputs
    stages = linked_stages(program, lambda at: Slot(slots, at))
    return Program(stages, library, slots + 1, 0, 0, program.threads, paced, arena)
