"""LLVM IR of what stands round a program in a library: its start, its check of the CPU, workers."""

from __future__ import annotations

from leanconv.runtime import native as n

# What functions return that fail.
NULL_POINTER, INDEX_OUTSIDE, WRONG_CPU, NOT_ALIGNED, WRONG_WEIGHTS = range(1, 6)
ALIGNMENT = 64  # bytes, of the caller's block
_PATIENCE = 10_000  # pauses of a worker that waits for the next run, some hundred microseconds
_OPAQUE = 128  # bytes for a mutex, and for a condition, of any system

# x86's features by LLVM's names: leaf and subleaf of `cpuid`, which register, which bit.
_FEATURES = {
    "fma": (1, 0, 2, 12),
    "movbe": (1, 0, 2, 22),
    "f16c": (1, 0, 2, 29),
    "bmi": (7, 0, 1, 3),
    "avx2": (7, 0, 1, 5),
    "bmi2": (7, 0, 1, 8),
    "avx512f": (7, 0, 1, 16),
    "avx512dq": (7, 0, 1, 17),
    "avx512ifma": (7, 0, 1, 21),
    "avx512cd": (7, 0, 1, 28),
    "avx512bw": (7, 0, 1, 30),
    "avx512vl": (7, 0, 1, 31),
    "avx512vbmi": (7, 0, 2, 1),
    "avx512vbmi2": (7, 0, 2, 6),
    "gfni": (7, 0, 2, 8),
    "vaes": (7, 0, 2, 9),
    "vpclmulqdq": (7, 0, 2, 10),
    "avx512vnni": (7, 0, 2, 11),
    "avx512bitalg": (7, 0, 2, 12),
    "avx512vpopcntdq": (7, 0, 2, 14),
    "avx512fp16": (7, 0, 3, 23),
    "avxvnni": (7, 1, 0, 4),
    "avx512bf16": (7, 1, 0, 5),
    "lzcnt": (0x80000001, 0, 2, 5),
}
_SAVED = {"avx512": 0xE6, "avx2": 0x6}  # bits of XCR0: registers that the system saves
_USUAL = ("fma", "movbe", "f16c", "bmi", "avx2", "bmi2", "lzcnt")
_WIDE = ("avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl")
_OF_EXTENSIONS = {
    "avx_vnni": ("avxvnni",),
    "bf16": ("avx512bf16",),
    "fp16": ("avx512fp16",),
    "vbmi": ("avx512vbmi",),
    "vnni": ("avx512vnni",),
}


def check_text(number: int, isa: str, extensions: tuple[str, ...]) -> str:
    """Return `check.NUMBER`, which returns 0 where code for an instruction set can run.

    Args:
        number: of the target.
        isa, extensions: of the target; only x86's are checked.
    """
    head = f"define internal i32 @check.{number}() nounwind {{\nentry:\n"
    if isa not in _SAVED:
        return f"{head}  ret i32 0\n}}\n"
    needed = [*_USUAL, *(_WIDE if isa == "avx512" else ())]
    needed += [each for name in extensions for each in _OF_EXTENSIONS.get(name, ())]
    masks: dict[tuple[int, int], list[int]] = {}
    for name in needed:
        leaf, subleaf, register, bit = _FEATURES[name]
        masks.setdefault((leaf, subleaf), [0, 0, 0, 0])[register] |= 1 << bit
    masks.setdefault((1, 0), [0, 0, 0, 0])[2] |= 1 << 27  # the system saves more registers
    lines = [head]
    for number, ((leaf, subleaf), wanted) in enumerate(sorted(masks.items())):
        top = leaf & 0x80000000
        lines.append(
            f"  %most{number} = call {_FOUR} {_CPUID}(i32 {_signed(top)}, i32 0)\n"
            f"  %top{number} = extractvalue {_FOUR} %most{number}, 0\n"
            f"  %there{number} = icmp uge i32 %top{number}, {_signed(leaf)}\n"
            f"  br i1 %there{number}, label %leaf{number}, label %wrong\n"
            f"leaf{number}:\n"
            f"  %found{number} = call {_FOUR} {_CPUID}(i32 {_signed(leaf)}, i32 {subleaf})\n"
        )
        for register, mask in enumerate(wanted):
            if mask:
                name = f"{number}.{register}"
                lines.append(
                    f"  %r{name} = extractvalue {_FOUR} %found{number}, {register}\n"
                    f"  %m{name} = and i32 %r{name}, {_signed(mask)}\n"
                    f"  %has{name} = icmp eq i32 %m{name}, {_signed(mask)}\n"
                    f"  br i1 %has{name}, label %ok{name}, label %wrong\n"
                    f"ok{name}:\n"
                )
    saved = _SAVED[isa]
    lines.append(
        f"  %xcr = call {{ i32, i32 }} {_XGETBV}(i32 0)\n"
        "  %low = extractvalue { i32, i32 } %xcr, 0\n"
        f"  %saved = and i32 %low, {saved}\n"
        f"  %all = icmp eq i32 %saved, {saved}\n"
        "  br i1 %all, label %right, label %wrong\n"
        f"right:\n  ret i32 0\nwrong:\n  ret i32 {WRONG_CPU}\n}}\n"
    )
    return "".join(lines)


def description_text(prefix: str, text: str) -> str:
    """Return `PREFIX_json`, a text in ASCII that ends with a zero."""
    escaped = text.replace("\\", "\\5C").replace('"', "\\22")
    return f'@{prefix}_json = constant [{len(text) + 1} x i8] c"{escaped}\\00"\n'


_FOUR = "{ i32, i32, i32, i32 }"
_CPUID = 'asm sideeffect "cpuid", "={ax},={bx},={cx},={dx},{ax},{cx}"'
_XGETBV = 'asm sideeffect "xgetbv", "={ax},={dx},{cx}"'


def _signed(word: int) -> int:
    """Return 32 bits as LLVM writes them."""
    return word - (1 << 32) if word >> 31 else word


def worker_bytes(threads: int) -> int:
    """Return the bytes of what workers and their caller share; 0 for one thread."""
    return 0 if threads == 1 else n.STATE_BYTES + 2 * _OPAQUE + 64 + 64 * (threads - 1)


def worker_text(prefix: str, threads: int, at: int) -> str:
    """Return the functions that start, wake and end workers.

    Args:
        prefix: of `PREFIX_close`.
        threads: that take part, the caller counted.
        at: where what they share begins in the caller's block.
    """
    if threads == 1:
        return _ALONE.format(prefix=prefix)
    mutex = at + n.STATE_BYTES
    return _WORKERS.format(
        prefix=prefix,
        state=at,
        sleepers=at + n.SLEEPERS,
        stop=at + n.STOP,
        mutex=mutex,
        condition=mutex + _OPAQUE,
        generation=mutex + 2 * _OPAQUE,
        started=mutex + 2 * _OPAQUE + 8,
        records=mutex + 2 * _OPAQUE + 64,
        workers=threads - 1,
        patience=_PATIENCE,
        closed=n.CLOSED << 20,
        ticket=at + n.TICKET,
        yields=at + n.YIELD,
        state_bytes=n.STATE_BYTES,
    )


_ALONE = """
define internal void @start_workers(ptr %block) nounwind {{ ret void }}
define internal void @wake_workers(ptr %block) nounwind {{ ret void }}
define i32 @{prefix}_close(ptr %block) nounwind {{ ret i32 0 }}
"""
# A worker whose patience ends waits until the generation is another one than before it was served.
_WORKERS = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i32 @sched_yield()
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_mutex_destroy(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_cond_destroy(ptr)

define internal ptr @worker(ptr %record) nounwind {{
entry:
  %block = load ptr, ptr %record
  %number.at = getelementptr i64, ptr %record, i64 1
  %number = load i64, ptr %number.at
  %state = getelementptr i8, ptr %block, i64 {state}
  %mutex = getelementptr i8, ptr %block, i64 {mutex}
  %condition = getelementptr i8, ptr %block, i64 {condition}
  %generation.at = getelementptr i8, ptr %block, i64 {generation}
  br label %begin
begin:
  %seen = phi i64 [0, %entry], [%served, %woken]
  %generation = load atomic i64, ptr %generation.at seq_cst, align 8
  %served = call i64 @serve(ptr %state, i64 {patience}, i64 %seen, i64 %number)
  %ends = icmp slt i64 %served, 0
  br i1 %ends, label %end, label %park
park:
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  br label %look
look:
  %now = load atomic i64, ptr %generation.at seq_cst, align 8
  %same = icmp eq i64 %now, %generation
  br i1 %same, label %wait, label %woken
wait:
  %waited = call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %look
woken:
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %begin
end:
  ret ptr null
}}

define internal void @wake_all(ptr %block) nounwind {{
entry:
  %sleepers.at = getelementptr i8, ptr %block, i64 {sleepers}
  %mutex = getelementptr i8, ptr %block, i64 {mutex}
  %condition = getelementptr i8, ptr %block, i64 {condition}
  %generation.at = getelementptr i8, ptr %block, i64 {generation}
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  %before = atomicrmw add ptr %generation.at, i64 1 seq_cst
  store atomic i64 0, ptr %sleepers.at seq_cst, align 8
  %told = call i32 @pthread_cond_broadcast(ptr %condition)
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}}

define internal void @wake_workers(ptr %block) nounwind {{
entry:
  %sleepers.at = getelementptr i8, ptr %block, i64 {sleepers}
  %sleepers = load atomic i64, ptr %sleepers.at seq_cst, align 8
  %any = icmp ne i64 %sleepers, 0
  br i1 %any, label %wake, label %done
wake:
  call void @wake_all(ptr %block)
  br label %done
done:
  ret void
}}

define internal void @start_workers(ptr %block) nounwind {{
entry:
  %mutex = getelementptr i8, ptr %block, i64 {mutex}
  %condition = getelementptr i8, ptr %block, i64 {condition}
  %generation.at = getelementptr i8, ptr %block, i64 {generation}
  %started.at = getelementptr i8, ptr %block, i64 {started}
  store i64 0, ptr %generation.at
  store i64 0, ptr %started.at
  %state = getelementptr i8, ptr %block, i64 {state}
  call void @llvm.memset.p0.i64(ptr %state, i8 0, i64 {state_bytes}, i1 false)
  %ticket.at = getelementptr i8, ptr %block, i64 {ticket}
  store i64 {closed}, ptr %ticket.at
  %yield.at = getelementptr i8, ptr %block, i64 {yields}
  store ptr @sched_yield, ptr %yield.at
  %a = call i32 @pthread_mutex_init(ptr %mutex, ptr null)
  %b = call i32 @pthread_cond_init(ptr %condition, ptr null)
  br label %next
next:
  %number = phi i64 [1, %entry], [%following, %one]
  %more = icmp ule i64 %number, {workers}
  br i1 %more, label %try, label %done
try:
  %place = mul i64 %number, 64
  %offset = add i64 %place, {records}
  %behind = sub i64 %offset, 64
  %record = getelementptr i8, ptr %block, i64 %behind
  store ptr %block, ptr %record
  %number.at = getelementptr i64, ptr %record, i64 1
  store i64 %number, ptr %number.at
  %thread.at = getelementptr i64, ptr %record, i64 2
  %failed = call i32 @pthread_create(ptr %thread.at, ptr null, ptr @worker, ptr %record)
  %good = icmp eq i32 %failed, 0
  br i1 %good, label %one, label %done
one:
  store i64 %number, ptr %started.at
  %following = add i64 %number, 1
  br label %next
done:
  ret void
}}

define i32 @{prefix}_close(ptr %block) nounwind {{
entry:
  %null = icmp eq ptr %block, null
  br i1 %null, label %bad, label %stop
stop:
  %state = getelementptr i8, ptr %block, i64 {state}
  %stop.at = getelementptr i8, ptr %block, i64 {stop}
  store atomic i64 1, ptr %stop.at seq_cst, align 8
  %ticket = load atomic i64, ptr %state seq_cst, align 8
  %epoch = lshr i64 %ticket, 32
  %bumped = add i64 %epoch, 1
  %high = shl i64 %bumped, 32
  %new = or i64 %high, {closed}
  store atomic i64 %new, ptr %state seq_cst, align 8
  call void @wake_all(ptr %block)
  %started.at = getelementptr i8, ptr %block, i64 {started}
  %started = load i64, ptr %started.at
  br label %next
next:
  %number = phi i64 [1, %stop], [%following, %join]
  %more = icmp ule i64 %number, %started
  br i1 %more, label %join, label %joined
join:
  %place = mul i64 %number, 64
  %offset = add i64 %place, {records}
  %behind = sub i64 %offset, 48
  %thread.at = getelementptr i8, ptr %block, i64 %behind
  %thread = load i64, ptr %thread.at
  %ended = call i32 @pthread_join(i64 %thread, ptr null)
  %following = add i64 %number, 1
  br label %next
joined:
  store i64 0, ptr %started.at
  %mutex = getelementptr i8, ptr %block, i64 {mutex}
  %condition = getelementptr i8, ptr %block, i64 {condition}
  %x = call i32 @pthread_cond_destroy(ptr %condition)
  %y = call i32 @pthread_mutex_destroy(ptr %mutex)
  ret i32 0
bad:
  ret i32 1
}}
"""
