"""The layout of an im2win tensor, and the strides by which its windows are read."""

from __future__ import annotations

from leanconv.algorithms.problem import Problem
from leanconv.algorithms.unfold.candidates import UnfoldedView
from leanconv.algorithms.unfold.unfolding import Unfolding
from leanconv.codegen.geometry import Access, Triple, Window
from leanconv.records import dataclass

# One axis of a window: size, outputs, taps, stride, dilation, padding.
_Axis = tuple[int, int, int, int, int, int]


def transformed_elements(problem: Problem) -> int:
    """Elements of I^: n · c · d · oh · iw · kh; none if it is not made."""
    conv = problem.conv
    if not transforms(problem):
        return 0
    window = conv.window
    depth, _, width = window.size
    positions = conv.batch * depth * window.out[1] * width
    return positions * window.kernel[1] * conv.in_channels


def transforms(problem: Problem) -> bool:
    """Return whether windows of neighbouring rows overlap; if not, I^ gains nothing."""
    return problem.conv.window.kernel[1] > problem.conv.window.stride[1]


@dataclass(frozen=True)
class Layout:
    """Strides of I^ for one image and group: `rows` output rows of `depth` planes.

    Attributes:
        problem: the convolution.
        depth: planes stored: the input's, or the taps of one output plane.
        rows: output rows stored.
        channels_innermost: whether channels are made innermost where they are not in x: a window
            is one long run then, where the thesis has one short run for each channel.
    """

    problem: Problem
    depth: int
    rows: int
    channels_innermost: bool = False

    @property
    def interleaved(self) -> bool:
        """True if channels are innermost."""
        return self.channels_innermost or self.problem.conv.x.lanes_contiguous

    @property
    def column(self) -> int:
        """Elements between columns."""
        taps = self.problem.conv.window.kernel[1]
        return taps * self.problem.conv.inputs if self.interleaved else taps

    @property
    def tap(self) -> int:
        """Elements between the taps of a column."""
        return self.problem.conv.inputs if self.interleaved else 1

    @property
    def row(self) -> int:
        """Elements between output rows."""
        return self.problem.conv.window.size[2] * self.column

    @property
    def plane(self) -> int:
        """Elements between planes."""
        return self.rows * self.row

    @property
    def channel(self) -> int:
        """Elements between channels."""
        return 1 if self.interleaved else self.depth * self.plane

    @property
    def elements(self) -> int:
        """Elements of one image and group."""
        return self.depth * self.plane * (1 if self.interleaved else self.problem.conv.inputs)

    @property
    def image(self) -> int:
        """Elements between images; their groups follow each other."""
        return self.elements * self.problem.conv.groups

    def unfolding(self, lanes: int, block: bool) -> Unfolding:
        """Algorithm 2; in a block the depth is unfolded too: the planes of one output plane."""
        conv = self.problem.conv
        position = (0 if block else self.plane, self.row, self.column)
        return Unfolding(
            conv.window,
            conv.x,
            conv.inputs,
            (block, True, False),
            self.channel,
            position,
            (self.plane if block else 0, self.tap, 0),
            conv.dtype,
            lanes,
        )

    def _depth_axis(self, block: bool) -> _Axis:
        """Size, outputs, taps, stride, dilation and padding along the depth."""
        w = self.problem.conv.window
        if block:
            return w.kernel[0], 1, w.kernel[0], 1, 1, 0
        return w.size[0], w.out[0], w.kernel[0], w.stride[0], w.dilation[0], w.pad[0]

    def _width_axis(self, folded: bool) -> _Axis:
        w = self.problem.conv.window
        if folded:  # a window is one run
            return w.out[2], w.out[2], 1, 1, 1, 0
        return w.size[2], w.out[2], w.kernel[2], w.stride[2], w.dilation[2], w.pad[2]

    def view(self, block: bool = False) -> UnfoldedView:
        """Windows as runs: (c, v, u) in planes, (v, u, c) where channels are innermost.

        Where columns are padded or dilated a run is one column of a window: v is outside.
        """
        window, inputs = self.problem.conv.window, self.problem.conv.inputs
        whole = window.always_full(2) and window.pad[2] == 0  # less: columns that are left out
        folded = whole and window.dilation[2] == 1
        step = window.stride[2] * self.column if folded else self.column
        run = self.column * (window.kernel[2] if folded else 1)
        axes = (self._depth_axis(block), self._rows_axis, self._width_axis(folded))
        spatial = (self.plane, self.row, step)
        if self.interleaved:
            x, steps = Access(self.image, run, self.elements, spatial), run
            order = (4, 3, 1, 2) if folded else (3, 1, 2, 4)
        else:
            x, steps = Access(self.image, run, self.channel, spatial), inputs * run
            order = (1, 4, 3, 2) if folded else (1, 3, 2, 4)
        return UnfoldedView(_window(axes), x, steps, order)

    def written(self) -> UnfoldedView:
        """Windows as they are in x: taps u and v, and channels innermost."""
        axes = (self._depth_axis(False), self._taps_axis, self._width_axis(False))
        spatial = (self.plane, 1, self.column)
        if self.interleaved:
            x = Access(self.image, self.problem.conv.inputs, self.elements, spatial)
        else:
            x = Access(self.image, 1, self.channel, spatial)
        return UnfoldedView(_window(axes), x, self.problem.conv.inputs, (1, 2, 3, 4))

    def dots(self) -> UnfoldedView:
        """Windows as runs of pieces, one for each column; the loop over c is the outermost."""
        axes = (
            self._depth_axis(False),
            self._rows_axis,
            self._width_axis(False),
        )
        spatial = (self.plane, self.row, self.column)
        if self.interleaved:
            x, inputs, order = Access(self.image, 1, self.elements, spatial), 1, (2, 4, 3, 1)
        else:
            x = Access(self.image, 1, self.channel, spatial)
            inputs, order = self.problem.conv.inputs, (1, 2, 4, 3)
        return UnfoldedView(_window(axes), x, inputs, order)

    @property
    def _rows_axis(self) -> _Axis:
        """Output rows, each of which holds its taps."""
        return self.rows, self.rows, 1, 1, 1, 0

    @property
    def _taps_axis(self) -> _Axis:
        """Output rows and their taps, as an axis counted in elements."""
        taps = self.problem.conv.window.kernel[1]
        last = (self.rows - 1) * self.row + (taps - 1) * self.tap
        return last + 1, self.rows, taps, self.row, self.tap, 0


def _window(axes: tuple[_Axis, _Axis, _Axis]) -> Window:
    def each(part: int) -> Triple:
        d, h, w = (axis[part] for axis in axes)
        return d, h, w

    return Window(each(0), each(1), each(2), each(3), each(4), each(5))
