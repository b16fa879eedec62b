"""A portable program as LLVM IR: its tables as words of the caller's block, and what runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from leanconv.codegen.linking import KernelForm
from leanconv.errors import outside_text
from leanconv.records import dataclass
from leanconv.runtime import native as n
from leanconv.runtime import shared_library as interface
from leanconv.runtime.portable import PortableProgram, RepeatedStages
from leanconv.runtime.program import (
    Constant,
    OutsideIndex,
    Place,
    Slot,
    StageTables,
    stage_tables,
)

# What a word of the block is: a number, or one of these and an offset.
NUMBER, CONSTANTS, BLOCK, FUNCTION = range(4)
WORD = 8
MARK_BYTES = 64  # before constants: they begin with what names them, at a line of the cache


@dataclass(frozen=True)
class ProgramWords:
    """Where the words of a program are in the caller's block, one after the other.

    Attributes:
        program: what runs.
        tables: the words of its stages.
        arguments: what code reads: extents, addresses of operands.
        table: what the runtime reads of each stage.
        outside: where kernels say that an index lies outside of its axis.
        header: of a run.
        end: where the words of the next program may begin.
        indices: how many outside words there are.
    """

    program: PortableProgram
    tables: StageTables
    arguments: int
    table: int
    outside: int
    header: int
    end: int
    indices: int

    @classmethod
    def of(cls, program: PortableProgram, begin: int, threads: int) -> ProgramWords:
        forms = [s.kernel for s in program.stages if isinstance(s.kernel, KernelForm)]
        tables = stage_tables(program.stages, forms, threads)
        indices = sum(isinstance(word, OutsideIndex) for word in tables.arguments)
        table = begin + WORD * len(tables.arguments)
        outside = table + WORD * n.STAGE_WORDS * len(tables.rows)
        header = outside + WORD * indices
        end = header + WORD * n.HEADER_WORDS
        return cls(program, tables, begin, table, outside, header, end, indices)

    def words(
        self, functions: Mapping[str, int], workers: int | None, threads: int
    ) -> Iterator[tuple[int, int]]:
        """Yield the words that `PREFIX_init` writes: kind and value.

        Args:
            functions: the number of each form.
            workers: where their words begin; None where the caller runs all by itself.
            threads: that take part.
        """
        for word in self.tables.arguments:
            if isinstance(word, Constant):
                yield CONSTANTS, MARK_BYTES + word.offset
            elif isinstance(word, Place):
                yield BLOCK, word.offset
            elif isinstance(word, OutsideIndex):
                yield BLOCK, self.outside + WORD * word.number
            else:
                yield NUMBER, 0 if isinstance(word, Slot) else word
        for row in self.tables.rows:
            yield FUNCTION, functions[row.form]
            yield BLOCK, self.arguments + WORD * row.arguments
            yield NUMBER, row.chunks
            yield NUMBER, row.claim
            yield (NUMBER, 0) if row.scratch is None else (BLOCK, row.scratch.offset)
            yield NUMBER, row.stride
            yield NUMBER, row.first
        yield from [(NUMBER, 0)] * self.indices
        yield (NUMBER, 0) if workers is None else (BLOCK, workers)
        yield NUMBER, len(self.tables.rows)
        yield BLOCK, self.table
        yield from [(NUMBER, number) for number in (0, 0, 2 * threads, threads, 0)]

    def position(self, stage: int, operand: int) -> int:
        """Return where the argument for an operand of a stage is."""
        row = self.tables.rows[(0, *self.tables.entries)[stage]]
        return self.arguments + WORD * (row.arguments + operand)

    def patches(self) -> Iterator[tuple[int, Slot]]:
        """Yield where addresses of inputs and outputs go."""
        for position, word in enumerate(self.tables.arguments):
            if isinstance(word, Slot):
                yield self.arguments + WORD * position, word

    def indices_outside(self) -> list[tuple[int, str]]:
        """Return where an index is that lies outside of its axis, and the error's text."""
        errors = (
            f"{stage.label}: {outside_text('{index}', least, most)}"
            for stage in self.program.stages
            for least, most in stage.kernel.index_ranges
        )
        return [(self.outside + WORD * number, text) for number, text in enumerate(errors)]

    def text(self, name: str, alone: bool) -> str:
        """Return the function that runs the program.

        Args:
            name: of the function.
            alone: whether the calling thread runs it by itself.
        """
        program = self.program
        steps = _Steps(self.tables.entries, program.repeats, self.header, self.table, alone)
        slots = program.inputs + program.outputs
        outside = [self.outside + WORD * i for i in range(self.indices)]
        return _RUN.format(
            name=name,
            checked="".join(map(_checked, range(slots))),
            patches="".join(_patch(i, *patch) for i, patch in enumerate(self.patches())),
            forgotten="".join(
                f"  %o{i} = getelementptr i8, ptr %block, i64 {at}\n  store i64 0, ptr %o{i}\n"
                for i, at in enumerate(outside)
            ),
            ran=steps.text(self.position),
            found="".join(
                f"  %w{i} = load i64, ptr %o{i}\n  %f{i + 1} = or i64 %f{i}, %w{i}\n"
                for i in range(self.indices)
            ),
            last=self.indices,
            bad=f"bad:\n  ret i32 {interface.NULL_POINTER}\n" if slots else "",
            index_outside=interface.INDEX_OUTSIDE,
        )


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
        table = self._table + WORD * n.STAGE_WORDS * first
        self._lines += (
            f"%header{number} = getelementptr i8, ptr %block, i64 {self._header}",
            f"%count{number} = getelementptr i64, ptr %header{number}, i64 1",
            f"store i64 {count}, ptr %count{number}",
            f"%table{number} = getelementptr i8, ptr %block, i64 {table}",
            f"%table{number}.at = getelementptr i64, ptr %header{number}, i64 2",
            f"store ptr %table{number}, ptr %table{number}.at",
            f"%ran{number} = call i64 @{self._run_by}(ptr %header{number})",
        )


_RUN = """
define internal i32 @{name}(ptr %arrays, ptr %block) nounwind {{
entry:
{checked}{patches}{forgotten}  call void @wake_workers(ptr %block)
{ran}  %f0 = add i64 0, 0
{found}  %outside = icmp ne i64 %f{last}, 0
  %result = select i1 %outside, i32 {index_outside}, i32 0
  ret i32 %result
{bad}}}
"""
