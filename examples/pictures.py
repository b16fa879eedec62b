"""From picture files to what a network reads, and back to picture files. Needs Pillow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]


def load_picture(file: Path) -> Pixels:
    """Return a picture's pixels, uint8 (height, width, 3), red first."""
    from PIL import Image

    with Image.open(file) as image:
        return np.asarray(image.convert("RGB"))


def save_picture(file: Path, pixels: Pixels) -> None:
    """Write pixels, (height, width) or (height, width, 3); the folder is made if it is missing."""
    from PIL import Image

    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)


def resized(pixels: Pixels, height: int, width: int) -> Pixels:
    """Bring a picture to a size, bilinear; its proportions may change."""
    from PIL import Image

    size = (width, height)
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR))


def to_input(
    pixels: Pixels,
    channels: int,
    mean: Sequence[float] = (0.5,),
    std: Sequence[float] = (0.5,),
    *,
    blue_first: bool = False,
) -> NDArray[np.float32]:
    """Make a picture a network's input: `(pixel / 255 - mean) / std`.

    Args:
        pixels: (height, width), or (height, width, 3).
        channels: that the network takes, 1 or 3.
        mean, std: one number, or one for each channel.
        blue_first: whether the network was trained with OpenCV's order of colours.

    Returns:
        float32 (1, channels, height, width).
    """
    colours = pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2)
    if channels == 1:  # the weights of ITU-R 601, as Pillow's
        colours = (colours @ np.array([0.299, 0.587, 0.114]))[..., None]
    elif blue_first:
        colours = colours[..., ::-1]
    scaled = (colours / 255.0 - np.array(mean)) / np.array(std)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None], dtype=np.float32)


def with_boxes(
    pixels: Pixels, boxes: NDArray[np.floating], colour: tuple[int, int, int] = (220, 40, 40)
) -> Pixels:
    """Draw the frames of boxes (n, 4), each left, top, right, bottom, into a copy of a picture."""
    colours = pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2)
    drawn: Pixels = colours.copy()
    height, width = drawn.shape[:2]
    for left, top, right, bottom in np.round(boxes).astype(int):
        x0, x1 = np.clip((left, right - 1), 0, width - 1)
        y0, y1 = np.clip((top, bottom - 1), 0, height - 1)
        drawn[[y0, y1], x0 : x1 + 1] = colour
        drawn[y0 : y1 + 1, [x0, x1]] = colour
    return drawn
