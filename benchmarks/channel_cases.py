"""The sweep of `channels.py`: groups, channels of a group, taps and strides in 1 to 3 dimensions.

Every channel shape meets every third kernel, the next one another third, so that each pair of
properties occurs while the sweep stays short. Sizes are such that a layer takes about 0.3 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

_PRODUCTS = 12_000_000  # multiply-adds that a layer's size aims at
_LARGEST = 500_000  # elements of an input or an output, at most

# Groups, and input and output channels of one.
_Channels = tuple[int, int, int]
_LINE: tuple[_Channels, ...] = (
    (1, 1, 1), (1, 1, 16), (1, 1, 64), (1, 1, 512), (1, 2, 2), (1, 4, 32), (1, 16, 16),
    (1, 64, 64), (1, 64, 1), (1, 8, 4), (64, 1, 1), (64, 1, 2), (32, 2, 2), (16, 4, 4),
    (8, 8, 8), (4, 16, 16), (2, 32, 32), (16, 1, 4), (16, 4, 1), (12, 5, 3), (4, 48, 48),
)  # fmt: skip
_PLANE: tuple[_Channels, ...] = (
    (1, 1, 1), (1, 1, 16), (1, 1, 64), (1, 3, 64), (1, 2, 2), (1, 4, 4), (1, 8, 8), (1, 16, 1),
    (1, 64, 64), (1, 32, 4), (64, 1, 1), (64, 1, 2), (32, 2, 2), (16, 4, 4), (8, 8, 8),
    (4, 16, 16), (2, 32, 32), (32, 1, 4), (16, 4, 1), (12, 5, 3),
)  # fmt: skip
_SPACE: tuple[_Channels, ...] = (
    (1, 1, 1), (1, 1, 16), (1, 3, 32), (1, 8, 8), (32, 1, 1), (16, 2, 2), (8, 4, 4), (4, 8, 8),
    (2, 16, 16), (1, 32, 2),
)  # fmt: skip
# Taps and strides along each axis.
_Kernel = tuple[tuple[int, ...], tuple[int, ...]]
_LINE_KERNELS: tuple[_Kernel, ...] = tuple(
    ((taps,), (stride,))
    for taps, stride in ((1, 1), (3, 1), (3, 2), (7, 1), (10, 5), (16, 8), (31, 1), (64, 1),
                         (128, 1), (128, 4))
)  # fmt: skip
_PLANE_KERNELS: tuple[_Kernel, ...] = (
    ((1, 1), (1, 1)), ((3, 3), (1, 1)), ((3, 3), (2, 2)), ((5, 5), (1, 1)), ((7, 7), (2, 2)),
    ((7, 1), (1, 1)), ((11, 11), (4, 4)), ((16, 16), (16, 16)),
)  # fmt: skip
_SPACE_KERNELS: tuple[_Kernel, ...] = (
    ((1, 1, 1), (1, 1, 1)), ((3, 3, 3), (1, 1, 1)), ((3, 3, 3), (2, 2, 2)),
    ((3, 7, 7), (1, 2, 2)), ((5, 5, 5), (1, 1, 1)), ((3, 1, 1), (1, 1, 1)),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One convolution without padding, of one image.

    Attributes:
        groups, inputs, outputs: groups, and channels of one.
        size, kernel, stride: along each axis.
        pad: before and after each axis.
        channels_last: whether arrays are NHWC.
        label: where the layer is from, if it is a known one.
    """

    groups: int
    inputs: int
    outputs: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: int = 0
    channels_last: bool = False
    label: str = ""

    @property
    def name(self) -> str:
        """As `2d g8 8->8 3x3 /2`, with what distinguishes it."""
        taps = "x".join(map(str, self.kernel))
        stride = "" if set(self.stride) == {1} else " /" + "x".join(map(str, self.stride))
        layout = " nhwc" if self.channels_last else ""
        label = f" {self.label}" if self.label else ""
        parts = f"g{self.groups} {self.inputs}->{self.outputs} {taps}{stride}"
        return f"{len(self.size)}d {parts}{layout}{label}"

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Shape of the input, (1, C, *size)."""
        return 1, self.groups * self.inputs, *self.size

    @property
    def w_shape(self) -> tuple[int, ...]:
        """Shape of the weights, (K, C / groups, *kernel)."""
        return self.groups * self.outputs, self.inputs, *self.kernel


def _sized(
    channels: _Channels, kernel: tuple[int, ...], stride: tuple[int, ...], last: bool = False
) -> Case:
    """The layer of these channels and this kernel whose size is that of about 0.3 ms."""
    groups, inputs, outputs = channels
    axes = len(kernel)
    each = groups * outputs * inputs * prod(kernel)  # products of one column
    most = _LARGEST // (groups * max(inputs * prod(stride), outputs))
    columns = max(1, min(most, _PRODUCTS // each))
    side = max(4, round(columns ** (1 / axes)))
    sides = (max(side, columns // side ** (axes - 1)),) if axes == 1 else (side,) * axes
    size = tuple((n - 1) * s + k for n, s, k in zip(sides, stride, kernel, strict=True))
    return Case(groups, inputs, outputs, size, kernel, stride, channels_last=last)


def _thinned(
    channels: tuple[_Channels, ...], kernels: tuple[_Kernel, ...], every: int, last: bool = False
) -> Iterator[Case]:
    """Every so manieth kernel of each channel shape, beginning with another one each time."""
    for number, shape in enumerate(channels):
        for kernel, stride in kernels[number % every :: every]:
            yield _sized(shape, kernel, stride, last)


def _known() -> Iterator[Case]:
    """wav2vec2's layers for a second of sound, and two layers of reports."""
    samples, channels = 16000, 1
    for layer, (taps, stride) in enumerate(((10, 5), *((3, 2),) * 4, *((2, 2),) * 2)):
        if layer in (0, 1, 4, 5):
            label = f"wav2vec2.{layer}"
            yield Case(1, channels, 512, (samples,), (taps,), (stride,), label=label)
        samples, channels = (samples - taps) // stride + 1, 512
    yield Case(16, 48, 48, (samples,), (128,), (1,), pad=64, label="wav2vec2.position")
    yield Case(4, 16, 16, (1000,), (64,), (1,), pad=32, label="report")
    yield Case(8, 8, 8, (56, 56), (3, 3), (1, 1), pad=1, channels_last=True, label="report")


def cases() -> list[Case]:
    """The sweep, each layer once."""
    found = [
        *_known(),
        *_thinned(_LINE, _LINE_KERNELS, 3),
        *_thinned(_PLANE, _PLANE_KERNELS, 3),
        *_thinned(_SPACE, _SPACE_KERNELS, 2),
        *_thinned(_PLANE[4:], _PLANE_KERNELS[1:5], 4, last=True),
    ]
    return list(dict.fromkeys(found))
