"""The target that plans are made for: this machine, measured once if its processor is not known.

Reading buffers of L2, L3 and DRAM takes about 0.1 s, and compiling the loops more, once. Virtual
CPUs may be halves of one core, now and then: before and after each burst a loop of multiply-adds on
registers is timed, and a burst beside which that was slow does not count. The rates are kept in
the cache folder.

What threads add is measured with the same loops (`speedup`), now and for reports alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import date

import numpy as np

from leanconv.codegen.cache import DiskCache, entries_in
from leanconv.codegen.compiler import load_text
from leanconv.codegen.emitter import Function, vector
from leanconv.codegen.host import host
from leanconv.codegen.linking import Library
from leanconv.runtime.locks import Lock
from leanconv.settings import current_settings
from leanconv.spec.format import ceil_div
from leanconv.target import PRESETS, RELATIVES, Target, preset
from leanconv.target.rates import Rates, calibrated, rates_of

_STEPS, _CHAIN = 1000, 8
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
        threads: their number.

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


log = logging.getLogger(__name__)
_VERSION = 1  # of what is measured, and how
_MB = 2**20
_MOST_BYTES = 64 * _MB  # of the largest buffer
_BURST_BYTES = 2 * _MB  # a burst reads no less
_ROUNDS = 12
_CLEAN = 1.25  # times the least time of the multiply-adds: above, the core was shared
_HELD = 0.7  # of L3's rate, which the largest buffer that L3 holds still has
_UNROLL = 12  # vectors under way: more than loads and additions wait for one another
_LINKS = 16  # of the chain whose every link takes one cycle
_TICKS = 2000
_STORE_BYTES = _MB

# Fields of a target that what is measured changes.
_MEASURED = ("costs", "fma_units", "fma_latency", "l3_bytes")

_measuring = Lock("the measurement of this processor")


def planning_target() -> Target:
    """The target of plans: `LEANCONV_TARGET`, or this machine.

    Raises:
        SpecError: there is no preset of that name.
    """
    name = current_settings().target
    return preset(name) if name else this_machine()


@functools.cache
def this_machine() -> Target:
    """The target that this process runs on, its costs measured if its processor is not known."""
    target = host()
    if is_known(target):
        return target
    with _measuring.held:
        found = recall(target)
        if found is None:
            found = _measured(target), date.today().isoformat()
            keep(target, *found)
        return calibrated(target, *found)


def is_known(target: Target) -> bool:
    """Return whether a target's processor, or a relative of it, has a record of costs."""
    return target.cpu in PRESETS or target.cpu in RELATIVES


def alike(one: Target, other: Target) -> Target:
    """The first target if both are the same but for rates that were measured, else the second."""
    measured = {name: getattr(other, name) for name in _MEASURED}
    return one if replace(one, **measured) == other else other


def measure(target: Target) -> Rates:
    """Measure the core that this thread runs on.

    DRAM is not measured where the largest buffer still fits L3.
    """
    inside, sizes = min(target.l2_bytes, _MOST_BYTES) // 2, _sizes_beyond_l2(target)
    meter = _Meter(target, max([inside, *sizes]))
    l2 = meter.rate(inside)
    beyond = {size: meter.rate(size) for size in sizes}
    best = max(beyond.values(), default=0.0)
    held = [size for size, rate in beyond.items() if rate >= _HELD * best > 0]
    largest = max(beyond, default=0)
    leaves_l3 = largest > max(held, default=0)
    return Rates(
        l2_read=l2,
        l3_read=best if held and target.l3_bytes else 0.0,
        dram_read=beyond[largest] if leaves_l3 else 0.0,
        l3_bytes=max(held, default=0) if target.l3_bytes else 0,
        fma_units=meter.fma_units,
        fma_latency=round(meter.fma_latency),
        undisturbed=min([l2, *beyond.values()]) > 0,
    )


def _sizes_beyond_l2(target: Target) -> list[int]:
    """Bytes of buffers that L2 does not hold, up to twice the L3 that is reported."""
    sizes, size = [], max(4 * target.l2_bytes, 4 * _MB)
    while size <= min(_MOST_BYTES, max(4 * _MB, 2 * target.l3_bytes)):
        sizes.append(size)
        size *= 2
    return sizes


def _measured(target: Target) -> Rates:
    """Rounded rates; none where there is no memory for the buffers."""
    try:
        return measure(target).rounded()
    except MemoryError:
        return Rates()


class _Meter:
    """Cycles, by a chain of additions, and rates of bursts beside which the core was its own."""

    def __init__(self, target: Target, most_bytes: int) -> None:
        library = load_text(
            _text(target.vector_bytes // 4), ["read_buffer", "tick_chain"], "calibration"
        )
        self._library = library  # its code stays while this does
        word, place = ctypes.c_int64, ctypes.c_void_p
        self._read: Callable[..., None] = ctypes.CFUNCTYPE(None, place, word, word, place)(
            library.address("read_buffer")
        )
        ticks = ctypes.CFUNCTYPE(word, word, word)(library.address("tick_chain"))
        self._step_bytes = _UNROLL * target.vector_bytes
        self._buffer = np.ones(most_bytes // 4, np.float32)
        self._sums = np.zeros(self._step_bytes // 4, np.float32)
        least = min(_timed(lambda: ticks(_TICKS, 3)) for _ in range(9))
        self._cycle_ns = least / (_TICKS * _LINKS)
        self._least_busy = min(_busy() for _ in range(9))
        self.fma_units = self._cycle_ns / self._least_busy
        self.fma_latency = min(chain_nanoseconds() for _ in range(9)) / self._cycle_ns

    def rate(self, size: int) -> float:
        """Bytes a cycle of reading a buffer again and again; 0 if the core was never its own."""
        steps = size // self._step_bytes
        passes = ceil_div(_BURST_BYTES, size)
        places = self._buffer.ctypes.data, self._sums.ctypes.data
        self._read(places[0], steps, 1, places[1])
        clean = []
        rounds = _ROUNDS if size <= 8 * _MB else _ROUNDS // 2
        for _ in range(rounds):
            before = _busy()
            taken = _timed(lambda: self._read(places[0], steps, passes, places[1]))
            after = _busy()
            self._least_busy = min(self._least_busy, before, after)
            if max(before, after) <= _CLEAN * self._least_busy:
                clean.append(taken)
        if not clean:
            return 0.0
        return passes * steps * self._step_bytes / (min(clean) / self._cycle_ns)


def _busy() -> float:
    return min(busy_nanoseconds(), busy_nanoseconds())


def _timed(call: Callable[[], object]) -> int:
    begin = time.perf_counter_ns()
    call()
    return max(1, time.perf_counter_ns() - begin)


def _text(lanes: int) -> str:
    """`read_buffer`: passes over a buffer; `tick_chain`: a chain whose links take a cycle each."""
    e = Function(
        "read_buffer", [("x", "ptr"), ("steps", "i64"), ("passes", "i64"), ("sums", "ptr")]
    )
    _, steps, passes, _ = e.arguments
    x, out = e.address(0, "float"), e.address(3, "float")
    kind = vector("float", lanes)
    sums = [e.zero(kind) for _ in range(_UNROLL)]
    with e.loop("pass", passes, [sums]), e.loop("step", steps, [sums]) as step:
        for i in range(_UNROLL):
            place = step * (_UNROLL * lanes) + i * lanes
            sums[i] = sums[i] + e.load(x.at(place), kind)
    for i, total in enumerate(sums):
        e.store(total, out.at(i * lanes))
    t = Function("tick_chain", [("count", "i64"), ("y", "i64")], returns="i64")
    count, y = t.arguments
    links = [y]
    with t.loop("tick", count, [links]):
        for i in range(_LINKS):
            links[0] = links[0] + y if i % 2 else links[0] ^ y
    return e.finish() + t.finish(links[0])


# -- what is kept -----------------------------------------------------------------------------
def recall(target: Target) -> tuple[Rates, str] | None:
    """The rates that were measured here, and when; None if none are kept."""
    body = _store().get(_key(target))
    if body is None:
        return None
    try:
        found = json.loads(body)
        return rates_of(found["rates"]), date.fromisoformat(found["date"]).isoformat()
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def keep(target: Target, rates: Rates, day: str) -> None:
    """Keep rates for later processes; where the core was disturbed, they measure anew."""
    log.info("measured %s: %s", target.cpu, rates)
    if rates.undisturbed:
        _store().put(_key(target), json.dumps({"rates": asdict(rates), "date": day}).encode())


def _store() -> DiskCache:
    return entries_in("machine", _STORE_BYTES)


def _key(target: Target) -> str:
    facts = target.cpu, target.features, target.l1_bytes, target.l2_bytes, target.l3_bytes
    return hashlib.sha256(repr((_VERSION, facts)).encode()).hexdigest()[:40]
