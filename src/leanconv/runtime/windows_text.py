"""LLVM IR of what a library for Windows has of its own: its stack's pages, and threads."""

from __future__ import annotations

from leanconv.runtime.cpu_checks import coded

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
