"""The native part of the runtime: workers claim chunks of stages by compare-and-swap.

One 64-bit ticket holds the whole state of a run: `epoch(32) | stage(12) | index(20)`.

* A thread claims chunks by swapping the ticket for one with a larger index; as the ticket carries
  epoch and stage, a late thread of an older run can claim nothing.
* Of stages with few enough chunks the index is two counters, `back(10) | front(10)`: threads of odd
  number claim from the end, the others from the beginning. A thread then claims nearly the same
  chunks in every run, and finds its lines of the output still in its cache.
* Where a call can reuse the scratch of the thread's previous call, chunks are claimed one by one
  from both ends, and bits of the call's first chunk say whether it follows or precedes the previous
  one.
* Whoever finishes a stage's last chunk publishes the next stage's ticket; after the last stage,
  stage 4095 says that the run is over ("closed").
* The caller takes part, so a run ends with any number of workers, none included.
* Between runs the ticket stays closed: a worker that wakes late then cannot mix an old ticket with
  a new program. `inside` counts the workers that may be reading a program's tables, so that the
  tables can be freed when it is zero.

Idle workers spin for a bounded time, then go back to Python, which parks them in a lock. A thread
that waits for others at the end of a stage spins too, and yields its core about every 10 us
(where the system has a yield): otherwise two threads that the system has put on one core would wait
for each other's time slices, 10 ms instead of 3 for a whole network (measured).
"""

from __future__ import annotations

import ctypes
import functools
from enum import IntEnum

from leanconv.codegen.compiler import load_text
from leanconv.codegen.host import host
from leanconv.codegen.kernel import SCRATCH_OF_NEXT, SCRATCH_OF_PREVIOUS
from leanconv.codegen.linking import Library

# Byte offsets of the state's fields, each in a cache line of its own.
TICKET, DONE, CURRENT, BUSY, SLEEPERS, STOP, INSIDE, PARTICIPANTS, YIELD = range(0, 576, 64)
STATE_BYTES = 576
CLOSED = 4095
MAX_STAGES = 4094
MAX_CHUNKS = (1 << 20) - 1
_HALF_BITS = 10  # of each of the two counters of chunks
MOST_FROM_BOTH_ENDS = (1 << _HALF_BITS) - 1

# Words of a program's header, and of each stage.
HEADER_WORDS = 8  # state, stages, table, unused, unused, claim divisor, threads, unused
# Function, argument table, chunks, chunks claimed at once, scratch, stride, the first chunk. A
# kernel's rounds are stages of their own, each of which begins at another chunk.
STAGE_WORDS = 7


class ClaimPolicy(IntEnum):
    """Ways in which threads claim chunks of a stage other than a fixed number at once.

    Attributes:
        GUIDED: fewer and fewer at once, from the first chunk on.
        FROM_BOTH_ENDS: fewer and fewer at once, two threads from opposite ends.
        ONE_FROM_BOTH_ENDS: one at once, two threads from opposite ends.
        HALVES: two threads one half each, from opposite ends.
    """

    GUIDED = 0
    FROM_BOTH_ENDS = -1
    ONE_FROM_BOTH_ENDS = -2
    HALVES = -3


_YIELD_EVERY = 512  # pauses of one wait between two yields, about 10 us

_PAUSE = {
    "x86_64": "call void @llvm.x86.sse2.pause()",
    "aarch64": "call void @llvm.aarch64.hint(i32 1)",
}
_DECLARE = {
    "x86_64": "declare void @llvm.x86.sse2.pause()\n"
    "declare void @llvm.x86.sse.ldmxcsr(ptr)\ndeclare void @llvm.x86.sse.stmxcsr(ptr)",
    "aarch64": "declare void @llvm.aarch64.hint(i32)\n"
    "declare i64 @llvm.aarch64.get.fpcr()\ndeclare void @llvm.aarch64.set.fpcr(i64)",
    "wasm32": "",
}
# Denormals are flushed while kernels run, and the caller's rounding state comes back after;
# WebAssembly has no such state.
_FLUSH = {
    "x86_64": """
  %mode.slot = alloca i32
  %mode.new = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %mode.slot)
  %mode.old = load i32, ptr %mode.slot
  %mode.flush = or i32 %mode.old, 32832
  store i32 %mode.flush, ptr %mode.new
  call void @llvm.x86.sse.ldmxcsr(ptr %mode.new)""",
    "aarch64": """
  %mode.old = call i64 @llvm.aarch64.get.fpcr()
  %mode.flush = or i64 %mode.old, 16777216
  call void @llvm.aarch64.set.fpcr(i64 %mode.flush)""",
    "wasm32": "",
}
_RESTORE = {
    "x86_64": "call void @llvm.x86.sse.ldmxcsr(ptr %mode.slot)",
    "aarch64": "call void @llvm.aarch64.set.fpcr(i64 %mode.old)",
    "wasm32": "",
}

# All tables are of words of 8 bytes; an address of 4 bytes is the lower half of its word.
_ALONE = """
%stage = type [7 x i64]
%program = type [8 x i64]
{declare}

; Run a program on the calling thread only, whatever the workers do.
define i64 @run_alone(ptr %program) nounwind {{
entry:{flush}
  %count.at = getelementptr %program, ptr %program, i64 0, i64 1
  %table.at = getelementptr %program, ptr %program, i64 0, i64 2
  %count = load i64, ptr %count.at
  %table = load ptr, ptr %table.at
  br label %stages
stages:
  %i = phi i64 [0, %entry], [%next, %stages]
  %entry.at = getelementptr %stage, ptr %table, i64 %i
  %args.at = getelementptr %stage, ptr %entry.at, i64 0, i64 1
  %chunks.at = getelementptr %stage, ptr %entry.at, i64 0, i64 2
  %function = load ptr, ptr %entry.at
  %args = load ptr, ptr %args.at
  %chunks = load i64, ptr %chunks.at
  %scratch.at = getelementptr %stage, ptr %entry.at, i64 0, i64 4
  %scratch = load ptr, ptr %scratch.at
  %base.at = getelementptr %stage, ptr %entry.at, i64 0, i64 6
  %base = load i64, ptr %base.at
  %end = add i64 %base, %chunks
  call void %function(ptr %args, i64 %base, i64 %end, ptr %scratch)
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %stages, label %leave
leave:
  {restore}
  ret i64 0
}}
"""
_TOGETHER = """
; Take part in the run of this epoch until it is over or another one has begun.
define internal void @work(ptr %state, i64 %epoch, i64 %thread) nounwind {{
entry:
  %done.at = getelementptr i8, ptr %state, i64 {done}
  %current.at = getelementptr i8, ptr %state, i64 {current}
  %program = load ptr, ptr %current.at
  %count.at = getelementptr %program, ptr %program, i64 0, i64 1
  %table.at = getelementptr %program, ptr %program, i64 0, i64 2
  %divisor.at = getelementptr %program, ptr %program, i64 0, i64 5
  %yield.at = getelementptr i8, ptr %state, i64 {yield_}
  %waits = alloca i64
  store i64 0, ptr %waits
  %last.stage.at = alloca i64
  store i64 -1, ptr %last.stage.at
  %last.begin.at = alloca i64
  %last.end.at = alloca i64
  store i64 0, ptr %last.begin.at
  store i64 0, ptr %last.end.at
  br label %look
look:
  %ticket = load atomic i64, ptr %state seq_cst, align 8
  %its.epoch = lshr i64 %ticket, 32
  %mine = icmp eq i64 %its.epoch, %epoch
  %shifted = lshr i64 %ticket, 20
  %stage = and i64 %shifted, 4095
  %open = icmp ne i64 %stage, {closed}
  %live = and i1 %mine, %open
  br i1 %live, label %stage.open, label %out
stage.open:
  %table = load ptr, ptr %table.at
  %entry.at = getelementptr %stage, ptr %table, i64 %stage
  %chunks.at = getelementptr %stage, ptr %entry.at, i64 0, i64 2
  %chunks = load i64, ptr %chunks.at
  %take.at = getelementptr %stage, ptr %entry.at, i64 0, i64 3
  %fixed = load i64, ptr %take.at
  %both = icmp slt i64 %fixed, 0
  %index = and i64 %ticket, 1048575
  %index.low = and i64 %index, {half_mask}
  %index.high = lshr i64 %index, {half_bits}
  %front = select i1 %both, i64 %index.low, i64 %index
  %back = select i1 %both, i64 %index.high, i64 0
  %taken = add i64 %front, %back
  %left = icmp ult i64 %taken, %chunks
  br i1 %left, label %claim, label %wait
wait:
  {pause}
  %waited = load i64, ptr %waits
  %waits.more = add i64 %waited, 1
  store i64 %waits.more, ptr %waits
  %round = and i64 %waits.more, {yield_mask}
  %long = icmp eq i64 %round, 0
  br i1 %long, label %give, label %look
give:
  %yield = load ptr, ptr %yield.at
  %answer = call i32 %yield()
  br label %look
claim:
  %rest = sub i64 %chunks, %taken
  %divisor = load i64, ptr %divisor.at
  %up = add i64 %rest, %divisor
  %up1 = sub i64 %up, 1
  %guided = udiv i64 %up1, %divisor
  %is.fixed = icmp sgt i64 %fixed, 0
  %wanted = select i1 %is.fixed, i64 %fixed, i64 %guided
  %odd = trunc i64 %thread to i1
  %singly = icmp eq i64 %fixed, {singly}
  %one.or.more = select i1 %singly, i64 1, i64 %wanted
  %in.halves = icmp eq i64 %fixed, {halves}
  %chunks.up = add i64 %chunks, 1
  %half = lshr i64 %chunks.up, 1
  %requested = select i1 %in.halves, i64 %half, i64 %one.or.more
  %few = icmp ult i64 %rest, %requested
  %take = select i1 %few, i64 %rest, i64 %requested
  %from.end = and i1 %both, %odd
  %shift = select i1 %from.end, i64 {half_bits}, i64 0
  %step = shl i64 %take, %shift
  %next.ticket = add i64 %ticket, %step
  %end.left = sub i64 %chunks, %back
  %end.begin = sub i64 %end.left, %take
  %begin = select i1 %from.end, i64 %end.begin, i64 %front
  %pair = cmpxchg ptr %state, i64 %ticket, i64 %next.ticket acq_rel monotonic
  %won = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %won, label %go, label %look
go:
  %function = load ptr, ptr %entry.at
  %args.at = getelementptr %stage, ptr %entry.at, i64 0, i64 1
  %args = load ptr, ptr %args.at
  %scratch.at = getelementptr %stage, ptr %entry.at, i64 0, i64 4
  %stride.at = getelementptr %stage, ptr %entry.at, i64 0, i64 5
  %scratch.base = load ptr, ptr %scratch.at
  %stride = load i64, ptr %stride.at
  %offset = mul i64 %stride, %thread
  %scratch = getelementptr i8, ptr %scratch.base, i64 %offset
  %end = add i64 %begin, %take
  %last.stage = load i64, ptr %last.stage.at
  %last.begin = load i64, ptr %last.begin.at
  %last.end = load i64, ptr %last.end.at
  %same = icmp eq i64 %last.stage, %stage
  %marked = and i1 %same, %singly
  %after = icmp eq i64 %last.end, %begin
  %before = icmp eq i64 %last.begin, %end
  %back.mark = select i1 %before, i64 {scratch_of_next}, i64 0
  %either.mark = select i1 %after, i64 {scratch_of_previous}, i64 %back.mark
  %mark = select i1 %marked, i64 %either.mark, i64 0
  %base.at = getelementptr %stage, ptr %entry.at, i64 0, i64 6
  %base = load i64, ptr %base.at
  %from = add i64 %base, %begin
  %to = add i64 %base, %end
  %first = or i64 %from, %mark
  store i64 %stage, ptr %last.stage.at
  store i64 %begin, ptr %last.begin.at
  store i64 %end, ptr %last.end.at
  call void %function(ptr %args, i64 %first, i64 %to, ptr %scratch)
  %done.before = atomicrmw add ptr %done.at, i64 %take acq_rel
  %done.now = add i64 %done.before, %take
  %last = icmp eq i64 %done.now, %chunks
  br i1 %last, label %advance, label %look
advance:
  store atomic i64 0, ptr %done.at monotonic, align 8
  %count = load i64, ptr %count.at
  %following = add i64 %stage, 1
  %over = icmp eq i64 %following, %count
  %published = select i1 %over, i64 {closed}, i64 %following
  %high = shl i64 %epoch, 32
  %low = shl i64 %published, 20
  %new.ticket = or i64 %high, %low
  store atomic i64 %new.ticket, ptr %state seq_cst, align 8
  br label %look
out:
  ret void
}}

; Run a program to its end. 1: with the workers; 0: alone, because another run had them.
define i64 @run(ptr %program) nounwind {{
entry:{flush}
  %state = load ptr, ptr %program
  %busy.at = getelementptr i8, ptr %state, i64 {busy}
  %was = cmpxchg ptr %busy.at, i64 0, i64 1 acquire monotonic
  %got = extractvalue {{ i64, i1 }} %was, 1
  br i1 %got, label %together, label %single
together:
  %current.at = getelementptr i8, ptr %state, i64 {current}
  store ptr %program, ptr %current.at
  %threads.at = getelementptr %program, ptr %program, i64 0, i64 6
  %threads = load i64, ptr %threads.at
  %participants.at = getelementptr i8, ptr %state, i64 {participants}
  store atomic i64 %threads, ptr %participants.at release, align 8
  %old = load atomic i64, ptr %state seq_cst, align 8
  %old.epoch = lshr i64 %old, 32
  %bumped = add i64 %old.epoch, 1
  %epoch = and i64 %bumped, 4294967295
  %fresh = shl i64 %epoch, 32
  store atomic i64 %fresh, ptr %state seq_cst, align 8
  call void @work(ptr %state, i64 %epoch, i64 0)
  store atomic i64 0, ptr %busy.at release, align 8
  br label %leave
single:
  %ignored = call i64 @run_alone(ptr %program)
  br label %leave
leave:
  %result = phi i64 [1, %together], [0, %single]
  {restore}
  ret i64 %result
}}

; Used instead of the system's yield where there is none.
define i32 @no_yield() nounwind {{ ret i32 0 }}

; Spin: to learn how long a pause lasts here.
define void @spin(i64 %n) nounwind {{
entry:
  br label %again
again:
  %i = phi i64 [0, %entry], [%next, %again]
  {pause}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %again, label %leave
leave:
  ret void
}}

; A worker's life: returns the epoch it saw last when its patience ends, -1 when it is to stop.
define i64 @serve(ptr %state, i64 %patience, i64 %seen.first, i64 %thread) nounwind {{
entry:{flush}
  %stop.at = getelementptr i8, ptr %state, i64 {stop}
  %sleepers.at = getelementptr i8, ptr %state, i64 {sleepers}
  %inside.at = getelementptr i8, ptr %state, i64 {inside}
  %participants.at = getelementptr i8, ptr %state, i64 {participants}
  br label %top
top:
  %seen = phi i64 [%seen.first, %entry], [%epoch, %done], [%epoch, %skip],
                  [%seen, %spin], [%seen, %stay]
  %spins = phi i64 [0, %entry], [0, %done], [%spins, %skip], [%spun, %spin], [0, %stay]
  %ticket = load atomic i64, ptr %state acquire, align 8
  %epoch = lshr i64 %ticket, 32
  %fresh = icmp ne i64 %epoch, %seen
  br i1 %fresh, label %check, label %idle
check:
  %stop = load atomic i64, ptr %stop.at acquire, align 8
  %stopping = icmp ne i64 %stop, 0
  br i1 %stopping, label %leave, label %select
select:
  %participants = load atomic i64, ptr %participants.at acquire, align 8
  %wanted = icmp ult i64 %thread, %participants
  br i1 %wanted, label %enter, label %skip
skip:
  br label %top
enter:
  %in = atomicrmw add ptr %inside.at, i64 1 seq_cst
  call void @work(ptr %state, i64 %epoch, i64 %thread)
  br label %done
done:
  %exit = atomicrmw sub ptr %inside.at, i64 1 seq_cst
  br label %top
idle:
  %spun = add i64 %spins, 1
  %patient = icmp ult i64 %spun, %patience
  br i1 %patient, label %spin, label %sleep
spin:
  {pause}
  br label %top
sleep:
  %registered = atomicrmw add ptr %sleepers.at, i64 1 seq_cst
  %again = load atomic i64, ptr %state seq_cst, align 8
  %again.epoch = lshr i64 %again, 32
  %moved = icmp ne i64 %again.epoch, %seen
  br i1 %moved, label %stay, label %park
stay:
  %unregistered = atomicrmw sub ptr %sleepers.at, i64 1 seq_cst
  br label %top
park:
  {restore}
  ret i64 %seen
leave:
  {restore}
  ret i64 -1
}}
"""


class Native:
    """The runtime's entry points, as ctypes functions that release the interpreter's lock."""

    def __init__(self, library: Library) -> None:
        word, pointer = ctypes.c_int64, ctypes.c_void_p
        self._library = library
        self.run = ctypes.CFUNCTYPE(word, pointer)(library.address("run"))
        self.run_alone = ctypes.CFUNCTYPE(word, pointer)(library.address("run_alone"))
        self.no_yield = library.address("no_yield")
        self.spin = ctypes.CFUNCTYPE(None, word)(library.address("spin"))
        self.serve = ctypes.CFUNCTYPE(word, pointer, word, word, word)(library.address("serve"))


def alone_text(arch: str) -> str:
    """LLVM IR of `run_alone`, which needs neither threads nor atomic instructions.

    Args:
        arch: "x86_64", "aarch64" or "wasm32".
    """
    return _ALONE.format(declare=_DECLARE[arch], flush=_FLUSH[arch], restore=_RESTORE[arch])


def runtime_text(arch: str) -> str:
    """LLVM IR of the runtime's functions.

    Args:
        arch: "x86_64" or "aarch64".
    """
    return alone_text(arch) + _TOGETHER.format(
        pause=_PAUSE[arch],
        flush=_FLUSH[arch],
        restore=_RESTORE[arch],
        closed=CLOSED,
        done=DONE,
        current=CURRENT,
        busy=BUSY,
        sleepers=SLEEPERS,
        stop=STOP,
        inside=INSIDE,
        participants=PARTICIPANTS,
        yield_=YIELD,
        yield_mask=_YIELD_EVERY - 1,
        half_bits=_HALF_BITS,
        half_mask=MOST_FROM_BOTH_ENDS,
        singly=ClaimPolicy.ONE_FROM_BOTH_ENDS.value,
        halves=ClaimPolicy.HALVES.value,
        scratch_of_previous=SCRATCH_OF_PREVIOUS,
        scratch_of_next=SCRATCH_OF_NEXT,
    )


def arch_of(triple: str) -> str:
    """The runtime's name of a target's architecture."""
    if triple.startswith("wasm32"):
        return "wasm32"
    return "aarch64" if triple.startswith(("aarch64", "arm64")) else "x86_64"


@functools.cache
def native() -> Native:
    """Compile, or fetch from the cache, and load the runtime for this machine."""
    names = ["run", "run_alone", "spin", "serve", "no_yield"]
    return Native(load_text(runtime_text(arch_of(host().triple)), names, "runtime"))
