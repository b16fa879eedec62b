"""Say of every pixel what it shows, and paint it: from a network's scores to a picture of classes.

    python examples/segmenter/segment.py --out found
    python examples/segmenter/segment.py --model SEGMENTER.onnx photo.png --out found

Without a model, a small network of our own is fitted first (it needs the package onnx), and without
a picture, one of shapes is drawn.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import leanconv
from examples.pictures import load_picture, resized, save_picture, to_input
from examples.scenes import shapes


def palette(classes: int) -> NDArray[np.uint8]:
    """Return a colour for each class, (classes, 3): PASCAL VOC's, in which neighbours differ.

    Bits 0, 3, 6 … of the class's number are the highest bits of red, 1, 4, 7 … of green, and
    2, 5, 8 … of blue. Class 0 is black.
    """
    numbers = np.arange(classes)
    colours = np.zeros((classes, 3), np.uint8)
    for bit in range(24):
        colours[:, bit % 3] |= ((numbers >> bit & 1) << (7 - bit // 3)).astype(np.uint8)
    return colours


def painted(
    pixels: NDArray[np.uint8], found: NDArray[np.integer], classes: int
) -> NDArray[np.uint8]:
    """Lay the classes' colours half over a picture; class 0 lets it through."""
    colours = palette(classes)[found]
    mixed = (pixels.astype(np.uint16) + colours) // 2
    return np.where(found[..., None] == 0, pixels, mixed.astype(np.uint8))


def segment(
    network: leanconv.Network,
    pixels: NDArray[np.uint8],
    mean: tuple[float, ...] = (0.5,),
    std: tuple[float, ...] = (0.5,),
    multiple: int = 32,
) -> tuple[NDArray[np.integer], int]:
    """Return what each pixel of a picture shows, (height, width), and how many classes there are.

    The picture is stretched to multiples of `multiple`, or to the network's size if that is fixed,
    and the answer back to the picture's size, each pixel that of its nearest neighbour. A network
    with one channel says "is it the object", by a sigmoid or before it.
    """
    height, width = pixels.shape[:2]
    _, channels, *sizes = network.inputs[0].shape
    rows, columns = (
        size if isinstance(size, int) else max(1, round(have / multiple)) * multiple
        for size, have in zip(sizes, (height, width), strict=True)
    )
    inputs = {network.inputs[0].name: to_input(resized(pixels, rows, columns), channels, mean, std)}
    scores = next(iter(network.run(inputs).values()))[0]
    if len(scores) == 1:
        border = 0.5 if scores.min() >= 0 and scores.max() <= 1 else 0.0
        found = (scores[0] > border).astype(np.int64)
    else:
        found = scores.argmax(axis=0)
    down = (np.arange(height) + 0.5) * found.shape[0] / height
    across = (np.arange(width) + 0.5) * found.shape[1] / width
    return found[down.astype(int)[:, None], across.astype(int)], max(2, len(scores))


def main(arguments: list[str] | None = None) -> int:
    """Segment as the command line says; return 0."""
    parser = argparse.ArgumentParser(description="Say of every pixel what it shows.")
    parser.add_argument("picture", nargs="?", type=Path, help="default: one of shapes is drawn")
    parser.add_argument("--model", type=Path, help="an ONNX file; default: a network of our own")
    parser.add_argument("--out", type=Path, required=True, help="folder for the pictures")
    parser.add_argument("--mean", type=float, nargs="+", default=[0.5])
    parser.add_argument("--std", type=float, nargs="+", default=[0.5])
    options = parser.parse_args(arguments)
    if options.model:
        network = leanconv.load(options.model)
    else:
        from examples.networks.fitting import fitted_segmenter

        network = leanconv.load(fitted_segmenter())
    picture, truth = options.picture, None
    if picture:
        pixels = load_picture(picture)
    else:
        pixels, truth = shapes(np.random.default_rng(1))
    found, classes = segment(network, pixels, options.mean, options.std)
    for kind in range(classes):
        print(f"class {kind}: {(found == kind).mean():.1%} of the pixels")
    if truth is not None and not options.model:
        print(f"right: {(found == truth).mean():.1%} of the pixels")
    save_picture(options.out / "picture.png", pixels)
    save_picture(options.out / "classes.png", palette(classes)[found])
    save_picture(options.out / "both.png", painted(pixels, found, classes))
    print(f"pictures: {options.out / 'classes.png'}, {options.out / 'both.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
