"""Formats: where elements stand, and how many there are."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leanconv.spec import NHWC, PLAIN, Format
from leanconv.spec.format import ALIGNMENT, aligned, ceil_div

SHAPES = st.lists(st.integers(1, 70), min_size=3, max_size=5).map(tuple)


@given(SHAPES)
def test_plain_is_the_shape_itself(shape: tuple[int, ...]) -> None:
    assert PLAIN.physical_shape(shape) == shape
    assert PLAIN.elements(shape) == prod(shape)


@given(SHAPES, st.sampled_from([2, 4, 8, 16]))
def test_blocks_hold_every_channel_once(shape: tuple[int, ...], block: int) -> None:
    form = Format(block)
    physical = form.physical_shape(shape)
    assert (physical[0], physical[2:-1], physical[-1]) == (shape[0], shape[2:], block)
    assert shape[1] <= physical[1] * block < shape[1] + block
    assert form.elements(shape) == prod(physical) >= prod(shape)


def test_names() -> None:
    assert [str(form) for form in (PLAIN, NHWC, Format(16))] == ["plain", "nhwc", "c16"]
    for form in (PLAIN, NHWC, Format(16)):
        assert Format.parse(str(form)) == form
    for text in ("", "c", "c3", "NHWC", "c128"):
        with pytest.raises(ValueError, match="no format"):
            Format.parse(text)


@given(SHAPES)
def test_channels_lie_last_in_nhwc(shape: tuple[int, ...]) -> None:
    assert NHWC.physical_shape(shape) == (shape[0], *shape[2:], shape[1])
    assert Format.of_layout("NHWC") == NHWC
    assert Format.of_layout("NCHW") == PLAIN


@pytest.mark.parametrize(
    ("a", "b", "up"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (-3, 2, -1)]
)
def test_ceil_div(a: int, b: int, up: int) -> None:
    assert ceil_div(a, b) == up


@given(st.integers(0, 2**40))
def test_aligned(size: int) -> None:
    assert size <= aligned(size) < size + ALIGNMENT
    assert aligned(size) % ALIGNMENT == 0
