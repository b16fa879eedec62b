"""Pages of text and pictures of faces, drawn with Pillow: the same number, the same picture."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

_WORDS = """
account amount answer balance before bottle bridge camera carbon castle center change circle
copper corner credit delivery detail double energy engine family figure filter garden invoice
island kernel letter little market matter memory method metric middle mirror moment motion museum
nature number object office option orange output packet paper pattern pencil people picture planet
pocket receipt record region report result river sample school screen second signal silver simple
single source square station street student summer system table theory ticket timber total travel
vector village water window winter yellow
"""
_SIZES = (18, 22, 26, 32)  # of letters, in pixels


def page(number: int) -> tuple[Pixels, list[str]]:
    """Draw a page: lines of words and numbers, some ruled, on paper of some shade.

    Args:
        number: of the page; its size, letters and text follow from it.

    Returns:
        Pixels (height, width, 3), and the lines of text.
    """
    from PIL import Image, ImageDraw, ImageFont

    random = np.random.default_rng(number)
    width, height = int(random.integers(480, 960)), int(random.integers(360, 800))
    paper, ink = int(random.integers(225, 256)), int(random.integers(0, 70))
    picture = Image.new("RGB", (width, height), (paper, paper, paper))
    draw, lines, top = ImageDraw.Draw(picture), [], 24
    while True:
        size = int(random.choice(_SIZES))
        font = ImageFont.load_default(size)
        if top + 2 * size > height:
            return np.asarray(picture), lines
        text = _line(random, lambda t, f=font: draw.textlength(t, font=f) < width - 60)
        left = int(random.integers(16, 40))
        draw.text((left, top), text, fill=(ink, ink, ink), font=font)
        if random.random() < 0.2:
            below = top + int(1.7 * size)
            draw.line((left, below, width - 20, below), fill=(150, 150, 150))
        lines.append(text)
        top += int(size * random.uniform(1.8, 2.6))


def _line(random: np.random.Generator, fits) -> str:
    """Words and numbers until the line is full, or some way before."""
    text, most = "", int(random.integers(2, 9))
    for _ in range(most):
        if random.random() < 0.25:
            word = f"{random.integers(1, 100000) / 100:.2f}"
        else:
            word = str(random.choice(_WORDS.split()))
        longer = f"{text} {word}".strip()
        if text and not fits(longer):
            break
        text = longer
    return text


def crowd(number: int) -> Pixels:
    """Draw a picture of faces on a background of some shade.

    Args:
        number: of the picture.

    Returns:
        Pixels (height, width, 3).
    """
    from PIL import Image, ImageDraw, ImageFilter

    random = np.random.default_rng(number)
    width, height = int(random.integers(400, 720)), int(random.integers(320, 560))
    shade = random.integers(60, 200, 3)
    picture = Image.new("RGB", (width, height), tuple(int(n) for n in shade))
    draw = ImageDraw.Draw(picture)
    size = int(random.integers(90, 150))
    for top in range(20, height - int(1.4 * size), int(1.6 * size)):
        for left in range(20, width - size, int(1.3 * size)):
            _face(draw, random, left, top, size)
    return np.asarray(picture.filter(ImageFilter.GaussianBlur(size / 60)))


def _face(draw, random: np.random.Generator, left: int, top: int, width: int) -> None:
    """Draw one face: hair, skin, eyes with brows, nose, mouth."""
    tone = random.uniform(0.55, 1.0)
    skin, dark = (tuple(int(n * tone) for n in each) for each in ((235, 190, 160), (190, 135, 110)))
    hair = tuple(int(n) for n in random.integers(10, 70, 3))
    height = int(1.3 * width)

    def ellipse(x: float, y: float, across: float, down: float, colour) -> None:
        middle = left + x * width, top + y * height
        half = across * width / 2, down * height / 2
        draw.ellipse(
            (middle[0] - half[0], middle[1] - half[1], middle[0] + half[0], middle[1] + half[1]),
            fill=colour,
        )

    ellipse(0.5, 0.45, 1.0, 0.9, hair)
    ellipse(0.5, 0.55, 0.82, 0.88, skin)
    for side in (0.32, 0.68):
        ellipse(side, 0.38, 0.22, 0.035, hair)
        ellipse(side, 0.46, 0.2, 0.075, dark)
        ellipse(side, 0.46, 0.17, 0.055, (245, 245, 245))
        ellipse(side, 0.46, 0.075, 0.055, (30, 25, 20))
    ellipse(0.5, 0.6, 0.1, 0.2, dark)
    ellipse(0.5, 0.6, 0.06, 0.18, skin)
    ellipse(0.5, 0.68, 0.16, 0.045, dark)
    ellipse(0.5, 0.8, 0.3, 0.07, (165, 70, 70))
    ellipse(0.5, 0.8, 0.28, 0.012, (100, 30, 30))
