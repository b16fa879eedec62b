"""Strides of a tensor's elements, and the taps of a window that touch the input."""

from __future__ import annotations

from math import prod

from leanconv.codegen.values import Value
from leanconv.records import dataclass
from leanconv.spec import PLAIN, Format
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Extent, Sizes, Strides


def floor_sum(count: int, step: int, start: int, divisor: int) -> int:
    """The sum of `(start + i * step) // divisor` for i < count, in steps like Euclid's algorithm.

    Args:
        count, step, start: not negative.
        divisor: positive.
    """
    total = 0
    while count > 0:
        total += count * (count - 1) // 2 * (step // divisor) + count * (start // divisor)
        step, start = step % divisor, start % divisor
        # Points below the line, counted along the other axis: quotients become positions.
        last = step * count + start
        count, start, step, divisor = last // divisor, last % divisor, divisor, step
    return total


def residues_below(count: int, step: int, start: int, divisor: int, bound: int) -> int:
    """Count the `(start + i * step) % divisor`, i < count, that are less than `bound`.

    Args:
        count, step: not negative.
        start: of any sign.
        divisor: positive.
        bound: from 0 to `divisor`.
    """
    start %= divisor
    above = floor_sum(count, step, start + divisor, divisor)
    return above - floor_sum(count, step, start + divisor - bound, divisor)


def first_residue_below(count: int, step: int, start: int, divisor: int, bound: int) -> int:
    """The least i with `(start + i * step) % divisor < bound`; `count` if none is less than that.

    Args:
        count, step, start, divisor, bound: as of `residues_below`.
    """
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if residues_below(middle + 1, step, start, divisor, bound):
            high = middle
        else:
            low = middle + 1
    return low


Triple = tuple[int, int, int]


def triple(values: tuple[int, ...], fill: int) -> Triple:
    """Extend a spatial tuple of one or two axes to (d, h, w)."""
    d, h, w = (fill,) * (3 - len(values)) + values
    return d, h, w


@dataclass(frozen=True)
class Access:
    """Addresses of a tensor with axes (image, channel, d, h, w), strides in elements.

    The offset of element (n, c, d, h, w) is
    `n*image + c//block*block_stride + c%block + d*spatial[0] + h*spatial[1] + w*spatial[2]`;
    a block of one channel means a plain layout whose channels are `block_stride` apart.
    """

    image: Extent
    block: int
    block_stride: Extent
    spatial: Strides

    @property
    def lanes_contiguous(self) -> bool:
        """True if a vector of channels can be loaded at once."""
        return self.block > 1 or self.block_stride == 1

    def channel(self, c: int) -> int:
        """Offset of a channel."""
        return c // self.block * self.block_stride + c % self.block

    def panel(self, index: Value, channels: int) -> Value:
        """Offset of a panel of channels, by its index."""
        return index * self.channel(channels)

    def positions(self, channels: int) -> int:
        """Positions (d, h, w) of a whole image of that many channels."""
        return self.image // (ceil_div(channels, self.block) * self.block)

    @staticmethod
    def of_format(shape: tuple[int, ...], form: Format) -> Access:
        """Access of a tensor (N, C, spatial…)."""
        channels, size = shape[1], triple(shape[2:], 1)
        if form.order == "NHWC":
            c, (d, h, w) = channels, size
            return Access(c * d * h * w, 1, 1, (c * h * w, c * w, c))
        block = form.block or 1
        h, w = size[1], size[2]
        spatial = (h * w * block, w * block, block)
        volume = prod(size) * block
        return Access(ceil_div(channels, block) * volume, block, volume, spatial)

    @staticmethod
    def planes(shape: tuple[int, ...]) -> Access:
        """Access of a plain tensor (N, C, spatial…)."""
        return Access.of_format(shape, PLAIN)


@dataclass(frozen=True)
class PhasedAccess(Access):
    """Addresses of all phases of a transposed convolution, each phase as channels of its own.

    Its channels are [block of channels][phase row][phase column][channel of the block]. Its pixels
    are the input's: `spatial` leads from one to the next of the same phase.

    Attributes:
        phases: rows and columns of phases.
        row: elements from one row of the output, a row of phases, to the next.
        column: elements from one column of the output to the next.
    """

    phases: tuple[int, int]
    row: Extent
    column: int

    @property
    def phase_count(self) -> int:
        """Phases of a channel."""
        return self.phases[0] * self.phases[1]

    @property
    def interleaves(self) -> bool:
        """True if the columns of a row of phases, in planes, make one run without gaps."""
        across = self.phases[1]
        return self.block == self.column == 1 < across and self.spatial[2] == across

    def channel(self, c: int) -> int:
        """Offset of a channel."""
        number, lane = divmod(c, self.block)
        block, phase = divmod(number, self.phase_count)
        row, column = divmod(phase, self.phases[1])
        return block * self.block_stride + row * self.row + column * self.column + lane

    def takes_panels(self, channels: int) -> bool:
        """Return whether all panels of that many channels have the places of the first, moved."""
        blocks, rest = divmod(channels, self.block)
        whole, across = self.phase_count, self.phases[1]
        in_rows = blocks % across == 0 and whole % blocks == 0
        return not rest and (blocks % whole == 0 or across % blocks == 0 or in_rows)

    def panel(self, index: Value, channels: int) -> Value:
        """Offset of a panel of channels."""
        blocks = channels // self.block
        if blocks % self.phase_count == 0:
            return index * self.channel(channels)
        number = index * blocks
        phase = number % self.phase_count
        first = number // self.phase_count * self.block_stride
        across = self.phases[1]
        return first + phase // across * self.row + phase % across * self.column


@dataclass(frozen=True)
class TapAccess(PhasedAccess):
    """Addresses of a transposed convolution in planes whose windows do not overlap: lanes are taps.

    Its channels are [output][block along the height][block along a row][lane], and a block has some
    rows of taps, or a part of one; lanes beyond them are stored nowhere.

    Attributes:
        taps: of the kernel, along height and width.
        rows: of taps in a block; more than one only where a block holds them whole.
    """

    taps: tuple[int, int]
    rows: int

    def pieces(self, number: int) -> list[tuple[int, int, Extent]]:
        """Return what a block of a panel stores: first lane, lanes, offset from its channel."""
        (height, width), (down, across) = self.taps, self.phases
        place, part = divmod(number, across)
        live = min(self.block, width - part * self.block)
        rows = min(self.rows, height - place % down * self.rows)
        return [(r * width, live, r * (self.row // self.rows)) for r in range(rows)]

    @property
    def alike(self) -> int:
        """Blocks of which a panel has a multiple, so that all panels store alike."""
        if self.taps[0] % self.rows:
            return self.phase_count
        return self.phases[1] if self.rows * self.taps[1] % self.block else 1

    def takes_panels(self, channels: int) -> bool:
        """Return whether all panels store alike: they have whole rows of blocks, or outputs."""
        return super().takes_panels(channels) and channels // self.block % self.alike == 0


@dataclass(frozen=True)
class Window:
    """The sliding window along (d, h, w); `pad` is the padding before, and may be negative."""

    size: Sizes
    out: Sizes
    kernel: Triple
    stride: Triple
    dilation: Triple
    pad: Triple

    def taps(self, axis: int, o: int) -> tuple[int, int]:
        """First tap, and one past the last, that touch the input at output position `o`."""
        start = o * self.stride[axis] - self.pad[axis]
        step = self.dilation[axis]
        low = max(0, ceil_div(-start, step))
        high = min(self.kernel[axis], (self.size[axis] - 1 - start) // step + 1)
        return low, max(low, high)

    def full(self, axis: int) -> tuple[int, int]:
        """First output position at which every tap touches the input, and one past the last.

        The two are equal where there is no such position; both are then at most `out[axis]`.
        """
        step, out = self.stride[axis], self.out[axis]
        reach = (self.kernel[axis] - 1) * self.dilation[axis]
        first = min(out, max(0, ceil_div(self.pad[axis], step)))
        past = (self.size[axis] - 1 - reach + self.pad[axis]) // step + 1
        return first, max(first, min(out, past))

    def always_full(self, axis: int) -> bool:
        """Return whether every tap touches the input at every output position."""
        return self.pad[axis] <= 0 and self.full(axis) == (0, self.out[axis])

    @property
    def is_pointwise(self) -> bool:
        """True if output position o is input position o times one weight, at all positions.

        One tap, stride 1 and no padding before are not enough: padding behind shows
        only in an output that is larger than the input.
        """
        steps = self.kernel == (1, 1, 1) == self.stride and self.pad == (0, 0, 0)
        return steps and self.out == self.size

    @property
    def is_flat(self) -> bool:
        """True if the depth axis is one position that its one tap touches: an image of two axes."""
        one = self.size[0] == self.kernel[0] == self.out[0] == 1
        return one and self.always_full(0)

    def sometimes_empty(self, axis: int) -> bool:
        """Return whether no tap touches the input at some output position."""
        size, step, apart = self.size[axis], self.stride[axis], self.dilation[axis]
        reach = (self.kernel[axis] - 1) * apart
        start = -self.pad[axis]
        last = start + (self.out[axis] - 1) * step
        if start + reach < 0 or last >= size:
            return True
        if apart <= size:
            return False
        # Taps on both sides and none inside: the first one not before the input is beyond its end.
        before = min(self.out[axis], ceil_div(-start, step))
        return residues_below(before, step, start, apart, size) < before

    def live_taps(self, axis: int) -> int:
        """The number of taps that touch the input, over all output positions."""
        pad = self.pad[axis]
        return self._taps_before(axis, self.size[axis] + pad) - self._taps_before(axis, pad)

    def _taps_before(self, axis: int, end: int) -> int:
        """Taps before `end`, counted from tap 0 of position 0, over all output positions."""
        if end <= 0:
            return 0
        out, kernel = self.out[axis], self.kernel[axis]
        step, apart = self.stride[axis], self.dilation[axis]
        whole = min(out, max(0, (end - 1 - (kernel - 1) * apart) // step + 1))
        some = min(out, (end - 1) // step + 1)
        last = end - 1 - (some - 1) * step
        return whole * kernel + floor_sum(some - whole, step, last + apart, apart)

    def most_taps(self, axis: int) -> int:
        """The most taps that touch the input at one output position."""
        out, step, apart = self.out[axis], self.stride[axis], self.dilation[axis]
        size, start = self.size[axis], -self.pad[axis]
        before = min(out, max(0, ceil_div(-start, step)))  # positions whose tap 0 is before it
        # While the last tap does not reach the end, fewer are before the input from one to the
        # next; once tap 0 is inside, more are beyond its end.
        slack = size - 1 - (self.kernel[axis] - 1) * apart - start
        growing = min(before, max(0, slack // step + 1))
        ends = [growing - 1] if growing else []
        ends += [before] if before < out else []
        most = max((high - low for low, high in (self.taps(axis, o) for o in ends)), default=0)
        if growing < before:  # taps on both sides of the input
            whole, rest = divmod(size, apart)
            first = start + growing * step
            more = residues_below(before - growing, step, first, apart, rest) > 0
            most = max(most, whole + more)
        return most
