"""Pictures with known contents, drawn by rule: pages with numbers, lines of digits, shapes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Box = tuple[int, int, int, int]  # left, top, right, bottom; right and bottom lie outside

DIGITS = "0123456789"
_GLYPHS = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111",
    "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)
_FONT = {
    digit: np.array([[int(dot) for dot in row] for row in glyph.split()], np.uint8)
    for digit, glyph in zip(DIGITS, _GLYPHS, strict=True)
}
_DOT = 2  # pixels of a dot of a glyph, each way
LINE_HEIGHT = 7 * _DOT + 2
COLOURS = ((40, 40, 48), (205, 60, 50), (70, 165, 80), (60, 95, 200))  # background, and shapes


def line_of_digits(text: str, rng: np.random.Generator) -> tuple[Pixels, list[tuple[int, int]]]:
    """Draw digits, dark on light, with uneven gaps.

    Returns:
        Pixels (16, width), and for each digit its first column and the one after its last.
    """
    pieces, places, column = [], [], 0
    for letter in text:
        gap = int(rng.integers(3, 8))
        glyph = np.kron(_FONT[letter], np.ones((_DOT, _DOT), np.uint8))
        pieces += [np.zeros((len(glyph), gap), np.uint8), glyph]
        places.append((column + gap, column + gap + glyph.shape[1]))
        column = places[-1][1]
    pieces.append(np.zeros((7 * _DOT, int(rng.integers(3, 8))), np.uint8))
    ink = np.pad(np.concatenate(pieces, axis=1), ((1, 1), (0, 0)))
    paper, dark = rng.integers(190, 250), rng.integers(10, 80)
    return _noisy(np.where(ink, dark, paper), rng, 8.0), places


def page(
    rng: np.random.Generator, height: int = 128, width: int = 192
) -> tuple[Pixels, list[Box], list[str]]:
    """Draw a page: some numbers, and rules, bars and a gradient that are no text.

    Returns:
        Pixels (height, width), the boxes of the numbers, and the numbers.
    """
    across = np.linspace(0.0, 1.0, width)[None]
    pixels = np.broadcast_to(215 + 25 * across * rng.uniform(-1, 1), (height, width)).copy()
    boxes: list[Box] = []
    texts: list[str] = []
    for number, top in enumerate(range(6, height - 24, 30)):
        if number % 4 == 3:  # a rule and a bar instead of a number
            pixels[top + 4 : top + 6, 10 : width - 10] = 60
            pixels[top + 12 : top + 20, 20 : int(rng.integers(60, width - 20))] = 120
            continue
        text = "".join(rng.choice(list(DIGITS), int(rng.integers(3, 8))))
        line, places = line_of_digits(text, rng)
        left = int(rng.integers(4, width - line.shape[1] - 4))
        down = top + int(rng.integers(0, 6))
        first, last = places[0][0], places[-1][1]
        ink = line[:, first:last]
        pixels[down : down + LINE_HEIGHT, left : left + last - first] = np.where(
            ink < 130, ink, pixels[down : down + LINE_HEIGHT, left : left + last - first]
        )
        boxes.append((left, down + 1, left + last - first, down + LINE_HEIGHT - 1))
        texts.append(text)
    return _noisy(pixels, rng, 4.0), boxes, texts


def shapes(
    rng: np.random.Generator, height: int = 96, width: int = 128
) -> tuple[Pixels, NDArray[np.int64]]:
    """Draw discs, squares and triangles over a dark ground, with noise.

    Returns:
        Pixels (height, width, 3), and what each shows (height, width): 0 ground, 1 disc, 2 square,
        3 triangle.
    """
    truth = np.zeros((height, width), np.int64)
    rows, columns = np.mgrid[:height, :width]
    for kind in (1, 2, 3, int(rng.integers(1, 4))):
        size = int(rng.integers(10, 18))
        y, x = int(rng.integers(size, height - size)), int(rng.integers(size, width - size))
        down, right = rows - y, columns - x
        if kind == 1:
            inside = down**2 + right**2 < size**2
        elif kind == 2:
            inside = np.maximum(abs(down), abs(right)) < size * 0.85
        else:
            inside = (down < size * 0.8) & (down > 2 * abs(right) - size)
        truth[inside] = kind
    colours = np.array(COLOURS, np.float64)[truth]
    return _noisy(colours, rng, 18.0), truth


def _noisy(values: NDArray[np.floating], rng: np.random.Generator, spread: float) -> Pixels:
    noise = rng.normal(0.0, spread, np.shape(values))
    return np.clip(np.round(values + noise), 0, 255).astype(np.uint8)
