"""Read a line of text: from a network's probabilities of letters, step by step, to letters.

    python examples/recogniser/read_text.py
    python examples/recogniser/read_text.py --model RECOGNISER.onnx line.png

Without a model, a small network of our own is fitted first (it needs the package onnx), and without
pictures, lines of digits are drawn.
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
from examples.pictures import load_picture, resized, to_input
from examples.scenes import DIGITS, line_of_digits

_HEIGHT = 48  # of lines, where the network leaves it open: PaddleOCR's
_BLANK = 0  # the class of no letter


def decode(chances: NDArray[np.floating], letters: list[str]) -> tuple[str, float]:
    """Decode greedily what a network trained with CTC says (Graves et al. 2006).

    The likeliest class of each step; of equal ones that follow each other, the first; no blanks.

    Args:
        chances: (steps, 1 + letters), probabilities; class 0 is blank.
        letters: of the other classes.

    Returns:
        The text, and the mean probability of its letters (0 for an empty one).
    """
    best = chances.argmax(axis=1)
    new = np.append(True, best[1:] != best[:-1])
    steps = np.flatnonzero(new & (best != _BLANK))
    text = "".join(letters[best[step] - 1] for step in steps)
    return text, float(chances[steps, best[steps]].mean()) if steps.size else 0.0


def letters_of(network: leanconv.Network, classes: int) -> list[str]:
    """The letters that the file's metadata list, one on each line; PaddleOCR ends with a blank.

    Raises:
        ValueError: they are not as many as the network tells apart.
    """
    letters = network.metadata.get("character", "").split("\n")
    if len(letters) == classes - 2:
        letters.append(" ")
    if len(letters) != classes - 1:
        raise ValueError(
            f"the metadata `character` list {len(letters)} letters; expected {classes - 1}, one "
            "for each class but the blank"
        )
    return letters


def read(network: leanconv.Network, pixels: NDArray[np.uint8]) -> tuple[str, float]:
    """Read a picture of one line of text; return the text and its mean probability."""
    _, channels, height, width = network.inputs[0].shape
    rows = height if isinstance(height, int) else _HEIGHT
    columns = max(8, round(pixels.shape[1] * rows / pixels.shape[0] / 8) * 8)
    line = resized(pixels, rows, columns)
    if isinstance(width, int):  # a fixed width: framed at the right, or squeezed
        line = resized(line, rows, min(columns, width))
        missing = width - line.shape[1]
        line = np.pad(line, ((0, 0), (0, missing), *[(0, 0)] * (line.ndim - 2)), mode="edge")
    chances = network(to_input(line, channels))[0]
    return decode(chances, letters_of(network, chances.shape[1]))


def main(arguments: list[str] | None = None) -> int:
    """Read as the command line says; return 0."""
    parser = argparse.ArgumentParser(description="Read pictures of lines of text.")
    parser.add_argument("pictures", nargs="*", type=Path, help="default: lines are drawn")
    parser.add_argument("--model", type=Path, help="an ONNX file; default: a network of our own")
    options = parser.parse_args(arguments)
    if options.model:
        network = leanconv.load(options.model)
    else:
        from examples.networks.fitting import fitted_recogniser

        network = leanconv.load(fitted_recogniser())
    lines = [(file.name, load_picture(file)) for file in options.pictures]
    if not lines:
        rng = np.random.default_rng(1)
        texts = ["".join(rng.choice(list(DIGITS), 6)) for _ in range(5)]
        lines = [(f"drawn {text}", line_of_digits(text, rng)[0]) for text in texts]
    for name, pixels in lines:
        text, chance = read(network, pixels)
        print(f"{name}: read {text!r} ({chance:.1%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
