"""From an image file to a network's input (with `drawing` the only user of Pillow).

Pillow's own conversions keep the stored order of pixels, cut numbers of 16 bits and of floats off
at 255, and drop transparency. Here a picture of any mode of Pillow is as it is seen (upright, eight
bits a channel, nothing shining through), or refused by its name.

An image of another size than the network's is fitted (`FITS`): stretched, which is the default and
does not keep its proportions; made to fit and framed ("letterbox"); or made to fill and cut
("crop"). Where the network leaves its size open, the image keeps its own.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from leanconv.cli.preprocessing import Normalisation, Preprocessing, ask
from leanconv.errors import InputError, MissingExtraError
from leanconv.files import open_regular
from leanconv.graph.file_kinds import file_kind
from leanconv.records import dataclass
from leanconv.types import FLOAT32
from leanconv.units import shape_text

FITS = ("stretch", "letterbox", "crop")
_FRAME = 114  # gray of a letterbox's frame, as detectors are trained with
_PIXEL_LIMIT = 100_000_000
_FILE_BYTES = 2**30
# Pillow would hand PostScript to Ghostscript, and has decoders that hardly anybody looks at.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "JPEG2000")
_HEAD_BYTES = 4096  # that are looked at to tell what another file is
_MODES = {1: "L", 3: "RGB"}
_Extents = tuple[int | str | None, int | str | None]
_Place = tuple[tuple[int, int], tuple[float, float], tuple[float, float]]
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
class Fitting:
    """Options by which an image of another size becomes one of the network's.

    Attributes:
        fit: one of `FITS`.
        fill: the gray, 0 to 255, of a letterbox's frame.
        multiple: open heights and widths become the nearest multiple of this.
        background: the gray behind transparent parts; None is white, or black behind ink that
            would not be seen on white.
    """

    fit: str = "stretch"
    fill: int = _FRAME
    multiple: int = 1
    background: int | None = None


_AS_IT_IS = Fitting()


@dataclass(frozen=True)
class Picture:
    """An image as a network's input, and its place there.

    Attributes:
        x: of the input's shape and dtype, with batch 1.
        size: height and width of the image, upright.
        scale: the input's pixels for one of the image, down and to the right.
        offset: the place of the image's top left corner in the input, in its pixels; negative where
            it was cut off.
        notes: steps before the image was fitted, as text for a user.
    """

    x: np.ndarray
    size: tuple[int, int]
    scale: tuple[float, float]
    offset: tuple[float, float]
    notes: tuple[str, ...] = ()


def read_image(
    file: str | Path,
    shape: tuple[int | str | None, ...] | None,
    preprocessing: Preprocessing,
    fitting: Fitting = _AS_IT_IS,
    dtype: str = FLOAT32,
) -> Picture:
    """Decode an image and make it a batch of one.

    Args:
        file: PNG, JPEG, BMP, GIF, PPM, TIFF, WEBP or JPEG2000; the first picture of several.
        shape: of the network's input, four extents; height and width may be open (no ints), which
            keeps the image's own.
        preprocessing: layout, order of channels, numbers.
        fitting: for an image of another size.
        dtype: of the network's input. Integers take pixels as they are, if nobody says otherwise.

    Raises:
        InputError: the file is no image, too large, or of a kind that is no light; the network
            takes no images; nobody says how pixels become numbers.
        MissingExtraError: Pillow is not installed.
        OSError: the file cannot be opened.
    """
    channels, extents = image_shape(shape, preprocessing)
    numbers = preprocessing.normalisation
    if numbers is None:
        if np.dtype(dtype).kind not in "iu":
            raise InputError(ask())
        numbers = Normalisation()
    for name, values in (("mean", numbers.mean), ("std", numbers.std)):
        if len(values) not in (1, channels):
            raise InputError(
                f"{name} holds {len(values)} numbers for {channels} channels ({numbers.source}); "
                "expected one, or one for each"
            )
    image = _decode(Path(file), _MODES[channels], fitting)
    pixels, place = _fitted(image.image, extents, fitting)
    if preprocessing.order == "BGR":
        pixels = pixels[:, :, ::-1]
    scaled = pixels.astype(np.float64) * numbers.scale
    scaled = (scaled - np.array(numbers.mean)) / np.array(numbers.std)
    ordered = scaled.transpose(2, 0, 1) if preprocessing.layout == "NCHW" else scaled
    x = _as_dtype(np.ascontiguousarray(ordered[np.newaxis]), np.dtype(dtype), numbers)
    return Picture(x, *place, image.notes)


def upright(file: str | Path, fitting: Fitting = _AS_IT_IS) -> Any:
    """A file's picture in colours as it is seen, of Pillow.

    Raises:
        InputError, MissingExtraError, OSError: as of `read_image`.
    """
    return _decode(Path(file), _MODES[3], fitting).image


def image_shape(
    shape: tuple[int | str | None, ...] | None, preprocessing: Preprocessing
) -> tuple[int, _Extents]:
    """Return the channels, 1 or 3, and the height and width of a network's input.

    Raises:
        InputError: the network takes no images.
    """
    if shape is None or len(shape) != 4:
        raise InputError(
            f"the network takes an input of shape {shape_text(shape)}, which is not an image; "
            "expected NxCxHxW: give arrays as .npy or .npz"
        )
    nchw = preprocessing.layout == "NCHW"
    channels, height, width = shape[1:] if nchw else (shape[3], shape[1], shape[2])
    if not isinstance(channels, int) or channels not in _MODES:
        hint = "; it looks like NHWC: try --layout NHWC" if nchw and shape[3] in _MODES else ""
        raise InputError(
            f"the network takes {channels} channels; expected 1 or 3 for an image{hint}"
        )
    return channels, (height, width)


def _as_dtype(x: np.ndarray, dtype: np.dtype[Any], numbers: Normalisation) -> np.ndarray:
    """Convert to a network's dtype; integers must hold the numbers exactly."""
    if dtype.kind in "iu":
        held = np.iinfo(dtype)
        if (x != np.rint(x)).any() or x.min() < held.min or x.max() > held.max:
            raise InputError(
                f"the network takes {dtype}, and {numbers.formula} ({numbers.source}) gives "
                f"numbers from {x.min():.4g} to {x.max():.4g}; expected integers that {dtype} "
                "holds, such as those of --preset bytes"
            )
    return x.astype(dtype)


def _decode(file: Path, mode: str, fitting: Fitting) -> Seen:
    """Return a file's picture as it is seen, of mode L or RGB."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingExtraError(
            "reading images needs Pillow, which is not installed; install it: pip install pillow"
        ) from error
    try:
        with (
            warnings.catch_warnings(),
            open_regular(file, _FILE_BYTES, what="image", advice="make it smaller") as data,
            Image.open(data, formats=_FORMATS) as image,
        ):
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            if image.width * image.height > _PIXEL_LIMIT:
                raise InputError(
                    f"image {file} has {image.width}x{image.height} pixels; "
                    f"expected at most {_PIXEL_LIMIT:,}: make it smaller first"
                )
            return _seen(file, image, mode, fitting)
    except UnidentifiedImageError as error:
        with open_regular(file) as raw:
            kind = file_kind(raw.read(_HEAD_BYTES))
        raise InputError(
            f"{file} is {kind.what if kind else 'not an image that can be read'}; expected one of "
            f"{', '.join(_FORMATS)}"
        ) from error
    except Image.DecompressionBombError as error:
        raise InputError(f"image {file} is too large ({error}); make it smaller first") from error
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        if isinstance(error, InputError | FileNotFoundError | PermissionError):
            raise
        raise InputError(
            f"image {file} cannot be decoded ({error}); expected a whole one: save it anew"
        ) from error


def _seen(file: Path, image: Any, mode: str, fitting: Fitting) -> Seen:
    """The picture as it is seen, with the file's name in what is refused."""
    try:
        return seen(image, mode, fitting.background)
    except InputError as error:
        raise InputError(f"image {file}: {error}") from error


def _fitted(image: Any, wanted: _Extents, fitting: Fitting) -> tuple[np.ndarray, _Place]:
    """Return pixels, uint8 (height, width, channels), and size, scale and offset of a `Picture`."""
    from PIL import Image

    own = image.height, image.width
    height, width = (
        extent if isinstance(extent, int) else _rounded(have, fitting.multiple)
        for extent, have in zip(wanted, own, strict=True)
    )
    if height * width > _PIXEL_LIMIT:
        raise InputError(
            f"the network would be given {height}x{width} pixels; expected at most "
            f"{_PIXEL_LIMIT:,}: give a smaller --shape"
        )
    inner, top, left, box = (height, width), 0.0, 0.0, (0.0, 0.0, float(own[1]), float(own[0]))
    scale = height / own[0], width / own[1]
    if fitting.fit == "letterbox":
        ratio = min(scale)
        inner = max(1, round(own[0] * ratio)), max(1, round(own[1] * ratio))
        scale = inner[0] / own[0], inner[1] / own[1]
        top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
    elif fitting.fit == "crop":  # what is cut off is not enlarged first
        ratio = max(scale)
        scale = ratio, ratio
        top, left = (
            min(0.0, (extent - have * ratio) / 2)
            for extent, have in zip((height, width), own, strict=True)
        )
        box = (-left / ratio, -top / ratio, own[1] + left / ratio, own[0] + top / ratio)
    if own != inner or fitting.fit == "crop":
        image = image.resize(inner[::-1], Image.Resampling.BILINEAR, box)
    if inner != (height, width):
        framed = Image.new(image.mode, (width, height), (fitting.fill,) * len(image.getbands()))
        framed.paste(image, (int(left), int(top)))
        image = framed
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels.reshape(height, width, -1), (own, scale, (top, left))


def _rounded(extent: int, multiple: int) -> int:
    return max(1, (extent + multiple // 2) // multiple) * multiple


@dataclass(frozen=True)
class Seen:
    """A picture as it is seen.

    Attributes:
        image: Pillow's, of mode L or RGB.
        notes: steps beyond decoding, as text for a user.
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
    image.load()  # while the file is open; a TIFF is rotated by that
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
    """Return whether a file holds several pictures, as frames or pages; no if it is damaged."""
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
    """Gray levels of more than eight bits, the level of white, and a note on it for the user."""
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
