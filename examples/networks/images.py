"""Pictures to feed a network when there is no photograph at hand."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def random_images(shape: tuple[int, int, int, int], seed: int = 0) -> NDArray[np.float32]:
    """Return images `(n, c, h, w)` of mean 0 and variance 1 with the spectrum of photographs.

    The amplitude falls as one over the frequency (Field 1987), so that the images differ from each
    other at every scale. White noise does not: a global average makes all of it equal.

    Args:
        shape: images, colours, height, width.
        seed: of the phases.
    """
    count, colours, height, width = shape
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((count, colours, height, width))
    noise[:, 1:] = 0.5 * noise[:, 1:] + noise[:, :1]  # colours of one picture resemble each other
    rows = np.fft.fftfreq(height)[:, None] * height
    columns = np.fft.rfftfreq(width)[None, :] * width
    spectrum = np.fft.rfft2(noise) / np.maximum(1.0, np.hypot(rows, columns))
    images = np.fft.irfft2(spectrum, s=(height, width))
    images /= images.std(axis=(1, 2, 3), keepdims=True)
    return images.astype(np.float32)
