"""Random convolutions whose padding is mostly large, by any method in any layout."""

from __future__ import annotations

import random
from math import prod

from leanconv.types import FLOAT32, FLOAT64
from support.padded_cases import Axis, Padded, Transposed, spec_of

_ALGORITHMS = (
    *("direct",) * 5, *("planar",) * 3, *("depthwise",) * 2, "naive", "im2col", "im2col:rows=3",
    "mec", "mec:solution=A", "mec:solution=B", "mec:T=3", "mec:rows=2",
    "im2col:rows=batch", "im2col:lanes=pixels", "im2col:lanes=pixels,rows=3",
    "im2win", "im2win:form=base", "im2win:form=printed", "im2win:form=vector",
    "im2win:form=high", "im2win:rows=2", "winograd", "winograd:m=2",
    "winograd:m=3x5", "winograd:form=stages", "winograd:edges=narrow", "fft", "fft:tile=16",
    "fft:tile=32",
)  # fmt: skip
_MOST_OUTPUTS = (0, 160, 1500, 2500)  # of a map, by rank


def _axis(draw: random.Random, rank: int) -> Axis:
    size = draw.choice((1, 1, 2, 3, 5, 7, 8, 13, 16, 17, 30)[: 11 if rank < 3 else 7])
    kernel = draw.choice((1, 1, 1, 2, 3, 3, 4, 5, 7)[: 9 if rank < 3 else 6])
    stride, dilation = draw.choice((1, 1, 1, 2, 3)), draw.choice((1, 1, 1, 2, 3))
    some = (0, 0, 0, 1, 2, 5, 6, 7, 12, 17, 29, 40, 65)[: (0, 13, 11, 7)[rank]]
    begin, end = draw.choice(some), draw.choice(some)
    span = (kernel - 1) * dilation + 1
    return size, kernel, stride, dilation, begin, max(end, span - size - begin)


def random_case(seed: int) -> Padded | Transposed:
    """Any convolution whose padding is mostly large, by any algorithm."""
    draw = random.Random(seed)
    rank = draw.choice((1, 1, 1, 2, 2, 3))
    dtype = draw.choice((FLOAT32, FLOAT32, FLOAT64))
    axes = [_axis(draw, rank) for _ in range(rank)]
    if draw.random() < 0.5:  # one padded axis, the others usual
        kept = draw.randrange(rank)
        axes = [
            axis if i == kept else (draw.choice((1, 2, 5, 9)), 1, 1, 1, 0, 0)
            for i, axis in enumerate(axes)
        ]
    channels = draw.choice((1, 2, 3, 4, 7, 8, 15, 16, 17, 32, 33))
    algorithm = draw.choice(_ALGORITHMS)
    if algorithm == "depthwise" or draw.random() < 0.1:
        each = draw.choice((1, 1, 1, 2))
        of = channels, channels, channels * each
    elif draw.random() < 0.15:
        groups = draw.choice((2, 3))
        of = groups, groups * channels, groups * draw.choice((1, 3, 8, 16, 17))
    else:
        of = 1, channels, draw.choice((1, 2, 3, 8, 15, 16, 17, 33, 64))
    if draw.random() < 0.15:
        return _random_transposed(draw, rank, dtype, of)
    batch, added = draw.choice((1, 1, 2)), draw.random() < 0.3
    spec = spec_of(axes, of, dtype, batch, added)
    if prod(spec.output_size) > _MOST_OUTPUTS[rank]:
        return random_case(seed + 10**9)
    layouts = draw.choice(
        (("planes", "planes"),) * 2
        + (("last", "last"),)
        + (("blocks", "blocks"),) * 2
        + (("planes", "blocks"), ("blocks", "planes"))
    )
    return Padded(spec, algorithm, *layouts, draw.random() < 0.2)


def _random_transposed(
    draw: random.Random, rank: int, dtype: str, channels: tuple[int, int, int]
) -> Transposed:
    groups, inputs, outputs = channels
    size = [draw.choice((1, 2, 3, 5, 8, 13)[: 6 if rank < 3 else 3]) for _ in range(rank)]
    kernel = [draw.choice((1, 1, 2, 3, 4, 7)[: 6 if rank < 3 else 4]) for _ in range(rank)]
    stride = [draw.choice((1, 1, 2, 3)) for _ in range(rank)]
    dilation = [draw.choice((1, 1, 2, 3)) for _ in range(rank)]
    extra = [draw.randrange(s) for s in stride]
    # What is left of the output, at least one position, after it is cut at both ends.
    pads = []
    for n, k, s, d, o in zip(size, kernel, stride, dilation, extra, strict=True):
        room = (n - 1) * s + (k - 1) * d + o
        begin = draw.choice((0, 0, 1, 2, 5, room))
        begin = min(begin, room)
        pads.append((begin, min(draw.choice((0, 0, 1, 2, room)), room - begin)))
    given = {
        "strides": tuple(stride), "dilations": tuple(dilation), "group": groups,
        "pads": tuple(b for b, _ in pads) + tuple(e for _, e in pads),
        "output_padding": tuple(extra),
    }  # fmt: skip
    x, w = (draw.choice((1, 2)), inputs, *size), (inputs, outputs // groups, *kernel)
    blocked = groups == 1 and draw.random() < 0.4
    algorithm = draw.choice(("", "", "direct", "planar", "winograd"))
    return Transposed(x, w, tuple(given.items()), dtype, blocked, algorithm)
