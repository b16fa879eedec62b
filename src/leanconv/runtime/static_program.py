"""Portable programs as LLVM IR: their tables as data, and the functions that run them.

The caller owns all memory that is written. Its block of `StaticLibrary.block_bytes` holds, one
after the other,

    memory          values and scratch, as the plans state; and weights that `PREFIX_init` packs
    words           of each program, as `_Words` says
    chosen          for which of several targets the words are; the block's own address
    workers         what they and the caller share, where several threads take part

`PREFIX_init` writes all but the first of them, for the best target that the CPU has, and packs;
`PREFIX_run` writes the addresses of inputs and outputs into the words, and runs the stages;
`PREFIX_close` ends the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from leanconv.codegen.linking import KernelForm
from leanconv.errors import outside_text
from leanconv.records import dataclass
from leanconv.runtime import native as n
from leanconv.runtime import shared_library as interface
from leanconv.runtime import static_text as t
from leanconv.runtime.cpu_checks import asking_text, check_text
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
MARK_BYTES = 64  # before constants: they begin with what names them, at a line of the cache


@dataclass(frozen=True)
class TargetPrograms:
    """What a library has for one target.

    Attributes:
        target: where it runs.
        symbols: the function of each form.
        runs: programs, by the name of the function that runs each.
        packing: a program that runs once, when the caller's block is prepared; None for nothing.
    """

    target: Target
    symbols: Mapping[str, str]
    runs: Mapping[str, PortableProgram]
    packing: PortableProgram | None = None


@dataclass(frozen=True)
class StaticLibrary:
    """Programs as LLVM IR.

    Attributes:
        text: of the functions and their data.
        names: the functions that others may call.
        block_bytes: of the caller's block.
        chosen: where the block has the number of the target that it is for.
        indices: for each target by the names of runs, where the block has an index that lies
            outside of its axis, and the error's text, in which `{index}` stands for it.
    """

    text: str
    names: tuple[str, ...]
    block_bytes: int
    chosen: int
    indices: tuple[Mapping[str, Sequence[tuple[int, str]]], ...]


def static_library(
    made: Sequence[TargetPrograms],
    prefix: str,
    constant_bytes: int,
    mark: bytes,
    memory_bytes: int,
    threads: int,
    outside: bool = False,
) -> StaticLibrary:
    """Make the functions of a library.

    Args:
        made: for each target, the best one first; each with the same names of runs.
        prefix: of the names of functions.
        constant_bytes: of all constants of all programs, `MARK_BYTES` before them included.
        mark: what these begin with; in the object only that is there yet, the rest are zeros.
        memory_bytes: of arena and packed weights.
        threads: that take part.
        outside: whether the caller has the constants, and gives their address to `PREFIX_init`.
    """
    used = {symbol for each in made for symbol in each.symbols.values()}
    chosen = aligned(memory_bytes)
    begin, targets = chosen + interface.ALIGNMENT, list[list[_Words]]()
    ends = []
    for each in made:
        at, found = begin, list[_Words]()
        for program in (*each.runs.values(), *([each.packing] if each.packing else [])):
            found.append(_Words.of(program, at, threads))
            at = found[-1].end
        targets.append(found)
        ends.append(at)
    workers = aligned(max(ends))
    parts = [
        _HEAD.format(
            mark_bytes=len(mark),
            mark="".join(f"\\{byte:02x}" for byte in mark),
            left=0 if outside else constant_bytes - len(mark),
            declared="\n".join(
                f"declare void @{name}(ptr, i64, i64, ptr)" for name in sorted(used)
            ),
            block=_BLOCK,
            function=_FUNCTION,
        )
    ]
    parts.append(asking_text(made[0].target))
    for number, (each, found) in enumerate(zip(made, targets, strict=True)):
        parts += _target_text(number, each, found, workers if threads > 1 else None)
    parts.append(_public_text(prefix, made, chosen, workers, threads, outside))
    names = [f"{prefix}_{each}" for each in ("arena_bytes", "check_cpu", "init", "close")]
    names += [f"{prefix}_{each}" for each in made[0].runs]
    size = workers + t.worker_bytes(threads)
    indices = tuple(
        {name: words.indices_outside() for name, words in zip(each.runs, found, strict=False)}
        for each, found in zip(made, targets, strict=True)
    )
    return StaticLibrary("".join(parts), tuple(names), size, chosen, indices)


@dataclass(frozen=True)
class _Words:
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
    def of(cls, program: PortableProgram, begin: int, threads: int) -> _Words:
        forms = [s.kernel for s in program.stages if isinstance(s.kernel, KernelForm)]
        tables = stage_tables(program.stages, forms, threads)
        indices = sum(isinstance(word, OutsideIndex) for word in tables.arguments)
        table = begin + _WORD * len(tables.arguments)
        outside = table + _WORD * n.STAGE_WORDS * len(tables.rows)
        header = outside + _WORD * indices
        end = header + _WORD * n.HEADER_WORDS
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
                yield _CONSTANTS, MARK_BYTES + word.offset
            elif isinstance(word, Place):
                yield _BLOCK, word.offset
            elif isinstance(word, OutsideIndex):
                yield _BLOCK, self.outside + _WORD * word.number
            else:
                yield _NUMBER, 0 if isinstance(word, Slot) else word
        for row in self.tables.rows:
            yield _FUNCTION, functions[row.form]
            yield _BLOCK, self.arguments + _WORD * row.arguments
            yield _NUMBER, row.chunks
            yield _NUMBER, row.claim
            yield (_NUMBER, 0) if row.scratch is None else (_BLOCK, row.scratch.offset)
            yield _NUMBER, row.stride
            yield _NUMBER, row.first
        yield from [(_NUMBER, 0)] * self.indices
        yield (_NUMBER, 0) if workers is None else (_BLOCK, workers)
        yield _NUMBER, len(self.tables.rows)
        yield _BLOCK, self.table
        yield from [(_NUMBER, number) for number in (0, 0, 2 * threads, threads, 0)]

    def position(self, stage: int, operand: int) -> int:
        """Return where the argument for an operand of a stage is."""
        row = self.tables.rows[(0, *self.tables.entries)[stage]]
        return self.arguments + _WORD * (row.arguments + operand)

    def patches(self) -> Iterator[tuple[int, Slot]]:
        """Yield where addresses of inputs and outputs go."""
        for position, word in enumerate(self.tables.arguments):
            if isinstance(word, Slot):
                yield self.arguments + _WORD * position, word

    def indices_outside(self) -> list[tuple[int, str]]:
        """Return where an index is that lies outside of its axis, and the error's text."""
        errors = (
            f"{stage.label}: {outside_text('{index}', least, most)}"
            for stage in self.program.stages
            for least, most in stage.kernel.index_ranges
        )
        return [(self.outside + _WORD * number, text) for number, text in enumerate(errors)]

    def text(self, name: str, alone: bool) -> str:
        """Return the function that runs the program.

        Args:
            name: of the function.
            alone: whether the calling thread runs it by itself.
        """
        program = self.program
        steps = _Steps(self.tables.entries, program.repeats, self.header, self.table, alone)
        slots = program.inputs + program.outputs
        outside = [self.outside + _WORD * i for i in range(self.indices)]
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


def _target_text(
    number: int, made: TargetPrograms, found: Sequence[_Words], workers: int | None
) -> Iterator[str]:
    """Yield the words of one target as data, and its functions."""
    forms = dict.fromkeys(row.form for words in found for row in words.tables.rows)
    functions = [made.symbols[form] for form in forms]
    numbers = {form: i for i, form in enumerate(forms)}
    threads = found[0].program.threads
    words = [word for each in found for word in each.words(numbers, workers, threads)]
    yield _DATA.format(
        number=number,
        function_count=len(functions),
        functions=", ".join(f"ptr @{name}" for name in functions),
        count=len(words),
        kinds=", ".join(f"i8 {kind}" for kind, _ in words),
        values=", ".join(f"i64 {value}" for _, value in words),
        first=found[0].arguments,
    )
    yield check_text(number, made.target)
    for i, each in enumerate(found):
        yield each.text(f"run.{number}.{i}", workers is None)


def _public_text(
    prefix: str,
    made: Sequence[TargetPrograms],
    chosen: int,
    workers: int,
    threads: int,
    outside: bool,
) -> str:
    """Return the functions that others call."""
    count, weights = len(made), "%weights" if outside else "@constants"
    checks = "".join(
        f"  %c{i} = call i32 @check.{i}()\n  %good{i} = icmp eq i32 %c{i}, 0\n"
        f"  br i1 %good{i}, label %is{i}, label %not{i}\nis{i}:\n  ret i64 {i}\nnot{i}:\n"
        for i in range(count)
    )
    prepared = "".join(
        f"init{i}:\n  call void @words.{i}(ptr %block, ptr {weights})\n  br label %begin\n"
        for i in range(count)
    )
    packed = "".join(
        f"pack{i}:\n"
        + (
            f"  %packed{i} = call i32 @run.{i}.{len(each.runs)}(ptr %block, ptr %block)\n"
            if each.packing
            else ""
        )
        + "  br label %good\n"
        for i, each in enumerate(made)
    )
    text = _PUBLIC.format(
        prefix=prefix,
        size="i32" if made[0].target.triple.startswith("wasm32") else "i64",
        bytes=workers + t.worker_bytes(threads),
        checks=checks,
        chosen=chosen,
        home=chosen + _WORD,
        to_init=" ".join(f"i64 {i}, label %init{i}" for i in range(1, count)),
        prepared=prepared,
        to_pack=" ".join(f"i64 {i}, label %pack{i}" for i in range(1, count)),
        packed=packed,
        null_pointer=interface.NULL_POINTER,
        not_aligned=interface.NOT_ALIGNED,
        wrong_cpu=interface.WRONG_CPU,
        wrong_weights=interface.WRONG_WEIGHTS,
        low_bits=interface.ALIGNMENT - 1,
        given=", ptr %weights" if outside else "",
        weights=_OUTSIDE.format(low_bits=interface.ALIGNMENT - 1)
        if outside
        else "  br label %take\n",
    )
    for number, name in enumerate(made[0].runs):
        text += _DISPATCH.format(
            name=f"{prefix}_{name}",
            chosen=chosen,
            home=chosen + _WORD,
            others=" ".join(f"i64 {i}, label %run{i}" for i in range(1, count)),
            runs="".join(
                f"run{i}:\n  %r{i} = call i32 @run.{i}.{number}(ptr %arrays, ptr %block)\n"
                f"  ret i32 %r{i}\n"
                for i in range(count)
            ),
            null_pointer=interface.NULL_POINTER,
            not_prepared=interface.NOT_PREPARED,
        )
    return text + t.worker_text(prefix, threads, workers)


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


_HEAD = """
@constants = private constant <{{ [{mark_bytes} x i8], [{left} x i8] }}>
  <{{ [{mark_bytes} x i8] c"{mark}", [{left} x i8] zeroinitializer }}>, align 4096
{declared}
declare i64 @run(ptr)
declare i64 @run_alone(ptr)
declare i64 @serve(ptr, i64, i64, i64)

define internal void @write_words(ptr %block, i64 %first, i64 %count, ptr %kinds, ptr %values,
                                  ptr %functions, ptr %constants) nounwind {{
entry:
  %start = getelementptr i8, ptr %block, i64 %first
  br label %word
word:
  %i = phi i64 [0, %entry], [%next, %store]
  %kind.at = getelementptr i8, ptr %kinds, i64 %i
  %kind = load i8, ptr %kind.at
  %value.at = getelementptr i64, ptr %values, i64 %i
  %value = load i64, ptr %value.at
  switch i8 %kind, label %constant [i8 0, label %number i8 {block}, label %inside
                                    i8 {function}, label %code]
number:
  br label %store
constant:
  %in.constants = getelementptr i8, ptr %constants, i64 %value
  %constant.word = ptrtoint ptr %in.constants to i64
  br label %store
inside:
  %in.block = getelementptr i8, ptr %block, i64 %value
  %block.word = ptrtoint ptr %in.block to i64
  br label %store
code:
  %code.at = getelementptr ptr, ptr %functions, i64 %value
  %code.function = load ptr, ptr %code.at
  %code.word = ptrtoint ptr %code.function to i64
  br label %store
store:
  %made = phi i64 [%value, %number], [%constant.word, %constant], [%block.word, %inside],
                  [%code.word, %code]
  %to = getelementptr i64, ptr %start, i64 %i
  store i64 %made, ptr %to
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %word, label %done
done:
  ret void
}}
"""
_DATA = """
@functions.{number} = private constant [{function_count} x ptr] [{functions}]
@kinds.{number} = private constant [{count} x i8] [{kinds}]
@values.{number} = private constant [{count} x i64] [{values}]

define internal void @words.{number}(ptr %block, ptr %constants) nounwind {{
  call void @write_words(ptr %block, i64 {first}, i64 {count}, ptr @kinds.{number},
                         ptr @values.{number}, ptr @functions.{number}, ptr %constants)
  ret void
}}
"""
_PUBLIC = """
define {size} @{prefix}_arena_bytes() nounwind {{ ret {size} {bytes} }}

define internal i64 @best() nounwind {{
entry:
{checks}  ret i64 -1
}}

define i32 @{prefix}_check_cpu() nounwind {{
  %best = call i64 @best()
  %none = icmp slt i64 %best, 0
  %result = select i1 %none, i32 {wrong_cpu}, i32 0
  ret i32 %result
}}

define i32 @{prefix}_init(ptr %block{given}) nounwind {{
entry:
  %null = icmp eq ptr %block, null
  br i1 %null, label %bad, label %there
there:
  %address = ptrtoint ptr %block to i64
  %low = and i64 %address, {low_bits}
  %even = icmp eq i64 %low, 0
  br i1 %even, label %check, label %odd
check:
  %best = call i64 @best()
  %none = icmp slt i64 %best, 0
  br i1 %none, label %other, label %weigh
weigh:
{weights}take:
  %chosen = getelementptr i8, ptr %block, i64 {chosen}
  store i64 %best, ptr %chosen
  %home = getelementptr i8, ptr %block, i64 {home}
  store i64 0, ptr %home
  switch i64 %best, label %init0 [{to_init}]
{prepared}begin:
  call void @start_workers(ptr %block)
  switch i64 %best, label %pack0 [{to_pack}]
{packed}good:
  store i64 %address, ptr %home
  ret i32 0
bad:
  ret i32 {null_pointer}
odd:
  ret i32 {not_aligned}
other:
  ret i32 {wrong_cpu}
strange:
  ret i32 {wrong_weights}
}}
"""
_OUTSIDE = """  %no.weights = icmp eq ptr %weights, null
  br i1 %no.weights, label %bad, label %given
given:
  %weights.address = ptrtoint ptr %weights to i64
  %weights.low = and i64 %weights.address, {low_bits}
  %weights.even = icmp eq i64 %weights.low, 0
  br i1 %weights.even, label %compare, label %odd
compare:
  %mark = load i256, ptr @constants
  %found = load i256, ptr %weights
  %known = icmp eq i256 %mark, %found
  br i1 %known, label %take, label %strange
"""
_DISPATCH = """
define i32 @{name}(ptr %arrays, ptr %block) nounwind {{
entry:
  %no.block = icmp eq ptr %block, null
  %no.arrays = icmp eq ptr %arrays, null
  %null = or i1 %no.block, %no.arrays
  br i1 %null, label %bad, label %there
there:
  %home.at = getelementptr i8, ptr %block, i64 {home}
  %home = load i64, ptr %home.at
  %address = ptrtoint ptr %block to i64
  %prepared = icmp eq i64 %home, %address
  br i1 %prepared, label %ready, label %strange
ready:
  %chosen.at = getelementptr i8, ptr %block, i64 {chosen}
  %chosen = load i64, ptr %chosen.at
  switch i64 %chosen, label %run0 [{others}]
{runs}bad:
  ret i32 {null_pointer}
strange:
  ret i32 {not_prepared}
}}
"""
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
