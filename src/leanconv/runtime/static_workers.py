"""LLVM IR of a library's workers, by POSIX or Windows threads; and what Windows needs beside."""

from __future__ import annotations

from leanconv.runtime import native as n
from leanconv.runtime.cpu_checks import coded

_PATIENCE = 10_000  # pauses of a worker that waits for the next run, some hundred microseconds
_OPAQUE = 128  # bytes for a mutex, and for a condition, of any system


def worker_bytes(threads: int) -> int:
    """Return the bytes of what workers and their caller share; 0 for one thread."""
    return 0 if threads == 1 else n.STATE_BYTES + 2 * _OPAQUE + 64 + 64 * (threads - 1)


def worker_text(threads: int, at: int) -> str:
    """Return the functions that start, wake and end workers.

    Args:
        threads: that take part, the caller counted.
        at: where what they share begins in the caller's block.
    """
    if threads == 1:
        return _ALONE
    mutex = at + n.STATE_BYTES
    return _WORKERS.format(
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
define internal void @start_workers(ptr %block) nounwind { ret void }
define internal void @wake_workers(ptr %block) nounwind { ret void }
define internal void @stop_workers(ptr %block) nounwind { ret void }
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

define internal void @stop_workers(ptr %block) nounwind {{
entry:
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
  %number = phi i64 [1, %entry], [%following, %join]
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
  ret void
}}
"""
# Called before a frame of more than a page, with its bytes in RAX, which stay: touches each page of
# it in order, because the system makes the next one only when the last one is reached.
_TOUCH = bytes.fromhex(
    "51"  # push rcx
    "52"  # push rdx
    "488d4c2418"  # lea rcx, [rsp + 24]
    "4889ca"  # mov rdx, rcx
    "4829c2"  # sub rdx, rax
    "4881e900100000"  # next: sub rcx, 4096
    "4839d1"  # cmp rcx, rdx
    "7605"  # jbe last
    "f60100"  # test byte ptr [rcx], 0
    "ebef"  # jmp next
    "f60200"  # last: test byte ptr [rdx], 0
    "5a"  # pop rdx
    "59"  # pop rcx
    "c3"  # ret
)
_NAMES = ("___chkstk_ms", "__chkstk")  # as LLVM calls it for mingw and for MSVC
# What workers call, by functions of the system; each lock and condition is a word.
_THREADS = """
declare ptr @CreateThread(ptr, i64, ptr, ptr, i32, ptr)
declare i32 @WaitForSingleObject(ptr, i32)
declare i32 @CloseHandle(ptr)
declare void @InitializeSRWLock(ptr)
declare void @AcquireSRWLockExclusive(ptr)
declare void @ReleaseSRWLockExclusive(ptr)
declare void @InitializeConditionVariable(ptr)
declare i32 @SleepConditionVariableSRW(ptr, ptr, i32, i32)
declare void @WakeAllConditionVariable(ptr)
declare i32 @SwitchToThread()

define i32 @sched_yield() nounwind {
  %a = call i32 @SwitchToThread()
  ret i32 0
}
define i32 @pthread_create(ptr %thread, ptr %attributes, ptr %start, ptr %argument) nounwind {
  %handle = call ptr @CreateThread(ptr null, i64 0, ptr %start, ptr %argument, i32 0, ptr null)
  store ptr %handle, ptr %thread
  %failed = icmp eq ptr %handle, null
  %result = zext i1 %failed to i32
  ret i32 %result
}
define i32 @pthread_join(i64 %thread, ptr %result) nounwind {
  %handle = inttoptr i64 %thread to ptr
  %a = call i32 @WaitForSingleObject(ptr %handle, i32 -1)
  %b = call i32 @CloseHandle(ptr %handle)
  ret i32 0
}
define i32 @pthread_mutex_init(ptr %mutex, ptr %attributes) nounwind {
  call void @InitializeSRWLock(ptr %mutex)
  ret i32 0
}
define i32 @pthread_mutex_lock(ptr %mutex) nounwind {
  call void @AcquireSRWLockExclusive(ptr %mutex)
  ret i32 0
}
define i32 @pthread_mutex_unlock(ptr %mutex) nounwind {
  call void @ReleaseSRWLockExclusive(ptr %mutex)
  ret i32 0
}
define i32 @pthread_mutex_destroy(ptr %mutex) nounwind { ret i32 0 }
define i32 @pthread_cond_init(ptr %condition, ptr %attributes) nounwind {
  call void @InitializeConditionVariable(ptr %condition)
  ret i32 0
}
define i32 @pthread_cond_wait(ptr %condition, ptr %mutex) nounwind {
  %a = call i32 @SleepConditionVariableSRW(ptr %condition, ptr %mutex, i32 -1, i32 0)
  ret i32 0
}
define i32 @pthread_cond_broadcast(ptr %condition) nounwind {
  call void @WakeAllConditionVariable(ptr %condition)
  ret i32 0
}
define i32 @pthread_cond_destroy(ptr %condition) nounwind { ret i32 0 }
"""


def windows_text(threads: int) -> str:
    """Return the functions that a library for x86-64 Windows brings along.

    Args:
        threads: that take part in a run.
    """
    stack = "".join(coded(f"void @{name}()", _TOUCH) for name in _NAMES)
    used = ", ".join(f"ptr @{name}" for name in _NAMES)
    stack += f"@llvm.compiler.used = appending global [{len(_NAMES)} x ptr] [{used}], "
    stack += 'section "llvm.metadata"\n'
    return stack if threads == 1 else stack + _THREADS
