"""The clock and the cores of this machine, measured: cycles a second, and what threads add."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import time
from collections.abc import Callable

from leanconv.codegen.compiler import load_text
from leanconv.codegen.host import host
from leanconv.codegen.linking import Library

_STEPS, _CHAIN, _TRIES = 1000, 8, 25
_SHORT_STEPS = 5000  # of the same loop, about 20 us
_BUSY_STEPS = 100_000  # of the loop that keeps the multiply-add units full, about 0.4 ms

# `chain`: multiply-adds each of which waits for the one before. `busy`: as many as the units take.
_TEXT = """
define double @chain(i64 %n, double %x) nounwind {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %v0 = phi double [%x, %entry], [%vLAST, %loop]
LINKS
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret double %vLAST
}
define double @busy(i64 %n, double %y) nounwind {
entry:
  %one = insertelement VECTOR poison, double %y, i64 0
  %x = shufflevector VECTOR %one, VECTOR poison, MASK zeroinitializer
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
STARTS
STEPS
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
SUMS
  %out = extractelement VECTOR %sLAST_SUM, i64 0
  ret double %out
}
declare double @llvm.fma.f64(double, double, double)
declare VECTOR @llvm.fma.vLANESf64(VECTOR, VECTOR, VECTOR)
"""

_Loop = Callable[[int, float], float]


@functools.cache
def cycles_per_second() -> float:
    """Cycles that a core does in a second of dependent multiply-adds, about 1 ms of measuring.

    It is the clock under this process's load; a core that is shared or asleep gives less, so the
    fastest of several tries counts.
    """
    chain = _loop("chain")
    least = min(_nanoseconds(chain, _STEPS) for _ in range(_TRIES))
    return _STEPS * _CHAIN * host().fma_latency / least * 1e9


def busy_nanoseconds() -> float:
    """Time of one vector multiply-add among as many as the units take, measured now in 20 us."""
    chains = host().least_accumulators + 4
    return _nanoseconds(_loop("busy"), _SHORT_STEPS) / (_SHORT_STEPS * chains)


def chain_nanoseconds() -> float:
    """Time of one multiply-add that waits for the one before, measured now in 10 us."""
    return _nanoseconds(_loop("chain"), _STEPS) / (_STEPS * _CHAIN)


def speedup(threads: int) -> float:
    """The speed-up of `threads` threads over one, in pure arithmetic, measured now.

    Virtual cores may be halves of one core, and which ones they are may change from second to
    second: two threads then do the work of one, and no program can do better.

    Args:
        threads: how many.

    Returns:
        `threads` where each has a core of its own, 1.0 where all share one.
    """
    busy = _loop("busy")
    alone = min(_nanoseconds(busy, _BUSY_STEPS) for _ in range(3))
    from statistics import median

    return median(_together(busy, threads, alone) for _ in range(3))


def _together(busy: _Loop, threads: int, alone: float) -> float:
    """Calls that as many threads make in the time of one alone; fewer if fewer can be started."""
    times: list[float] = []
    start = threading.Event()

    def work() -> None:
        start.wait()
        busy(_BUSY_STEPS // 8, 0.5)  # until all run
        times.append(_nanoseconds(busy, 4 * _BUSY_STEPS) / 4)

    team = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    started = []
    with contextlib.suppress(RuntimeError):
        for thread in team:
            thread.start()
            started.append(thread)
    start.set()
    for thread in started:
        thread.join()
    return len(started) * alone * len(times) / sum(times) if started else 1.0


@functools.cache
def _library() -> Library:
    return load_text(module_text(), ["chain", "busy"], "clock")


def module_text() -> str:
    """The loops as LLVM IR: a chain, and as many of them as keep the units full."""
    lanes = max(2, host().vector_bytes // 8)
    kind, count = f"<{lanes} x double>", host().least_accumulators + 4
    fma = f"call {kind} @llvm.fma.v{lanes}f64({kind} %a%, {kind} %x, {kind} %x)"
    parts = {
        "LINKS": "\n".join(
            f"  %v{i + 1} = call double @llvm.fma.f64(double %v{i}, double %x, double %x)"
            for i in range(_CHAIN)
        ),
        "STARTS": "\n".join(
            f"  %a{i} = phi {kind} [%x, %entry], [%b{i}, %loop]" for i in range(count)
        ),
        "STEPS": "\n".join(f"  %b{i} = {fma.replace('%a%', f'%a{i}')}" for i in range(count)),
        # All are used: LLVM would leave out the others.
        "SUMS": "\n".join(
            f"  %s{i} = fadd {kind} {f'%s{i - 1}' if i > 1 else '%b0'}, %b{i}"
            for i in range(1, count)
        ),
        "LAST_SUM": str(count - 1),
        "VECTOR": kind,
        "MASK": f"<{lanes} x i32>",
        "vLANES": f"v{lanes}",
        "LAST": str(_CHAIN),
    }
    text = _TEXT
    for name, value in parts.items():
        text = text.replace(name, value)
    return text


def _loop(name: str) -> _Loop:
    signature = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_double)
    return signature(_library().address(name))


def _nanoseconds(loop: _Loop, steps: int) -> int:
    start = time.perf_counter_ns()
    loop(steps, 0.5)
    return max(1, time.perf_counter_ns() - start)
