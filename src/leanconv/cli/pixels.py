"""Pillow's pictures as they are seen: upright, eight bits a channel, nothing shining through.

Pillow's own conversions keep the stored order of pixels, cut numbers of 16 bits and of floats off
at 255, and drop transparency. Here every mode of Pillow is right or refused by its name.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from leanconv.errors import InputError
from leanconv.records import dataclass

_ORIENTATION = 0x0112  # EXIF's tag; 1 is upright
_BITS, _PHOTOMETRIC = 258, 262  # TIFF's tags
_WHITE_IS_ZERO = 0
_WHITE, _BLACK = 255, 0
# Ink on white whose mean is less than this far from it is not seen.
_FAINT = 32
_OPAQUE = {"1": "L", "L": "L", "RGB": "RGB", "RGBX": "RGB", "CMYK": "RGB", "YCbCr": "RGB"}
_OPAQUE |= {"HSV": "RGB", "P": "RGB"}
# With transparency; those in small letters hold colours that are multiplied by it.
_SEEN_THROUGH = {"LA": "LA", "La": "LA", "RGBA": "RGBA", "RGBa": "RGBA", "PA": "RGBA"}
_ADVICE = "save it as PNG or JPEG of 8 or 16 bits, or give numbers as .npy"


@dataclass(frozen=True)
class Seen:
    """A picture as it is seen.

    Attributes:
        image: Pillow's, of mode L or RGB.
        notes: what was done to it beyond decoding, as text for a user.
    """

    image: Any
    notes: tuple[str, ...]


def seen(image: Any, mode: str, background: int | None = None) -> Seen:
    """Return a picture of Pillow's as it is seen.

    Args:
        image: of Pillow's, any mode.
        mode: L or RGB.
        background: the gray, 0 to 255, behind transparent parts; None is white, or black behind ink
            that would not be seen on white.

    Raises:
        InputError: numbers of the picture have no meaning as light, or no conversion is right.
    """
    from PIL import ImageOps

    notes = ["the first of several pictures in the file"] if _has_several(image) else []
    orientation = image.getexif().get(_ORIENTATION, 1)
    image.load()  # while the file is open; a TIFF is turned by that
    if orientation != 1:
        image = ImageOps.exif_transpose(image)
        notes.append(f"turned upright as its EXIF orientation, {orientation}, says")
    image, scaled = _eight_bits(image)
    notes += scaled
    if image.mode in _SEEN_THROUGH or "transparency" in image.info:
        image, shown = _on_background(image, background)
        notes += shown
    if image.mode not in _OPAQUE:
        raise InputError(
            f"it is of Pillow's mode {image.mode}, which has no conversion to gray or RGB "
            f"that is right; expected gray, RGB, a palette, CMYK, YCbCr or HSV: {_ADVICE}"
        )
    if image.mode == "CMYK":
        notes.append("CMYK, made RGB without its colour profile")
    if image.mode != mode:  # a palette by way of its colours
        image = image.convert(_OPAQUE[image.mode]).convert(mode)
    return Seen(image, tuple(notes))


def _has_several(image: Any) -> bool:
    """Whether a file holds more pictures, such as frames or pages; a damaged one is none."""
    try:
        return bool(getattr(image, "is_animated", False))
    except (OSError, ValueError, SyntaxError, EOFError):
        return False


def _eight_bits(image: Any) -> tuple[Any, list[str]]:
    """Scale numbers of 16 bits and of floats to 0 to 255, not cut them off."""
    from PIL import Image

    if image.mode == "F":
        levels, white, note = _floats(image), 1.0, "floats of 0 to 1, made 0 to 255"
    elif image.mode.startswith("I"):
        levels, white, note = _integers(image)
    else:
        return image, []
    eight = Image.fromarray(np.rint(levels * (255.0 / white)).astype(np.uint8))
    hidden = image.info.get("transparency")
    if isinstance(hidden, int):  # the one level that is not seen
        eight.putalpha(Image.fromarray(np.where(levels == hidden, 0, 255).astype(np.uint8)))
    return eight, [note]


def _floats(image: Any) -> np.ndarray:
    levels = np.asarray(image, np.float64)
    if not (levels.size and levels.min() >= 0 and levels.max() <= 1):  # NaN is refused, too
        raise InputError(
            f"it holds floats from {levels.min():.4g} to {levels.max():.4g}, of which none "
            f"is known to be white; expected 0 to 1: {_ADVICE}"
        )
    return levels


def _integers(image: Any) -> tuple[np.ndarray, float, str]:
    """Gray levels of more than eight bits, the level of white, and what is said of it."""
    tags = getattr(image, "tag_v2", {})
    bits = tags.get(_BITS, (16,))[0]
    levels = np.asarray(image).astype(np.float64)
    white = float((1 << min(bits, 16)) - 1)
    # Mode I is signed and of 32 bits; PNG and PPM keep 16 in it.
    if bits > 16 or levels.min() < 0 or levels.max() > white:
        raise InputError(
            f"it holds integers from {levels.min():.0f} to {levels.max():.0f} "
            f"(Pillow's mode {image.mode}), of which none is known to be white; expected 0 to "
            f"{white:.0f}: {_ADVICE}"
        )
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        levels = white - levels
    return levels, white, f"{bits} bits, made 8"


def _on_background(image: Any, background: int | None) -> tuple[Any, list[str]]:
    """Put a picture in front of a gray, if any of it is transparent."""
    from PIL import Image

    image = image.convert(_SEEN_THROUGH.get(image.mode, "RGBA"))
    alpha = image.getchannel("A")
    if alpha.getextrema()[0] == _WHITE:
        return image.convert(image.mode[:-1]), []
    gray = _behind(image, alpha) if background is None else background
    page = Image.new(image.mode, image.size, (gray,) * (len(image.getbands()) - 1) + (_WHITE,))
    shown = Image.alpha_composite(page.convert("RGBA"), image.convert("RGBA"))
    name = {_WHITE: "white", _BLACK: "black"}.get(gray, f"gray {gray}")
    return shown.convert("RGB"), [f"transparent parts on {name} (--background)"]


def _behind(image: Any, alpha: Any) -> int:
    """White, or black behind ink that is nearly white itself."""
    weights = np.asarray(alpha, np.float64)
    ink = np.asarray(image.convert("RGBA").convert("RGB").convert("L"), np.float64)
    total = weights.sum()
    faint = total > 0 and ((_WHITE - ink) * weights).sum() / total < _FAINT
    return _BLACK if faint else _WHITE
