"""The gradient of weights as it is written: a scalar multiply-add for each product.

    for k, c, kd, kh, kw:  for n, od, oh, ow:
        dw[k, c, kd, kh, kw] += dy[n, k, od, oh, ow] · x[n, c, od·sd + kd·dd - pd, …]

Products with padding are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from leanconv.algorithms.common.conv import Conv
from leanconv.algorithms.interface import Algorithm, Candidate, KernelUse
from leanconv.algorithms.naive import channel_offset
from leanconv.algorithms.parameters import Choice, Parameters
from leanconv.algorithms.problem import Problem, sum_error
from leanconv.codegen.emitter import Function, Value
from leanconv.codegen.geometry import Window
from leanconv.codegen.kernel import Kernel
from leanconv.records import dataclass
from leanconv.target import Target


class TapOutputs:
    """The outputs along an axis at which a tap touches the input.

    Attributes:
        shift: input position of the tap at output 0, negative in the padding.
        low, high: the first output, and one past the last; no more than `low` where there is none.
    """

    def __init__(self, e: Function, window: Window, axis: int, tap: Value) -> None:
        stride = window.stride[axis]
        self.shift = tap * window.dilation[axis] - window.pad[axis]
        self.low = e.smax(0 - self.shift + (stride - 1), 0) // stride
        above = e.smax(e.i64(window.size[axis]) - 1 - self.shift + stride, 0) // stride
        self.high = e.smin(above, window.out[axis])


@dataclass(frozen=True)
class GradientKernel(Kernel):
    """A kernel that makes dw from x and dy.

    Attributes:
        conv: the convolution; `conv.y` says where dy lies.
    """

    conv: Conv

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, gradient of the output, gradient of the weights."""
        return ("x", "dy", "dw")

    @property
    def flops(self) -> int:
        """Operations of the plain sums, padding counted."""
        return self.conv.flops


@dataclass(frozen=True)
class NaiveGradient(GradientKernel):
    """All sums, one for each weight."""

    VARIES = True

    @property
    def grid(self) -> tuple[int, ...]:
        """Weights of a tap."""
        return self.conv.groups, self.conv.outputs, self.conv.inputs

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, taps, images, outputs."""
        del target
        conv, e, element = self.conv, Function(self.NAME), self.conv.dtype.llvm
        x, dy, dw = (e.pointer(number, element) for number in range(3))
        kd, kh, kw = conv.window.kernel
        with e.chunks(*self.grid) as (g, j, c):
            k = g * conv.outputs + j
            sources = x.at(channel_offset(conv.x, g * conv.inputs + c))
            factors = dy.at(channel_offset(conv.y, k))
            result = dw.at((k * conv.inputs + c) * (kd * kh * kw))
            with e.loop("kd", kd) as d, e.loop("kh", kh) as h, e.loop("kw", kw) as v:
                taps = [TapOutputs(e, conv.window, axis, t) for axis, t in enumerate((d, h, v))]
                acc = [e.zero(element)]
                there = taps[0].low.compare("slt", taps[0].high)
                for tap in taps[1:]:
                    there = there & tap.low.compare("slt", tap.high)
                with e.when(there, [acc]), e.loop("image", conv.batch, [acc]) as n:
                    with self._outputs(e, taps, acc) as (source, factor):
                        left = e.load(sources.at(n * conv.x.image + source))
                        right = e.load(factors.at(n * conv.y.image + factor))
                        acc[0] = e.fma(left, right, acc[0])
                e.store(acc[0], result.at((d * kh + h) * kw + v))
        return e.finish()

    @contextmanager
    def _outputs(
        self, e: Function, taps: list[TapOutputs], acc: list[Value]
    ) -> Iterator[tuple[Value, Value]]:
        """The outputs of the taps: where x and dy lie."""
        conv, window = self.conv, self.conv.window
        source, factor = e.i64(0), e.i64(0)
        with ExitStack() as loops:
            for axis, tap in enumerate(taps):
                loop = e.loop(f"o{axis}", tap.high, [acc], start=tap.low)
                o = loops.enter_context(loop)
                at = o * window.stride[axis] + tap.shift
                source = source + at * conv.x.spatial[axis]
                factor = factor + o * conv.y.spatial[axis]
            yield source, factor


def _reject(problem: Problem, target: Target) -> str | None:
    del problem, target
    return None


def _cost(problem: Problem, target: Target) -> float:
    """One multiply-add after the other: each waits for the one before."""
    return problem.conv.flops / 2 * (target.fma_latency + 1 / target.costs.loads_per_cycle)


def _candidate(problem: Problem, target: Target, parameters: Parameters) -> Candidate:
    del target, parameters
    kernel = NaiveGradient(problem.conv)
    choice = Choice("naive", error=sum_error(problem))
    return Candidate(choice, (KernelUse(kernel, kernel.operands),))


NAIVE = Algorithm("naive", Parameters, _reject, _cost, _candidate, automatic=False)
