"""A portable program as LLVM IR: its tables as data, and the functions that run it.

The caller owns all memory that is written. Its block of `StaticProgram.block_bytes` holds, one after the
other,

    arena           values and scratch, as the plan states
    arguments       what code reads: extents, addresses of operands
    table           what the runtime reads of each stage
    outside words   where kernels say that an index lies outside of its axis
    header          of a run
    workers         what they and the caller share, where several threads take part

`PREFIX_init` writes all but the first of them; `PREFIX_run` writes the addresses of inputs and
outputs into the arguments, and runs the stages; `PREFIX_close` ends the workers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from leanconv.codegen.linking import KernelForm
from leanconv.records import dataclass
from leanconv.runtime import native as n
from leanconv.runtime import static_text as t
from leanconv.runtime.portable import PortableProgram, RepeatedStages
from leanconv.runtime.program import (
    Constant,
    OutsideIndex,
    Place,
    Slot,
    StageTables,
    stage_tables,
)
from leanconv.spec.format import aligned
from leanconv.target import Target

# What a word of the block is: a number, or one of these and an offset.
_NUMBER, _CONSTANTS, _BLOCK, _FUNCTION = range(4)
_WORD = 8


@dataclass(frozen=True)
class StaticProgram:
    """A program as LLVM IR.

    Attributes:
        text: of the functions and their data.
        names: the functions that others may call.
        block_bytes: of the caller's block.
        mark: bytes at which constants are to be written into the object, each in its own place.
    """

    text: str
    names: tuple[str, ...]
    block_bytes: int
    mark: bytes


@dataclass(frozen=True)
class _Block:
    """Where the parts of the caller's block begin.

    Attributes:
        tables: the words of stages.
        arguments, table, outside, header, workers, bytes: as the module says.
        indices: how many outside words there are.
    """

    tables: StageTables
    arguments: int
    table: int
    outside: int
    header: int
    workers: int
    bytes: int
    indices: int

    @classmethod
    def of(cls, program: PortableProgram) -> _Block:
        forms = [s.kernel for s in program.stages if isinstance(s.kernel, KernelForm)]
        tables = stage_tables(program.stages, forms, program.threads)
        indices = sum(isinstance(word, OutsideIndex) for word in tables.arguments)
        arguments = aligned(program.arena_bytes)
        table = arguments + _WORD * len(tables.arguments)
        outside = table + _WORD * n.STAGE_WORDS * len(tables.rows)
        header = outside + _WORD * indices
        workers = aligned(header + _WORD * n.HEADER_WORDS)
        size = workers + t.worker_bytes(program.threads)
        return cls(tables, arguments, table, outside, header, workers, size, indices)

    def words(self, functions: Sequence[str], threads: int) -> Iterator[tuple[int, int]]:
        """Yield the words that `PREFIX_init` writes, from the arguments on: kind and value."""
        for word in self.tables.arguments:
            if isinstance(word, Constant):
                yield _CONSTANTS, word.offset
            elif isinstance(word, Place):
                yield _BLOCK, word.offset
            elif isinstance(word, OutsideIndex):
                yield _BLOCK, self.outside + _WORD * word.number
            else:
                yield _NUMBER, 0 if isinstance(word, Slot) else word
        for row in self.tables.rows:
            yield _FUNCTION, functions.index(row.form)
            yield _BLOCK, self.arguments + _WORD * row.arguments
            yield _NUMBER, row.chunks
            yield _NUMBER, row.claim
            yield (_NUMBER, 0) if row.scratch is None else (_BLOCK, row.scratch.offset)
            yield _NUMBER, row.stride
            yield _NUMBER, row.first
        yield from [(_NUMBER, 0)] * self.indices
        yield (_NUMBER, 0) if threads == 1 else (_BLOCK, self.workers)
        yield _NUMBER, len(self.tables.rows)
        yield _BLOCK, self.table
        yield from [(_NUMBER, number) for number in (0, 0, 2 * threads, threads, 0)]
        if threads > 1:
            yield from [(_NUMBER, 0)] * ((self.workers - self.header) // _WORD - n.HEADER_WORDS)
            state = dict.fromkeys(range(n.STATE_BYTES // _WORD), (_NUMBER, 0))
            state[n.TICKET // _WORD] = _NUMBER, n.CLOSED << 20
            state[n.YIELD // _WORD] = _FUNCTION, len(functions)
            yield from state.values()

    def position(self, stage: int, operand: int) -> int:
        """Return where the argument for an operand of a stage is."""
        row = self.tables.rows[(0, *self.tables.entries)[stage]]
        return self.arguments + _WORD * (row.arguments + operand)

    def patches(self) -> Iterator[tuple[int, Slot]]:
        """Yield where addresses of inputs and outputs go."""
        for position, word in enumerate(self.tables.arguments):
            if isinstance(word, Slot):
                yield self.arguments + _WORD * position, word


def static_program(
    program: PortableProgram, symbols: Mapping[str, str], prefix: str, target: Target
) -> StaticProgram:
    """Make the functions that run a program.

    Args:
        program: what runs.
        symbols: the function of each form.
        prefix: of the names of functions.
        target: where it runs.
    """
    block, threads = _Block.of(program), program.threads
    forms = list(dict.fromkeys(row.form for row in block.tables.rows))
    words = list(block.words(forms, threads))
    functions = [symbols[form] for form in forms] + ["sched_yield"] * (threads > 1)
    mark = hashlib.sha256(f"{prefix} {program.constant_bytes}".encode()).digest()
    steps = _Steps(block.tables.entries, program.repeats, block.header, block.table, threads == 1)
    slots = program.inputs + program.outputs
    outside = [block.outside + _WORD * i for i in range(block.indices)]
    text = _TEXT.format(
        prefix=prefix,
        mark_bytes=len(mark),
        mark="".join(f"\\{byte:02x}" for byte in mark),
        left=max(0, program.constant_bytes - len(mark)),
        function_count=len(functions),
        functions=", ".join(f"ptr @{name}" for name in functions),
        declared="\n".join(f"declare void @{name}(ptr, i64, i64, ptr)" for name in functions),
        count=len(words),
        kinds=", ".join(f"i8 {kind}" for kind, _ in words),
        values=", ".join(f"i64 {value}" for _, value in words),
        first=block.arguments,
        bytes=block.bytes,
        checked="".join(map(_checked, range(slots))),
        patches="".join(_patch(i, *patch) for i, patch in enumerate(block.patches())),
        forgotten="".join(
            f"  %o{i} = getelementptr i8, ptr %block, i64 {at}\n  store i64 0, ptr %o{i}\n"
            for i, at in enumerate(outside)
        ),
        ran=steps.text(block.position),
        found="".join(
            f"  %w{i} = load i64, ptr %o{i}\n  %f{i + 1} = or i64 %f{i}, %w{i}\n"
            for i in range(block.indices)
        ),
        last=block.indices,
        block=_BLOCK,
        function=_FUNCTION,
        null_pointer=t.NULL_POINTER,
        not_aligned=t.NOT_ALIGNED,
        index_outside=t.INDEX_OUTSIDE,
        low_bits=t.ALIGNMENT - 1,
    )
    text += t.check_text(prefix, target.isa, target.extensions)
    text += t.worker_text(prefix, threads, block.workers)
    names = tuple(f"{prefix}_{each}" for each in _FUNCTIONS)
    return StaticProgram(text, names, block.bytes, mark)


def _checked(slot: int) -> str:
    return f"""  %k{slot} = getelementptr ptr, ptr %arrays, i64 {slot}
  %array{slot} = load ptr, ptr %k{slot}
  %null{slot} = icmp eq ptr %array{slot}, null
  br i1 %null{slot}, label %bad, label %given{slot}
given{slot}:
"""


def _patch(number: int, position: int, slot: Slot) -> str:
    return f"""  %b{number} = getelementptr i8, ptr %array{slot.number}, i64 {slot.offset}
  %p{number} = getelementptr i8, ptr %block, i64 {position}
  store ptr %b{number}, ptr %p{number}
"""


class _Steps:
    """LLVM IR that runs stages, some of them several times.

    Args:
        entries: rows of the table before each stage is over.
        repeats: stages that run several times.
        header, table: where these begin in the block.
        alone: whether the calling thread runs them by itself.
    """

    def __init__(
        self,
        entries: Sequence[int],
        repeats: Sequence[RepeatedStages],
        header: int,
        table: int,
        alone: bool,
    ) -> None:
        self._rows = (0, *entries)
        self._repeats, self._header, self._table = repeats, header, table
        self._run_by = "run_alone" if alone else "run"
        self._lines: list[str] = []
        self._count = 0

    def text(self, position: Callable[[int, int], int]) -> str:
        """Return the text of all stages.

        Args:
            position: where the block has the argument for an operand of a stage.
        """
        self._position = position
        self._run(0, len(self._rows) - 1, list(self._repeats))
        return "".join(f"  {line}\n" for line in self._lines)

    def _run(self, begin: int, end: int, repeats: list[RepeatedStages]) -> None:
        """Add the stages from one to another, with the outermost of what is repeated there."""
        at = begin
        while at < end:
            outer = [r for r in repeats if r.first == at and r.first + r.stages <= end]
            if outer:
                most = max(outer, key=lambda r: r.stages)
                inner = [r for r in repeats if r is not most]
                self._repeat(most, inner)
                at += most.stages
            else:
                following = min((r.first for r in repeats if at < r.first < end), default=end)
                self._stages(at, following)
                at = following

    def _repeat(self, repeat: RepeatedStages, inner: list[RepeatedStages]) -> None:
        number = self._count = self._count + 1
        self._lines += (
            f"%n{number}.at = alloca i64",
            f"store i64 0, ptr %n{number}.at",
            f"br label %again{number}",
            f"again{number}:",
        )
        self._run(repeat.first, repeat.first + repeat.stages, inner)
        for stage, operand, step in repeat.moving:
            self._move(self._position(stage, operand), step)
        self._lines += (
            f"%n{number} = load i64, ptr %n{number}.at",
            f"%next{number} = add i64 %n{number}, 1",
            f"store i64 %next{number}, ptr %n{number}.at",
            f"%more{number} = icmp ult i64 %next{number}, {repeat.times}",
            f"br i1 %more{number}, label %again{number}, label %after{number}",
            f"after{number}:",
        )
        for stage, operand, step in repeat.moving:
            self._move(self._position(stage, operand), -step * repeat.times)

    def _move(self, position: int, step: int) -> None:
        number = self._count = self._count + 1
        self._lines += (
            f"%m{number}.at = getelementptr i8, ptr %block, i64 {position}",
            f"%m{number} = load i64, ptr %m{number}.at",
            f"%moved{number} = add i64 %m{number}, {step}",
            f"store i64 %moved{number}, ptr %m{number}.at",
        )

    def _stages(self, begin: int, end: int) -> None:
        number = self._count = self._count + 1
        first, count = self._rows[begin], self._rows[end] - self._rows[begin]
        table = self._table + _WORD * n.STAGE_WORDS * first
        self._lines += (
            f"%header{number} = getelementptr i8, ptr %block, i64 {self._header}",
            f"%count{number} = getelementptr i64, ptr %header{number}, i64 1",
            f"store i64 {count}, ptr %count{number}",
            f"%table{number} = getelementptr i8, ptr %block, i64 {table}",
            f"%table{number}.at = getelementptr i64, ptr %header{number}, i64 2",
            f"store ptr %table{number}, ptr %table{number}.at",
            f"%ran{number} = call i64 @{self._run_by}(ptr %header{number})",
        )


_FUNCTIONS = ("arena_bytes", "check_cpu", "init", "run", "close")
_TEXT = """
@constants = private constant <{{ [{mark_bytes} x i8], [{left} x i8] }}>
  <{{ [{mark_bytes} x i8] c"{mark}", [{left} x i8] zeroinitializer }}>, align 4096
{declared}
declare i64 @run(ptr)
declare i64 @run_alone(ptr)
declare i64 @serve(ptr, i64, i64, i64)
@functions = private constant [{function_count} x ptr] [{functions}]
@kinds = private constant [{count} x i8] [{kinds}]
@values = private constant [{count} x i64] [{values}]

define i64 @{prefix}_arena_bytes() nounwind {{ ret i64 {bytes} }}

define i32 @{prefix}_init(ptr %block) nounwind #9 {{
entry:
  %null = icmp eq ptr %block, null
  br i1 %null, label %bad, label %there
there:
  %address = ptrtoint ptr %block to i64
  %low = and i64 %address, {low_bits}
  %even = icmp eq i64 %low, 0
  br i1 %even, label %check, label %odd
check:
  %wrong = call i32 @{prefix}_check_cpu()
  %right = icmp eq i32 %wrong, 0
  br i1 %right, label %words, label %other
words:
  %start = getelementptr i8, ptr %block, i64 {first}
  br label %word
word:
  %i = phi i64 [0, %words], [%next, %store]
  %kind.at = getelementptr i8, ptr @kinds, i64 %i
  %kind = load i8, ptr %kind.at
  %value.at = getelementptr i64, ptr @values, i64 %i
  %value = load i64, ptr %value.at
  switch i8 %kind, label %constant [i8 0, label %number i8 {block}, label %inside
                                    i8 {function}, label %code]
number:
  br label %store
constant:
  %in.constants = getelementptr i8, ptr @constants, i64 %value
  %constant.word = ptrtoint ptr %in.constants to i64
  br label %store
inside:
  %in.block = getelementptr i8, ptr %block, i64 %value
  %block.word = ptrtoint ptr %in.block to i64
  br label %store
code:
  %code.at = getelementptr ptr, ptr @functions, i64 %value
  %code.word = load i64, ptr %code.at
  br label %store
store:
  %made = phi i64 [%value, %number], [%constant.word, %constant], [%block.word, %inside],
                  [%code.word, %code]
  %to = getelementptr i64, ptr %start, i64 %i
  store i64 %made, ptr %to
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, {count}
  br i1 %more, label %word, label %good
good:
  call void @start_workers(ptr %block)
  ret i32 0
bad:
  ret i32 {null_pointer}
odd:
  ret i32 {not_aligned}
other:
  ret i32 %wrong
}}

define i32 @{prefix}_run(ptr %arrays, ptr %block) nounwind {{
entry:
  %no.block = icmp eq ptr %block, null
  %no.arrays = icmp eq ptr %arrays, null
  %null = or i1 %no.block, %no.arrays
  br i1 %null, label %bad, label %ready
ready:
{checked}{patches}{forgotten}  call void @wake_workers(ptr %block)
{ran}  %f0 = add i64 0, 0
{found}  %outside = icmp ne i64 %f{last}, 0
  %result = select i1 %outside, i32 {index_outside}, i32 0
  ret i32 %result
bad:
  ret i32 {null_pointer}
}}
"""
