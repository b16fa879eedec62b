"""Strips of pixels, copied from every layout, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leanconv.algorithms.weight_gradient.strips import StripCopy
from leanconv.codegen.emitter import Function, vector
from leanconv.codegen.geometry import Access
from leanconv.codegen.kernel import Kernel
from leanconv.records import dataclass
from leanconv.spec import NHWC, PLAIN, Format
from leanconv.symbolic import Extent
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64, DType
from support import gradients
from support.kernel_runner import run_kernel


@dataclass(frozen=True)
class Copied(Kernel):
    """Each row of an image as a strip, for each part of `channels` channels."""

    access: Access
    dtype: DType
    rows: Extent
    size: Extent
    parts: int
    channels: int
    width: int
    first: int
    columns: Extent
    step: int

    VARIES = True

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "y")

    @property
    def grid(self) -> tuple[int, ...]:
        return self.parts, self.rows

    def emit(self, target: Target) -> str:
        e, element = Function(self.NAME), self.dtype.llvm
        x, y = e.pointer(0, element), e.pointer(1, element)
        kind = vector(element, target.lanes(self.dtype))
        copy = StripCopy(
            e,
            target,
            self.access,
            kind,
            self.channels,
            self.width,
            step=self.step,
            grain=self.channels,
        )
        with e.chunks(*self.grid) as (part, row):
            # One row more, which no image has.
            copy.row(
                x.at(row * self.access.spatial[1]),
                y.at((part * self.rows + row) * (self.columns * self.width)),
                part * self.channels,
                first=self.first,
                columns=self.columns,
                size=self.size,
                inside=row.compare("ne", 1),
            )
        return e.finish()


@pytest.mark.parametrize("name", ["host", "haswell", "neoverse-n1"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_strips(name: str, data: st.DataObject) -> None:
    """Columns in the padding and rows outside are zeros, and so are elements beyond the channels.

    Tensors and strips lie between guards, so that nothing beyond them is read or written.
    """
    target = preset(name) if name != "host" else None
    dtype = data.draw(st.sampled_from([FLOAT32, FLOAT64]))
    parts, rows = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 3))
    channels = data.draw(st.one_of(st.integers(1, 9), st.sampled_from([16, 17, 33, 48])))
    size = data.draw(st.one_of(st.integers(1, 40), st.sampled_from([48, 64, 65])))
    form = data.draw(st.sampled_from([PLAIN, NHWC, Format(4), Format(16)]))
    step, first = data.draw(st.integers(1, 6)), data.draw(st.integers(-5, 5))
    columns = data.draw(st.integers(1, 40))
    width = channels + data.draw(st.sampled_from([0, 0, 1, 13]))
    x = np.arange(1, parts * channels * rows * size + 1, dtype=str(dtype))
    x = x.reshape(1, parts * channels, rows, size)
    access = Access.of_format(x.shape, form)
    kernel = Copied(access, dtype, rows, size, parts, channels, width, first, columns, step)
    empty = np.full((parts, rows, columns, width), np.nan, str(dtype))
    found = run_kernel(kernel, gradients.in_format(x, form), empty, target=target)
    expected = np.zeros_like(empty)
    for j in range(columns):
        at = first + j * step
        if 0 <= at < size:
            pixels = x[0].reshape(parts, channels, rows, size)[..., at]
            expected[:, :, j, :channels] = np.moveaxis(pixels, 1, 2)
    expected[:, 1] = 0
    assert np.array_equal(found, expected)
