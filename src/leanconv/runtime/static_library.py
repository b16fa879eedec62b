"""A library of portable programs as LLVM IR: the functions that others call, and their data.

The caller owns all memory that is written. Its block of `StaticLibrary.block_bytes` holds, one
after the other,

    memory          values and scratch, as the plans state; and weights that `PREFIX_init` packs
    words           of each program, as `ProgramWords` says
    chosen          for which of several targets the words are; the block's own address
    workers         what they and the caller share, where several threads take part

`PREFIX_init` writes all but the first of them, for the best target that the CPU has, and packs;
`PREFIX_run` writes the addresses of inputs and outputs into the words, and runs the stages;
`PREFIX_close` ends the workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from leanconv.records import dataclass
from leanconv.runtime import shared_library as interface
from leanconv.runtime.cpu_checks import asking_text, check_text
from leanconv.runtime.portable import PortableProgram
from leanconv.runtime.static_program import BLOCK, FUNCTION, WORD, ProgramWords
from leanconv.runtime.static_workers import worker_bytes, worker_text
from leanconv.runtime.table_sum import TableSum
from leanconv.spec.format import aligned
from leanconv.target import Target


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
        targets: the best one first, with the extensions that its code asks for.
        chosen: where the block has the number of the target that it is for.
        indices: for each target by the names of runs, where the block has an index that lies
            outside of its axis, and the error's text, in which `{index}` stands for it.
    """

    text: str
    names: tuple[str, ...]
    block_bytes: int
    targets: tuple[Target, ...]
    chosen: int
    indices: tuple[Mapping[str, Sequence[tuple[int, str]]], ...]


def static_library(
    made: Sequence[TargetPrograms],
    prefix: str,
    constant_bytes: int,
    mark: bytes,
    memory_bytes: int,
    threads: int,
    outside: TableSum | None = None,
) -> StaticLibrary:
    """Make the functions of a library.

    Args:
        made: for each target, the best one first; each with the same names of runs.
        prefix: of the names of functions.
        constant_bytes: of all constants of all programs, `MARK_BYTES` before them included.
        mark: what these begin with; in the object only that is there yet, the rest are zeros.
        memory_bytes: of arena and packed weights.
        threads: that take part.
        outside: the sum of tables where the caller has the constants, and gives their address to
            `PREFIX_init`; None where they are in the object.
    """
    used = {symbol for each in made for symbol in each.symbols.values()}
    chosen = aligned(memory_bytes)
    begin, targets = chosen + interface.ALIGNMENT, list[list[ProgramWords]]()
    ends = []
    for each in made:
        at, found = begin, list[ProgramWords]()
        for program in (*each.runs.values(), *([each.packing] if each.packing else [])):
            found.append(ProgramWords.of(program, at, threads))
            at = found[-1].end
        targets.append(found)
        ends.append(at)
    workers = aligned(max(ends))
    parts = [
        _HEAD.format(
            mark_bytes=len(mark),
            mark="".join(f"\\{byte:02x}" for byte in mark),
            left=constant_bytes - len(mark) if outside is None else 0,
            declared="\n".join(
                f"declare void @{name}(ptr, i64, i64, ptr)" for name in sorted(used)
            ),
            block=BLOCK,
            function=FUNCTION,
        )
    ]
    parts.append(asking_text(made[0].target))
    for number, (each, found) in enumerate(zip(made, targets, strict=True)):
        parts += _target_text(number, each, found, workers if threads > 1 else None)
    parts.append(_public_text(prefix, made, chosen, workers, threads, outside))
    names = [f"{prefix}_{each}" for each in ("arena_bytes", "check_cpu", "init", "close")]
    names += [f"{prefix}_{each}" for each in made[0].runs]
    size = workers + worker_bytes(threads)
    indices = tuple(
        {name: words.indices_outside() for name, words in zip(each.runs, found, strict=False)}
        for each, found in zip(made, targets, strict=True)
    )
    targets_of = tuple(each.target for each in made)
    return StaticLibrary("".join(parts), tuple(names), size, targets_of, chosen, indices)


def _target_text(
    number: int, made: TargetPrograms, found: Sequence[ProgramWords], workers: int | None
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
    outside: TableSum | None,
) -> str:
    """Return the functions that others call."""
    count, weights = len(made), "@constants" if outside is None else "%weights"
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
        bytes=workers + worker_bytes(threads),
        checks=checks,
        chosen=chosen,
        home=chosen + WORD,
        to_init=" ".join(f"i64 {i}, label %init{i}" for i in range(1, count)),
        prepared=prepared,
        to_pack=" ".join(f"i64 {i}, label %pack{i}" for i in range(1, count)),
        packed=packed,
        null_pointer=interface.NULL_POINTER,
        not_aligned=interface.NOT_ALIGNED,
        wrong_cpu=interface.WRONG_CPU,
        wrong_weights=interface.WRONG_WEIGHTS,
        low_bits=interface.ALIGNMENT - 1,
        given="" if outside is None else ", ptr %weights",
        weights="  br label %take\n"
        if outside is None
        else _OUTSIDE.format(low_bits=interface.ALIGNMENT - 1),
    )
    text += "" if outside is None else outside.text
    text += _CLOSE.format(
        prefix=prefix,
        home=chosen + WORD,
        null_pointer=interface.NULL_POINTER,
        not_prepared=interface.NOT_PREPARED,
    )
    for number, name in enumerate(made[0].runs):
        text += _DISPATCH.format(
            name=f"{prefix}_{name}",
            chosen=chosen,
            home=chosen + WORD,
            others=" ".join(f"i64 {i}, label %run{i}" for i in range(1, count)),
            runs="".join(
                f"run{i}:\n  %r{i} = call i32 @run.{i}.{number}(ptr %arrays, ptr %block)\n"
                f"  ret i32 %r{i}\n"
                for i in range(count)
            ),
            null_pointer=interface.NULL_POINTER,
            not_prepared=interface.NOT_PREPARED,
        )
    return text + worker_text(threads, workers)


def description_text(prefix: str, text: str) -> str:
    """Return `PREFIX_json`, a text in ASCII that ends with a zero."""
    escaped = text.replace("\\", "\\5C").replace('"', "\\22")
    return f'@{prefix}_json = constant [{len(text) + 1} x i8] c"{escaped}\\00"\n'


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
  br i1 %known, label %sum, label %strange
sum:
  %sound = call i1 @tables_fit(ptr %weights)
  br i1 %sound, label %take, label %strange
"""
_CLOSE = """
define i32 @{prefix}_close(ptr %block) nounwind {{
entry:
  %null = icmp eq ptr %block, null
  br i1 %null, label %bad, label %look
look:
  %home.at = getelementptr i8, ptr %block, i64 {home}
  %home = load i64, ptr %home.at
  %address = ptrtoint ptr %block to i64
  %prepared = icmp eq i64 %home, %address
  br i1 %prepared, label %stop, label %strange
stop:
  store i64 0, ptr %home.at
  call void @stop_workers(ptr %block)
  ret i32 0
bad:
  ret i32 {null_pointer}
strange:
  ret i32 {not_prepared}
}}
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
