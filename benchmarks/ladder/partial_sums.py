"""The report's future work (section 5.2): channels of a 1 x 1 convolution go to several threads.

The report has C threads of one product each and a reduction of log C steps; its price is memory for
the results in between and more accesses. Here each of `parts` items sums a part of the channels.
"""

from __future__ import annotations

from ladder.kernels import GENERATOR, RELU6, Items, Plane, along
from leanconv.codegen.activations import apply
from leanconv.codegen.emitter import Function, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.target import Target
from leanconv.types import DType


@dataclass(frozen=True)
class ItemPart(Kernel):
    """Sums of parts of the input channels: one item for each pixel, output channel and part.

    Attributes:
        x: the input.
        y: the sums; the channels of part 0, then those of part 1 and so on.
        parts: of the input channels; the last one may be shorter.
        dtype, items: as of the other kernels.
    """

    x: Plane
    y: Plane
    parts: int
    dtype: DType
    items: Items
    generator: str = GENERATOR

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, weights (K, C), sums."""
        return ("x", "w", "y")

    @property
    def outputs(self) -> int:
        """Output channels of the convolution."""
        return self.y.channels // self.parts

    @property
    def chunks(self) -> int:
        """Blocks of items, for each output channel and part."""
        down, right = self._blocks
        return down * right * self.y.channels

    @property
    def flops(self) -> int:
        """Two for each product."""
        return 2 * self.outputs * self.y.height * self.y.width * self.x.channels

    @property
    def _blocks(self) -> tuple[int, int]:
        return ceil_div(self.y.height, self.items.block), ceil_div(self.y.width, self.items.block)

    def emit(self, target: Target) -> str:
        """Emit: for each part, channel and block, for each vector of items, a sum."""
        del target
        e, element = Function(self.NAME), self.dtype.llvm
        x, w, y = (e.pointer(i, element) for i in range(3))
        each = ceil_div(self.x.channels, self.parts)
        kind = vector(element, self.items.lanes)
        with e.chunks(self.parts, self.outputs, *self._blocks) as (part, k, by, bx):
            first = e.smin(part * each, self.x.channels)
            last = e.smin(first + each, self.x.channels)
            with e.loop("vector", self.items.vectors) as number:
                oy, ox = self.items.place(number, by, bx)
                rows, columns = self.y.height - oy, self.y.width - ox
                with e.when(rows.compare("sgt", 0) & columns.compare("sgt", 0)):
                    mask = self.items.mask(e, rows, columns)
                    at = x.at(oy * self.x.row + ox + self.x.first())
                    result = y.at((part * self.outputs + k) * self.y.size + oy * self.y.row + ox)
                    self.items.store(e, e.zero(kind), result, element, self.y.row, mask)
                    with e.when(first.compare("ult", last)):
                        acc = [e.zero(kind)]
                        with e.loop("c", last, [acc], start=first) as c:
                            place = at.at(c * self.x.size)
                            left = self.items.load(e, place, element, self.x.row, 1, mask)
                            right = e.broadcast(w.at(k * self.x.channels + c), kind)
                            acc[0] = e.fma(left, right, acc[0])
                        self.items.store(e, acc[0], result, element, self.y.row, mask)
        return e.finish()


@dataclass(frozen=True)
class TreeSum(Kernel):
    """The sums of all parts, added in a tree; then bias and ReLU6.

    Attributes:
        x: the sums, as `ItemPart` leaves them.
        y: the output.
        clip: whether ReLU6 follows.
        dtype, lanes: as of the other kernels.
    """

    x: Plane
    y: Plane
    clip: bool
    dtype: DType
    lanes: int
    generator: str = GENERATOR

    @property
    def operands(self) -> tuple[str, ...]:
        """Sums, bias, output."""
        return ("x", "bias", "y")

    @property
    def chunks(self) -> int:
        """Rows of all channels."""
        return self.y.channels * self.y.height

    def emit(self, target: Target) -> str:
        """Emit: for each row, vectors and single elements."""
        del target
        e, element = Function(self.NAME), self.dtype.llvm
        x, bias, y = (e.pointer(i, element) for i in range(3))
        parts = self.x.channels // self.y.channels
        with e.chunks(self.y.channels, self.y.height) as (k, h):
            result = y.at(k * self.y.size + h * self.y.row + self.y.first())

            def add(i: Value, kind: str) -> None:
                row = h * self.x.row + i
                terms = [
                    e.load(x.at((k + p * self.y.channels) * self.x.size + row), kind)
                    for p in range(parts)
                ]
                while len(terms) > 1:
                    pairs = zip(terms[::2], terms[1::2], strict=False)
                    odd = terms[-1:] if len(terms) % 2 else []
                    terms = [a + b for a, b in pairs] + odd
                start = e.load(bias.at(k)) if kind == element else e.broadcast(bias.at(k), kind)
                value = apply(e, terms[0] + start, RELU6 if self.clip else None)
                e.store(value, result.at(i))

            along(e, self.y.width, self.lanes, element, add)
        return e.finish()
