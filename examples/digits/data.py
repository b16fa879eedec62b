"""The digits: scikit-learn's 1,797 handwritten ones, enlarged to pictures, split once and for all.

scikit-learn's `load_digits` holds 8x8 images with values 0 to 16 (UCI, Alpaydin & Kaynak 1998).
Each becomes a picture of 64x64 pixels, light on dark, as a user would keep it in a file; the
network sees what is left of such a picture after the ordinary way in: bilinear reduction to 32x32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]

PICTURE = 64  # pixels a side of the files in images/
INPUT = 32  # pixels a side of the network's input
HELD_OUT = 360
SPLIT_SEED = 2018


@dataclass(frozen=True)
class Digits:
    """Images and what they show.

    Attributes:
        images: uint8 `(n, 1, 32, 32)`, 0 is dark.
        labels: int64 `(n,)`, 0 to 9.
        sources: int64 `(n,)`, index in scikit-learn's data set.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    sources: NDArray[np.int64]


def picture(pixels: NDArray[np.floating]) -> Image.Image:
    """Return a grayscale picture, 64x64, of one 8x8 image with values 0 to 16."""
    small = np.rint(np.asarray(pixels).reshape(8, 8) * (255.0 / 16.0)).astype(np.uint8)
    return Image.fromarray(small).resize((PICTURE, PICTURE), Image.Resampling.BICUBIC)


def network_image(image: Image.Image) -> NDArray[np.uint8]:
    """Return the picture as the network gets it before scaling: uint8 `(1, 32, 32)`."""
    small = image.convert("L").resize((INPUT, INPUT), Image.Resampling.BILINEAR)
    return np.asarray(small, dtype=np.uint8)[None]


def load_split() -> tuple[Digits, Digits]:
    """Return the images to train on (1,437) and the held-out ones (360), always the same."""
    source = load_digits()
    order = np.random.Generator(np.random.PCG64(SPLIT_SEED)).permutation(len(source.target))

    def take(index: NDArray[np.int64]) -> Digits:
        images = np.stack([network_image(picture(source.data[i])) for i in index])
        return Digits(images, source.target[index].astype(np.int64), index)

    return take(order[HELD_OUT:]), take(np.sort(order[:HELD_OUT]))


def raw_picture(source: int) -> Image.Image:
    """Return the 64x64 picture of one image of scikit-learn's data set."""
    return picture(load_digits().data[source])
