"""Multiply-adds of the five networks of the thesis' table 1-1, layer by layer from their papers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

# Branches of GoogLeNet's inception modules: in, 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool.
_GOOGLENET = (
    (28, (192, 64, 96, 128, 16, 32, 32)),
    (28, (256, 128, 128, 192, 32, 96, 64)),
    (14, (480, 192, 96, 208, 16, 48, 64)),
    (14, (512, 160, 112, 224, 24, 64, 64)),
    (14, (512, 128, 128, 256, 24, 64, 64)),
    (14, (512, 112, 144, 288, 32, 64, 64)),
    (14, (528, 256, 160, 320, 32, 128, 128)),
    (7, (832, 256, 160, 320, 32, 128, 128)),
    (7, (832, 384, 192, 384, 48, 128, 128)),
)


def _conv(out: int, channels: int, inputs: int, kh: int, kw: int | None = None) -> int:
    """Products of one convolution to out x out outputs."""
    return out * out * channels * inputs * kh * (kh if kw is None else kw)


def _alexnet() -> Iterator[int]:
    yield _conv(55, 64, 3, 11)
    yield _conv(27, 192, 64, 5)
    yield _conv(13, 384, 192, 3)
    yield _conv(13, 256, 384, 3)
    yield _conv(13, 256, 256, 3)


def _vgg16() -> Iterator[int]:
    inputs = 3
    for size, channels, count in (
        (224, 64, 2),
        (112, 128, 2),
        (56, 256, 3),
        (28, 512, 3),
        (14, 512, 3),
    ):
        for _ in range(count):
            yield _conv(size, channels, inputs, 3)
            inputs = channels


def _googlenet() -> Iterator[int]:
    yield _conv(112, 64, 3, 7)
    yield _conv(56, 64, 64, 1)
    yield _conv(56, 192, 64, 3)
    for size, (inputs, one, r3, three, r5, five, pooled) in _GOOGLENET:
        yield _conv(size, one + r3 + r5 + pooled, inputs, 1)
        yield _conv(size, three, r3, 3) + _conv(size, five, r5, 5)


def _resnet50() -> Iterator[int]:
    yield _conv(112, 64, 3, 7)
    inputs = 64
    for size, width, count in ((56, 64, 3), (28, 128, 4), (14, 256, 6), (7, 512, 3)):
        for block in range(count):
            # The stride is in the 3x3 layer, so the first 1x1 of a stage sees the larger map.
            before = size if block or width == 64 else 2 * size
            yield _conv(before, width, inputs, 1) + _conv(size, width, width, 3)
            yield _conv(size, 4 * width, width, 1)
            if not block:
                yield _conv(size, 4 * width, inputs, 1)
            inputs = 4 * width


def _inception_v3() -> Iterator[int]:
    yield _conv(149, 32, 3, 3) + _conv(147, 32, 32, 3) + _conv(147, 64, 32, 3)
    yield _conv(73, 80, 64, 1) + _conv(71, 192, 80, 3)
    for inputs, pooled in ((192, 32), (256, 64), (288, 64)):
        yield _conv(35, 64 + 48 + 64 + pooled, inputs, 1) + _conv(35, 64, 48, 5)
        yield _conv(35, 96, 64, 3) + _conv(35, 96, 96, 3)
    yield _conv(17, 384, 288, 3) + _conv(35, 64, 288, 1) + _conv(35, 96, 64, 3)
    yield _conv(17, 96, 96, 3)
    for width in (128, 160, 160, 192):
        yield _conv(17, 192 + width + width + 192, 768, 1)
        yield _conv(17, width, width, 1, 7) + _conv(17, 192, width, 7, 1)
        yield 3 * _conv(17, width, width, 7, 1) + _conv(17, 192, width, 1, 7)
    yield _conv(17, 192 + 192, 768, 1) + _conv(8, 320, 192, 3)
    yield _conv(17, 192, 192, 1, 7) + _conv(17, 192, 192, 7, 1) + _conv(8, 192, 192, 3)
    for inputs in (1280, 2048):
        yield _conv(8, 320 + 384 + 448 + 192, inputs, 1) + 2 * _conv(8, 384, 384, 1, 3)
        yield _conv(8, 384, 448, 3) + 2 * _conv(8, 384, 384, 1, 3)


# Products of all convolutions, and of the dense layers.
NETWORKS: dict[str, tuple[Callable[[], Iterator[int]], int]] = {
    "AlexNet": (_alexnet, 9216 * 4096 + 4096 * 4096 + 4096 * 1000),
    "VGG-16": (_vgg16, 25088 * 4096 + 4096 * 4096 + 4096 * 1000),
    "GoogLeNet-v1": (_googlenet, 1024 * 1000),
    "ResNet-50": (_resnet50, 2048 * 1000),
    "Inception-V3": (_inception_v3, 2048 * 1000),
}
