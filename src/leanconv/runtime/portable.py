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

from collections.abc import Callable, Container, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from leanconv.codegen.linking import KernelForm, Library
from leanconv.records import dataclass, replace
from leanconv.runtime import native
from leanconv.runtime.memory import ArenaPart
from leanconv.runtime.program import Constant, Place, Program, Slot, Stage
from leanconv.settings import MOST_THREADS
from leanconv.spec.format import aligned

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


# -- as data for a file ----------------------------------------------------------------------------
_NUMBERS = ("chunks", "rounds", "result_count", "scratch_bytes")
_WORDS = 1 << 63  # numbers of 64 bits have a sign


def described(program: PortableProgram) -> dict[str, Any]:
    """A program without repeats and streamed constants as JSON can hold it; see `program_of`."""
    assert not program.repeats, "loops are not described"
    assert not program.streamed, "streamed constants are not described"
    forms = {form.form: None for form in map(_form, program.stages)}
    numbers = {form: number for number, form in enumerate(forms)}
    return {
        "inputs": program.inputs,
        "outputs": program.outputs,
        "threads": program.threads,
        "arena_bytes": program.arena_bytes,
        "constant_bytes": program.constant_bytes,
        "forms": [*forms],
        "stages": [_described_stage(stage, numbers) for stage in program.stages],
    }


def _form(stage: Stage) -> KernelForm:
    assert isinstance(stage.kernel, KernelForm)
    return stage.kernel


def _described_stage(stage: Stage, numbers: Mapping[str, int]) -> list[Any]:
    form = _form(stage)
    return [
        numbers[form.form],
        form.words,
        [getattr(form, name) for name in _NUMBERS],
        [*map(list, form.index_ranges)],
        [form.wants_consecutive_chunks, form.reuses_scratch],
        [*map(_described_operand, stage.operands)],
        None if stage.scratch is None else stage.scratch.offset,
        stage.label,
    ]


def _described_operand(operand: Operand) -> list[int]:
    """Constants are numbered -1, the arena is -2, arrays of the caller have their own numbers."""
    if isinstance(operand, Constant):
        return [-1, operand.offset]
    if isinstance(operand, Place):
        return [-2, operand.offset]
    assert isinstance(operand, Slot)
    return [operand.number, operand.offset]


def program_of(
    data: Mapping[str, Any], constants: Container[int], sizes: Sequence[int]
) -> PortableProgram:
    """The program that `described` has described, checked as far as it says what is there.

    Args:
        data: the description.
        constants: where those begin that there are.
        sizes: bytes of the arrays that the caller gives and gets.

    Raises:
        ValueError, TypeError, LookupError: it is no such description; a number is out of range, or
            an operand begins outside of the memory that it is in.
    """
    arena, threads = _number(data["arena_bytes"]), _number(data["threads"], 1, MOST_THREADS)
    forms = data["forms"]
    if not all(isinstance(form, str) for form in forms):
        raise ValueError("a form has no name")

    def operand(number: object, offset: object) -> Constant | Place | Slot:
        at = _number(offset)
        if number == -1:
            if at not in constants:
                raise ValueError(f"there is no constant at {at}")
            return Constant(at)
        if number == -2:
            return Place(_number(at, 0, arena))
        slot = _number(number, 0, len(sizes) - 1)
        return Slot(slot, _number(at, 0, sizes[slot]))

    def stage(given: Sequence[Any]) -> Stage:
        form, words, numbers, ranges, facts, operands, scratch, label = given
        chunks, rounds, results, scratch_bytes = map(_number, numbers)
        if not rounds or chunks % rounds or chunks > native.MAX_CHUNKS:
            raise ValueError(f"{chunks} chunks are not made in {rounds} rounds")
        if not isinstance(label, str) or not all(isinstance(fact, bool) for fact in facts):
            raise TypeError("a stage is described by values of other types")
        place = None
        if scratch is not None:
            place = Place(_number(scratch, 0, arena - threads * aligned(scratch_bytes)))
        kernel = KernelForm(
            forms[_number(form)],
            tuple(map(_index, words)),
            chunks,
            rounds,
            results,
            scratch_bytes,
            tuple((_index(least), _index(most)) for least, most in ranges),
            *facts,
        )
        return Stage(kernel, tuple(operand(*each) for each in operands), place, label)

    inputs, outputs = _number(data["inputs"]), _number(data["outputs"])
    if inputs + outputs != len(sizes) or len(data["stages"]) > native.MAX_STAGES:
        raise ValueError("it is of another network")
    stages = tuple(map(stage, data["stages"]))
    held = _number(data["constant_bytes"])
    return PortableProgram(stages, inputs, outputs, threads, arena, held)


def _index(value: object) -> int:
    return _number(value, -_WORDS, _WORDS - 1)


def _number(value: object, least: int = 0, most: int = 1 << 62) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r} is no number from {least} to {most}")
    return value
