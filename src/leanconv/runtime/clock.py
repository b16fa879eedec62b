"""How many cycles of a core make a second, measured: estimates are in cycles."""

from __future__ import annotations

import ctypes
import functools
import time

from leanconv.codegen.compiler import load_text
from leanconv.codegen.host import host

_STEPS, _CHAIN, _TRIES = 1000, 8, 25

# A chain of multiply-adds, each of which waits for the one before it.
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
declare double @llvm.fma.f64(double, double, double)
"""


@functools.cache
def cycles_per_second() -> float:
    """Cycles that a core does in a second of dependent multiply-adds, about 1 ms of measuring.

    It is the clock under this process's load; a core that is shared or asleep gives less, so the
    fastest of several tries counts.
    """
    links = "\n".join(
        f"  %v{i + 1} = call double @llvm.fma.f64(double %v{i}, double %x, double %x)"
        for i in range(_CHAIN)
    )
    text = _TEXT.replace("LINKS", links).replace("LAST", str(_CHAIN))
    library = load_text(text, ["chain"], "clock")
    chain = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_double)(
        library.address("chain")
    )
    least = min(_seconds(chain) for _ in range(_TRIES))
    return _STEPS * _CHAIN * host().fma_latency / least


def _seconds(chain: object) -> float:
    start = time.perf_counter_ns()
    chain(_STEPS, 0.5)  # type: ignore[operator]
    return max(1, time.perf_counter_ns() - start) * 1e-9
