"""The layers that the documents measure, as data.

cv1 to cv12 are table 2 of the MEC paper and table 3-3 of the im2win thesis: no padding, the stride
of both axes alike.
"""

from __future__ import annotations

from leanconv.spec import ConvSpec

# name: C, size, K, kernel, stride
_TABLE: dict[str, tuple[int, int, int, int, int]] = {
    "cv1": (3, 227, 96, 11, 4),
    "cv2": (3, 231, 96, 11, 4),
    "cv3": (3, 227, 64, 7, 2),
    "cv4": (64, 224, 64, 7, 2),
    "cv5": (96, 24, 256, 5, 1),
    "cv6": (256, 12, 512, 3, 1),
    "cv7": (3, 224, 64, 3, 1),
    "cv8": (64, 112, 128, 3, 1),
    "cv9": (64, 56, 64, 3, 1),
    "cv10": (128, 28, 128, 3, 1),
    "cv11": (256, 14, 256, 3, 1),
    "cv12": (512, 7, 512, 3, 1),
}
# MEC's table 3: how often each layer occurs in ResNet-101.
RESNET101: dict[str, int] = {"cv4": 1, "cv9": 3, "cv10": 4, "cv11": 23, "cv12": 3}


def layer(name: str, batch: int = 1, dtype: str = "float32", stride: int | None = None) -> ConvSpec:
    """The spec of a layer.

    Args:
        name: "cv1" to "cv12".
        batch: images.
        dtype: of everything.
        stride: another one than the table's, for sweeps such as MEC's figure 4a.
    """
    channels, size, outputs, kernel, usual = _TABLE[name]
    step = stride or usual
    return ConvSpec(
        batch,
        channels,
        outputs,
        (size, size),
        (kernel, kernel),
        (step, step),
        (1, 1),
        (0, 0),
        (0, 0),
        dtype=dtype,
    )


NAMES: tuple[str, ...] = tuple(_TABLE)
