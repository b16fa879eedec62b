"""Direct convolution as it is written: seven loops and a scalar multiply-add.

    for n, k, od, oh, ow:  for c, kd, kh, kw:
        y[n, k, od, oh, ow] += x[n, c, od·sd + kd·dd - pd, …] · w[k, c, kd, kh, kw]

Algorithm 1 of the im2win thesis, the baseline of everybody's tables. Over a tensor that im2win has
unfolded it is the thesis' algorithm 4. Taps in the padding are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from leanconv.algorithms.common.conv import GroupedConv, Taps
from leanconv.algorithms.interface import Algorithm, Candidate, one_kernel_candidate
from leanconv.algorithms.parameters import Choice, Parameters
from leanconv.algorithms.problem import Problem, sum_error
from leanconv.codegen.activations import finish
from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.codegen.geometry import Access
from leanconv.codegen.microkernel import channel_address, load_channels, start_vectors
from leanconv.records import dataclass
from leanconv.target import Target


def channel_offset(access: Access, c: Value) -> Value:
    """Offset of a channel that is known at run time only."""
    if access.block == 1:
        return c * access.block_stride
    return c // access.block * access.block_stride + c % access.block


@dataclass(frozen=True)
class NaiveConv(GroupedConv):
    """One convolution's code; weights are read as they are given."""

    VARIES = True

    @property
    def grid(self) -> tuple[int, ...]:
        """Rows of output."""
        conv = self.conv
        return conv.batch, conv.groups, conv.outputs, *conv.window.out[:2]

    def emit(self, target: Target) -> str:
        """Emit the seven loops."""
        conv, e, element = self.conv, Function(self.NAME), self.conv.dtype.llvm
        pointers = self.addresses(e)
        width = conv.window.out[2]
        steps = self.reduction
        with e.chunks(*self.grid) as (n, g, j, od, oh):
            k = g * conv.outputs + j
            row = n * conv.y.image + channel_offset(conv.y, k) + conv.y_offset
            row = row + od * conv.y.spatial[0] + oh * conv.y.spatial[1]
            c = g * conv.inputs
            start = n * conv.x.image + channel_offset(conv.x, c)
            with e.loop("ow", width) as ow:
                acc = start_vectors(e, element, channel_address(pointers, "bias", k))
                taps = [Taps(e, conv.window, a, o) for a, o in enumerate((od, oh, ow))]
                place = start
                for axis, tap in enumerate(taps):
                    place = place + tap.start * conv.x.spatial[axis]
                x, w = pointers["x"].at(place), pointers["w"].at(k * steps)
                with taps[0].guard(e, acc), taps[1].guard(e, acc), taps[2].guard(e, acc):
                    self._sum(e, x, w, taps, acc)
                out = row + ow * conv.y.spatial[2]
                residual = None
                if "residual" in pointers:
                    residual = e.load(pointers["residual"].at(out))
                slope = load_channels(e, element, channel_address(pointers, "slope", k))
                value = finish(e, acc[0], conv.epilogue.activation, slope, residual)
                e.store(value, pointers["y"].at(out))
        return e.finish()

    def _sum(self, e: Function, x: Pointer, w: Pointer, taps: list[Taps], acc: list[Value]) -> None:
        """Emit the loops over c, kd, kh, kw."""
        conv = self.conv
        kd, kh, kw = conv.window.kernel
        steps = (kh * kw, kw, 1)
        with e.loop("c", conv.inputs, [acc]) as c:
            a = x.at(channel_offset(conv.x, c))
            b = w.at(c * (kd * steps[0]))
            with self._tap(e, 0, taps, acc, steps) as (d, wd):
                with self._tap(e, 1, taps, acc, steps) as (h, wh):
                    with self._tap(e, 2, taps, acc, steps) as (v, wv):
                        left = e.load(a.at(d + h + v))
                        right = e.load(b.at(wd + wh + wv))
                        acc[0] = e.fma(left, right, acc[0])

    @contextmanager
    def _tap(
        self, e: Function, axis: int, taps: list[Taps], acc: list[Value], steps: tuple[int, ...]
    ) -> Iterator[tuple[Value, Value]]:
        stride = self.conv.window.dilation[axis] * self.conv.x.spatial[axis]
        loop = taps[axis].loop(f"k{axis}", stride, steps[axis])
        with e.loop(loop.label, loop.extent, [acc], start=loop.start) as index:
            yield index * loop.a_stride, index * loop.b_stride


def naive(problem: Problem) -> NaiveConv:
    """The seven loops over the input itself."""
    return NaiveConv(problem.conv)


def _reject(problem: Problem, target: Target) -> str | None:
    del target
    return "the input is a part of a tensor" if problem.conv.x_offset else None


def _cost(problem: Problem, target: Target) -> float:
    """One multiply-add after the other: each waits for the one before."""
    return problem.conv.flops / 2 * (target.fma_latency + 1 / target.costs.loads_per_cycle)


def _candidate(problem: Problem, target: Target, parameters: Parameters) -> Candidate:
    del target, parameters
    choice = Choice("naive", error=sum_error(problem))
    return one_kernel_candidate(choice, problem, naive(problem))


NAIVE = Algorithm("naive", Parameters, _reject, _cost, _candidate, automatic=False)
